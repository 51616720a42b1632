"""Block events: which facts a replica tells, when, and in which order."""

from __future__ import annotations

from kvtroupe.coordinator.config import GroupConfig
from kvtroupe.coordinator.errors import OutOfBlocks
from kvtroupe.coordinator.messages import (
    AdmitRequest,
    Cleared,
    Events,
    LookupRequest,
    MoveRequest,
    NewSequence,
    RecoverEvent,
    ReleaseEvent,
    Removed,
    ResetRequest,
    Stored,
)
from tests.coordinator.losing import FULL, HOST, SLIDING, make
from tests.coordinator.support import DIGEST_BYTES, admit, cache, chain, last_digest, new, split
from tests.coordinator.telling import START, backwards, facts, make_one_pool, next_facts, part

RECURRENT = GroupConfig(name="recurrent", kind="recurrent", snapshot_tokens=8)


# -- publications ------------------------------------------------------------------------------------------------------


def test_blocks_that_are_committed_together_are_one_fact() -> None:
    """A second commit goes on where the first has ended, and names its last block as parent."""
    cluster = make()
    cluster.admit(new("a", "abcd", extra_tokens=0))
    assert facts(cluster) == []

    cluster.commit("a", 8)
    cluster.commit("a", 16)

    assert facts(cluster) == [
        Stored(0, "device", b"", chain("ab")),
        Stored(0, "device", last_digest("ab"), part("abcd", 2)),
    ]


def test_a_fact_is_told_when_the_group_has_answered() -> None:
    """Before that nobody knows whether the blocks are in the index."""
    cluster = make()
    cluster.admit(new("a", "ab", extra_tokens=0))
    cluster.silent.add(("group", 0, 0))

    cluster.commit("a", 8)
    assert facts(cluster) == []
    cluster.silent.clear()
    cluster.deliver()

    assert facts(cluster) == [Stored(0, "device", b"", chain("ab"))]


def test_a_block_that_stays_private_is_not_told() -> None:
    """Two sequences compute the same block; the one that commits later keeps its copy for itself."""
    cluster = make()
    cluster.admit(new("a", "a", extra_tokens=0), new("b", "ab", extra_tokens=0))
    cluster.commit("a", 4)

    cluster.commit("b", 8)

    assert facts(cluster) == [Stored(0, "device", b"", chain("a")), Stored(0, "device", chain("a"), part("ab", 1))]


def test_every_group_tells_its_own_blocks() -> None:
    """Both publish what each of two commits completes; the second goes on from b."""
    cluster = make(FULL, SLIDING)
    cluster.admit(new("a", "abcde", extra_tokens=0))
    cluster.commit("a", 8)
    cluster.commit("a", 20)

    assert facts(cluster) == [
        Stored(0, "device", b"", chain("ab")),
        Stored(1, "device", b"", chain("ab")),
        Stored(0, "device", last_digest("ab"), part("abcde", 2)),
        Stored(1, "device", last_digest("ab"), part("abcde", 2)),
    ]


def test_states_at_boundaries_are_facts_of_their_own() -> None:
    """States are kept every other block, and after the fifth of six, where a hit of the prompt would end.

    The one after c is not there, so that d goes on from a block that nobody has.
    """
    cluster = make(FULL, RECURRENT)

    cluster.run("a", "abcdef")

    states = [fact for fact in facts(cluster) if isinstance(fact, Stored) and fact.group == 1]
    assert states == [
        Stored(1, "device", last_digest("a"), last_digest("ab")),
        Stored(1, "device", last_digest("abc"), part("abcdef", 3)),
    ]


# -- evictions and copies ----------------------------------------------------------------------------------------------


def test_what_is_evicted_is_removed_and_what_has_landed_below_is_stored() -> None:
    """Two different moments: between them the blocks are nowhere. They come down last first, and are one run again."""
    cluster = make(blocks=(9, 9))
    cluster.cache("abcd", "efgh")
    known = len(facts(cluster))
    cluster.silent.add(("tier", HOST, 0))

    cluster.run("evicts", "ijkl")
    assert next_facts(cluster, known) == [
        Removed(0, "device", backwards("abcd")),
        Stored(0, "device", b"", chain("ijkl")),
    ]
    cluster.silent.clear()
    cluster.deliver()

    assert next_facts(cluster, known + 2) == [Stored(0, "host", b"", chain("abcd"))]


