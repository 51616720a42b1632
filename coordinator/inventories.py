"""What tier actors hold after something was lost: what all ranks agree on, and the chains that it forms.

Blocks are told by slot, digest, and digest of the block before them. Whatever is told is believed only if all ranks of
a pool tell the same.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from kvtroupe.coordinator.errors import RequestError
from kvtroupe.coordinator.retention import HIGHEST_PRIORITY

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from kvtroupe.coordinator.messages import Slots


@dataclass(frozen=True, slots=True)
class Inventory:
    """Blocks in slots of one pool; one value for each block in every array.

    Attributes:
        slots: where they are.
        groups: numbers of the groups that they belong to.
        digests: of the blocks.
        parents: digests of the blocks before them in their chains; zero for the first one of a chain.
        priorities: retention priorities.
    """

    slots: Slots
    groups: NDArray[np.int64]
    digests: NDArray[np.void]
    parents: NDArray[np.void]
    priorities: NDArray[np.uint8]

    def __len__(self) -> int:
        """Blocks."""
        return len(self.slots)

    def only(self, chosen: NDArray[np.bool_] | NDArray[np.int64]) -> Inventory:
        """Some of the blocks: those that a mask chooses, or those at some positions, in that order."""
        return Inventory(
            self.slots[chosen],
            self.groups[chosen],
            self.digests[chosen],
            self.parents[chosen],
            self.priorities[chosen],
        )


@dataclass(frozen=True, slots=True)
class Chain:
    """Blocks that follow one another, to be published together.

    Attributes:
        digests: of the whole chain, from its very first block to the last one here.
        start_block: which block of the chain the first one here is; the others before it are in an earlier chain.
        positions: of the blocks in their inventory, in the order of the chain.
    """

    digests: bytes
    start_block: int
    positions: NDArray[np.int64]


def nothing_held(digest_bytes: int) -> Inventory:
    """The inventory of a rank that holds nothing."""
    slots, digests = np.zeros(0, np.int64), np.zeros(0, np.dtype((np.void, digest_bytes)))
    return Inventory(slots, slots, digests, digests, np.zeros(0, np.uint8))


def check_inventory(inventory: Inventory, pool_blocks: int, groups: int, digest_bytes: int) -> None:
    """Refuse an inventory that cannot be one of a pool.

    Args:
        inventory: as told.
        pool_blocks: slots of the pool, the null block included.
        groups: how many groups the replica has.
        digest_bytes: width of a digest.

    Raises:
        RequestError: arrays of unequal length, digests of another width, or slots, groups or priorities out of range.
    """
    count = len(inventory.slots)
    for name in ("groups", "digests", "parents", "priorities"):
        length = len(getattr(inventory, name))
        if length != count:
            raise RequestError(f"an inventory of {count} slots tells {length} {name}: tell one for each")
    for name in ("digests", "parents"):
        width = getattr(inventory, name).dtype.itemsize
        if width != digest_bytes:
            raise RequestError(f"an inventory has {name} of {width} bytes; they have {digest_bytes} in this replica")
    _check_range("slots", inventory.slots, 1, pool_blocks - 1)
    _check_range("groups", inventory.groups, 0, groups - 1)
    _check_range("priorities", inventory.priorities, 0, HIGHEST_PRIORITY)
    told, times = np.unique(inventory.slots, return_counts=True)
    if len(told) < count:
        raise RequestError(f"an inventory tells slots twice: {told.compress(times > 1)[:10].tolist()}")


def _check_range(name: str, values: NDArray[np.int64] | NDArray[np.uint8], lowest: int, highest: int) -> None:
    wrong = (values < lowest) | (values > highest)
    if wrong.any():
        raise RequestError(
            f"an inventory tells {name} {values.compress(wrong)[:10].tolist()}; they are {lowest} to {highest}"
        )


def agreed(inventories: Sequence[Inventory]) -> tuple[Inventory, list[Slots]]:
    """The blocks that every rank tells alike.

    Of several slots with the same block the lowest one counts. Where ranks tell different priorities, the highest
    counts: content is worth at least as much as one of them knows.

    Args:
        inventories: of all ranks of a pool, each checked; at least one.

    Returns:
        the blocks, by slot, and for each rank the slots whose content does not count.
    """
    common = inventories[0].only(np.argsort(inventories[0].slots))
    for other in inventories[1:]:
        _, mine, theirs = np.intersect1d(common.slots, other.slots, assume_unique=True, return_indices=True)
        ours, rest = common.only(mine), other.only(theirs)
        same = ours.groups == rest.groups
        same &= same_digests(ours.digests, rest.digests) & same_digests(ours.parents, rest.parents)
        highest = np.maximum(ours.priorities, rest.priorities)
        common = Inventory(ours.slots, ours.groups, ours.digests, ours.parents, highest).only(same)
    keys = np.column_stack([common.groups.astype(np.int64).view(np.uint8).reshape(-1, 8), _as_bytes(common.digests)])
    _, first = np.unique(keys, axis=0, return_index=True)
    common = common.only(np.sort(first))
    return common, [one.slots.compress(~np.isin(one.slots, common.slots)) for one in inventories]


def chains_of(inventory: Inventory, group: int) -> tuple[list[Chain], Slots]:
    """The chains that blocks of a group form.

    A block is out of reach if one before it in its chain is not there, since nobody knows the digests before that.

    Args:
        inventory: no digest of the group twice.
        group: whose blocks are wanted.

    Returns:
        the chains, which have every block in reach once, a block before those that follow it; and the slots of the
        blocks out of reach.
    """
    mine = (inventory.groups == group).nonzero()[0]
    if not len(mine):
        return [], mine
    blocks = inventory.only(mine)
    parents = _parent_positions(blocks.digests, blocks.parents)
    depths = _depths(parents)
    reached = (depths > 0).nonzero()[0]
    heads = _heads(parents, reached)
    order = reached.take(np.lexsort((depths.take(reached), heads.take(reached))))
    cuts = (np.diff(heads.take(order)) != 0).nonzero()[0] + 1
    parts = [part for part in np.split(order, cuts) if len(part)]
    parts.sort(key=lambda part: int(depths[part[0]]))
    width = blocks.digests.dtype.itemsize
    digests_of_head: dict[int, bytes] = {}
    chains = []
    for part in parts:
        head = int(part[0])
        start = int(depths[head]) - 1
        before = digests_of_head[int(heads[parents[head]])][: start * width] if start else b""
        digests_of_head[head] = digests = before + blocks.digests[part].tobytes()
        chains.append(Chain(digests, start, mine.take(part)))
    return chains, blocks.slots.compress(depths == 0)


def sorted_by_chain(digests: NDArray[np.void], parents: NDArray[np.void]) -> NDArray[np.int64]:
    """An order of blocks, at least one, in which those that follow one another in a chain do so as far as can be.

    Args:
        digests: of the blocks.
        parents: digests of the blocks before them in their chains; zero for the first one of a chain.

    Returns:
        positions of all blocks, each once, whatever their parents are.
    """
    count = len(digests)
    before = np.minimum(_parent_positions(digests, parents), count)  # one that is not there is as good as none
    heads = _heads(before, np.arange(count))
    order: NDArray[np.int64] = np.lexsort((_depths(before), heads))
    return order


def _parent_positions(digests: NDArray[np.void], parents: NDArray[np.void]) -> NDArray[np.int64]:
    """For each block the position of the one before it; that behind the last: none; two behind: it is not there."""
    count = len(digests)
    _, numbers = np.unique(np.concatenate([_as_bytes(digests), _as_bytes(parents)]), axis=0, return_inverse=True)
    numbers = numbers.reshape(-1)
    position_of = np.full(int(numbers.max()) + 1, count + 1, np.int64)
    position_of[numbers[:count]] = np.arange(count)
    positions = position_of.take(numbers[count:])
    positions[~_as_bytes(parents).any(axis=1)] = count
    return positions


def _depths(parents: NDArray[np.int64]) -> NDArray[np.int64]:
    """For each block how many there are from the first of its chain up to it; 0: that is out of reach.

    Each step doubles how far back it is looked, so that even a ring of blocks, which has no first one, ends.
    """
    count = len(parents)
    back = np.concatenate([parents, [count, count + 1]])
    steps = np.concatenate([np.ones(count, np.int64), [0, 0]])
    for _ in range(count.bit_length()):
        steps = steps + steps.take(back)
        back = back.take(back)
    depths: NDArray[np.int64] = np.where(back == count, steps, 0)[:count]
    return depths


def _heads(parents: NDArray[np.int64], reached: NDArray[np.int64]) -> NDArray[np.int64]:
    """For each block in reach the first one of its part: where several follow one block, only one goes on with it."""
    count = len(parents)
    _, goes_on = np.unique(parents.take(reached), return_index=True)
    back = np.arange(count)
    followers = reached.take(goes_on)
    followers = followers.compress(parents.take(followers) < count)
    back[followers] = parents.take(followers)
    for _ in range(count.bit_length()):
        back = back.take(back)
    return back


def _as_bytes(digests: NDArray[np.void]) -> NDArray[np.uint8]:
    return np.frombuffer(digests.tobytes(), np.uint8).reshape(len(digests), digests.dtype.itemsize)


def same_digests(ours: NDArray[np.void], theirs: NDArray[np.void]) -> NDArray[np.bool_]:
    """Where two arrays of digests are equal."""
    same: NDArray[np.bool_] = (_as_bytes(ours) == _as_bytes(theirs)).all(axis=1)
    return same
