"""Transfers: what is finished, what has failed, and what is overdue. The pools and engines are those of `copying`."""

from __future__ import annotations

import pytest

from kvtroupe.coordinator.actor_messages import CopyReply
from kvtroupe.coordinator.errors import InvariantError
from tests.coordinator.copying import EPOCH, answer, begin, complete, flush, make, told
from tests.coordinator.support import slots

# -- answers -----------------------------------------------------------------------------------------------------------


def test_a_transfer_is_finished_when_every_rank_has_answered() -> None:
    """And what failed on one of them has failed."""
    transfers = make()
    begin(transfers, (0, 1), (1, 2), (3, 4), (5, 6))
    flush(transfers)

    assert answer(transfers, 1, 1, 2) == []
    transfer = transfers.get(1)
    assert transfer is not None
    assert (transfer.missing, transfer.sent) == ({0}, True)
    (finished,) = answer(transfers, 1, 0, 0)
    assert told([finished]) == [(1, [0, 2])]
    assert finished.copies.destinations.tolist() == [2, 4, 6]
    assert transfers.get(1) is None


def test_a_transfer_without_failures_has_no_mask() -> None:
    """The usual case costs nothing."""
    transfers = make(ranks=1)
    begin(transfers, (0, 1), (1, 2))
    flush(transfers)

    (finished,) = answer(transfers, 1, 0)

    assert finished.failed is None


def test_late_and_repeated_answers_change_nothing_and_are_counted() -> None:
    """Another epoch, a rank that has answered, a transfer that is finished, one that never was."""
    transfers = make()
    begin(transfers, (0, 1), (1, 2))
    flush(transfers)

    assert transfers.answered(CopyReply(1, EPOCH - 1, 1, 0, (0,))) == []
    answer(transfers, 1, 0)
    assert transfers.answered(CopyReply(1, EPOCH, 1, 0, (0,))) == []
    assert transfers.late_answers == 2
    assert told(answer(transfers, 1, 1)) == [(1, [])]
    assert transfers.answered(CopyReply(1, EPOCH, 1, 1, (0,))) == []
    assert transfers.answered(CopyReply(99, EPOCH, 1, 1)) == []
    assert transfers.late_answers == 4


@pytest.mark.parametrize(
    ("reply", "message"),
    [
        (CopyReply(1, EPOCH, 1, 2), "rank 2 of 2"),
        (CopyReply(1, EPOCH, 1, -1), "rank -1 of 2"),
        (CopyReply(1, EPOCH, 2, 0), "engine 2 answers transfer 1, which is of engine 1"),
        (CopyReply(1, EPOCH, 1, 0, (0, 2)), r"copies \[2\] of transfer 1 are said to have failed; it has 2"),
        (CopyReply(1, EPOCH, 1, 0, (-1,)), r"copies \[-1\]"),
        (CopyReply(2, EPOCH, 1, 0), "answers transfer 2, which it was not sent"),
    ],
)
def test_an_answer_that_cannot_be_one_changes_nothing(reply: CopyReply, message: str) -> None:
    """It is a bug of the tier actor, and names what does not fit."""
    transfers = make()
    begin(transfers, (0, 1), (1, 2), (3, 4))
    flush(transfers)
    begin(transfers, (0, 1), (5, 6))

    with pytest.raises(InvariantError, match=message):
        transfers.answered(reply)

    assert [transfer.missing for transfer in transfers.open_transfers()] == [{0, 1}, {0, 1}]
    assert transfers.late_answers == 0
    assert complete(transfers, 1) == [(1, [])]


def test_what_was_read_from_a_failed_copy_has_failed_too() -> None:
    """Along a chain over two engines, and only what was read from the failed slot."""
    transfers = make()
    begin(transfers, (2, 1), (1, 5), (2, 6))
    assert begin(transfers, (1, 0), (6, 3), (5, 4)) == [2, 2]
    assert begin(transfers, (0, 0), (4, 7), (3, 8)) == [3, 3]
    flush(transfers)

    assert complete(transfers, 1, 0) == [(1, [0])]
    assert flush(transfers) == [2]
    assert complete(transfers, 2) == [(2, [1])]
    assert flush(transfers) == [3]
    assert complete(transfers, 3, 1) == [(3, [0, 1])]


