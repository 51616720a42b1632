"""Block tables: of one row a group that grow and slide, with holes, and with several beams."""

from __future__ import annotations

import numpy as np
import pytest

from kvtroupe.coordinator import tables
from kvtroupe.coordinator.messages import Slots
from kvtroupe.coordinator.tables import BlockTable
from tests.coordinator.support import slots


def rows(*numbers: list[int]) -> Slots:
    """Slots [groups, blocks]."""
    return np.array(numbers, np.int64)


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
    monkeypatch.setattr(tables, "SPARE_COLUMNS", spare_columns)
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
