"""Transfers: what shares one, what is held back, and who has to wait. The pools and engines are those of `copying`."""

from __future__ import annotations

import numpy as np
import pytest

from kvtroupe.coordinator.actor_messages import Copies, CopyRequest
from kvtroupe.coordinator.errors import InvariantError
from kvtroupe.coordinator.transfers import Transfers
from tests.coordinator.copying import EPOCH, answer, asked, begin, complete, copies, flush, make
from tests.coordinator.support import slots

# -- what shares a transfer --------------------------------------------------------------------------------------------


def test_copies_begun_before_a_flush_share_a_transfer() -> None:
    """One request is cheaper than two."""
    transfers = make()

    assert begin(transfers, (0, 1), (1, 2), (3, 4)) == [1, 1]
    assert begin(transfers, (0, 1), (5, 6)) == [1]
    (first, second) = transfers.flush()

    assert (first.engine, first.rank, second.engine, second.rank) == (1, 0, 1, 1)
    message = first.message
    assert isinstance(message, CopyRequest)
    assert (message.transfer_id, message.epoch) == (1, EPOCH)
    assert message.copies.sources.tolist() == [1, 3, 5]
    assert message.copies.destinations.tolist() == [2, 4, 6]
    assert isinstance(second.message, CopyRequest)
    assert second.message.copies is message.copies


def test_what_is_sent_is_sent_once_and_joined_by_nothing() -> None:
    """A request that was sent cannot grow."""
    transfers = make()
    begin(transfers, (0, 1), (1, 2))

    assert flush(transfers) == [1]
    assert begin(transfers, (0, 1), (3, 4)) == [2]
    assert flush(transfers) == [2]
    assert flush(transfers) == []


def test_other_pools_have_another_transfer() -> None:
    """Up and down are two, although the same engine copies."""
    transfers = make()

    assert begin(transfers, (0, 1), (1, 2)) == [1]
    assert begin(transfers, (1, 0), (3, 4)) == [2]
    assert begin(transfers, (1, 2), (5, 6)) == [3]


def test_nothing_to_copy_is_no_transfer() -> None:
    """An empty plan costs nothing."""
    transfers = make()

    assert begin(transfers, (0, 1)) == []
    assert flush(transfers) == []
    assert not transfers.open_transfers()


def test_one_source_may_be_read_several_times() -> None:
    """Reading does not conflict with reading."""
    assert begin(make(), (0, 1), (1, 2), (1, 3), (1, 4)) == [1, 1, 1]


def test_a_slot_that_is_written_twice_is_written_in_two_waves() -> None:
    """Within a wave there is no order; what does not conflict with the first one stays in it."""
    transfers = make()

    assert begin(transfers, (0, 1), (1, 2), (3, 2), (4, 5)) == [1, 2, 1]
    assert flush(transfers) == [1, 2]


@pytest.mark.parametrize(
    ("pairs", "ids"),
    [
        ([(1, 2), (2, 3)], [1, 2]),
        ([(1, 2), (3, 1)], [1, 2]),
        ([(1, 2), (2, 3), (3, 4), (5, 6)], [1, 2, 3, 1]),
    ],
    ids=["read what was written", "write what was read", "a chain"],
)
def test_no_slot_is_read_and_written_in_one_wave(pairs: list[tuple[int, int]], ids: list[int]) -> None:
    """Copies within a pool are done as if one after the other."""
    assert begin(make(), (0, 0), *pairs) == ids


def test_a_conflict_with_an_earlier_begin_opens_a_wave_too() -> None:
    """It is the copies that conflict, not the calls; a third call finds both waves."""
    transfers = make()

    assert begin(transfers, (0, 1), (1, 2)) == [1]
    assert begin(transfers, (0, 1), (3, 2)) == [2]
    assert begin(transfers, (0, 1), (4, 2)) == [3]
    assert begin(transfers, (0, 1), (5, 6)) == [1]


