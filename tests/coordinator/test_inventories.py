"""Inventories: what ranks agree on, and the chains that blocks form."""

from __future__ import annotations

import random
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest

from kvtroupe.coordinator.errors import RequestError
from kvtroupe.coordinator.inventories import (
    Inventory,
    agreed,
    chains_of,
    check_inventory,
    nothing_held,
    sorted_by_chain,
)
from tests.coordinator.support import DIGEST_BYTES, as_digests, chain, listed, slots, split

NONE = bytes(DIGEST_BYTES)


def make(*blocks: tuple[int, int, str], priority: int = 35) -> Inventory:
    """Blocks as slot, group, and the words of the chain that ends with the block."""
    digests = [split(chain(words)) for _, _, words in blocks]
    return Inventory(
        slots(*(slot for slot, _, _ in blocks)),
        slots(*(group for _, group, _ in blocks)),
        as_digests(b"".join(one[-1] for one in digests)),
        as_digests(b"".join(one[-2] if len(one) > 1 else NONE for one in digests)),
        np.full(len(blocks), priority, np.uint8),
    )


# -- what ranks agree on -----------------------------------------------------------------------------------------------


def test_only_what_all_ranks_tell_alike_counts() -> None:
    """Slot 2 holds another block on the second rank, slot 3 another group's, slot 4 is told by the first one only."""
    first = make((4, 0, "abcd"), (1, 0, "a"), (2, 0, "ab"), (3, 0, "abc"))
    second = make((1, 0, "a"), (2, 0, "ax"), (3, 1, "abc"), (5, 0, "z"))

    common, disputed = agreed([first, second])

    assert listed(common.slots) == [1]
    assert [sorted(listed(one)) for one in disputed] == [[2, 3, 4], [2, 3, 5]]


def test_the_block_before_has_to_be_the_same() -> None:
    """A digest stands for its chain, so one of the two is wrong."""
    first = make((1, 0, "ab"))
    second = replace(first, parents=as_digests(NONE))

    common, disputed = agreed([first, second])

    assert len(common) == 0
    assert [listed(one) for one in disputed] == [[1], [1]]


def test_of_two_slots_with_the_same_block_the_lower_one_counts() -> None:
    """The same digest in two groups is two blocks."""
    one = make((7, 0, "a"), (3, 0, "a"), (5, 1, "a"))

    common, disputed = agreed([one])

    assert listed(common.slots) == [3, 5]
    assert [listed(other) for other in disputed] == [[7]]


def test_the_highest_priority_counts() -> None:
    """One rank has heard of 80, the other one of 20."""
    common, _ = agreed([make((1, 0, "a"), priority=20), make((1, 0, "a"), priority=80)])

    assert common.priorities.tolist() == [80]


def test_a_rank_that_holds_nothing_leaves_nothing() -> None:
    """What the others hold is disputed."""
    common, disputed = agreed([make((1, 0, "a")), nothing_held(DIGEST_BYTES)])

    assert len(common) == 0
    assert [listed(one) for one in disputed] == [[1], []]


# -- chains ------------------------------------------------------------------------------------------------------------


def test_a_tree_becomes_chains_that_share_their_beginning() -> None:
    """ab, abc and abd: the second chain begins where the first one has branched off."""
    inventory = make((9, 0, "abd"), (4, 0, "ab"), (1, 0, "abc"), (2, 0, "a"), (3, 1, "a"))

    chains, unreachable = chains_of(inventory, 0)

    assert listed(unreachable) == []
    assert [one.start_block for one in chains] == [0, 2]
    assert {one.digests for one in chains} == {chain("abc"), chain("abd")}
    assert listed(inventory.slots[chains[0].positions])[:2] == [2, 4]
    assert sum(len(one.positions) for one in chains) == 4


def test_what_follows_a_missing_block_is_out_of_reach() -> None:
    """The second block is not there: those after it are no good."""
    inventory = make((1, 0, "a"), (2, 0, "abc"), (3, 0, "abcd"))

    chains, unreachable = chains_of(inventory, 0)

    assert [one.digests for one in chains] == [chain("a")]
    assert sorted(listed(unreachable)) == [2, 3]


def test_a_ring_of_blocks_is_out_of_reach() -> None:
    """Rows that somebody has spoilt: each of three blocks is said to follow another."""
    digests = as_digests(chain("abc"))
    ring = Inventory(slots(1, 2, 3), slots(0, 0, 0), digests, np.roll(digests, 1), np.zeros(3, np.uint8))

    chains, unreachable = chains_of(ring, 0)

    assert chains == []
    assert sorted(listed(unreachable)) == [1, 2, 3]


