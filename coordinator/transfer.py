"""One transfer: the copies that it carries, who has to answer, and what has failed. `transfers` holds all of them."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple, TypeVar

import numpy as np

from kvtroupe.coordinator.actor_messages import Copies
from kvtroupe.coordinator.errors import InvariantError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from kvtroupe.coordinator.actor_messages import CopyReply, Slots

Scalar = TypeVar("Scalar", bound=np.generic)


@dataclass(frozen=True, slots=True)
class Finished:
    """A transfer that every rank has answered.

    Attributes:
        transfer_id: of the transfer.
        copies: what it was to copy.
        failed: mask over the copies: those whose destinations hold nothing of use on some rank; None: all went well.
    """

    transfer_id: int
    copies: Copies
    failed: NDArray[np.bool_] | None


class Kind(NamedTuple):
    """What copies have to have in common to share a transfer.

    Attributes:
        source_pool: of the copies.
        destination_pool: of the copies.
        details: which of the optional arrays they have.
        urgent: whether somebody waits for them.
        held: whether they wait for another engine; those that need not are not made to.
    """

    source_pool: int
    destination_pool: int
    details: tuple[bool, ...]
    urgent: bool
    held: bool


@dataclass(frozen=True, slots=True)
class Part:
    """Copies that came to a transfer together.

    Attributes:
        copies: what to copy.
        writers: for each copy the id of the open transfer that last wrote its source, or 0 where there was none.
            None: there was none for any of them.
    """

    copies: Copies
    writers: NDArray[np.int64] | None

    def writer_ids(self) -> set[int]:
        """Ids of all these writers."""
        return set() if self.writers is None else set(self.writers.tolist()) - {0}

    def compress(self, mask: NDArray[np.bool_]) -> Part:
        """Only some of the copies."""
        chosen = Copies(
            self.copies.source_pool,
            self.copies.sources.compress(mask),
            self.copies.destination_pool,
            self.copies.destinations.compress(mask),
            _compress(self.copies.tokens, mask),
            _compress(self.copies.groups, mask),
            _compress(self.copies.digests, mask),
            _compress(self.copies.parents, mask),
        )
        return Part(chosen, _compress(self.writers, mask))


@dataclass(slots=True, eq=False)
class Transfer:
    """An open transfer. Only `Transfers` changes it.

    Attributes:
        transfer_id: its number; of two transfers with conflicting copies, the copies of the lower one come first.
        engine: number of the pool whose tier actors copy.
        deadline_s: from then on it has failed for those who wait for it.
        urgent: whether somebody waited for its copies when they were begun.
        held: whether it had to wait for another engine when it was made.
        content_epoch: that the content is of.
        source_epochs: for each rank that of the tier actor that has the source pool.
        destination_epochs: the same of the destination pool.
        missing: ranks that have not answered.
        sent: whether the ranks were asked.
        overdue: whether it was told that the deadline has passed.
        parts: its copies.
        before: open transfers that it conflicts with, as far as they may keep it from being sent.
        unknown: open transfers that were the last to write something that it reads.
        readers: transfers of which it is one that `unknown` names.
        failures: positions of copies that have failed, in any order.
    """

    transfer_id: int
    engine: int
    deadline_s: float
    urgent: bool
    held: bool
    content_epoch: int
    source_epochs: tuple[int, ...]
    destination_epochs: tuple[int, ...]
    missing: set[int]
    sent: bool = False
    overdue: bool = False
    parts: list[Part] = field(default_factory=list)
    before: set[int] = field(default_factory=set)
    unknown: set[int] = field(default_factory=set)
    readers: set[int] = field(default_factory=set)
    failures: list[NDArray[np.int64]] = field(default_factory=list)

    @property
    def copies(self) -> Copies:
        """All that it carries."""
        return self._whole().copies

    @property
    def blocks(self) -> int:
        """How many copies these are."""
        return sum(len(part.copies.sources) for part in self.parts)

    def failed(self) -> NDArray[np.bool_] | None:
        """Which of the copies have failed so far; None: none."""
        if not any(map(len, self.failures)):
            return None
        mask = np.zeros(self.blocks, np.bool_)
        mask[np.concatenate(self.failures)] = True
        return mask

    def fail_what_it_read(self, writer: int, slots: Slots) -> None:
        """Another transfer failed to write slots: so did the copies here that read what it was to write there."""
        whole = self._whole()
        self.failures.append(((whole.writers == writer) & np.isin(whole.copies.sources, slots)).nonzero()[0])

    def check_reply(self, reply: CopyReply) -> None:
        """Refuse what cannot be an answer to it.

        Raises:
            InvariantError: it is of another engine, was not asked for, or names copies that are not there.
        """
        name = f"transfer {reply.transfer_id}"
        if reply.engine != self.engine:
            raise InvariantError(f"engine {reply.engine} answers {name}, which is of engine {self.engine}")
        if not self.sent:
            raise InvariantError(f"engine {reply.engine} answers {name}, which it was not sent")
        wrong = [position for position in reply.failed if not 0 <= position < self.blocks]
        if wrong:
            raise InvariantError(f"copies {wrong} of {name} are said to have failed; it has {self.blocks}")

    def _whole(self) -> Part:
        if len(self.parts) > 1:
            self.parts = [_joined(self.parts)]
        return self.parts[0]


def _joined(parts: list[Part]) -> Part:
    """One part of several that have the same optional arrays."""
    copies = [part.copies for part in parts]
    joined = Copies(
        copies[0].source_pool,
        np.concatenate([each.sources for each in copies]),
        copies[0].destination_pool,
        np.concatenate([each.destinations for each in copies]),
        _concatenate([each.tokens for each in copies]),
        _concatenate([each.groups for each in copies]),
        _concatenate([each.digests for each in copies]),
        _concatenate([each.parents for each in copies]),
    )
    if all(part.writers is None for part in parts):
        return Part(joined, None)
    nobody = (np.zeros(len(each.sources), np.int64) for each in copies)
    writers = [zeros if part.writers is None else part.writers for part, zeros in zip(parts, nobody, strict=True)]
    return Part(joined, np.concatenate(writers))


def _concatenate(arrays: list[NDArray[Scalar] | None]) -> NDArray[Scalar] | None:
    """All of them, which are there for every part or for none."""
    there = [values for values in arrays if values is not None]
    return np.concatenate(there) if there else None


def _compress(values: NDArray[Scalar] | None, mask: NDArray[np.bool_]) -> NDArray[Scalar] | None:
    return None if values is None else values.compress(mask)


def kind_of(copies: Copies, *, urgent: bool, held: bool) -> Kind:
    """The kind of some copies."""
    details = tuple([one is None for one in (copies.tokens, copies.groups, copies.digests, copies.parents)])
    return Kind(copies.source_pool, copies.destination_pool, details, urgent, held)


def runs_without_conflict(copies: Copies) -> Iterator[Copies]:
    """The copies in order, cut where one conflicts with another one since the last cut."""
    cuts = [0]
    read: set[int] = set()
    written: set[int] = set()
    within = copies.source_pool == copies.destination_pool
    pairs = zip(copies.sources.tolist(), copies.destinations.tolist(), strict=True)
    for position, (source, destination) in enumerate(pairs):
        if destination in written or (within and (destination in read or source in written)):
            cuts.append(position)
            read.clear()
            written.clear()
        read.add(source)
        written.add(destination)
    for start, end in pairwise([*cuts, len(copies.sources)]):
        chosen = np.zeros(len(copies.sources), np.bool_)
        chosen[start:end] = True
        yield Part(copies, None).compress(chosen).copies


def check_slots(slots: Slots, pool_slots: int) -> None:
    """Refuse to copy from or to what is no slot of a pool, or its null block.

    Raises:
        InvariantError: it is.
    """
    if len(slots) and not 0 < int(slots.min()) <= int(slots.max()) < pool_slots:
        wrong = slots[(slots <= 0) | (slots >= pool_slots)]
        raise InvariantError(f"slots to be copied are not from 1 to {pool_slots - 1}: {wrong.tolist()}")
