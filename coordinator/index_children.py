"""Tokens of the blocks of an index, so that those can be found that share only their first tokens with a prompt.

They lie beside the index, which knows digests only, and cost nothing where no tokens are sent. Blocks that follow the
same block with the same extras are siblings, kept in the order of their tokens: those that share the most leading
tokens with some other block are next to where that one would stand, however many there are.

Whether a sibling is still there is for the index to say. One that is gone is forgotten when a search meets it; when
half of all may be gone, all are looked through.
"""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass, replace
from itertools import chain
from typing import TYPE_CHECKING

from kvtroupe.coordinator.messages import Child, Evidence
from kvtroupe.coordinator.prefix_index import DEVICE

if TYPE_CHECKING:
    from collections.abc import Iterator

    from kvtroupe.coordinator.index_levels import PlaceMap
    from kvtroupe.coordinator.messages import Prompt, PublishRequest
    from kvtroupe.coordinator.prefix_index import PrefixIndex, Run

CHILDREN_MAX = 8  # of one answer
GONE_SLACK = 64  # blocks that may be gone before anybody looks
TOKEN_BYTES = 4


@dataclass(frozen=True, slots=True)
class _Spot:
    """A block of a run."""

    run: Run
    block: int


class Children:
    """See the module.

    Args:
        index: whose blocks these are.
    """

    def __init__(self, index: PrefixIndex) -> None:
        self._index = index
        self._first_parent = bytes(index.digest_bytes)
        # Digest of the block before, then extras -> tokens and digest of each block, as one bytes, in order.
        self._siblings: dict[bytes, list[bytes]] = {}
        self._count = 0

    def __len__(self) -> int:
        """Blocks whose tokens are kept; some of them may be gone."""
        return self._count

    # -- what is known -------------------------------------------------------------------------------------------------

    def note(self, request: PublishRequest) -> None:
        """Keep the tokens of the blocks that a publication brings, as far as it has them."""
        content = request.content
        assert content is not None, "only publications with tokens are noted"
        width = self._index.digest_bytes
        block_bytes = content.block_tokens * TOKEN_BYTES
        known = len(content.token_ids) // block_bytes
        for block in request.slots[:known].nonzero()[0].tolist():
            at = (request.start_block + block) * width
            parent = request.digests[at - width : at] if at else self._first_parent
            family = parent + content.extras[block] if content.extras else parent
            tokens = content.token_ids[block * block_bytes : (block + 1) * block_bytes]
            self._add(family, tokens + request.digests[at : at + width])
        if self._count > 2 * self._places() + GONE_SLACK:
            self._forget_gone()

    def _add(self, family: bytes, key: bytes) -> None:
        siblings = self._siblings.setdefault(family, [])
        place = bisect_left(siblings, key)
        if place == len(siblings) or siblings[place] != key:
            siblings.insert(place, key)
            self._count += 1

    def _places(self) -> int:
        """How many places the index knows; at least as many as it knows blocks."""
        further = self._index.further
        return self._index.size + sum([one.count for one in (*further.below.values(), *further.arriving.values())])

    def _forget_gone(self) -> None:
        index, width = self._index, self._index.digest_bytes
        there = {digest for digest, _, _ in index.entries()}
        for level in range(len(index.slots_of_levels)):
            there.update(digest for digest, _, _ in index.entries_below(level))
            there.update(digest for digest, _, _ in index.arriving(level))
        kept = {family: [key for key in keys if key[-width:] in there] for family, keys in self._siblings.items()}
        self._siblings = {family: keys for family, keys in kept.items() if keys}
        self._count = sum(map(len, self._siblings.values()))

    # -- search --------------------------------------------------------------------------------------------------------

    def match(self, prompt: Prompt) -> Evidence:
        """What is there of a chain, up to the last block that is published, and the children there.

        Args:
            prompt: with content.
        """
        found = self._index.match(prompt.digests, prompt.limit_blocks)
        present = found.present
        for places in found.lower:
            present |= places.present
        end = present.bit_length()
        lower = tuple([replace(one, slots=one.slots[:end], generations=one.generations[:end]) for one in found.lower])
        children = self._at(prompt, end)
        return Evidence(found.present, found.slots[:end], found.generations[:end], end, lower, children)

    def _at(self, prompt: Prompt, end: int) -> tuple[Child, ...]:
        """The children after the first `end` blocks of a chain, the last of which is published."""
        content, width = prompt.content, self._index.digest_bytes
        assert content is not None, "only prompts with tokens are matched here"
        block_bytes = content.block_tokens * TOKEN_BYTES
        wanted = content.token_ids[end * block_bytes : (end + 1) * block_bytes]
        parent = prompt.digests[(end - 1) * width : end * width] if end else self._first_parent
        family = parent + content.extras[end] if content.extras and wanted else parent
        siblings = self._siblings.get(family)
        if not siblings or not wanted:
            return ()
        path, _ = self._index.walk(prompt.digests, end)
        last = _Spot(*path[-1]) if path else _Spot(self._index.root, 0)
        found: list[Child] = []
        gone: list[bytes] = []
        for common_tokens, key in _nearest(siblings, wanted):
            spot = self._spot(last, key[-width:])
            child = None if spot is None else self._child(spot, common_tokens, key[-width:])
            if child is not None:
                found.append(child)
                if len(found) == CHILDREN_MAX:
                    break
            elif spot is None or not _is_in(self._index.further.arriving, spot):
                gone.append(key)
        self._forget(family, gone)
        return tuple(found)

    def _forget(self, family: bytes, gone: list[bytes]) -> None:
        siblings = self._siblings[family]
        for key in gone:
            del siblings[bisect_left(siblings, key)]
        self._count -= len(gone)
        if not siblings:
            del self._siblings[family]

    def _spot(self, last: _Spot, digest: bytes) -> _Spot | None:
        """Where a block of this digest is that follows the first `last.block` blocks of a run."""
        run, block, width = last.run, last.block, self._index.digest_bytes
        if run.digests.startswith(digest, block * width):
            return _Spot(run, block)
        branch = run.branches.get(block, {}).get(digest)
        return None if branch is None else _Spot(branch, 0)

    def _child(self, spot: _Spot, common_tokens: int, digest: bytes) -> Child | None:
        """The child that a block is; None where it is not published."""
        run, block = spot.run, spot.block
        if self._index.published(DEVICE, run)[block]:
            level, slots, generations = DEVICE, run.slots, run.generations
        else:
            for level, places in self._index.further.below.items():  # noqa: B007 - the level that is found counts
                held = places.of(run)
                if held is not None and places.there(run)[block]:
                    slots, generations = held.slots, held.generations
                    break
            else:
                return None
        return Child(common_tokens, digest, level, slots.item(block), generations.item(block), self._is_leaf(spot))

    def _is_leaf(self, spot: _Spot) -> bool:
        """Whether nothing published follows a block."""
        run, after = spot.run, spot.block + 1
        for level in (DEVICE, *self._index.further.below):
            if self._index.published(level, run)[after:].any():
                return False
        return not any(
            self._has_published(branch)
            for offset, branches in run.branches.items()
            if offset >= after
            for branch in branches.values()
        )

    def _has_published(self, run: Run) -> bool:
        further = run.further or {}
        return (
            bool(self._index.live[run.number])
            or any(places in further for places in self._index.further.below.values())
            or any(self._has_published(one) for branches in run.branches.values() for one in branches.values())
        )


def _is_in(maps: dict[int, PlaceMap], spot: _Spot) -> bool:
    return any(places.there(spot.run)[spot.block] for places in maps.values())


def _nearest(siblings: list[bytes], wanted: bytes) -> Iterator[tuple[int, bytes]]:
    """Keys that share leading tokens with `wanted`, and how many: most first; of equally many, in their order."""
    low = high = bisect_left(siblings, wanted)
    after_all = b"\xff" * len(siblings[0])
    for common_tokens in range(len(wanted) // TOKEN_BYTES, 0, -1):
        shared = wanted[: common_tokens * TOKEN_BYTES]
        first = bisect_left(siblings, shared, 0, low)
        end = bisect_left(siblings, shared + after_all, high)
        for place in chain(range(first, low), range(high, end)):
            yield common_tokens, siblings[place]
        low, high = first, end
