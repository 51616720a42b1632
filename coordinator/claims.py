"""Claims: what a request hits gets a holder in every group before anything is allocated.

A claim leaves no trace when it is undone.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import inf
from typing import TYPE_CHECKING, ClassVar, TypeAlias

import numpy as np

from kvtroupe.coordinator.agreement import agree
from kvtroupe.coordinator.bands import Shape, Span
from kvtroupe.coordinator.errors import InvariantError
from kvtroupe.coordinator.ledger import Holder, Ledger
from kvtroupe.coordinator.messages import NO_SLOTS
from kvtroupe.coordinator.session_messages import LOCAL_SESSION

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from kvtroupe.coordinator.bands import Layout
    from kvtroupe.coordinator.extensions import Extension
    from kvtroupe.coordinator.messages import (
        Evidence,
        Generations,
        LookupRequest,
        MoveRequest,
        NewSequence,
        PinRequest,
        Prompt,
        Slots,
    )

Stale: TypeAlias = dict[tuple[int, int], dict[int, int]]  # (group, level) -> slot -> generation

NO_SHAPE = Shape(0)
NO_WAIT = -inf


@dataclass(frozen=True, slots=True)
class Pool:
    """A pool and the groups that draw from it.

    Attributes:
        name: of the configuration.
        ledger: its slots.
        groups: numbers of its groups.
        reserved_blocks: free slots that only running sequences may take.
    """

    name: str
    ledger: Ledger
    groups: tuple[int, ...]
    reserved_blocks: int


@dataclass(slots=True)
class Ask:
    """A request that waits for a round: it looks a chain up, claims what it hits, and may need new blocks.

    Attributes:
        request: what is asked for.
        request_id: of the client's message.
        position: which of the message's requests this is.
        prompts: for each scale the chain to look up.
        limit_units: the longest hit that is wanted.
        units: room for the prompt and spare room together; for a pin none.
        shape: of the tables.
        session: of the client.
        arrival: its place among those who wait for room.
        waits_until_s: when it is refused if there is no room for it before.
        is_cancelled: nobody wants it any more.
    """

    request: NewSequence | PinRequest | LookupRequest | MoveRequest
    request_id: int
    position: int
    prompts: tuple[Prompt, ...]
    limit_units: int
    units: int
    shape: Shape = NO_SHAPE
    session: int = LOCAL_SESSION
    arrival: int = 0
    waits_until_s: float = NO_WAIT
    is_cancelled: bool = False
    count: ClassVar[int] = 1

    def reserved_in(self, pool: Pool) -> int:
        """Free slots of a pool that this request must leave alone."""
        return pool.reserved_blocks


@dataclass(frozen=True, slots=True)
class Lift:
    """Blocks of a hit that are below the device only, in one pool.

    Attributes:
        device: number of the device pool that they belong in.
        pool: number of the pool that they are in.
        positions: theirs among the slots of the claim in the device pool; these slots are 0 until some are taken.
        sources: slots in the pool that they are in, claimed for the copy.
    """

    device: int
    pool: int
    positions: NDArray[np.int64]
    sources: Slots


@dataclass(slots=True)
class Claim:
    """What a request hits, claimed in all groups.

    Attributes:
        hit_tokens: agreed length.
        junction_tokens: what the first group that takes part serves beyond it.
        cross_hit: whether the encoder's blocks are hit.
        spans: for each group the first block that the hit reads, and the one after the last.
        slots: for each pool what is claimed, group after group.
        lifts: what has to be copied up before it can be read.
        is_lifted: whether it is copied up if the request is granted; a pin keeps it where it is.
        extension: what is hit of the next block, if anything; `Extender` claims it.
    """

    hit_tokens: int
    junction_tokens: int
    cross_hit: bool
    spans: tuple[Span, ...]
    slots: tuple[Slots, ...]
    lifts: tuple[Lift, ...] = ()
    is_lifted: bool = False
    extension: Extension | None = None

    def lifted_to(self, device: int) -> int:
        """How many slots of a device pool its lifts need."""
        return sum([len(lift.sources) for lift in self.lifts if lift.device == device]) if self.is_lifted else 0

    def hits(self, number: int, groups: Sequence[int]) -> dict[int, Slots]:
        """What is claimed in a pool, by group.

        Args:
            number: of the pool.
            groups: of the pool.
        """
        hits = {}
        at = 0
        for group in groups:
            first, end = self.spans[group]
            hits[group] = self.slots[number][at : at + end - first]
            at += end - first
        return hits


class Claimer:
    """Claims over the pools of a replica.

    Args:
        pools: of the replica.
        layout: of its tables.
    """

    def __init__(self, pools: Sequence[Pool], layout: Layout) -> None:
        self._pools = pools
        self._layout = layout
        self._rules = [layout.rules[group] for group in layout.participating]
        self._strides = [layout.strides[group] for group in layout.participating]
        self._cross = [group for group in layout.indexed if group not in layout.participating]
        self._no_spans: tuple[Span, ...] = ((0, 0),) * len(layout.rules)
        self._no_slots = (NO_SLOTS,) * len(pools)

    def claim(self, ask: Ask, evidence: Sequence[Evidence | None], stale: Stale) -> Claim | None:
        """Claim the longest prefix that all groups serve, and the encoder's blocks if all of them are there.

        Args:
            ask: who claims.
            evidence: of every group; None: it did not answer.
            stale: gets the places that have changed hands.

        Returns:
            the claim; None where it has to wait for the next round. Without pools below the device, none has to.
        """
        claim = self._look(ask, evidence, stale)
        self._hold(claim.slots)
        return claim

    def look(self, ask: Ask, evidence: Sequence[Evidence | None], stale: Stale) -> Claim:
        """What `claim` would claim for who needs no room; nothing is claimed."""
        return self._look(ask, evidence, stale)

    def undo(self, claim: Claim) -> None:
        """Take a claim back: no trace of it is left."""
        self._undo(claim.slots)

    def redo(self, claim: Claim) -> None:
        """Claim again what has just been undone."""
        self._hold(claim.slots)

    def _look(self, ask: Ask, evidence: Sequence[Evidence | None], stale: Stale) -> Claim:
        """What of a prefix is on the device, in all groups.

        A block that has changed hands since the group answered is as good as never named: the lengths are judged again
        without it.
        """
        present = [0 if found is None else found.present for found in evidence]
        while True:
            agreement = agree(
                [present[group] for group in self._layout.participating], self._rules, self._strides, ask.limit_units
            )
            hit_tokens = agreement.units * self._layout.unit_tokens
            junction_tokens = agreement.junction_units * self._layout.unit_tokens
            cross_hit = self._hits_encoder(ask, present)
            if not hit_tokens and not cross_hit:
                return Claim(0, junction_tokens, cross_hit, self._no_spans, self._no_slots)
            spans = self._spans(agreement.units, ask, cross_hit=cross_hit)
            read: list[Slots] = []
            for pool in self._pools:
                slots, generations = _read_by_hit(evidence, pool.groups, spans)
                good = pool.ledger.fitting(slots, generations)
                if good < len(slots):
                    break
                read.append(slots)
            else:
                return Claim(hit_tokens, junction_tokens, cross_hit, spans, tuple(read))
            group, block = _locate(good, pool.groups, spans)
            present[group] &= ~(1 << block)
            stale.setdefault((group, 0), {})[int(slots[good])] = int(generations[good])

    def _hold(self, claimed: Sequence[Slots]) -> None:
        for pool, slots in zip(self._pools, claimed, strict=True):
            if len(slots):
                pool.ledger.hold(slots, Holder.SEQUENCE)

    def _undo(self, claimed: Sequence[Slots]) -> None:
        for pool, slots in zip(self._pools, claimed, strict=True):
            pool.ledger.undo_claim(slots, Holder.SEQUENCE)

    def _hits_encoder(self, ask: Ask, present: Sequence[int]) -> bool:
        """Whether every block of the encoder input is published in every cross group."""
        if not self._cross or not ask.prompts[-1].limit_blocks:
            return False
        whole = (1 << ask.prompts[-1].limit_blocks) - 1
        return all(present[group] == whole for group in self._cross)

    def _spans(self, units: int, ask: Ask, *, cross_hit: bool) -> tuple[Span, ...]:
        spans = self._layout.spans(units)
        if cross_hit:
            encoder = (0, ask.prompts[-1].limit_blocks)
            spans = tuple([encoder if group in self._cross else span for group, span in enumerate(spans)])
        return spans


def _read_by_hit(
    evidence: Sequence[Evidence | None], groups: Sequence[int], spans: Sequence[Span]
) -> tuple[Slots, Generations]:
    """What a hit reads of the groups of a pool, group after group: slots and generations."""
    slots, generations = [], []
    for group in groups:
        found = evidence[group]
        if found is not None:
            first, end = spans[group]
            slots.append(found.slots[first:end])
            generations.append(found.generations[first:end])
    if len(slots) == 1:
        return slots[0], generations[0]
    return (np.concatenate(slots), np.concatenate(generations)) if slots else (NO_SLOTS, NO_SLOTS)


def _locate(position: int, groups: Sequence[int], spans: Sequence[Span]) -> tuple[int, int]:
    """Group and block of a position in what `_read_by_hit` returns."""
    for group in groups:
        first, end = spans[group]
        if position < end - first:
            return group, first + position
        position -= end - first
    raise InvariantError(f"position {position} lies beyond what a hit reads: {spans}")
