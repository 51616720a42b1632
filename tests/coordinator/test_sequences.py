"""Block tables that grow and slide, and slots on their way back: fences, and publications not answered yet."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

import numpy as np
import pytest

from kvtroupe.coordinator import sequences
from kvtroupe.coordinator.errors import FenceError
from kvtroupe.coordinator.ledger import Holder, Ledger
from kvtroupe.coordinator.retention import DEFAULT_RETENTION
from kvtroupe.coordinator.sequences import BlockTable, Return, Returns, Sequence
from tests.coordinator.support import DIGEST_BYTES, as_digests, chain, listed, slots

if TYPE_CHECKING:
    from kvtroupe.coordinator.messages import Slots


def rows(*numbers: list[int]) -> Slots:
    """Slots [groups, blocks]."""
    return np.array(numbers, np.int64)


# -- block tables ------------------------------------------------------------------------------------------------------


def test_a_table_without_a_hit_holds_its_fresh_slots() -> None:
    """One row for each group, one column for each block."""
    table = BlockTable([slots(), slots()], 0, rows([1, 2, 3], [4, 5, 6]))

    assert table.rows.tolist() == [[1, 2, 3], [4, 5, 6]]
    assert table.blocks == 3


def test_a_table_begins_with_what_its_hit_reads() -> None:
    """The window of the second group has left two of four blocks behind: these are null."""
    table = BlockTable([slots(11, 12, 13, 14), slots(23, 24)], 4, rows([1], [2]))

    assert table.rows.tolist() == [[11, 12, 13, 14, 1], [0, 0, 23, 24, 2]]
    assert table.first_blocks == [0, 2]


def test_a_hit_that_reads_nothing_is_all_null() -> None:
    """A window of one token needs no block before the next token."""
    table = BlockTable([slots()], 3, rows([7, 8]))

    assert table.rows.tolist() == [[0, 0, 0, 7, 8]]
    assert table.held().tolist() == [8, 7]


def test_slots_are_given_back_last_block_first_and_the_groups_of_a_block_side_by_side() -> None:
    """No group loses its end long before the others; null blocks are nobody's."""
    plain = BlockTable([slots(), slots()], 0, rows([1, 2, 3], [4, 5, 6]))
    after_hit = BlockTable([slots(11, 12, 13), slots(23)], 3, rows([1], [2]))

    assert plain.held().tolist() == [3, 6, 2, 5, 1, 4]
    assert after_hit.held().tolist() == [1, 2, 13, 23, 12, 11]


