"""A coordinator that follows another one: what it takes over, what it believes, what it waits for."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from kvtroupe.coordinator.check import quiescent
from kvtroupe.coordinator.errors import RequestError
from kvtroupe.coordinator.messages import (
    CopyRequest,
    EpochAcknowledgedEvent,
    GroupOutput,
    InventoryRequest,
    RecoverEvent,
    TierLostEvent,
    TierOutput,
    TierReadyEvent,
)
from tests.coordinator.losing import DISK, HOST, admission, below, digests, make

if TYPE_CHECKING:
    from tests.coordinator.cluster import Cluster


def test_a_new_coordinator_takes_over_what_is_below_the_device() -> None:
    """The device begins empty, and is handed out when both processes have said that they hold nothing of it."""
    cluster = make(blocks=(9, 20), ranks=2)
    cluster.cache("abcd", "efgh", "ijkl")
    cluster.run("runs", "mn")

    cluster.restart(1)
    cluster.send(RecoverEvent(("p", "q")))
    cluster.check()

    assert below(cluster, 1) >= digests("abcd")
    assert cluster.replica.pool("device").ledger.free == 0
    cluster.send(EpochAcknowledgedEvent("p"))
    assert cluster.replica.pool("device").ledger.free == 0
    cluster.send(EpochAcknowledgedEvent("q"))
    assert cluster.hit("abcd") == 16
    cluster.check()
    assert quiescent(cluster.replica)


def test_answers_to_an_old_coordinator_mean_nothing_to_the_new_one() -> None:
    """A group that has heard of the new one refuses what the old one still sends."""
    cluster = make()
    cluster.cache("ab")
    old = [one for one in cluster.replica.step(admission("late"), 0.0) if isinstance(one, GroupOutput)]
    cluster.restart(1)
    cluster.send(RecoverEvent(()))
    cluster.run("a", "ab")

    group = cluster.replica.groups[0]
    assert [group.handle(one.message, one.number, one.epoch) for one in old] == [None]
    assert cluster.hit("ab") == 8
    cluster.check()


def test_the_tiers_of_a_recovering_coordinator_have_epochs_of_their_own() -> None:
    """Copies name the epoch that was told; an older actor of the same pool is no new one."""
    cluster = make(blocks=(9, 9))
    cluster.restart(1)
    with pytest.raises(RequestError, match="no tier actor of pool 3"):
        cluster.send(RecoverEvent((), ((3, 0, 1),)))
    cluster.send(RecoverEvent((), ((0, 0, 3), (HOST, 0, 8))))
    cluster.send(TierReadyEvent(HOST, 0, 8))
    cluster.silent.add(("tier", HOST, 0))

    cluster.cache("abcd", "efgh", "ijkl")

    sent = [one.message for one in cluster.inbox(("tier", HOST, 0)) if isinstance(one, TierOutput)]
    (request,) = [one for one in sent if isinstance(one, CopyRequest)]
    assert (request.source_epoch, request.destination_epoch) == (3, 8)
    cluster.check()


def is_asked(cluster: Cluster, pool: int) -> bool:
    """Whether rank 0 of a pool, which is silent, was asked what it holds."""
    return any(isinstance(one.message, InventoryRequest) for one in cluster.inbox(("tier", pool, 0)))


def test_the_host_is_not_used_before_the_disk_has_ended_what_it_copied_there() -> None:
    """Its actors may still write into any slot of the host, until each of them has answered or is dead."""
    cluster = make(blocks=(9, 9, 30), ranks=2)
    cluster.cache("abcd", "efgh", "ijkl")
    cluster.silent |= {("tier", HOST, 0), ("tier", DISK, 0), ("tier", DISK, 1)}
    cluster.restart(1)
    cluster.send(RecoverEvent(()))

    assert is_asked(cluster, DISK)
    assert not is_asked(cluster, HOST)
    cluster.deliver_one(("tier", DISK, 1))
    assert not is_asked(cluster, HOST)
    cluster.send(TierLostEvent(DISK, 0))
    assert is_asked(cluster, HOST)

    cluster.silent.clear()
    cluster.deliver()
    assert below(cluster, 1) >= digests("abcd")
    cluster.check()


def test_a_host_that_is_replaced_meanwhile_is_asked_when_the_disk_has_answered() -> None:
    """Until then it is not used either."""
    cluster = make(blocks=(9, 9, 30))
    cluster.silent |= {("tier", HOST, 0), ("tier", DISK, 0)}
    cluster.restart(1)
    cluster.send(RecoverEvent(()))

    cluster.lose_tier(HOST, 0, keeps_rows=False)
    cluster.tier_ready(HOST, 0)
    assert not is_asked(cluster, HOST)
    cluster.silent.clear()
    cluster.deliver()

    cluster.cache("abcd", "efgh", "ijkl")
    assert below(cluster, 1) >= digests("abcd")
    cluster.check()


def test_a_host_that_is_away_when_the_disk_has_answered_is_asked_when_it_is_back() -> None:
    """The loss is said before."""
    cluster = make(blocks=(9, 9, 30))
    cluster.silent |= {("tier", HOST, 0), ("tier", DISK, 0)}
    cluster.restart(1)
    cluster.send(RecoverEvent(()))

    cluster.lose_tier(HOST, 0, keeps_rows=False)
    cluster.deliver_one(("tier", DISK, 0))
    assert not is_asked(cluster, HOST)
    cluster.tier_ready(HOST, 0)

    assert is_asked(cluster, HOST)
