"""Estimates worked out by hand, for every kind of group. Blocks have four tokens, but where others are named."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest

from kvtroupe.coordinator.attention import ChunkedAttention, FullAttention, RecurrentState, SlidingWindow
from kvtroupe.coordinator.bands import Layout, Shape
from kvtroupe.coordinator.config import Config, GroupConfig, Limits, PoolConfig
from kvtroupe.coordinator.errors import Overloaded, RequestError, SequenceTooLong, TokenError, UnknownSequence
from kvtroupe.coordinator.messages import Estimate, EstimateRequest, NewSequence, Pace
from kvtroupe.coordinator.replica import Replica
from kvtroupe.coordinator.retention import Retention, RetentionRange
from tests.coordinator.support import DIGEST_BYTES, admit, cache, chain, make_config, make_desk, make_replica, new

FULL = GroupConfig(name="full")


def replica_of(*groups: GroupConfig, blocks: int = 101, **changed: Any) -> Replica:  # noqa: ANN401 - of any type
    """A replica of groups that share a pool."""
    values: dict[str, Any] = {"namespace": "test", "block_tokens": 4, "digest_bytes": DIGEST_BYTES, "groups": groups}
    return Replica(Config(**(values | {"pools": (PoolConfig(blocks=blocks),)} | changed)))


def of_kind(kind: str, **sizes: int) -> GroupConfig:
    """A group named by its kind."""
    return GroupConfig.model_validate({"name": kind, "kind": kind, **sizes})


def one(replica: Replica, sequence: NewSequence, new_tokens: int = 0, pace: Pace | None = None) -> Estimate:
    """The estimate of one new sequence that is not too long."""
    [estimate] = replica.what_if([sequence], [new_tokens], pace or Pace())
    assert isinstance(estimate, Estimate), estimate
    return estimate


def slots(estimate: Estimate) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Those taken now, and until the end."""
    return estimate.slots_now, estimate.slots_to_end


# -- kinds of group ----------------------------------------------------------------------------------------------------


def test_full_attention_gives_nothing_back() -> None:
    """9 tokens take 3 blocks, and 17 take 5."""
    assert slots(one(make_replica("full"), NewSequence("a", 9), 8)) == ((3,), (5,))


def test_a_window_gives_back_what_it_leaves_behind() -> None:
    """The prompt takes 3 blocks at once. With 4n tokens a window of 9 reaches two blocks back, one of 5 only one."""
    assert slots(one(make_replica("sliding:9"), NewSequence("a", 9), 400)) == ((3,), (3,))
    assert slots(one(make_replica("sliding:5"), NewSequence("a", 5), 400)) == ((2,), (2,))
    assert slots(one(make_replica("sliding:9"), NewSequence("a", 1), 400)) == ((1,), (3,))


def test_a_commit_that_comes_late_keeps_a_window_longer() -> None:
    """Four tokens behind: it reaches two blocks back from a block earlier."""
    assert slots(one(make_replica("sliding:9"), NewSequence("a", 9), 400, Pace(lag_tokens=4))) == ((3,), (4,))


def test_the_most_of_groups_together_is_not_the_sum_of_their_most() -> None:
    """To 17 tokens the full group takes 5; the window of 9 holds 3 by then. Each has 3 at the admission."""
    assert slots(one(make_replica("full", "sliding:9"), NewSequence("a", 9), 8)) == ((6,), (8,))


def test_a_chunk_is_given_back_when_the_next_one_begins() -> None:
    """Chunks of 16: up to 16 tokens 4 blocks, then begins a new chunk, whose own block is all that is held."""
    chunked = of_kind("chunked", chunk_tokens=16)

    assert slots(one(replica_of(chunked), NewSequence("a", 5), 400)) == ((2,), (4,))
    assert slots(one(replica_of(chunked), NewSequence("a", 5), 6)) == ((2,), (3,))


def test_a_recurrent_group_holds_a_state_and_the_last_snapshot() -> None:
    """A prompt of 9 keeps the state at 8; later every other block has a snapshot, and only the last one is held."""
    recurrent = of_kind("recurrent", snapshot_tokens=8)

    assert slots(one(replica_of(recurrent), NewSequence("a", 9), 400)) == ((2,), (2,))
    assert slots(one(replica_of(of_kind("recurrent")), NewSequence("a", 3), 400)) == ((1,), (1,))