@pytest.mark.parametrize("spare_columns", [0, 1, 3, 16])
def test_a_table_grows_beyond_its_spare_columns(spare_columns: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Blocks one at a time and several at once: what was there stays."""
    monkeypatch.setattr(sequences, "SPARE_COLUMNS", spare_columns)
    table = BlockTable([slots(51, 52), slots(62)], 2, rows([1], [101]))
    expected = [[51, 52, 1], [0, 62, 101]]
    number = 2
    for count in [1, 1, 2, 1, 7, 1, 30, 1, 1, 60, 2]:
        added = rows(list(range(number, number + count)), list(range(100 + number, 100 + number + count)))

        table.append(added)

        expected = [old + new for old, new in zip(expected, added.tolist(), strict=True)]
        assert table.rows.tolist() == expected
        number += count
    assert table.blocks == 3 + 107


def test_blocks_that_a_window_leaves_come_out_newest_first() -> None:
    """Their places become null, and only what is left is held."""
    table = BlockTable([slots(), slots()], 0, rows([1, 2, 3, 4, 5], [6, 7, 8, 9, 10]))

    assert table.slide(1, 3).tolist() == [8, 7, 6]
    assert table.rows.tolist() == [[1, 2, 3, 4, 5], [0, 0, 0, 9, 10]]
    assert table.slide(0, 0).tolist() == []
    assert table.held().tolist() == [5, 10, 4, 9, 3, 2, 1]


def test_a_window_leaves_every_block_once() -> None:
    """Sliding further gives what has been left since; not sliding, or back, gives nothing."""
    table = BlockTable([slots(13, 14)], 4, rows([5, 6, 7]))

    assert table.slide(0, 2).tolist() == []
    assert table.slide(0, 4).tolist() == [14, 13]
    assert table.slide(0, 4).tolist() == []
    assert table.slide(0, 1).tolist() == []
    assert table.slide(0, 6).tolist() == [6, 5]
    assert table.rows.tolist() == [[0, 0, 0, 0, 0, 0, 7]]


def test_what_slid_out_of_a_table_does_not_change_with_it() -> None:
    """It may wait for a fence while the table goes on."""
    table = BlockTable([slots()], 0, rows([1, 2, 3]))
    gone, held = table.slide(0, 2), table.held()

    table.append(rows([8, 9]))
    table.slide(0, 4)

    assert gone.tolist() == [2, 1]
    assert held.tolist() == [3]


# -- returns -----------------------------------------------------------------------------------------------------------


class Engine:
    """A pool, all of whose slots one sequence holds, and what it gives back."""

    def __init__(self) -> None:
        self.ledger = Ledger(11, DIGEST_BYTES)
        taken, _ = self.ledger.take(10, Holder.SEQUENCE)
        self.returns = Returns([self.ledger])
        self.sequence = Sequence(
            sequence_id="s",
            prompt_tokens=40,
            tokens=40,
            cached_tokens=0,
            committed_tokens=0,
            capacity_tokens=40,
            digests=b"",
            digest_count=0,
            considered_blocks=0,
            tables=(BlockTable([slots()], 0, taken.reshape(1, -1)),),
            retention=DEFAULT_RETENTION,
        )

    def give_back(self, *numbers: int, fence: int | None) -> None:
        """Give slots back."""
        self.returns.give_back(self.sequence, Return("s", fence, (slots(*numbers),)))

    def free(self) -> list[int]:
        """The free order."""
        return listed(self.ledger.free_order.slots())

    def held(self) -> tuple[int, int]:
        """How many slots the sequence uses, and how many wait."""
        return self.ledger.uses_by_holder[Holder.SEQUENCE], self.ledger.uses_by_holder[Holder.FENCE]


def test_without_a_fence_slots_are_free_at_once() -> None:
    """Nothing of the engine touches them any more."""
    engine = Engine()

    engine.give_back(3, 2, fence=None)

    assert engine.free() == [2, 3]
    assert engine.held() == (8, 0)
    assert engine.returns.fenced() == []


def test_slots_wait_for_the_step_of_their_fence() -> None:
    """They are free when that step, or a later one, is done; not before."""
    engine = Engine()

    engine.give_back(3, 2, fence=5)
    assert (engine.free(), engine.held()) == ([], (8, 2))
    engine.returns.steps_done(4)
    assert (engine.free(), engine.held()) == ([], (8, 2))
    assert [(one.sequence_id, one.fence, one.slots[0].tolist()) for one in engine.returns.fenced()] == [
        ("s", 5, [3, 2])
    ]
    engine.returns.steps_done(5)

    assert (engine.free(), engine.held()) == ([2, 3], (8, 0))
    assert engine.returns.fenced() == []


def test_a_fence_that_has_passed_is_none() -> None:
    """Steps up to the one reported are done, the first step is 0."""
    engine = Engine()

    engine.give_back(1, fence=0)
    assert engine.free() == []
    engine.returns.steps_done(3)
    engine.give_back(2, fence=3)
    engine.give_back(3, fence=2)
    engine.give_back(4, fence=4)

    assert engine.free() == [3, 2, 1]
    assert engine.held() == (6, 1)


def test_returns_freed_by_one_step_are_freed_by_fence_and_then_by_arrival() -> None:
    """As if every step had been reported, whatever the order in which they were given back."""
    for order in itertools.permutations([(1, 7), (2, 5), (3, 7), (4, 6)]):
        engine = Engine()
        engine.ledger.publish(slots(1, 2, 3, 4), as_digests(chain("abcd")))
        for slot, fence in order:
            engine.give_back(slot, fence=fence)

        engine.returns.steps_done(9)

        assert engine.free() == [slot for slot, _ in sorted(order, key=lambda one: one[1])]


def test_steps_do_not_go_backwards() -> None:
    """The report is refused and nothing is freed; the same step may be reported again."""
    engine = Engine()
    engine.returns.steps_done(7)
    engine.give_back(1, fence=9)

    with pytest.raises(FenceError, match="step 6 was reported done after step 7"):
        engine.returns.steps_done(6)
    assert engine.returns.done_step == 7
    engine.returns.steps_done(7)
    assert engine.held() == (9, 1)
    engine.returns.steps_done(9)

    assert engine.free() == [1]


def test_nothing_is_freed_while_a_publication_is_unanswered() -> None:
    """A group may be about to name the slots; they are free when all have answered."""
    engine = Engine()
    engine.sequence.publishing = 2
    engine.give_back(3, 2, fence=None)
    engine.give_back(1, fence=None)
    assert (engine.free(), engine.held()) == ([], (7, 3))

    engine.ledger.publish(slots(2), as_digests(chain("a")))
    engine.sequence.publishing = 0
    engine.returns.published(engine.sequence)

    assert (engine.free(), engine.held()) == ([1, 3, 2], (7, 0))
    assert engine.sequence.returned == []


def test_slots_may_wait_for_a_publication_and_then_for_a_fence() -> None:
    """Both must be over, whichever ends first."""
    early, late = Engine(), Engine()
    for engine in (early, late):
        engine.sequence.publishing = 1
        engine.give_back(3, fence=5)

    early.returns.steps_done(5)
    assert early.free() == []
    early.returns.published(early.sequence)
    late.returns.published(late.sequence)
    assert late.free() == []
    late.returns.steps_done(5)

    assert early.free() == late.free() == [3]
    assert early.held() == late.held() == (9, 0)