def test_a_group_without_blocks_has_no_chains() -> None:
    """Nor is anything out of reach."""
    chains, unreachable = chains_of(make((1, 0, "a")), 5)

    assert chains == []
    assert len(unreachable) == 0


@pytest.mark.parametrize("seed", range(40))
def test_chains_are_the_paths_of_the_tree(seed: int) -> None:
    """Any set of blocks, in any order: what is in reach is in one chain, at its place, after its parent."""
    chance = random.Random(seed)  # noqa: S311 - chooses test cases
    words = {"".join(chance.choice("ab") for _ in range(chance.randint(1, 7))) for _ in range(chance.randint(1, 60))}
    there = {word[:end] for word in words for end in range(1, len(word) + 1) if chance.random() < 0.97}
    in_order = chance.sample(sorted(there), len(there))
    inventory = make(*[(slot, 2, word) for slot, word in enumerate(in_order, 1)])

    chains, unreachable = chains_of(inventory, 2)

    reachable = {word for word in there if all(word[:end] in there for end in range(1, len(word) + 1))}
    found: list[str] = []
    for one in chains:
        found_here = [in_order[position] for position in one.positions.tolist()]
        assert [len(word) for word in found_here] == list(range(one.start_block + 1, len(found_here[-1]) + 1))
        assert one.digests == chain(found_here[-1])
        assert one.start_block == 0 or found_here[0][:-1] in found
        found += found_here
    assert sorted(found) == sorted(reachable)
    assert {in_order[slot - 1] for slot in listed(unreachable)} == there - reachable


# -- order of chains ---------------------------------------------------------------------------------------------------


def test_blocks_follow_one_another_also_where_their_first_is_missing() -> None:
    """c, d and e, without a and b, and x."""
    blocks = make((1, 0, "abcde"), (2, 0, "x"), (3, 0, "abc"), (4, 0, "abcd"))

    order = listed(sorted_by_chain(blocks.digests, blocks.parents))

    assert "".join("excd"[position] for position in order) in ("cdex", "xcde")


@pytest.mark.parametrize("seed", range(20))
def test_of_the_blocks_that_follow_one_the_next_in_order_is_one(seed: int) -> None:
    """In any forest with holes, every block with a follower is followed by one; and every block is there once."""
    chance = random.Random(seed)  # noqa: S311 - chooses test cases
    chains = {"".join(chance.choice("ab") for _ in range(chance.randint(1, 6))) for _ in range(12)}
    words = sorted({one[: end + 1] for one in chains for end in range(len(one))})
    words = chance.sample(words, max(1, 2 * len(words) // 3))
    blocks = make(*[(slot, 0, one) for slot, one in enumerate(words, 1)])

    order = [words[position] for position in listed(sorted_by_chain(blocks.digests, blocks.parents))]

    assert sorted(order) == sorted(words)
    followed = {before for before, after in pairwise(order) if after[:-1] == before}
    assert followed == {one[:-1] for one in words} & set(words)


def test_a_ring_of_blocks_has_some_order() -> None:
    """Nobody can be first; each is there once."""
    ring = split(chain("abc"))
    digests, parents = as_digests(b"".join(ring)), as_digests(b"".join([ring[-1], *ring[:-1]]))

    assert sorted(listed(sorted_by_chain(digests, parents))) == [0, 1, 2]


# -- bad input ---------------------------------------------------------------------------------------------------------

GOOD = make((1, 0, "a"), (2, 1, "ab"))


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (replace(GOOD, groups=slots(0)), "2 slots tells 1 groups"),
        (replace(GOOD, digests=np.zeros(2, "V4")), "digests of 4 bytes"),
        (replace(GOOD, slots=slots(1, 10)), r"slots \[10\]; they are 1 to 9"),
        (replace(GOOD, slots=slots(0, 1)), r"slots \[0\]"),
        (replace(GOOD, slots=slots(4, 4)), r"slots twice: \[4\]"),
        (replace(GOOD, groups=slots(0, 3)), r"groups \[3\]; they are 0 to 2"),
        (replace(GOOD, priorities=np.array([1, 101], np.uint8)), r"priorities \[101\]"),
    ],
)
def test_what_cannot_be_an_inventory_is_refused(wrong: Inventory, message: str) -> None:
    """The pool has 10 slots, the replica 3 groups."""
    check_inventory(GOOD, 10, 3, DIGEST_BYTES)
    with pytest.raises(RequestError, match=message):
        check_inventory(wrong, 10, 3, DIGEST_BYTES)
