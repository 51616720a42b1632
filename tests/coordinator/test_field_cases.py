"""Faults that users of other KV cache managers have reported, as scenarios here. Each kind of fault cannot happen."""

from __future__ import annotations

import pytest

from kvtroupe.coordinator.check import check, quiescent
from kvtroupe.coordinator.check_events import check_events
from kvtroupe.coordinator.config import Config, GroupConfig, PoolConfig
from kvtroupe.coordinator.errors import OutOfBlocks, PinExists, SequenceExists, UnknownPin, UnknownSequence
from kvtroupe.coordinator.event_mirror import Changes, Mirror
from kvtroupe.coordinator.messages import Admitted, MoveRequest, NewSequence
from kvtroupe.coordinator.replica import Replica
from tests.coordinator.losing import make
from tests.coordinator.support import (
    DIGEST_BYTES,
    admit,
    cache,
    chain,
    free_order,
    last_digest,
    make_config,
    make_replica,
    new,
    snapshot,
    split,
    without_counters,
)

# -- pins: holders, not counts -----------------------------------------------------------------------------------------


def test_a_pin_given_back_twice_does_not_take_that_of_another_away() -> None:
    """P and Q pin the same block; the second unpin of P is an error, and the block stays until Q gives it back."""
    replica = make_replica("full", blocks=3)
    cache(replica, "c")
    replica.pin("P", chain("c"))
    replica.pin("Q", chain("c"))

    replica.unpin("P")
    with pytest.raises(UnknownPin):
        replica.unpin("P")
    with pytest.raises(PinExists):
        replica.pin("Q", chain("c"))

    assert isinstance(replica.admit([NewSequence("needs both", 8)])[0], OutOfBlocks)
    assert list(replica.published("full0")) == [last_digest("c")]

    replica.unpin("Q")
    admit(replica, NewSequence("needs both", 8))
    assert replica.published("full0") == {}
    check(replica)


# -- fences: one path for all that is given back -----------------------------------------------------------------------


@pytest.mark.parametrize("committed_tokens", [0, 7, 12])
def test_a_block_that_a_dispatched_step_may_write_is_not_handed_out(committed_tokens: int) -> None:
    """A sequence ends with the output of step 7 while step 8 is under way, whether it finished or was aborted."""
    replica = make_replica("full", blocks=4)
    admit(replica, new("ends", "pqr", extra_tokens=0))
    replica.commit("ends", committed_tokens)
    replica.release("ends", fence=8)

    replica.steps_done(7)
    (refusal,) = replica.admit([NewSequence("next", 4)])
    assert isinstance(refusal, OutOfBlocks)
    assert (refusal.needed, refusal.free, refusal.coming) == (1, 0, 3)

    replica.steps_done(8)
    results = replica.admit([NewSequence(f"next {number}", 4) for number in range(4)])
    tables = [result.tables[0].tolist() for result in results if isinstance(result, Admitted)]
    assert sorted(tables) == [[1], [2], [3]]
    check(replica)


def test_a_block_that_leaves_a_window_waits_for_its_fence_too() -> None:
    """Also when the sequence has ended since, with a fence of its own."""
    replica = make_replica("sliding:4", blocks=4)
    admit(replica, new("a", "pqr", extra_tokens=0))
    replica.commit("a", 12, fence=5)
    replica.release("a", fence=6)
    assert free_order(replica) == []

    replica.steps_done(5)
    assert free_order(replica) == [2, 1]

    replica.steps_done(6)
    assert free_order(replica) == [2, 1, 3]


# -- visible means committed -------------------------------------------------------------------------------------------


def test_a_sequence_that_is_aborted_before_its_commit_leaves_nothing_to_hit() -> None:
    """Its blocks were planned and never written."""
    replica = make_replica("full")
    admit(replica, new("a", "pq"))
    replica.release("a")

    assert admit(replica, new("b", "pq")).cached_tokens == 0


def test_sequences_of_one_round_do_not_read_what_the_others_are_to_write() -> None:
    """Nor do later ones, until the commit; after it they hit both whole blocks."""
    replica = make_replica("full")
    a, b = replica.admit([new("a", "pq"), new("b", "pq")])
    assert isinstance(a, Admitted)
    assert isinstance(b, Admitted)
    assert (a.cached_tokens, b.cached_tokens) == (0, 0)
    assert set(a.tables[0].tolist()).isdisjoint(b.tables[0].tolist())
    assert admit(replica, new("too early", "pq")).cached_tokens == 0

    replica.commit("a", 9)

    hit = admit(replica, new("c", "pq"))
    assert hit.cached_tokens == 8
    assert hit.tables[0][:2].tolist() == a.tables[0][:2].tolist()