def test_what_is_read_after_a_failure_was_told_has_not_failed() -> None:
    """Whoever began the copy knew, and may have written the slot since."""
    transfers = make()
    begin(transfers, (0, 1), (1, 5))
    flush(transfers)
    complete(transfers, 1, 0)
    begin(transfers, (1, 0), (5, 2))
    flush(transfers)

    assert complete(transfers, 2) == [(2, [])]


def test_only_the_last_writer_of_a_source_counts() -> None:
    """The failed content of slot 5 was overwritten before it was read, that of slot 6 was not."""
    transfers = make()
    assert begin(transfers, (0, 1), (1, 5), (2, 6), (3, 5)) == [1, 1, 2]
    begin(transfers, (1, 0), (5, 4), (6, 5))
    flush(transfers)

    assert complete(transfers, 1, 0, 1) == [(1, [0, 1])]
    assert complete(transfers, 2) == [(2, [])]
    assert complete(transfers, 3) == [(3, [1])]


def test_a_failure_reaches_copies_that_were_answered_earlier() -> None:
    """Answers may overtake one another; nothing is finished before it is known what it has read."""
    transfers = make()
    begin(transfers, (0, 1), (1, 5))
    begin(transfers, (1, 0), (5, 2), (6, 3))
    flush(transfers)

    assert complete(transfers, 2) == []
    assert complete(transfers, 1, 0) == [(1, [0]), (2, [0])]


def test_a_failure_is_not_lost_when_its_reader_grows() -> None:
    """Transfer 2 has failed in part when more copies join it, and positions stay what they were."""
    transfers = make()
    begin(transfers, (0, 1), (1, 5))
    flush(transfers)
    begin(transfers, (1, 0), (6, 2), (5, 3))
    complete(transfers, 1, 0)
    assert begin(transfers, (1, 0), (7, 4)) == [2]
    flush(transfers)

    assert complete(transfers, 2) == [(2, [1])]


# -- lost ranks --------------------------------------------------------------------------------------------------------


def test_what_a_lost_rank_has_not_answered_has_failed() -> None:
    """It is finished once the others have answered; what the rank has answered has not failed."""
    transfers = make()
    begin(transfers, (0, 1), (1, 2))
    flush(transfers)
    begin(transfers, (0, 1), (3, 4))
    flush(transfers)
    answer(transfers, 1, 0)
    answer(transfers, 2, 1)

    assert told(transfers.rank_lost(1, 0)) == [(2, [0])]
    assert told(answer(transfers, 1, 1)) == [(1, [])]
    assert transfers.answered(CopyReply(2, EPOCH, 1, 0)) == []
    assert transfers.late_answers == 1


def test_what_a_lost_rank_was_not_sent_never_is() -> None:
    """It fails at once, also when what it waited for has not ended; nothing joins it afterwards."""
    transfers = make()
    begin(transfers, (2, 1), (1, 5))
    begin(transfers, (1, 0), (5, 2))
    begin(transfers, (1, 0), (6, 3))

    assert told(transfers.rank_lost(1, 1)) == [(2, [0]), (3, [0])]
    transfers.rank_back(1, 1)
    assert begin(transfers, (1, 0), (7, 4)) == [4]
    assert flush(transfers) == [1, 4]
    assert complete(transfers, 1) == [(1, [])]


def test_what_waited_for_a_lost_engine_goes_on_without_what_it_should_have_read() -> None:
    """The copy up is sent, and has failed where its source was lost."""
    transfers = make(ranks=1)
    begin(transfers, (2, 1), (1, 5))
    begin(transfers, (1, 0), (5, 2), (5, 3))
    flush(transfers)

    assert told(transfers.rank_lost(2, 0)) == [(1, [0])]
    assert flush(transfers) == [2]
    assert told(answer(transfers, 2, 0)) == [(2, [0, 1])]


