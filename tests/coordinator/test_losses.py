"""Losses of groups, tiers and coordinators: what is gone, what is there again, who is told."""

from __future__ import annotations

import pytest

from kvtroupe.coordinator.check import quiescent
from kvtroupe.coordinator.errors import CommitError, RequestError, TierLost
from kvtroupe.coordinator.messages import (
    Admitted,
    CommitReply,
    GroupLostEvent,
    MatchReply,
    ReleaseEvent,
    SequenceFailedEvent,
    TierLostEvent,
    TierReadyEvent,
)
from tests.coordinator.losing import DISK, FULL, HOST, SLIDING, admission, below, digests, failed, make
from tests.coordinator.support import chain, new, split

# -- groups ------------------------------------------------------------------------------------------------------------


def test_a_lost_group_costs_its_cached_blocks_and_nothing_else() -> None:
    """Free blocks become plain free ones; the running sequence keeps its slots, and is offered to the new group."""
    cluster = make(FULL, SLIDING, blocks=(41,))
    cluster.cache("abcd")
    cluster.run("runs", "efgh")
    held = cluster.replica.tables("runs")[0].tolist()

    cluster.lose_group(0)
    cluster.check()
    assert cluster.hit("efgh") == 0
    cluster.group_ready(0)
    cluster.check()

    assert cluster.hit("abcd") == 0
    assert cluster.hit("efgh") == 16
    assert cluster.replica.tables("runs")[0].tolist() == held
    cluster.send(ReleaseEvent("runs"))
    assert quiescent(cluster.replica)


def test_a_group_that_is_back_knows_what_is_below_the_device() -> None:
    """The first chain was demoted: the ledger of the host knows them, and the group is offered them."""
    cluster = make(blocks=(9, 9))
    cluster.cache("abcd", "efgh", "ijkl")
    assert below(cluster, 1) == digests("abcd")

    cluster.lose_group(0)
    cluster.check()
    cluster.group_ready(0)

    assert below(cluster, 1) == digests("abcd")
    assert cluster.hit("abcd") == 16
    cluster.check()


def test_a_commit_is_answered_although_its_group_is_lost() -> None:
    """Nothing of it entered that group's index; when the group is back, it is offered the blocks again."""
    cluster = make(FULL, SLIDING, blocks=(41,))
    (result,) = cluster.admit(new("a", "abcd", extra_tokens=0))
    assert isinstance(result, Admitted)
    cluster.silent.add(("group", 0, 0))
    cluster.commit("a", 16)
    assert not [one for one in cluster.events if isinstance(one, CommitReply)]

    cluster.silent.clear()
    replies = [one for one in cluster.lose_group(0) if isinstance(one, CommitReply)]
    assert [reply.published_blocks for reply in replies] == [(0, 4)]
    cluster.group_ready(0)

    assert cluster.hit("abcd") == 16
    cluster.check()


def test_a_round_goes_on_without_a_group_that_is_lost_meanwhile() -> None:
    """The other group has answered already; what is asked later does not wait for the lost one either."""
    cluster = make(FULL, SLIDING, blocks=(41,))
    cluster.silent.add(("group", 0, 0))
    assert cluster.send(admission("a")) == []

    cluster.lose_group(0)

    assert len(cluster.events) == 1
    assert isinstance(cluster.admit(new("b", "ab"))[0], Admitted)


def test_a_group_that_has_missed_a_message_is_emptied_and_filled_anew() -> None:
    """The answer to the next question shows the gap: its hits do not count, and its index begins anew."""
    cluster = make()
    cluster.cache("ab")
    cluster.run("runs", "cd")
    group = cluster.replica.groups[0]
    group.applied -= 1

    assert cluster.hit("cd") == 0
    assert group.applied == cluster.replica.state.mail.sent[0]
    assert cluster.hit("cd") == 8
    assert cluster.hit("ab") == 0
    cluster.check()


def test_an_answer_under_another_epoch_is_counted_and_no_more() -> None:
    """The epoch is 0."""
    cluster = make()
    cluster.silent.add(("group", 0, 0))
    cluster.send(admission("a"))

    assert cluster.send(MatchReply(1, 0, (), epoch=3)) == []
    assert cluster.replica.counters().late_answers == 1


# -- tiers below the device --------------------------------------------------------------------------------------------


def test_a_lost_host_costs_what_was_there() -> None:
    """Its blocks leave the index; later ones are kept there again."""
    cluster = make(blocks=(9, 9))
    cluster.cache("abcd", "efgh", "ijkl")

    cluster.lose_tier(HOST, 0, keeps_rows=False)
    cluster.check()
    assert below(cluster, 1) == set()
    cluster.cache("mnop")
    assert below(cluster, 1) == set()
    cluster.tier_ready(HOST, 0)
    cluster.cache("qrst")

    assert below(cluster, 1) == digests("ijkl")
    cluster.check()
    assert quiescent(cluster.replica)


