"""Groups with blocks of different sizes, worked out by hand: digests of four tokens, slots in order 1, 2, 3..."""

from __future__ import annotations

from kvtroupe.coordinator.check import check
from kvtroupe.coordinator.config import GroupConfig
from kvtroupe.coordinator.messages import NewSequence
from tests.coordinator.kinds import end_all, free, published, recurrent, replica_of, run, sliding, table
from tests.coordinator.support import chain, last_digest, listed, tables

FOUR = GroupConfig(name="four", block_tokens=4)
EIGHT = GroupConfig(name="eight", block_tokens=8)
SIXTEEN = sliding(9, name="sixteen", block_tokens=16)
WORDS = "abcdefghi"  # of four tokens each


def test_groups_with_blocks_of_4_8_and_16_tokens_hit_multiples_of_16() -> None:
    """37 tokens and room for 48: 12, 6 and 3 blocks; of 36 tokens with digests, 9, 4 and 2 blocks are complete."""
    replica = replica_of(FOUR, EIGHT, SIXTEEN, usable=40, hash_tokens=4)
    prompt = NewSequence("a", 37, chain(WORDS))

    first = run(replica, prompt)
    assert tables(first) == [[*range(1, 13)], [*range(13, 19)], [19, 20, 21]]
    assert (first.capacity_tokens, free(replica)) == (48, 19)

    assert replica.commit("a", 37).published_blocks == (9, 4, 2)
    # A digest of a larger block is that of its last four tokens.
    assert published(replica, "eight") == {last_digest(WORDS[: 2 * end]): 12 + end for end in (1, 2, 3, 4)}
    assert published(replica, "sixteen") == {last_digest("abcd"): 19, last_digest("abcdefgh"): 20}
    assert (table(replica, "a", 2), free(replica)) == ([0, 20, 21], 20)  # a window of 9: from 29 on

    second = run(replica, NewSequence("b", 37, chain(WORDS)))
    # 36 tokens of the smallest blocks are there, but 32 is the longest length that ends a block of 16.
    assert (second.cached_tokens, second.junction_tokens) == (32, 0)
    assert [row[: 32 // size] for row, size in zip(tables(second), (4, 8, 16), strict=True)] == [
        [*range(1, 9)],
        [*range(13, 17)],
        [0, 20],
    ]
    assert free(replica) == 20 - (4 + 2 + 1)
    end_all(replica)


def test_the_last_tokens_are_given_back_first_whatever_the_sizes_of_their_blocks() -> None:
    """Published: those that end at 36, at 32 in all three groups, at 28, 24 ...; block 0 of 16 slid out before."""
    replica = replica_of(FOUR, EIGHT, SIXTEEN, usable=40, hash_tokens=4)
    run(replica, NewSequence("a", 37, chain(WORDS)))
    replica.commit("a", 37)
    replica.release("a")

    order = listed(replica.free_order("device"))
    assert order[-15:] == [19, 9, 8, 16, 20, 7, 6, 15, 5, 4, 14, 3, 2, 13, 1]
    assert set(order[:6]) == {10, 11, 12, 17, 18, 21}
    end_all(replica)


def test_growth_is_in_units_and_every_group_gets_its_blocks() -> None:
    """One unit of 16 tokens: four, two and one."""
    replica = replica_of(FOUR, EIGHT, SIXTEEN, usable=40, hash_tokens=4)
    run(replica, NewSequence("a", 5))
    assert (replica.sequence("a").capacity_tokens, free(replica)) == (16, 33)

    grown = replica.grow(["a"])

    assert [slots.tolist() for slots in grown.slots] == [[[8, 9, 10, 11]], [[12, 13]], [[14]]]
    assert (replica.sequence("a").capacity_tokens, free(replica)) == (32, 26)
    end_all(replica)


def test_a_hole_in_the_smallest_blocks_cuts_the_hit_at_a_multiple_of_the_unit() -> None:
    """The group of 4 loses what ends beyond 16; the others serve 32."""
    groups = (GroupConfig(name="four", block_tokens=4, pool="small"), EIGHT)
    wide = GroupConfig(name="wide", block_tokens=16)
    replica = replica_of(*groups, wide, usable={"small": 12, "device": 20}, hash_tokens=4)
    run(replica, NewSequence("a", 32, chain("abcdefgh")))
    replica.commit("a", 32)
    replica.release("a")
    run(replica, NewSequence("takes eight", 17))  # four that are free, and the blocks that end at 32, 28, 24 and 20
    replica.release("takes eight")
    assert len(published(replica, "four")) == 4

    hit = run(replica, NewSequence("b", 33, chain("abcdefgh")))

    assert (hit.cached_tokens, hit.junction_tokens) == (16, 0)
    end_all(replica)


def test_states_end_at_multiples_of_the_unit() -> None:
    """Blocks of 4 and 8: states are kept at multiples of 8, here every 16; 37 tokens keep those of 16 and 32."""
    replica = replica_of(FOUR, EIGHT, recurrent(16), usable=40, hash_tokens=4)
    first = run(replica, NewSequence("a", 37, chain(WORDS)))
    # Five units: ten blocks of 4, five of 8, states that end at 16 and 32, and the own one.
    assert tables(first) == [[*range(1, 11)], [*range(11, 16)], [0, 16, 0, 17, 0]]
    assert listed(first.states[2]) == [18]
    assert replica.commit("a", 37).published_blocks == (9, 4, 2)
    assert published(replica, "recurrent") == {last_digest("abcd"): 16, last_digest("abcdefgh"): 17}

    shares_24 = run(replica, NewSequence("b", 37, chain("abcdefxyz")))
    assert (shares_24.cached_tokens, shares_24.junction_tokens) == (16, 8)
    check(replica)
    end_all(replica)
