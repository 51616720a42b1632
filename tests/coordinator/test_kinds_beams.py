"""Sequences with several beams, worked out by hand: blocks of four tokens, slots in order 1, 2, 3..."""

from __future__ import annotations

from dataclasses import replace

import pytest

from kvtroupe.coordinator.config import GroupConfig
from kvtroupe.coordinator.errors import OutOfBlocks, RequestError
from kvtroupe.coordinator.messages import Admitted, NewSequence
from tests.coordinator.kinds import (
    FULL,
    chunked,
    cross,
    end_all,
    fixed,
    free,
    published,
    recurrent,
    replica_of,
    run,
    sliding,
)
from tests.coordinator.support import chain, last_digest, listed, new


def beams(sequence: NewSequence, count: int) -> NewSequence:
    """The same with several beams."""
    return replace(sequence, beams=count)


def tables(result: Admitted) -> list[list[list[int]]]:
    """By group and beam."""
    return [table.tolist() for table in result.tables]


def test_blocks_that_the_prompt_fills_are_counted_once_and_the_others_for_every_beam() -> None:
    """10 tokens: two blocks for all of three beams, and one for each, with the last two tokens of the prompt in all."""
    replica = replica_of(FULL, usable=13)

    result = run(replica, beams(new("a", "pq", extra_tokens=2), 3))
    assert tables(result) == [[[1, 2, 3], [1, 2, 4], [1, 2, 5]]]
    assert free(replica) == 8

    assert replica.grow(["a"]).slots[0].tolist() == [[[6], [7], [8]]]
    run(replica, NewSequence("other", 12))
    assert free(replica) == 2
    (refusal,) = replica.grow(["a"]).refused
    assert isinstance(refusal, OutOfBlocks)
    assert (refusal.needed, refusal.free) == (3, 2)

    # Beyond the prompt every beam has tokens of its own: nothing there is published.
    assert replica.commit("a", 16, chain("pqrs")[16:]).published_blocks == (2,)
    assert published(replica, "full") == {last_digest("p"): 1, last_digest("pq"): 2}

    replica.release("a")
    assert listed(replica.free_order("device"))[-2:] == [2, 1]
    end_all(replica)


def test_a_hit_is_shared_by_all_beams() -> None:
    """Three blocks are hit; the fourth is the prompt's too, and computed once."""
    replica = replica_of(FULL, usable=12)
    run(replica, new("a", "pqr"))
    replica.commit("a", 13)

    result = run(replica, beams(new("b", "pqrs"), 2))

    assert result.cached_tokens == 12
    assert tables(result) == [[[1, 2, 3, 5, 6], [1, 2, 3, 5, 7]]]
    assert free(replica) == 5
    assert replica.commit("b", 17).published_blocks == (1,)
    end_all(replica)


@pytest.mark.parametrize(("group", "left"), [(sliding(6), 3), (chunked(8), 4)])
def test_what_beams_share_leaves_a_window_once(group: GroupConfig, left: int) -> None:
    """18 tokens: a window of 6 reads from 13 on, a chunk of 8 from 16 on. Then 25: from 20 on and from 24 on."""
    replica = replica_of(group, usable=20)
    result = run(replica, NewSequence("a", 18, beams=2))
    assert tables(result) == [[[1, 2, 3, 4, 5], [1, 2, 3, 4, 6]]]

    replica.commit("a", 18)
    assert replica.tables("a")[0].tolist() == [([0] * left + [1, 2, 3, 4, last][left:]) for last in (5, 6)]
    assert free(replica) == 14 + left

    replica.grow(["a"], 2)
    assert free(replica) == 10 + left
    replica.commit("a", 25)
    first = 5 if left == 3 else 6
    assert [row[:first] for row in replica.tables("a")[0].tolist()] == [[0] * first] * 2
    assert free(replica) == 20 - 2 * (7 - first)
    end_all(replica)


def test_beams_share_snapshots_of_the_prompt_and_have_states_of_their_own() -> None:
    """21 tokens keep the states of 8, 16 and 20 once, and none after the prompt; each beam computes with its own."""
    replica = replica_of(recurrent(8), usable=10)

    result = run(replica, beams(replace(new("a", "abcde"), spare_blocks=3), 2))

    assert tables(result) == [[[0, 1, 0, 2, 3, 0, 0, 0, 0]] * 2]
    assert [listed(slots) for slots in result.states] == [[4, 5]]
    assert free(replica) == 5
    assert replica.grow(["a"]).slots[0].tolist() == [[[0], [0]]]
    assert replica.commit("a", 32, chain("abcdefgh")[40:]).published_blocks == (3,)
    assert free(replica) == 8
    end_all(replica)


def test_encoder_input_is_shared_by_beams_and_fixed_blocks_are_not() -> None:
    """Two blocks of encoder input for both, three fixed ones for each."""
    replica = replica_of(FULL, cross(), fixed(3), usable=20)

    result = run(replica, NewSequence("a", 4, chain("p"), beams=2, encoder_tokens=8, encoder_digests=chain("xy")))

    assert tables(result) == [[[1], [1]], [[2, 3], [2, 3]], [[4, 5, 6], [7, 8, 9]]]
    assert free(replica) == 11
    assert replica.commit("a", 4).published_blocks == (1, 2, 0)
    end_all(replica)


def test_sequences_of_different_beams_do_not_grow_in_one_request() -> None:
    """The answer has one shape for all."""
    replica = replica_of(FULL)
    run(replica, new("a", "p"))
    run(replica, beams(new("b", "q"), 2))

    with pytest.raises(RequestError, match=r"growth names sequences of \[1, 2\] beams"):
        replica.grow(["a", "b"])
    end_all(replica)