def test_what_is_evicted_of_several_groups_is_told_for_each() -> None:
    """Both groups have published two blocks in one pool of four slots, all of which are needed."""
    replica = make_one_pool(5, groups=(FULL, GroupConfig(name="other")))
    cache(replica, "ab")
    admit(replica, NewSequence("evicts", 8))

    events = replica.events_since((0, 3))
    assert isinstance(events, Events)
    assert events.facts == (Removed(0, "device", backwards("ab")), Removed(1, "device", backwards("ab")))


def test_what_is_brought_up_is_stored_in_one_more_place() -> None:
    """It stays on the host; the four slots that it takes on the device had held e to h, which go down."""
    cluster = make(blocks=(9, 20))
    cluster.cache("abcd", "efgh", "ijkl")
    known = len(facts(cluster))

    cluster.admit(new("reader", "abcd", extra_tokens=0))

    told = next_facts(cluster, known)
    assert told[0] == Removed(0, "device", backwards("efgh"))
    assert set(told[1:]) == {
        Stored(0, "device", b"", part("abcd", 0, 3)),  # the last token is computed, so that d is not hit
        Stored(0, "host", b"", chain("efgh")),
    }


def test_what_is_dropped_below_is_removed_there() -> None:
    """A host of four holds a to d and is then to hold e to h."""
    cluster = make(blocks=(9, 5))
    cluster.cache("abcd", "efgh", "ijkl")
    known = len(facts(cluster))

    cluster.cache("mnop")

    assert next_facts(cluster, known) == [
        Removed(0, "host", backwards("abcd")),
        Removed(0, "device", backwards("efgh")),
        Stored(0, "host", b"", chain("efgh")),
        Stored(0, "device", b"", chain("mnop")),
    ]


def test_a_copy_that_fails_tells_nothing() -> None:
    """The blocks were removed when their slots were taken; they never come to be below."""
    cluster = make(blocks=(9, 9))
    cluster.cache("abcd", "efgh")
    cluster.tiers[HOST, 0].failing = True
    known = len(facts(cluster))

    cluster.run("evicts", "ijkl")

    assert next_facts(cluster, known) == [
        Removed(0, "device", backwards("abcd")),
        Stored(0, "device", b"", chain("ijkl")),
    ]


def test_what_cannot_be_read_up_is_removed_where_it_was() -> None:
    """The copy of a to c from the host fails: they are hit there no more; d, which is not read, is there still."""
    cluster = make(blocks=(9, 20))
    cluster.cache("abcd", "efgh", "ijkl")
    known = len(facts(cluster))
    cluster.silent.add(("tier", HOST, 0))
    cluster.admit(new("reader", "abcd", extra_tokens=0))
    cluster.tiers[HOST, 0].failing = True
    cluster.silent.clear()

    cluster.deliver()

    told = next_facts(cluster, known)
    (removed,) = [fact for fact in told if isinstance(fact, Removed) and fact.medium == "host"]
    assert {removed.digests[at : at + DIGEST_BYTES] for at in range(0, len(removed.digests), DIGEST_BYTES)} == {
        last_digest("a"),
        last_digest("ab"),
        last_digest("abc"),
    }
    assert not any(isinstance(fact, Stored) for fact in told)
    cluster.check()


def test_what_cannot_be_read_up_twice_is_removed_once() -> None:
    """A move and an admission want the same blocks, and are asked in one round."""
    cluster = make(blocks=(17, 20))
    cluster.cache("abcd", "efgh", "ijkl", "mnop", "qrst")
    seen = len(facts(cluster))
    cluster.silent.add(("group", 0, 0))
    cluster.send(LookupRequest(1, chain("x")))
    cluster.send(MoveRequest(2, chain("abcd"), 0))
    cluster.send(AdmitRequest(3, (new("reader", "abcd"),)))
    cluster.tiers[HOST, 0].failing = True

    cluster.silent.clear()
    cluster.deliver()

    removed = [one for one in facts(cluster)[seen:] if isinstance(one, Removed) and one.medium == "host"]
    assert [sorted(split(one.digests)) for one in removed] == [sorted(split(chain("abcd")))]
    cluster.check()


def test_a_move_that_a_client_asks_for_is_stored_where_it_lands() -> None:
    """Nothing is removed: the blocks are in both places."""
    cluster = make(blocks=(9, 9), offload="never")
    cluster.cache("abcd")

    cluster.send(MoveRequest(1, chain("abcd"), 1))

    assert facts(cluster) == [Stored(0, "device", b"", chain("abcd")), Stored(0, "host", b"", chain("abcd"))]


# -- what leaves no trace ----------------------------------------------------------------------------------------------