def test_encoder_blocks_and_fixed_blocks_are_taken_once() -> None:
    """Ten tokens of encoder input are three blocks, shared by both beams; of three fixed blocks each beam has its own.

    A prompt of 9 for two beams takes 2 shared blocks and one more for each; 8 new tokens take 2 more for each.
    """
    both = Shape(9, encoder_tokens=10, beams=2)
    cross, fixed = of_kind("cross"), of_kind("fixed", blocks=3)
    sequence = NewSequence("a", both.prompt_tokens, beams=both.beams, encoder_tokens=both.encoder_tokens)

    assert slots(one(replica_of(FULL, cross), sequence, 8)) == ((4 + 3,), (8 + 3,))
    assert slots(one(replica_of(FULL, fixed), NewSequence("a", 9, beams=2), 8)) == ((4 + 6,), (8 + 6,))


def test_each_pool_is_counted_for_itself_and_blocks_in_their_own_size() -> None:
    """Blocks of 8 beside blocks of 4: room comes in units of 8; 9 tokens have room for 16, and 17 for 24."""
    groups = (GroupConfig(name="small", pool="a"), GroupConfig(name="large", block_tokens=8, pool="b"))
    pools = (PoolConfig(name="a", blocks=20), PoolConfig(name="b", blocks=20))

    assert slots(one(replica_of(*groups, pools=pools), NewSequence("a", 9), 8)) == ((4, 2), (6, 3))


@pytest.mark.parametrize("rule", [FullAttention(4), SlidingWindow(9, 4), ChunkedAttention(6, 4), RecurrentState(4)])
def test_first_blocks_of_many_moments_are_those_of_each(
    rule: FullAttention | SlidingWindow | ChunkedAttention | RecurrentState,
) -> None:
    """Whether they are asked for at once or one by one."""
    assert rule.first_block(np.arange(40)).tolist() == [rule.first_block(computed) for computed in range(40)]


def test_what_single_columns_cost_is_what_they_cost_together() -> None:
    """Of every kind of band, with one beam and several."""
    kinds = [of_kind("recurrent", snapshot_tokens=8), of_kind("cross"), of_kind("fixed", blocks=3), FULL]
    layout = Layout(replica_of(*kinds).config)

    for shape in (Shape(9, 10), Shape(9, 10, 3)):
        for band in layout.bands:
            start, end = band.span(4, 24, shape)
            assert len(band.groups) * int(band.costs(start, end, shape).sum()) == band.slots(start, end, shape)


# -- hits --------------------------------------------------------------------------------------------------------------


def test_cached_blocks_that_are_free_cost_a_slot_and_blocks_in_use_do_not() -> None:
    """The prompt of two cached blocks and a token more takes one slot more if nobody uses them; both save computing."""
    replica = make_replica("full")
    cache(replica, "ab")

    free = one(replica, new("x", "ab"), 8)
    admit(replica, new("user", "ab"))
    used = one(replica, new("x", "ab"), 8)

    assert (free.hit_tokens, *slots(free)) == (8, (3,), (5,))
    assert (used.hit_tokens, *slots(used)) == (8, (1,), (3,))


def test_shared_blocks_that_leave_a_window_bring_nothing_back() -> None:
    """A reader hits two blocks that a writer holds, and has one of its own.

    With room for 20 and all of it committed, it holds one of theirs and two of its own; four tokens later three of its
    own. If the writer has ended, what it took of the cache comes back on the way.
    """
    replica = make_replica("sliding:9")
    admit(replica, new("writer", "abcd", extra_tokens=0))
    replica.commit("writer", 16)

    assert slots(one(replica, new("reader", "abcd"), 20)) == ((1,), (3,))
    replica.release("writer")
    assert slots(one(replica, new("reader", "abcd"), 20)) == ((3,), (3,))


def test_blocks_below_the_device_cost_a_slot_each() -> None:
    """Three of four blocks come from the host, which gives none of its own for that."""
    pools = (PoolConfig(blocks=9, below="host"), PoolConfig(name="host", tier="host", blocks=9))
    replica = replica_of(FULL, pools=pools)
    for words in ("abcd", "efgh", "ijkl"):
        cache(replica, words)

    estimate = one(replica, new("x", "abc"), 8)

    assert (estimate.hit_tokens, *slots(estimate)) == (12, (4, 0), (6, 0))
    assert estimate.free_slots[0] == 8


