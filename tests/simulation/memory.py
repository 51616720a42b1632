"""Modelled bytes: what every slot of every pool holds on every rank.

The content of a block is the words of its chain before it and those of its own tokens that are written; what a copy has
spoilt, or nobody has written, is nothing that anybody expects.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, TypeAlias

import numpy as np

from kvtroupe.coordinator.ledger import NULL_SLOT
from tests.coordinator.support import BLOCK_TOKENS, last_digest

if TYPE_CHECKING:
    from kvtroupe.coordinator.config import Config
    from kvtroupe.coordinator.state import CoordinatorState
    from tests.coordinator.cluster import TierRows

# Words of the chain before the block, its tokens that are written, and after which reset they were computed.
Content: TypeAlias = tuple[str, tuple[int, ...], int]
Place: TypeAlias = tuple[int, int, int]  # pool, rank, slot

GARBAGE: Content = ("", (-1,), 0)
TOKENS_OF = {"a": (1, 1, 1, 1), "b": (1, 1, 2, 2), "c": (1, 1, 2, 3)}  # words that begin alike
WORD_OF = {tokens: word for word, tokens in TOKENS_OF.items()}


def written(words: str, tokens: int, resets: int) -> Content:
    """What is in the block, or the state, of the last of some computed tokens of a chain; they are at least one."""
    block = (tokens - 1) // BLOCK_TOKENS
    return words[:block], TOKENS_OF[words[block]][: tokens - block * BLOCK_TOKENS], resets


class WrongContent(AssertionError):
    """Somebody has read what was not there, or a published block is not what its digest says."""


class Memory:
    """See the module.

    Args:
        config: of the replica.

    Attributes:
        away: pools and ranks whose memory is lost, before the coordinator has heard of another one.
        epochs: by pool and rank, of the newest tier actor.
    """

    def __init__(self, config: Config) -> None:
        self._ranks = range(config.ranks)
        self.away: set[tuple[int, int]] = set()
        self.epochs: Counter[tuple[int, int]] = Counter()
        self._content: dict[Place, Content] = {}

    def get(self, place: Place) -> Content:
        """What is in a slot."""
        return self._content.get(place, GARBAGE)

    def put(self, place: Place, content: Content) -> None:
        """Write a slot."""
        assert place[2] != NULL_SLOT, "nobody writes the null block"
        self._content[place] = content

    def expect(self, place: Place, content: Content, who: object) -> None:
        """Read a slot; it does not matter after which reset it was computed.

        Raises:
            WrongContent: it holds something else.
        """
        if self.get(place)[:2] != content[:2]:
            raise WrongContent(f"{who} expects {content} in pool, rank, slot {place}, and there is {self.get(place)}")

    def is_there(self, pool: int, rank: int) -> bool:
        """Whether anything can be read or written in a pool on one rank."""
        return (pool, rank) not in self.away

    def is_that_of(self, pool: int, rank: int, tier_epoch: int) -> bool:
        """Whether the memory of a pool on one rank is there, and still that of one tier actor."""
        return self.is_there(pool, rank) and self.epochs[pool, rank] == tier_epoch

    def lose(self, pool: int, rank: int) -> None:
        """The memory of a pool on one rank is gone."""
        self.away.add((pool, rank))
        for place in [one for one in self._content if one[:2] == (pool, rank)]:
            del self._content[place]

    def check_published(self, state: CoordinatorState, resets: int) -> None:
        """On every rank, what is published is what its digest says, and was computed after the last reset that counts.

        Raises:
            WrongContent: it is not.
        """
        for pool, one in enumerate(state.pools):
            for slot in np.flatnonzero(one.ledger.published).tolist():
                digest = one.ledger.digest[slot].tobytes()
                for rank in self._ranks:
                    if self.is_there(pool, rank):
                        self._check((pool, rank, slot), digest, "published", resets)

    def check_told(self, rows: TierRows) -> None:
        """What a tier actor would tell of its slots, were it asked now, is there.

        Raises:
            WrongContent: it is not.
        """
        for slot, (_, digest, _) in rows.rows.items():
            self._check((rows.pool, rows.rank, slot), digest, "told by its tier actor", 0)

    def _check(self, place: Place, digest: bytes, what: str, resets: int) -> None:
        words, tokens, computed = content = self.get(place)
        if tokens not in WORD_OF or last_digest(words + WORD_OF[tokens]) != digest or computed < resets:
            raise WrongContent(f"pool, rank, slot {place} is {what}, and there is {content}")