@pytest.mark.parametrize("later", ["cancelled", "committed and ended"])
def test_of_two_writers_of_one_digest_the_first_stays_published(later: str) -> None:
    """Whatever becomes of the later one: its blocks are private and are taken first."""
    replica = make_replica("full")
    a, b = replica.admit([new("a", "pq"), new("b", "pq")])
    assert isinstance(a, Admitted)
    assert isinstance(b, Admitted)
    replica.commit("a", 9)
    if later != "cancelled":
        assert replica.commit("b", 9).published_blocks == (0,)
    replica.release("b")

    assert admit(replica, new("c", "pq")).tables[0][:2].tolist() == a.tables[0][:2].tolist()
    replica.release("c")
    replica.release("a")
    assert set(free_order(replica)[:3]).isdisjoint(a.tables[0][:2].tolist())
    check(replica)


# -- limits are computed once ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("held_back_blocks", [0, 1, 2])
@pytest.mark.parametrize("chunk_tokens", [1, 3, 4, 8, 9, 32])
def test_commits_in_chunks_leave_no_gaps(chunk_tokens: int, held_back_blocks: int) -> None:
    """Also when the digests of the last blocks of every chunk come with the next one only."""
    replica = make_replica("full")
    digests = split(chain("abcdefgh"))
    admit(replica, NewSequence("a", 32))
    told = 0
    for committed in [*range(chunk_tokens, 32, chunk_tokens), 32]:
        tell = max(told, committed // 4 - held_back_blocks)
        replica.commit("a", committed, b"".join(digests[told:tell]))
        told = tell

    assert list(replica.published("full0")) == digests[: 8 - held_back_blocks]


@pytest.mark.parametrize(("tokens", "cached", "computed"), [(8, 4, 4), (9, 8, 1), (12, 8, 4), (13, 12, 1)])
def test_at_least_one_token_of_a_prompt_is_computed(tokens: int, cached: int, computed: int) -> None:
    """Twelve tokens are cached; the logits of the last token of a prompt are needed in any case."""
    replica = make_replica("full")
    cache(replica, "pqr")
    published = replica.published("full0")

    admitted = admit(replica, NewSequence("a", tokens, chain("pqr"[: tokens // 4])))
    assert (admitted.cached_tokens, tokens - admitted.cached_tokens) == (cached, computed)

    replica.commit("a", tokens)
    replica.release("a")
    assert replica.published("full0") == published
    assert quiescent(replica)


@pytest.mark.parametrize("kinds", ["s", "fs", "ss"])
@pytest.mark.parametrize("window_tokens", [1, 4, 8, 9])
@pytest.mark.parametrize("block_tokens", [1, 4, 8])
def test_what_a_sequence_has_published_can_be_hit_in_full(kinds: str, window_tokens: int, block_tokens: int) -> None:
    """Whatever left the window while it ran; for every length, around every border of blocks and windows."""
    groups = [
        GroupConfig(name=str(number), kind="full")
        if kind == "f"
        else GroupConfig(name=str(number), kind="sliding", window_tokens=window_tokens * (number + 1))
        for number, kind in enumerate(kinds)
    ]
    config = Config(
        namespace="test",
        block_tokens=block_tokens,
        digest_bytes=DIGEST_BYTES,
        groups=tuple(groups),
        pools=(PoolConfig(blocks=200),),
    )
    for tokens in range(1, 41):
        replica = Replica(config)
        digests = chain(range(tokens // block_tokens))
        cached_tokens = admit(replica, NewSequence("a", tokens, digests)).cached_tokens
        assert cached_tokens == 0 or (kinds, window_tokens) == ("s", 1)  # such layers read nothing before a token
        for committed in range(cached_tokens, tokens + 1):
            replica.commit("a", committed)
        admitted = admit(replica, NewSequence("while it runs", tokens + 1, digests))
        assert admitted.cached_tokens == tokens // block_tokens * block_tokens

        replica.release("a")
        replica.release("while it runs")
        admitted = admit(replica, NewSequence("after it", tokens + 1, digests))
        assert admitted.cached_tokens == tokens // block_tokens * block_tokens
        check(replica)


# -- plans and what becomes of them ------------------------------------------------------------------------------------


def test_a_request_whose_hit_is_taken_by_an_earlier_one_is_refused_unharmed() -> None:
    """Planned apart, both would fit; `a` takes a block that `b` would have hit, so `b` has to come again."""
    replica = make_replica("full", blocks=7)
    cache(replica, "pq")
    a, b = replica.admit([NewSequence("a", 20), new("b", "pq")])

    assert isinstance(a, Admitted)
    assert isinstance(b, OutOfBlocks)
    assert a.tables[0].tolist() == [3, 4, 5, 6, 2]
    assert free_order(replica) == [1]
    assert replica.sequences() == ["a"]

    replica.release("a")
    assert admit(replica, new("b", "pq")).cached_tokens == 4
    check(replica)


def test_a_request_that_no_longer_fits_after_an_earlier_one_is_refused_without_trace() -> None:
    """The other way round: `b` keeps its hits, and nothing is left of `a`."""
    replica, alone = make_replica("full", blocks=7), make_replica("full", blocks=7)
    for one in (replica, alone):
        cache(one, "pq")
    b, a = replica.admit([new("b", "pq"), NewSequence("a", 20)])
    alone.admit([new("b", "pq")])

    assert isinstance(b, Admitted)
    assert b.cached_tokens == 8
    assert isinstance(a, OutOfBlocks)
    assert without_counters(snapshot(replica)) == without_counters(snapshot(alone))


def test_requests_that_step_aside_for_an_earlier_one_keep_their_order() -> None:
    """`a` needs six of eight blocks, so the hit of `b` may not stay; `c`, behind it, waits and is judged after it."""
    replica = make_replica("full", blocks=9)
    cache(replica, "pqr")
    a, b, c = replica.admit([NewSequence("a", 24), new("b", "pqr"), NewSequence("c", 4)])

    assert isinstance(a, Admitted)
    assert a.tables[0].tolist() == [4, 5, 6, 7, 8, 3]
    assert isinstance(b, OutOfBlocks)
    assert (b.needed, b.free) == (4, 2)
    assert isinstance(c, Admitted)
    assert c.tables[0].tolist() == [2]
    assert replica.counters().deferred == 2


# -- one block in several places ---------------------------------------------------------------------------------------


def test_a_block_is_not_said_to_be_gone_while_a_copy_of_it_remains() -> None:
    """Five blocks on the device and on the host: all are predicted until the host has lost them, too."""
    cluster = make(blocks=(6, 6), offload="never")
    reader = Mirror(DIGEST_BYTES)

    def news() -> Changes:
        return reader.fold(cluster.replica.events_since(reader.position))

    cluster.cache("abcde")
    cluster.send(MoveRequest(1, chain("abcde"), 1))
    blocks = [(0, digest) for digest in split(chain("abcde"))]
    assert sorted(news().appeared) == sorted(blocks)

    cluster.cache("vwxyz")  # evicts all of them from the device
    assert news().vanished == ()
    assert reader.prefix_blocks(0, chain("abcde")) == 5
    assert reader.prefix_blocks(0, chain("abcde"), "device") == 0

    cluster.send(MoveRequest(2, chain("vwxy"), 1))  # and all but the first from the host
    assert sorted(news().vanished) == sorted(blocks[1:])
    assert reader.prefix_blocks(0, chain("abcde")) == 1
    cluster.check()


def test_a_digest_that_is_published_twice_is_there_until_both_blocks_are_gone() -> None:
    """A client has made one up that follows two blocks; each of the two slots is evicted on its own."""
    replica = Replica(make_config("full", blocks=5).model_copy(update={"events": True}))
    first, second, both = chain("x"), chain("y"), chain("z")
    for name, before in (("one", first), ("other", second)):
        admit(replica, NewSequence(name, 8, before + both))
        replica.commit(name, 8)
        replica.release(name)
    reader = Mirror(DIGEST_BYTES)
    check_events(replica, reader)
    assert reader.places(0, both) == {"device": 2}

    vanished = []
    for name in ("takes one", "takes two", "takes three"):  # end and beginning of the first chain, end of the second
        admit(replica, NewSequence(name, 4))
        vanished.append(reader.fold(replica.events_since(reader.position)).vanished)
        check_events(replica, reader)

    assert vanished == [(), ((0, first),), ((0, both),)]


# -- requests that come twice ------------------------------------------------------------------------------------------


def test_a_repeated_admission_changes_nothing() -> None:
    """The client lost the answer and asks again: the sequence and all others keep their blocks."""
    replica = make_replica("full")
    admit(replica, new("a", "pq"))
    admit(replica, new("other", "xy"))
    before = snapshot(replica)

    for repeated in ([new("a", "pq")], [new("new", "z"), new("a", "pq")], [new("new", "z"), new("new", "z")]):
        with pytest.raises(SequenceExists):
            replica.admit(repeated)

    assert snapshot(replica) == before


def test_the_id_of_an_ended_sequence_names_nobody_until_it_is_admitted_again() -> None:
    """What is asked of it is refused, and the sequence that took its blocks keeps them."""
    replica = make_replica("full", blocks=4)
    admit(replica, new("a", "pq", extra_tokens=0))
    replica.release("a")
    admit(replica, new("b", "xyz", extra_tokens=0))
    before = snapshot(replica)

    for late in (
        lambda: replica.release("a"),
        lambda: replica.commit("a", 4),
        lambda: replica.extend("a"),
        lambda: replica.grow(["a"]),
        lambda: replica.tables("a"),
    ):
        with pytest.raises(UnknownSequence):
            late()

    assert snapshot(replica) == before
    replica.release("b")
    assert admit(replica, new("a", "pq")).cached_tokens == 0