def test_a_disk_that_is_back_is_taken_over() -> None:
    """What all ranks report counts again: a to d."""
    cluster = make(blocks=(9, 20), ranks=2)
    cluster.cache("abcd", "efgh", "ijkl")
    for rank in range(2):
        cluster.lose_tier(HOST, rank, keeps_rows=True)
    assert below(cluster, 1) == set()

    cluster.tier_ready(HOST, 0)
    assert below(cluster, 1) == set()
    cluster.tier_ready(HOST, 1)

    assert below(cluster, 1) == digests("abcd")
    assert cluster.hit("abcd") == 16
    cluster.check()


def test_what_only_one_rank_has_kept_does_not_count() -> None:
    """Rank 1 comes back empty: rank 0 is told to drop what it has."""
    cluster = make(blocks=(9, 20), ranks=2)
    cluster.cache("abcd", "efgh", "ijkl")

    cluster.lose_tier(HOST, 1, keeps_rows=False)
    cluster.tier_ready(HOST, 1)

    assert below(cluster, 1) == set()
    assert cluster.tiers[HOST, 0].rows == {}
    assert cluster.hit("abcd") == 0


def test_a_block_whose_parent_is_missing_on_one_rank_is_out_of_reach() -> None:
    """Rank 1 has lost b of a, b, c and d: a is left; c and d are dropped."""
    cluster = make(blocks=(9, 20), ranks=2)
    cluster.cache("abcd", "efgh", "ijkl")
    second = split(chain("ab"))[1]
    for rank in range(2):
        cluster.lose_tier(HOST, rank, keeps_rows=True)
    rows = cluster.tiers[HOST, 1].rows
    del rows[next(slot for slot, row in rows.items() if row[1] == second)]

    for rank in range(2):
        cluster.tier_ready(HOST, rank)

    assert below(cluster, 1) == digests("a")
    assert [len(cluster.tiers[HOST, rank].rows) for rank in range(2)] == [1, 1]
    cluster.check()


def test_a_sequence_that_waits_for_a_lost_tier_is_undone() -> None:
    """It never ran: its slots are free, and it need not be released."""
    cluster = make(blocks=(13, 20), ranks=2)
    cluster.cache("abcd", "efgh", "ijkl", "mnop")
    cluster.silent.add(("tier", HOST, 1))
    (result,) = cluster.admit(new("reader", "abcd"))
    assert isinstance(result, Admitted)
    assert result.reads_after

    outputs = cluster.lose_tier(HOST, 1, keeps_rows=False)
    cluster.silent.clear()
    cluster.deliver()

    assert failed(outputs) == {"reader": False}
    cluster.check()
    assert quiescent(cluster.replica)


def test_what_waits_for_its_blocks_cannot_be_committed() -> None:
    """Nothing that could have been computed by then would be right."""
    cluster = make(blocks=(13, 20))
    cluster.cache("abcd", "efgh", "ijkl", "mnop")
    cluster.silent.add(("tier", HOST, 0))
    cluster.admit(new("reader", "abcd"))

    with pytest.raises(CommitError, match="still bring what it reads"):
        cluster.commit("reader", 17)
    cluster.silent.clear()
    cluster.deliver()
    cluster.commit("reader", 17)
    cluster.check()


def test_copies_between_a_lost_host_and_the_disk_do_not_land() -> None:
    """The disk's engine was reading the host's memory when that died: nobody knows what it has copied."""
    cluster = make(blocks=(9, 7, 40))
    cluster.silent.add(("tier", DISK, 0))
    cluster.cache("abcd", "efgh", "ijkl", "mnop", "qrst")
    assert cluster.waiting(("tier", DISK, 0))

    cluster.lose_tier(HOST, 0, keeps_rows=False)
    cluster.silent.clear()
    cluster.deliver()
    cluster.check()

    assert below(cluster, 2) == set()
    assert cluster.tiers[DISK, 0].rows == {}
    assert quiescent(cluster.replica)


def test_a_loss_said_twice_is_as_good_as_once() -> None:
    """And so is the return."""
    cluster = make(blocks=(9, 9))
    cluster.cache("abcd", "efgh", "ijkl")
    for _ in range(2):
        cluster.lose_tier(HOST, 0, keeps_rows=True)
    for _ in range(2):
        cluster.tier_ready(HOST, 0)
    for _ in range(2):
        cluster.send(GroupLostEvent(0))
    cluster.lose_group(0)
    for _ in range(2):
        cluster.group_ready(0)

    cluster.check()
    assert below(cluster, 1) == digests("abcd")


