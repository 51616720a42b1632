"""Cross groups, whose blocks hold the encoder's input, and fixed ones, worked out by hand: blocks of four tokens."""

from __future__ import annotations

import pytest

from kvtroupe.coordinator.check import check
from kvtroupe.coordinator.config import GroupConfig
from kvtroupe.coordinator.messages import Evidence, NewSequence, ReleaseEvent
from kvtroupe.coordinator.prefix_index import NOTHING_KNOWN
from kvtroupe.coordinator.retention import Retention, RetentionRange
from tests.coordinator.kinds import FULL, cross, end_all, fixed, free, published, recurrent, replica_of, run, table
from tests.coordinator.support import Desk, admitted, chain, last_digest, listed, slots, split, tables

ENCODER = "xyz"  # 10 tokens of encoder input are three blocks, the last one not full


def with_input(
    name: str, words: str = "", *, encoder: str = ENCODER, retention: Retention | None = None
) -> NewSequence:
    """A prompt of these blocks and one token more, with 10 tokens of encoder input."""
    return NewSequence(
        name,
        4 * len(words) + 1,
        chain(words),
        encoder_tokens=10,
        encoder_digests=chain(encoder),
        retention=retention or Retention(),
    )


# -- cross -------------------------------------------------------------------------------------------------------------


def test_two_sequences_share_the_encoder_input_and_a_third_has_none() -> None:
    """Its blocks are published with the first commit, and hit whatever the prompts are."""
    replica = replica_of(FULL, cross(), usable=15)

    first = run(replica, with_input("a", "p"))
    assert (tables(first), first.encoder_cached, free(replica)) == ([[1, 2], [3, 4, 5]], False, 10)
    assert replica.commit("a", 5).published_blocks == (1, 3)
    assert published(replica, "cross") == dict(zip(split(chain(ENCODER)), (3, 4, 5), strict=True))

    second = run(replica, with_input("b", "q"))
    assert (tables(second), second.encoder_cached, free(replica)) == ([[6, 7], [3, 4, 5]], True, 8)
    assert (second.cached_tokens, second.junction_tokens) == (0, 0)
    third = run(replica, NewSequence("c", 5, chain("p")))
    assert (tables(third), third.encoder_cached, free(replica)) == ([[1, 8], []], False, 7)
    assert third.cached_tokens == 4  # the encoder has no part in the agreement
    assert replica.commit("b", 5).published_blocks == (1, 0)

    replica.release("a")
    assert free(replica) == 8  # only its second block: a prefix of c, and the encoder input of b
    replica.release("b")
    replica.release("c")
    # What a sequence leaves to others is taken last: its prompt before its encoder input, the last block first.
    assert listed(replica.free_order("device"))[-5:] == [6, 5, 4, 3, 1]
    end_all(replica)


def test_encoder_input_does_not_grow_and_none_of_it_slides() -> None:
    """Commits and growth change the prompt's table only."""
    replica = replica_of(FULL, cross(), usable=15)
    run(replica, with_input("a", "p"))

    assert [slots.tolist() for slots in replica.grow(["a"], 2).slots] == [[[6, 7]], []]
    replica.commit("a", 16)

    assert table(replica, "a", group=1) == [3, 4, 5]
    end_all(replica)


def test_encoder_input_that_is_there_in_part_is_no_hit() -> None:
    """Of x, y and z the last is evicted: the next reader computes all three, and publishes the one that is missing."""
    replica = replica_of(FULL, cross(), usable=8)
    run(replica, with_input("a"))
    replica.commit("a", 1)
    assert table(replica, "a", group=1) == [2, 3, 4]
    replica.release("a")
    assert listed(replica.free_order("device")) == [1, 5, 6, 7, 8, 4, 3, 2]
    run(replica, NewSequence("takes six", 24))
    assert published(replica, "cross") == {last_digest("x"): 2, last_digest("xy"): 3}
    replica.release("takes six")

    again = run(replica, with_input("b"))

    assert again.encoder_cached is False
    assert set(tables(again)[1]).isdisjoint({2, 3})
    assert replica.commit("b", 1).published_blocks == (0, 1)
    assert replica.counters().duplicates == 2
    assert published(replica, "cross")[last_digest("xyz")] == tables(again)[1][2]
    third = run(replica, with_input("c"))
    assert (third.encoder_cached, tables(third)[1]) == (True, [2, 3, tables(again)[1][2]])
    end_all(replica)


