"""A tier actor forgets what is in its slots before another one writes there, and never tells of it again."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvtroupe.coordinator.actor_messages import CopyRequest
from kvtroupe.coordinator.messages import DropReply, DropRequest, MoveRequest, RecoverEvent
from tests.coordinator.copying import EPOCH, begin, complete, flush, make
from tests.coordinator.losing import DISK, HOST, below, digests
from tests.coordinator.losing import make as make_cluster
from tests.coordinator.support import chain, listed, new

if TYPE_CHECKING:
    from kvtroupe.coordinator.transfers import Transfers
    from tests.coordinator.cluster import Cluster

TELLERS = {HOST, DISK}


def forgets(transfers: Transfers, transfer_id: int, rank: int, epoch: int = EPOCH) -> None:
    """A rank of the host answers."""
    transfers.dropped(DropReply(transfer_id, epoch, HOST, rank))


def test_a_copy_from_disk_to_host_is_sent_when_every_rank_of_the_host_has_forgotten_what_was_there() -> None:
    """They are asked once; answers that come twice, or of another epoch, count as late."""
    transfers = make(tellers=TELLERS)
    begin(transfers, (DISK, HOST), (1, 5), (2, 6))

    asked = transfers.flush()
    assert [(one.engine, one.rank) for one in asked] == [(HOST, 0), (HOST, 1)]
    for one in asked:
        assert isinstance(one.message, DropRequest)
        assert (one.message.transfer_id, one.message.epoch, listed(one.message.slots)) == (1, EPOCH, [5, 6])
    forgets(transfers, 1, 0)
    assert transfers.flush() == []
    forgets(transfers, 1, 0)
    forgets(transfers, 1, 1, epoch=EPOCH - 1)
    assert transfers.flush() == []
    assert transfers.late_answers == 2
    forgets(transfers, 1, 1)

    assert flush(transfers) == [1]
    assert complete(transfers, 1) == [(1, [])]


def test_what_an_actor_copies_into_its_own_pool_or_into_the_device_is_sent_at_once() -> None:
    """Its own rows it changes as it copies; of the device nobody tells anything."""
    transfers = make(tellers=TELLERS)
    begin(transfers, (0, HOST), (1, 5))
    begin(transfers, (HOST, DISK), (2, 6))
    begin(transfers, (HOST, 0), (3, 7))

    assert flush(transfers) == [1, 2, 3]


def test_a_slot_is_forgotten_after_what_its_own_actor_copies_there() -> None:
    """Otherwise that actor would note the block again when its copy is done."""
    transfers = make(tellers=TELLERS)
    begin(transfers, (0, HOST), (1, 5))
    begin(transfers, (DISK, HOST), (2, 5))

    assert flush(transfers) == [1]
    complete(transfers, 1)

    assert [one.engine for one in transfers.flush() if isinstance(one.message, DropRequest)] == [HOST, HOST]


def test_a_dead_rank_has_forgotten_everything() -> None:
    """One that dies is not waited for, and one that is dead is not asked."""
    transfers = make(tellers=TELLERS)
    begin(transfers, (DISK, HOST), (1, 5))
    transfers.flush()
    forgets(transfers, 1, 0)
    transfers.rank_lost(HOST, 1)
    assert flush(transfers) == [1]

    begin(transfers, (DISK, HOST), (2, 6))
    assert [one.rank for one in transfers.flush()] == [0]
    forgets(transfers, 2, 0)
    assert flush(transfers) == [2]


def test_a_copy_that_is_given_up_before_it_is_sent_waits_for_nothing() -> None:
    """The disk is dead: an answer of the host is late."""
    transfers = make(tellers=TELLERS)
    begin(transfers, (DISK, HOST), (1, 5))
    transfers.flush()

    assert [one.transfer_id for one in transfers.rank_lost(DISK, 0)] == [1]
    forgets(transfers, 1, 0)

    assert transfers.late_answers == 1
    assert transfers.flush() == []


# -- a coordinator that follows another one ----------------------------------------------------------------------------


def on_disk_only(cluster: Cluster) -> None:
    """Blocks a to d are on the disk only, and the host is full of blocks e to h."""
    cluster.cache("abcd")
    for level in (1, 2):
        cluster.send(MoveRequest(level, chain("abcd"), level))
    cluster.cache("efgh")
    cluster.send(MoveRequest(3, chain("efgh"), 1))
    cluster.cache("ijkl")
    assert below(cluster, 1) == digests("efgh")
    assert {digest for _, digest, _ in cluster.tiers[HOST, 0].rows.values()} == digests("efgh")


def test_what_the_disk_has_overwritten_in_the_host_is_not_taken_over() -> None:
    """Blocks e to h were there, and a to d go through their slots; the coordinator dies while the disk copies."""
    cluster = make_cluster(blocks=(6, 5, 30), offload="never")
    on_disk_only(cluster)
    cluster.silent.add(("tier", DISK, 0))
    cluster.admit(new("reader", "abcd"))
    (request,) = [one.message for one in cluster.inbox(("tier", DISK, 0)) if isinstance(one.message, CopyRequest)]
    assert request.copies.destination_pool == HOST

    cluster.restart(1)
    cluster.silent.clear()
    cluster.send(RecoverEvent(()))

    assert below(cluster, 1).isdisjoint(digests("efgh"))
    assert below(cluster, 2) == digests("abcd")
    assert cluster.hit("efgh") == 0
    cluster.check()