def test_a_refused_request_is_not_heard_of() -> None:
    """It would hit two blocks and needs two more, of which one is free; a claim that is undone has changed nothing."""
    replica = make_one_pool(7)
    cache(replica, "ab")
    cache(replica, "c")
    admit(replica, new("runs", "de", extra_tokens=0))
    before = replica.events_since(START)

    (refused,) = replica.admit([new("refused", "abwxy", extra_tokens=0)])

    assert isinstance(refused, OutOfBlocks)
    assert replica.events_since(START) == before


def test_claims_pins_releases_and_lookups_are_not_heard_of() -> None:
    """They change who uses blocks, not where these are."""
    replica = make_one_pool(9)
    cache(replica, "abcd")
    before = replica.events_since(START)

    admit(replica, new("reader", "abcd"))
    replica.pin("p", chain("ab"))
    replica.release("reader")
    replica.unpin("p")
    replica.tick(100.0)

    assert replica.events_since(START) == before


def test_a_sequence_that_ends_without_a_commit_is_not_heard_of() -> None:
    """Nothing of it was ever in an index."""
    replica = make_one_pool(9)
    admit(replica, new("a", "abcd"))
    replica.release("a")

    assert replica.events_since(START) == Events(0, 0, (Cleared(),))


# -- losses ------------------------------------------------------------------------------------------------------------


def test_a_lost_group_is_cleared_in_every_tier_and_comes_back_block_by_block() -> None:
    """Its successor is offered what the running sequence holds and what the host has; e to h are gone."""
    cluster = make(FULL, GroupConfig(name="other"), blocks=(17, 9))
    cluster.cache("abcd", "efgh")
    cluster.run("runs", "ijkl")
    known = len(facts(cluster))

    cluster.lose_group(0)
    assert next_facts(cluster, known) == [Cleared(0, "device"), Cleared(0, "host")]
    cluster.group_ready(0)

    assert next_facts(cluster, known + 2) == [
        Stored(0, "device", b"", chain("ijkl")),
        Stored(0, "host", b"", chain("abcd")),
    ]
    cluster.check()


def test_a_lost_host_is_cleared_and_what_all_ranks_have_kept_is_stored_again() -> None:
    """Rank 1 has lost d."""
    cluster = make(blocks=(9, 20), ranks=2)
    cluster.cache("abcd", "efgh", "ijkl")
    known = len(facts(cluster))

    for rank in range(2):
        cluster.lose_tier(HOST, rank, keeps_rows=True)
    assert next_facts(cluster, known) == [Cleared(0, "host")]
    rows = cluster.tiers[HOST, 1].rows
    del rows[next(slot for slot, row in rows.items() if row[1] == last_digest("abcd"))]
    for rank in range(2):
        cluster.tier_ready(HOST, rank)

    assert next_facts(cluster, known + 1) == [Stored(0, "host", b"", chain("abc"))]


def test_a_lost_device_is_cleared_and_the_host_is_not() -> None:
    """What is below stays, and is not told again."""
    cluster = make(FULL, SLIDING, blocks=(17, 20))
    cluster.cache("abcd", "efgh", "ijkl")
    known = len(facts(cluster))

    cluster.lose_tier(0, 0, keeps_rows=False)

    assert next_facts(cluster, known) == [Cleared(0, "device"), Cleared(1, "device")]


def test_a_loss_of_what_was_empty_is_not_heard_of() -> None:
    """Nothing has changed for anybody."""
    cluster = make(blocks=(9, 9))

    cluster.lose_tier(HOST, 0, keeps_rows=False)
    cluster.lose_group(0)

    assert facts(cluster) == []


def test_a_reset_clears_every_tier() -> None:
    """The publication that is under way then is given up; what is published later is told."""
    cluster = make(blocks=(9, 9))
    cluster.cache("abcd", "efgh", "ijkl")
    cluster.admit(new("a", "m", extra_tokens=0))
    known = len(facts(cluster))
    cluster.silent.add(("group", 0, 0))
    cluster.commit("a", 4)

    cluster.send(ResetRequest(5))
    cluster.silent.clear()
    cluster.deliver()
    cluster.send(ReleaseEvent("a"))
    cluster.cache("xy")

    assert next_facts(cluster, known) == [
        Cleared(0, "device"),
        Cleared(0, "host"),
        Stored(0, "device", b"", chain("xy")),
    ]


def test_a_new_coordinator_begins_with_nothing_and_tells_what_it_takes_over() -> None:
    """Under its own numbers."""
    cluster = make(blocks=(9, 20))
    cluster.cache("abcd", "efgh", "ijkl")

    cluster.restart(1)
    cluster.send(RecoverEvent(()))

    assert facts(cluster, 1) == [Stored(0, "host", b"", chain("abcd"))]
    cluster.check()