def test_longer_input_that_begins_alike_is_no_hit_and_shorter_input_is_one() -> None:
    """Whole or not at all is said of what the sequence brings."""
    replica = replica_of(FULL, cross())
    run(replica, with_input("a"))
    replica.commit("a", 1)

    longer = NewSequence("longer", 1, encoder_tokens=13, encoder_digests=chain("xyzw"))
    shorter = NewSequence("shorter", 1, encoder_tokens=8, encoder_digests=chain("xy"))

    assert run(replica, longer).encoder_cached is False
    assert run(replica, shorter).encoder_cached is True
    assert table(replica, "shorter", group=1) == table(replica, "a", group=1)[:2]
    end_all(replica)


def test_every_cross_group_has_to_have_all_of_it() -> None:
    """The pool of the second group is too small for both inputs: what it has lost is no hit in the first one either."""
    groups = (FULL, cross(name="one"), cross(name="two", pool="small"))
    replica = replica_of(*groups, usable={"device": 20, "small": 4})
    for name, encoder in (("a", "xyz"), ("b", "uvw")):
        run(replica, with_input(name, encoder=encoder))
        replica.commit(name, 1)
        replica.release(name)
    assert len(published(replica, "one")) == 6
    assert len(published(replica, "two")) == 4  # x is left of the first input

    assert run(replica, with_input("c")).encoder_cached is False
    replica.release("c")
    end_all(replica)


def test_encoder_input_that_has_changed_hands_since_the_group_answered_is_no_hit() -> None:
    """The group names the third block under a generation that has passed: the first two are not claimed either."""
    desk = Desk(replica_of(FULL, cross(), usable=10).config)
    desk.ask(1, with_input("a", "p"))
    (first,) = admitted(desk.answer(1, [NOTHING_KNOWN], [NOTHING_KNOWN]))
    blocks = listed(first.tables[1])
    assert blocks == [3, 4, 5]
    desk.send(ReleaseEvent("a"))
    order = desk.free()

    desk.ask(2, with_input("b", "q"))
    stale = Evidence(0b111, slots(*blocks), slots(1, 1, 7), 3)
    (second,) = admitted(desk.answer(2, [NOTHING_KNOWN], [stale]))

    assert second.encoder_cached is False
    assert [*listed(second.tables[0]), *listed(second.tables[1])] == order[:5]
    assert desk.state.counters.stale_places == 1


def test_encoder_input_without_digests_is_not_shared() -> None:
    """Sound that comes in live, for instance."""
    replica = replica_of(FULL, cross())
    for name in "ab":
        result = run(replica, NewSequence(name, 5, encoder_tokens=10))
        assert result.encoder_cached is False
        assert replica.commit(name, 5).published_blocks == (0, 0)
    end_all(replica)


def test_ranges_of_the_prompt_say_nothing_about_the_encoder_input() -> None:
    """The range and the priority of the answer are of the prompt's tokens; the encoder input has the sequence's own."""
    replica = replica_of(FULL, cross())
    retention = Retention(50, ranges=(RetentionRange(0, 4, 90),), decode_priority=10)
    run(replica, with_input("a", "p", retention=retention))
    replica.commit("a", 8, last_digest("pq"))

    priority = replica.pool("device").ledger.free_order.priority
    assert [priority[slot] for slot in table(replica, "a")] == [90, 50]
    assert [priority[slot] for slot in table(replica, "a", group=1)] == [50, 50, 50]
    end_all(replica)


# -- fixed -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("grows", [FULL, recurrent(4)])
def test_fixed_blocks_are_never_published_and_never_hit(grows: GroupConfig) -> None:
    """Every sequence has two of its own, whatever else it hits; they neither grow nor slide, and are taken first."""
    replica = replica_of(grows, fixed(2), usable=20)
    first = run(replica, NewSequence("a", 9, chain("pq")))
    own = tables(first)[1]
    assert len(set(own)) == 2
    assert replica.commit("a", 9).published_blocks == (2, 0)
    assert published(replica, "fixed") == {}

    second = run(replica, NewSequence("b", 9, chain("pq")))
    assert second.cached_tokens == 8
    assert set(tables(second)[1]).isdisjoint(own)

    assert listed(replica.grow(["a"], 3).slots[1]) == []
    replica.commit("a", 20)
    assert table(replica, "a", group=1) == own
    replica.release("a")
    assert set(own) <= set(listed(replica.free_order("device"))[:6])
    check(replica)
    end_all(replica)
