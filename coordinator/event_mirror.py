"""A mirror of what a replica has published, made of its block events, for whoever is not the replica.

It counts places. A block that is in two tiers, or twice in one, is held until the last of its places is gone, and only
then does it vanish: see `Changes`.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

from kvtroupe.coordinator.errors import InvariantError
from kvtroupe.coordinator.messages import Cleared, Removed, Snapshot, Stored

if TYPE_CHECKING:
    from kvtroupe.coordinator.messages import BlockFact, Events


@dataclass(frozen=True, slots=True)
class Changes:
    """What a piece of news means to whoever asks only whether a block is held, wherever that is.

    Attributes:
        appeared: group and digest of blocks that were held nowhere before and are held now.
        vanished: of those that were held and are held nowhere now.
    """

    appeared: tuple[tuple[int, bytes], ...] = ()
    vanished: tuple[tuple[int, bytes], ...] = ()


NO_CHANGES = Changes()


class Mirror:
    """See the module.

    It begins without knowing anything. Ask the replica for events since `position` and fold what it answers, again and
    again; or fold events as they are pushed, and ask when `position` is None.

    Args:
        digest_bytes: width of a digest.

    Attributes:
        position: epoch and number of the last fact folded; None: facts are missing, and it takes a snapshot to go on.
            What the mirror knows until then is what was true before.
    """

    def __init__(self, digest_bytes: int) -> None:
        self.position: tuple[int, int] | None = None
        self._width = digest_bytes
        self._epoch = -1  # the newest heard of
        self._places: dict[tuple[int, str], Counter[bytes]] = {}
        self._held: dict[int, Counter[bytes]] = {}  # the same in all media together
        self._before: dict[tuple[int, bytes], bool] = {}  # of blocks that the news is about: whether they were held

    # -- news ----------------------------------------------------------------------------------------------------------

    def fold(self, news: Events | Snapshot) -> Changes:
        """Take in what has happened.

        What is known already, or is of a coordinator that was followed by another one, changes nothing. After facts
        that are missing, or with those of a new coordinator, nothing is taken in but a snapshot.

        Raises:
            InvariantError: a place is removed that was never stored: the facts do not fit together.
        """
        if news.epoch < self._epoch:
            return NO_CHANGES
        if isinstance(news, Snapshot):
            if self.position is not None and (news.epoch, news.number) < self.position:
                return NO_CHANGES
            facts: tuple[BlockFact, ...] = (Cleared(), *news.stored)
            number = news.number
        else:
            known = self.position[1] if self.position is not None and news.epoch == self._epoch else None
            if known is None or news.after > known:
                self._epoch, self.position = news.epoch, None
                return NO_CHANGES
            facts = news.facts[known - news.after :]
            number = known + len(facts)
        for fact in facts:
            self._apply(fact)
        self._epoch, self.position = news.epoch, (news.epoch, number)
        return self._changes()

    def _apply(self, fact: BlockFact) -> None:
        if isinstance(fact, Stored):
            for digest in self._split(fact.digests):
                self._count(fact.group, fact.medium, digest, 1)
        elif isinstance(fact, Removed):
            for digest in self._split(fact.digests):
                self._count(fact.group, fact.medium, digest, -1)
        else:
            for (group, medium), places in self._places.items():
                if fact.group in (None, group) and fact.medium in (None, medium):
                    for digest, count in list(places.items()):
                        self._count(group, medium, digest, -count)

    def _count(self, group: int, medium: str, digest: bytes, places: int) -> None:
        """A block is in so many places more."""
        in_medium = self._places.setdefault((group, medium), Counter())
        in_all = self._held.setdefault(group, Counter())
        if in_medium[digest] + places < 0:
            raise InvariantError(f"block {digest.hex()} of group {group} is removed from {medium}, where it is not")
        self._before.setdefault((group, digest), digest in in_all)
        for counts in (in_medium, in_all):
            counts[digest] += places
            if not counts[digest]:
                del counts[digest]

    def _changes(self) -> Changes:
        now = {(group, digest): digest in self._held[group] for group, digest in self._before}
        appeared = tuple([block for block, was_held in self._before.items() if now[block] and not was_held])
        vanished = tuple([block for block, was_held in self._before.items() if was_held and not now[block]])
        self._before.clear()
        return Changes(appeared, vanished)

    def _split(self, digests: bytes) -> list[bytes]:
        return [digests[at : at + self._width] for at in range(0, len(digests), self._width)]

    # -- what is there -------------------------------------------------------------------------------------------------

    def places(self, group: int, digest: bytes) -> dict[str, int]:
        """In how many places of which media a block is."""
        return {
            medium: counts[digest]
            for (its_group, medium), counts in self._places.items()
            if its_group == group and digest in counts
        }

    def prefix_blocks(self, group: int, digests: bytes, medium: str | None = None) -> int:
        """How many blocks of a chain are held, from the first on, up to the first that is not.

        Args:
            group: number of the group.
            digests: of its blocks, one after the other.
            medium: that holds them; None: any.
        """
        held = self._held.get(group) if medium is None else self._places.get((group, medium))
        blocks = self._split(digests)
        return next((count for count, digest in enumerate(blocks) if not held or digest not in held), len(blocks))

    def counts(self) -> dict[tuple[int, str, bytes], int]:
        """All places: (group, medium, digest) -> how many."""
        return {
            (group, medium, digest): count
            for (group, medium), counts in self._places.items()
            for digest, count in counts.items()
        }
