"""Blocks in several places, of which one is lost (J1).

Faults that users of other KV cache managers have reported, as scenarios here, each with neighbours: the same kind of
fault in another guise.
"""

from __future__ import annotations

from kvtroupe.coordinator.check_events import check_events
from kvtroupe.coordinator.event_mirror import Changes, Mirror
from kvtroupe.coordinator.messages import MoveRequest, NewSequence
from kvtroupe.coordinator.replica import Replica
from kvtroupe.coordinator.retention import Retention, RetentionRange
from tests.coordinator.losing import FULL, HOST, SLIDING, make
from tests.coordinator.support import (
    DIGEST_BYTES,
    admit,
    chain,
    last_digest,
    make_config,
    new,
    split,
)


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


def _told(replica: Replica, reader: Mirror) -> tuple[tuple[int, bytes], ...]:
    """What has vanished since the reader last asked."""
    vanished = reader.fold(replica.events_since(reader.position)).vanished
    check_events(replica, reader)
    return vanished


def test_the_middle_of_a_chain_is_there_until_both_of_its_blocks_are_gone() -> None:
    """The scenario: K2 of K1 to K5 is in two slots. Evicting one of them is no removal, evicting the other is one."""
    replica = Replica(make_config("full", blocks=9).changed(events=True))
    keys, low = chain("abcde"), Retention(10)
    middle = keys[DIGEST_BYTES : 2 * DIGEST_BYTES]
    admit(replica, NewSequence("other", 8, chain("x") + middle, retention=Retention(90)))
    second_is_low = Retention(90, ranges=(RetentionRange(start_tokens=4, end_tokens=8, priority=20),))
    admit(replica, NewSequence("chain", 20, keys, retention=second_is_low))
    admit(replica, NewSequence("filler", 4, chain("f"), retention=low))
    for name, tokens in (("other", 8), ("chain", 20), ("filler", 4)):
        replica.commit(name, tokens)
        replica.release(name)
    reader = Mirror(DIGEST_BYTES)
    reader.fold(replica.events_since())
    assert reader.places(0, middle) == {"device": 2}

    admit(replica, NewSequence("takes f and one K2", 8))
    assert _told(replica, reader) == ((0, chain("f")),)
    assert (reader.places(0, middle), reader.prefix_blocks(0, keys)) == ({"device": 1}, 5)

    replica.release("takes f and one K2")
    admit(replica, NewSequence("takes three", 12))
    assert _told(replica, reader) == ((0, middle),)
    assert reader.prefix_blocks(0, keys) == 1


def test_a_second_copy_below_does_not_hide_the_removal_of_both() -> None:
    """Neighbour: a block is stored on the host twice over time; when it is lost there, one removal is enough."""
    cluster = make(blocks=(6, 6), offload="never")
    cluster.cache("ab")
    cluster.send(MoveRequest(1, chain("ab"), 1))
    cluster.send(MoveRequest(2, chain("ab"), 1))
    cluster.cache("vwxyz")
    cluster.send(MoveRequest(3, chain("ab"), 0))
    cluster.check()
    assert cluster.mirror.places(0, last_digest("ab")) == {"device": 1, "host": 1}

    cluster.lose_tier(HOST, 0, keeps_rows=False)
    cluster.check()
    assert cluster.mirror.prefix_blocks(0, chain("ab")) == 2
    cluster.cache("vwxyz")
    cluster.check()
    assert cluster.mirror.prefix_blocks(0, chain("ab")) == 0


def test_a_block_that_is_computed_again_is_stored_once() -> None:
    """Neighbour: two sequences commit the same block. The second stays private, and its slot is no place of it."""
    replica = Replica(make_config("full", blocks=9).changed(events=True))
    reader = Mirror(DIGEST_BYTES)
    reader.fold(replica.events_since())
    for name in ("one", "other"):
        admit(replica, new(name, "ab", extra_tokens=0))
    for name in ("one", "other"):
        replica.commit(name, 8)

    assert _told(replica, reader) == ()
    assert reader.places(0, last_digest("ab")) == {"device": 1}
    replica.release("one")
    replica.release("other")
    admit(replica, NewSequence("takes all", 32))
    assert sorted(_told(replica, reader)) == sorted((0, digest) for digest in split(chain("ab")))


def test_a_removal_in_one_group_is_none_in_the_other() -> None:
    """Neighbour: the same digest in two groups, of which one has left its block behind and lost it."""
    cluster = make(FULL, SLIDING, blocks=(9,))
    cluster.run("a", "abcd")
    cluster.check()
    assert [cluster.mirror.prefix_blocks(group, chain("abcd")) for group in (0, 1)] == [4, 4]

    cluster.admit(NewSequence("takes what has left the window", 4))
    cluster.check()

    assert [cluster.mirror.prefix_blocks(group, chain("abcd")) for group in (0, 1)] == [4, 0]
    assert [cluster.mirror.places(group, last_digest("abcd")) for group in (0, 1)] == [{"device": 1}] * 2


def test_a_block_that_goes_down_and_comes_up_is_where_it_is_said_to_be() -> None:
    """Neighbour: every order of stored and removed in two tiers; never removed from where it was not."""
    cluster = make(blocks=(5, 5))
    for words in ("ab", "cd", "ef", "ab", "gh", "cd", "ab"):
        cluster.cache(words)
        cluster.check()
        assert cluster.mirror.prefix_blocks(0, chain(words)) == 2