def test_a_tier_that_was_replaced_unnoticed_has_lost_what_it_held() -> None:
    """Its successor says that it is there; said again, or by a predecessor, that means nothing."""
    cluster = make(blocks=(9, 9))
    cluster.cache("abcd", "efgh", "ijkl")
    cluster.tiers[HOST, 0].rows.clear()

    cluster.send(TierReadyEvent(HOST, 0, 5))
    assert below(cluster, 1) == set()
    cluster.cache("mnop")
    kept = below(cluster, 1)
    assert kept
    late = cluster.replica.counters().late_answers
    for tier_epoch in (5, 4):
        cluster.send(TierReadyEvent(HOST, 0, tier_epoch))

    assert below(cluster, 1) == kept
    assert cluster.replica.counters().late_answers == late + 2
    cluster.check()
    assert quiescent(cluster.replica)


@pytest.mark.parametrize(
    "message", [TierLostEvent(9, 0), TierLostEvent(0, 1), TierReadyEvent(-1, 0, 1), GroupLostEvent(7)]
)
def test_losses_of_what_is_not_there_are_refused(message: TierLostEvent | TierReadyEvent | GroupLostEvent) -> None:
    """There is one pool, one rank, and one group."""
    cluster = make()
    with pytest.raises(RequestError, match=r"no group|no tier actor"):
        cluster.send(message)
    cluster.check()


# -- the device --------------------------------------------------------------------------------------------------------


def test_with_the_device_every_sequence_is_lost_and_what_is_below_stays() -> None:
    """A sequence that has run keeps its slots until it is released: another rank may still write into them."""
    cluster = make(blocks=(9, 9), ranks=2)
    cluster.cache("abcd", "efgh", "ijkl")
    cluster.run("runs", "mn")
    demoted = below(cluster, 1)

    outputs = cluster.lose_tier(0, 1, keeps_rows=False)

    assert failed(outputs) == {"runs": True}
    (event,) = [one for one in outputs if isinstance(one, SequenceFailedEvent)]
    assert isinstance(event.error, TierLost)
    assert cluster.replica.published("full") == {}
    assert below(cluster, 1) == demoted
    cluster.check()
    (refused,) = cluster.admit(new("early", "ab"))
    assert isinstance(refused, TierLost)
    cluster.send(ReleaseEvent("runs"))
    assert quiescent(cluster.replica)

    cluster.tier_ready(0, 1)
    assert cluster.hit("abcd") == 16
    cluster.check()


def test_what_was_copied_from_the_device_before_that_was_lost_lands() -> None:
    """The host has the bytes; only the group has not been asked yet."""
    cluster = make(blocks=(9, 20), offload="on_commit")
    cluster.silent = {("tier", HOST, 0)}
    cluster.run("a", "abcd")
    cluster.silent = {("group", 0, 0)}
    cluster.deliver()
    assert cluster.waiting(("group", 0, 0))

    cluster.lose_tier(0, 0, keeps_rows=False)
    cluster.silent.clear()
    cluster.deliver()
    cluster.check()
    cluster.tier_ready(0, 0)
    cluster.send(ReleaseEvent("a"))

    assert below(cluster, 1) == digests("abcd")
    assert cluster.hit("abcd") == 16
    assert quiescent(cluster.replica)


def test_what_was_still_being_copied_from_a_lost_device_does_not_land() -> None:
    """Nobody knows whether the host has read it before."""
    cluster = make(blocks=(9, 20), offload="on_commit")
    cluster.silent = {("tier", HOST, 0)}
    cluster.run("a", "abcd")

    cluster.lose_tier(0, 0, keeps_rows=False)
    cluster.silent.clear()
    cluster.deliver()
    cluster.check()

    assert below(cluster, 1) == set()
    assert cluster.tiers[HOST, 0].rows == {}


def test_what_was_about_to_be_published_on_a_lost_device_is_not() -> None:
    """The group enters the blocks and is told right after that they are gone."""
    cluster = make()
    (result,) = cluster.admit(new("a", "abcd", extra_tokens=0))
    assert isinstance(result, Admitted)
    cluster.silent.add(("group", 0, 0))
    cluster.commit("a", 16)

    outputs = cluster.lose_tier(0, 0, keeps_rows=False)
    cluster.silent.clear()
    cluster.deliver()

    assert [one.published_blocks for one in outputs if isinstance(one, CommitReply)] == [(0,)]
    assert cluster.replica.published("full") == {}
    cluster.check()


def test_a_failed_sequence_holds_its_id_until_it_is_released() -> None:
    """Its fence is that of any release."""
    cluster = make()
    cluster.run("a", "ab")
    cluster.lose_tier(0, 0, keeps_rows=False)
    cluster.tier_ready(0, 0)

    with pytest.raises(RequestError, match="was not released"):
        cluster.admit(new("a", "ab"))
    with pytest.raises(RequestError, match="no sequence 'a' is running"):
        cluster.commit("a", 8)
    cluster.send(ReleaseEvent("a"))
    assert isinstance(cluster.admit(new("a", "ab"))[0], Admitted)