def test_a_copy_joins_nothing_that_comes_before_what_it_conflicts_with() -> None:
    """Slot 2 of the host goes up before it is written again, so that the first transfer down is too early."""
    transfers = make()

    assert begin(transfers, (0, 1), (1, 3)) == [1]
    assert begin(transfers, (1, 0), (2, 4)) == [2]
    assert begin(transfers, (0, 1), (5, 2)) == [3]
    assert flush(transfers) == [1, 2, 3]


def test_the_details_of_copies_stay_with_them() -> None:
    """Tokens, groups, digests and parents follow their blocks."""
    transfers = make()
    digests = np.array([b"aa", b"bb", b"cc"], np.dtype((np.void, 2)))
    first = Copies(0, slots(1, 2, 3), 1, slots(4, 4, 5), slots(7, 8, 9), slots(0, 1, 0), digests, digests[::-1])
    second = Copies(0, slots(6), 1, slots(6), slots(3), slots(1), digests[1:2], digests[2:])

    assert transfers.begin(first, 0.0).tolist() == [1, 2, 1]
    assert transfers.begin(second, 0.0).tolist() == [1]
    sent = [asked(output).copies for output in transfers.flush() if output.rank == 0]

    assert [None if each.tokens is None else each.tokens.tolist() for each in sent] == [[7, 9, 3], [8]]
    assert [None if each.groups is None else each.groups.tolist() for each in sent] == [[0, 0, 1], [1]]
    assert [None if each.digests is None else each.digests.tobytes() for each in sent] == [b"aaccbb", b"bb"]
    assert [None if each.parents is None else each.parents.tobytes() for each in sent] == [b"ccaacc", b"bb"]


def test_copies_with_other_details_do_not_share_a_transfer() -> None:
    """Of some copies in it, it would have to be known how many tokens are a whole block."""
    transfers = make()
    digests = np.array([b"aa"], np.dtype((np.void, 2)))
    kinds = [
        Copies(0, slots(1), 1, slots(1)),
        Copies(0, slots(2), 1, slots(2), tokens=slots(3)),
        Copies(0, slots(3), 1, slots(3), groups=slots(0)),
        Copies(0, slots(4), 1, slots(4), digests=digests),
        Copies(0, slots(5), 1, slots(5), digests=digests, parents=digests),
    ]

    assert [transfers.begin(each, 0.0).tolist() for each in kinds] == [[1], [2], [3], [4], [5]]


def test_copies_of_another_content_epoch_do_not_share_a_transfer() -> None:
    """What was begun before a reset is sent under the epoch that it was begun in."""
    transfers = make()
    begin(transfers, (0, 1), (1, 1))
    transfers.begin_content_epoch(4)
    assert begin(transfers, (0, 1), (2, 2)) == [2]

    sent = {asked(output).transfer_id: asked(output).content_epoch for output in transfers.flush()}

    assert sent == {1: 0, 2: 4}


# -- what is held back -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (((2, 1), (1, 5)), ((1, 0), (5, 2))),
        (((1, 2), (5, 1)), ((0, 1), (2, 5))),
        (((2, 1), (1, 5)), ((0, 1), (2, 5))),
    ],
    ids=["reads what it writes", "writes what it reads", "writes what it writes"],
)
def test_a_copy_that_conflicts_with_another_engine_waits_for_every_rank(
    first: tuple[tuple[int, int], tuple[int, int]], second: tuple[tuple[int, int], tuple[int, int]]
) -> None:
    """Nothing else orders two engines."""
    transfers = make()
    begin(transfers, *first)
    begin(transfers, *second)

    assert flush(transfers) == [1]
    answer(transfers, 1, 0)
    assert flush(transfers) == []
    answer(transfers, 1, 1)
    assert flush(transfers) == [2]


def test_a_copy_that_conflicts_with_its_own_engine_is_only_sent_later() -> None:
    """An engine does what it was sent in the order sent."""
    transfers = make()
    begin(transfers, (0, 1), (1, 5))

    assert flush(transfers) == [1]
    assert begin(transfers, (1, 0), (5, 1)) == [2]
    assert flush(transfers) == [2]