def test_a_copy_still_waits_for_what_a_dropped_one_waited_for() -> None:
    """Slot 5 is read down to the disk; the host was to write it, twice; the first of these is never sent."""
    transfers = make()
    begin(transfers, (1, 2), (5, 1))
    begin(transfers, (0, 1), (2, 5))
    flush(transfers)
    transfers.rank_lost(1, 0)
    transfers.rank_back(1, 0)
    begin(transfers, (0, 1), (3, 5))

    assert transfers.awaited_before_writing(1, slots(5)) == (1, 3)
    assert flush(transfers) == []
    complete(transfers, 1)
    assert flush(transfers) == [3]


def test_nothing_is_begun_while_a_rank_is_lost() -> None:
    """The engine has no room until each lost rank is back; the others go on."""
    transfers = make()
    transfers.rank_lost(1, 0)
    transfers.rank_lost(1, 1)
    assert transfers.rank_lost(1, 1) == []
    transfers.rank_back(1, 0)

    assert [transfers.room(engine) for engine in range(3)] == [8, 0, 8]
    with pytest.raises(InvariantError, match=r"engine 1 has lost ranks \[1\]"):
        begin(transfers, (0, 1), (1, 2))
    transfers.rank_back(1, 1)
    assert begin(transfers, (0, 1), (1, 2)) == [1]


def test_a_rank_that_was_not_lost_cannot_be_back() -> None:
    """Its open transfers would never be answered."""
    transfers = make()

    with pytest.raises(InvariantError, match="rank 0 of engine 1 is back and was not lost"):
        transfers.rank_back(1, 0)
    with pytest.raises(InvariantError, match="rank 2 of 2"):
        transfers.rank_lost(1, 2)
    with pytest.raises(InvariantError, match="pool 5 has no engine"):
        transfers.rank_lost(5, 0)


# -- deadlines ---------------------------------------------------------------------------------------------------------


def test_an_overdue_transfer_is_told_once_and_awaited_on() -> None:
    """It fails for those who wait; its slots are safe only when it has ended."""
    transfers = make()
    assert transfers.next_deadline_s() is None
    begin(transfers, (0, 1), (1, 2), now_s=5.0)
    flush(transfers)
    begin(transfers, (0, 1), (3, 4), now_s=7.0)

    assert transfers.next_deadline_s() == 15.0
    assert transfers.overdue(14.9) == []
    assert transfers.overdue(15.0) == [1]
    assert transfers.overdue(16.0) == []
    assert transfers.next_deadline_s() == 17.0
    assert [transfer.overdue for transfer in transfers.open_transfers()] == [True, False]
    assert transfers.awaited_before_reading(1, slots(2, 4)) == (1, 2)
    assert complete(transfers, 1) == [(1, [])]
    assert transfers.overdue(17.0) == [2]


def test_an_engine_that_is_overdue_is_asked_for_nothing_more() -> None:
    """Whoever tried again would wait as long, and hold more slots; other engines go on."""
    transfers = make()
    begin(transfers, (0, 1), (1, 2))
    begin(transfers, (1, 0), (3, 4))
    begin(transfers, (1, 2), (2, 5))  # held back until engine 1 has answered
    flush(transfers)
    assert [transfers.room(engine) for engine in range(3)] == [8, 6, 7]

    assert transfers.overdue(10.0) == [1, 2, 3]
    assert [transfers.room(engine) for engine in range(3)] == [8, 0, 7]

    complete(transfers, 1)
    assert transfers.room(1) == 0
    complete(transfers, 2)
    assert transfers.room(1) == 8


def test_a_finished_transfer_is_never_overdue() -> None:
    """Its deadline ends with it; a clock that goes back moves no deadline before an earlier one."""
    transfers = make()
    begin(transfers, (0, 1), (1, 2), now_s=5.0)
    begin(transfers, (1, 0), (3, 4), now_s=4.0)
    flush(transfers)
    complete(transfers, 1)

    assert transfers.next_deadline_s() == 15.0
    assert transfers.overdue(20.0) == [2]