def test_a_lookup_tells_new_blocks_from_used_and_cached_ones() -> None:
    """Of a prompt of five blocks two are used by another sequence, one is cached, and two are new."""
    replica = make_replica("full")
    cache(replica, "abc")
    admit(replica, new("user", "abx"))

    reply = replica.lookup(chain("abcde"), 20)

    assert (reply.new_blocks, reply.used_blocks, reply.blocks) == ((2,), (2,), (3,))
    assert reply.free_slots == (3,)
    assert reply.free_slots == one(replica, NewSequence("y", 20, chain("abcde"))).slots_now


def test_a_lookup_of_a_prompt_longer_than_any_is_refused() -> None:
    """It could never be admitted."""
    replica = Replica(make_config("full", limits=Limits(sequence_tokens_max=20)))

    replica.lookup(b"", 20)
    with pytest.raises(SequenceTooLong, match="lookup of 21 tokens"):
        replica.lookup(b"", 21)


# -- running sequences -------------------------------------------------------------------------------------------------


def test_a_step_takes_slots_when_its_tokens_pass_the_room() -> None:
    """Nine tokens in room for 12: three more fit, a fourth does not; drafts count. At its end it takes nothing."""
    replica = make_replica("full")
    admit(replica, new("a", "ab"))

    steps = {drafts: replica.estimate("a", 8, Pace(drafts)).slots_now for drafts in (0, 2, 3, 6, 7, 99)}

    assert steps == {0: (0,), 2: (0,), 3: (1,), 6: (1,), 7: (2,), 99: (2,)}  # no further than 17 tokens
    assert replica.estimate("a", 8).slots_to_end == (2,)
    replica.extend("a", 8)
    assert slots(replica.estimate("a", 8, Pace(9))) == ((0,), (0,))
    assert slots(replica.estimate("a", 3)) == ((0,), (0,))  # further than it was to go


def test_a_running_sequence_that_gives_back_more_than_it_takes_needs_nothing_more() -> None:
    """A prompt of 40 in a window of 9: ten blocks, two of them once all is committed, and three from then on."""
    replica = make_replica("sliding:9")
    admit(replica, new("a", "abcdefghij", extra_tokens=0))

    assert replica.estimate("a", 400).slots_to_end == (0,)
    replica.commit("a", 40)
    assert replica.estimate("a", 400).slots_to_end == (1,)


def test_each_beam_of_a_running_sequence_grows() -> None:
    """Three beams, two blocks of four tokens more each."""
    replica = make_replica("full")
    admit(replica, NewSequence("a", 9, beams=3))

    assert replica.estimate("a", 8).slots_to_end == (6,)


# -- what fits ---------------------------------------------------------------------------------------------------------


def fits(estimate: Estimate) -> tuple[bool | None, bool, bool]:
    """Now, to its end, and in an empty replica."""
    return estimate.fits_now, estimate.fits_to_end, estimate.fits_empty


def test_new_sequences_leave_alone_what_is_reserved_and_running_ones_do_not() -> None:
    """Of ten slots four are reserved: 6 blocks can be admitted, 7 cannot; once admitted, it may grow to 10."""
    replica = make_replica("full", blocks=11, reserved_blocks=4)

    assert fits(one(replica, NewSequence("a", 24), 16)) == (True, True, True)
    assert fits(one(replica, NewSequence("a", 24), 17)) == (True, False, False)
    assert isinstance(replica.what_if([NewSequence("a", 25)])[0], SequenceTooLong)
    admit(replica, NewSequence("a", 24))
    assert fits(replica.estimate("a", 16)) == (True, True, True)
    assert fits(replica.estimate("a", 17)) == (True, False, False)
    assert fits(one(replica, NewSequence("b", 1), 0)) == (False, False, True)


def test_what_runs_now_may_leave_too_little_for_what_fits_an_empty_replica() -> None:
    """Of ten slots a sequence has five: another one of five fits, one of six only without it."""
    replica = make_replica("full", blocks=11)
    admit(replica, NewSequence("a", 20))

    assert fits(one(replica, NewSequence("b", 20))) == (True, True, True)
    assert fits(one(replica, NewSequence("b", 20), 1)) == (True, False, True)
    assert fits(one(replica, NewSequence("b", 21))) == (False, False, True)