def test_what_need_not_wait_is_not_made_to() -> None:
    """Of three blocks on their way up, one is still on its way from the disk."""
    transfers = make()
    begin(transfers, (2, 1), (1, 5))

    assert begin(transfers, (1, 0), (4, 1), (5, 2), (6, 3)) == [2, 3, 2]
    assert begin(transfers, (1, 0), (5, 4), (7, 5)) == [3, 2]
    assert flush(transfers) == [1, 2]


def test_what_conflicts_with_something_held_back_is_held_back_behind_it() -> None:
    """Slot 2 of the device is written from the disk, by way of the host, and then goes to slot 7 of the host."""
    transfers = make()
    begin(transfers, (2, 1), (1, 5))
    begin(transfers, (1, 0), (5, 2))

    held, not_held = begin(transfers, (0, 1), (2, 7), (3, 8))

    assert flush(transfers) == [1, not_held]
    complete(transfers, 1)
    assert flush(transfers) == [2, held]


def test_what_is_held_back_for_two_engines_waits_for_both() -> None:
    """The copy up reads slot 2 of the host, which comes from the disk, and overwrites a slot that is copied within."""
    transfers = make()
    begin(transfers, (2, 1), (3, 2))
    begin(transfers, (0, 0), (5, 6))
    begin(transfers, (1, 0), (2, 5))

    assert flush(transfers) == [1, 2]
    complete(transfers, 2)
    assert flush(transfers) == []
    complete(transfers, 1)
    assert flush(transfers) == [3]


def test_urgent_copies_are_sent_first() -> None:
    """Somebody waits for them."""
    transfers = make()

    assert begin(transfers, (0, 1), (1, 2)) == [1]
    assert begin(transfers, (0, 1), (3, 4), urgent=True) == [2]
    assert begin(transfers, (1, 0), (5, 6), urgent=True) == [3]
    assert flush(transfers) == [2, 3, 1]


def test_what_an_urgent_copy_has_to_follow_is_urgent_too() -> None:
    """Transfer 4 reads what 3 writes, and 3 writes what 2 reads; only 1 can wait."""
    transfers = make()
    assert begin(transfers, (0, 0), (8, 9)) == [1]
    assert begin(transfers, (0, 1), (1, 2)) == [2]
    assert begin(transfers, (1, 0), (3, 1)) == [3]
    assert begin(transfers, (0, 1), (1, 5), urgent=True) == [4]

    assert flush(transfers) == [2, 3, 4, 1]


# -- who has to wait ---------------------------------------------------------------------------------------------------


def test_a_reader_awaits_writers_and_a_writer_everybody() -> None:
    """Asked from begin on, sent or not, until the transfer is finished."""
    transfers = make()
    begin(transfers, (0, 1), (1, 2), (1, 3))
    begin(transfers, (1, 0), (4, 5))

    assert transfers.awaited_before_reading(1, slots(2, 3, 4, 6)) == (1,)
    assert transfers.awaited_before_writing(1, slots(2, 3, 4, 6)) == (1, 2)
    assert transfers.awaited_before_reading(0, slots(1)) == ()
    assert transfers.awaited_before_writing(0, slots(1)) == (1,)
    assert transfers.awaited_before_writing(0, slots(2, 5)) == (2,)
    assert transfers.awaited_before_writing(0, slots()) == ()
    flush(transfers)
    complete(transfers, 1)
    assert transfers.awaited_before_writing(1, slots(2, 3, 4, 6)) == (2,)


def test_all_users_of_one_slot_are_named() -> None:
    """Also when the last of them ends first: three read slot 1 of the device, two write slot 2 of the host."""
    transfers = make()
    for destination in (2, 3, 2):
        begin(transfers, (0, 1), (1, destination))
        flush(transfers)

    assert transfers.awaited_before_writing(0, slots(1)) == (1, 2, 3)
    assert transfers.awaited_before_reading(1, slots(2)) == (1, 3)
    complete(transfers, 3)
    assert transfers.awaited_before_writing(0, slots(1)) == (1, 2)
    assert transfers.awaited_before_reading(1, slots(2)) == (1,)
    complete(transfers, 1)
    assert transfers.awaited_before_writing(0, slots(1)) == (2,)
    assert transfers.awaited_before_reading(1, slots(2)) == ()


