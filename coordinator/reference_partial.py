"""The slow, obvious model of hits that end within a block: what fast replicas are compared with in tests.

It is given what is published and says how long a prompt's hit is. Token ids are ints in tuples, a chain is a list of
digests, and every rule is written once, the way it is said.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

CHILDREN_MAX = 8  # that a group offers


@dataclass(frozen=True)
class KnownBlock:
    """A block that some client has told of.

    Attributes:
        digest: of the block.
        parent: digest of the block before it; None: it is the first.
        tokens: of the block.
        extras: canonical bytes.
    """

    digest: bytes
    parent: bytes | None
    tokens: tuple[int, ...]
    extras: bytes


@dataclass(frozen=True)
class PartialPrompt:
    """A prompt to look up.

    Attributes:
        tokens: all of them.
        chain: digests of its whole blocks, as many as are told.
        extras: of each of its blocks, the last one included.
    """

    tokens: tuple[int, ...]
    chain: list[bytes]
    extras: list[bytes]


@dataclass(frozen=True)
class PartialGroup:
    """What is published in a window group.

    Attributes:
        first_token: the first token that is still read once so many are computed.
        device: digests published there.
        anywhere: digests published on any level.
        known: of these blocks the tokens are known.
    """

    first_token: Callable[[int], int]
    device: set[bytes]
    anywhere: set[bytes]
    known: list[KnownBlock]

    def serves(self, chain: list[bytes], blocks: int, block_tokens: int) -> bool:
        """Whether all that is read after some blocks of a chain is there."""
        first = self.first_token(blocks * block_tokens) // block_tokens
        return all(digest in self.anywhere for digest in chain[first:blocks])

    def children(self, parent: bytes | None, wanted: tuple[int, ...], extras: bytes) -> dict[bytes, int]:
        """What the group offers after a block: digest -> common tokens, the most first."""
        offered = [
            (-common(one.tokens, wanted), as_bytes(one.tokens), one.digest)
            for one in self.known
            if one.parent == parent and one.extras == extras and one.digest in self.anywhere
        ]
        nearest = sorted(one for one in offered if one[0])[:CHILDREN_MAX]
        return {digest: -count for count, _, digest in nearest if digest in self.device}


def hit_of(prompt: PartialPrompt, groups: list[PartialGroup], block_tokens: int) -> tuple[int, int]:
    """How much of a prompt is hit: whole blocks, and tokens of the block after them."""
    limit = min(len(prompt.chain), (len(prompt.tokens) - 1) // block_tokens)  # the last token is always computed
    chain = prompt.chain[:limit]
    blocks = max(
        length for length in range(limit + 1) if all(group.serves(chain, length, block_tokens) for group in groups)
    )
    for group in groups:
        there = [position for position, digest in enumerate(chain, 1) if digest in group.anywhere]
        if max(there, default=0) != blocks:
            return blocks, 0  # its path ends elsewhere
    wanted = prompt.tokens[:-1][blocks * block_tokens :][:block_tokens]
    if not wanted:
        return blocks, 0
    parent = chain[blocks - 1] if blocks else None
    offers = [group.children(parent, wanted, prompt.extras[blocks]) for group in groups]
    in_all = set.intersection(*[set(offer) for offer in offers])
    tokens = [min(offer[digest] for offer in offers) for digest in in_all]
    return blocks, min(max(tokens, default=0), block_tokens - 1)


def common(tokens: tuple[int, ...], others: tuple[int, ...]) -> int:
    """How many leading tokens are the same."""
    count = 0
    for one, other in zip(tokens, others, strict=False):
        if one != other:
            break
        count += 1
    return count


def as_bytes(tokens: tuple[int, ...]) -> bytes:
    """Token ids as messages have them; equally good blocks are offered in the order of these."""
    return struct.pack(f"<{len(tokens)}i", *tokens)