def test_no_sequence_gets_longer_than_the_limit() -> None:
    """20 tokens at most: a prompt of 16 fits with four new tokens and not with five, nor can it step beyond them."""
    replica = Replica(make_config("full", limits=Limits(sequence_tokens_max=20)))

    assert fits(one(replica, NewSequence("a", 16), 4)) == (True, True, True)
    assert fits(one(replica, NewSequence("a", 16), 5)) == (True, False, False)
    admit(replica, NewSequence("a", 16))
    assert fits(replica.estimate("a", 5)) == (True, False, False)
    replica.extend("a", 4)
    assert fits(replica.estimate("a", 4)) == (True, True, True)
    assert fits(replica.estimate("a", 5)) == (False, False, False)


def test_those_that_come_first_get_their_slots_first() -> None:
    """Of ten slots five go to the first; the second, of six, is refused, and the third, of five, gets the rest."""
    replica = make_replica("full", blocks=11)

    estimates = replica.what_if([NewSequence("a", 20), NewSequence("b", 24), NewSequence("a", 20)])

    assert [one.fits_now for one in estimates if isinstance(one, Estimate)] == [True, False, True]
    assert [one.slots_now for one in estimates if isinstance(one, Estimate)] == [(5,), (6,), (5,)]


def test_a_later_round_does_not_hit_what_the_first_one_would_evict() -> None:
    """One request a round. The first would take two empty slots and then the last two blocks of the cached chain.

    The second would hit its last block alone, in a window of one block, and need one more; without it all five.
    """
    replica = Replica(make_config("sliding:4", blocks=7, limits=Limits(round_blocks_max=1)))
    last_goes_first = Retention(ranges=(RetentionRange(12, None, 0),))
    admit(replica, NewSequence("cached", 16, chain("abcd"), retention=last_goes_first))
    replica.commit("cached", 16)
    replica.release("cached")

    alone = one(replica, new("x", "abcd"))
    estimates = replica.what_if([new("w", "wxyz", extra_tokens=0), new("x", "abcd")])

    assert (alone.hit_tokens, alone.slots_now, alone.fits_now) == (16, (2,), True)
    assert [one.fits_now for one in estimates if isinstance(one, Estimate)] == [True, False]


# -- bad input ---------------------------------------------------------------------------------------------------------


def test_what_cannot_be_estimated_is_refused() -> None:
    """Each with what is wrong."""
    replica = make_replica("full")
    admit(replica, NewSequence("a", 9))

    with pytest.raises(UnknownSequence):
        replica.estimate("b", 1)
    with pytest.raises(RequestError, match="an estimate for -1 new tokens"):
        replica.estimate("a", -1)
    with pytest.raises(RequestError, match=r"an estimate for 1\.5 new tokens"):
        replica.estimate("a", 1.5)  # type: ignore[arg-type]
    with pytest.raises(RequestError, match="'fast' is no Pace"):
        replica.estimate("a", 1, "fast")  # type: ignore[arg-type]
    with pytest.raises(RequestError, match=re.escape("new_tokens_max has 2 numbers for 1 sequences")):
        replica.what_if([NewSequence("b", 9)], [1, 2])
    with pytest.raises(TokenError):
        replica.what_if([NewSequence("b", 0)])
    with pytest.raises(RequestError, match="no NewSequence"):
        replica.what_if(["b"])  # type: ignore[list-item]
    wrong: list[dict[str, Any]] = [{"draft_tokens": -1}, {"lag_tokens": 0.5}, {"lag_tokens": True}]
    for bad in wrong:
        with pytest.raises(RequestError, match="a pace with"):
            Pace(**bad)


def test_too_many_sequences_are_refused() -> None:
    """As many as may run or wait can be asked about at once, and so many requests may wait."""
    desk = make_desk(limits=Limits(sequences_max=2))

    with pytest.raises(Overloaded):
        desk.send(EstimateRequest(1, (), (NewSequence("a", 9),) * 3, (0,) * 3))
    for number in range(3):  # the first one is looked up
        desk.send(EstimateRequest(number, (), (NewSequence("a", 9),) * 2, (0,) * 2))
    with pytest.raises(Overloaded):
        desk.send(EstimateRequest(3, (), (NewSequence("a", 9),), (0,)))