def test_pools_are_busy_while_their_slots_are_read_or_written() -> None:
    """Which pools may be reset or resized."""
    transfers = make()
    begin(transfers, (0, 1), (1, 2))

    assert [transfers.busy(pool) for pool in range(3)] == [True, True, False]
    flush(transfers)
    complete(transfers, 1)
    assert [transfers.busy(pool) for pool in range(3)] == [False, False, False]


def test_room_is_what_the_credits_leave() -> None:
    """Blocks count from begin until their transfer is finished, each engine for itself."""
    transfers = make(blocks=3)
    begin(transfers, (0, 1), (1, 2), (3, 4))

    assert [transfers.room(engine) for engine in range(3)] == [3, 1, 3]
    with pytest.raises(InvariantError, match="2 copies to be begun, engine 1 has room for 1"):
        begin(transfers, (1, 0), (5, 5), (6, 6))
    assert transfers.room(1) == 1
    flush(transfers)
    complete(transfers, 1, 0)
    assert transfers.room(1) == 3


# -- bugs of the caller ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (copies(0, 2, (1, 2)), "no engine copies from pool 0 to pool 2"),
        (copies(0, 1, (0, 2)), r"from 1 to 9: \[0\]"),
        (copies(0, 1, (2, 0)), r"from 1 to 9: \[0\]"),
        (copies(0, 1, (1, 10), (2, 3)), r"from 1 to 9: \[10\]"),
        (copies(0, 1, (-1, 1)), r"from 1 to 9: \[-1\]"),
        (copies(0, 0, (1, 2), (3, 3)), "onto its own source"),
        (Copies(0, slots(1, 2), 1, slots(3)), "2 slots to be read, and 1 values"),
        (Copies(0, slots(1), 1, slots(3), tokens=slots(1, 2)), "1 slots to be read, and 2 values"),
        (Copies(0, slots(1), 1, slots(3), groups=slots()), "1 slots to be read, and 0 values"),
        (Copies(0, slots(1), 1, slots(3), digests=np.zeros(2, "V4")), "1 slots to be read, and 2 values"),
        (Copies(0, slots(1), 1, slots(3), parents=np.zeros(3, "V4")), "1 slots to be read, and 3 values"),
    ],
)
def test_copies_that_cannot_be_done_are_refused_whole(wrong: Copies, message: str) -> None:
    """Nothing is begun, and nothing is used."""
    transfers = make()

    with pytest.raises(InvariantError, match=message):
        transfers.begin(wrong, 0.0)

    assert not any(transfers.busy(pool) for pool in range(3))
    assert begin(transfers, (0, 1), (1, 2)) == [1]


def test_every_engine_needs_credits() -> None:
    """Otherwise no copy could ever be begun."""
    with pytest.raises(InvariantError, match="engine 1 of pools 0 and 1 has no credits"):
        Transfers((4, 4), {(0, 1): 1}, 1, {0: 5}, 1.0, EPOCH)


def test_copies_begun_before_a_tier_was_replaced_name_its_predecessor() -> None:
    """The bytes that they were to read, or the slots that they were to write, are gone: the tier can tell."""
    transfers = make()
    begin(transfers, (0, 1), (1, 1))
    transfers.begin_tier_epoch(0, 1, 6)
    assert begin(transfers, (0, 1), (2, 2)) == [2]

    sent = [
        (asked(one).transfer_id, one.rank, asked(one).source_epoch, asked(one).destination_epoch)
        for one in transfers.flush()
    ]

    assert sent == [(1, 0, 0, 0), (1, 1, 0, 0), (2, 0, 0, 0), (2, 1, 6, 0)]
