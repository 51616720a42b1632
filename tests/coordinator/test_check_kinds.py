"""The checker of invariants on tables of every kind: what is broken in one of them is noticed."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import pytest

from kvtroupe.coordinator.bands import Shape
from kvtroupe.coordinator.check import check
from kvtroupe.coordinator.errors import InvariantError
from kvtroupe.coordinator.messages import NewSequence
from kvtroupe.coordinator.replica import Replica
from kvtroupe.coordinator.tables import BlockTable
from tests.coordinator.kinds import FULL, cross, end_all, fixed, recurrent, replica_of, run
from tests.coordinator.support import cache, chain, new

Break: TypeAlias = Callable[[Replica], None]


def healthy_replica() -> Replica:
    """One sequence that has hit a state of 12 tokens which it would not have kept, and one of two beams."""
    replica = replica_of(FULL, recurrent(8), cross(), fixed(2), usable=60)
    cache(replica, "abcd")
    run(replica, new("run", "abcxy", spare_blocks=1))
    run(replica, NewSequence("beams", 10, chain("pq"), beams=2, encoder_tokens=5, encoder_digests=chain("uv")))
    assert replica.sequence("run").cached_tokens == 12
    return replica


def tables_of(replica: Replica, name: str, columns: str) -> BlockTable:
    """The table of a sequence in the band of these columns."""
    (number,) = [at for at, band in enumerate(replica.state.layout.bands) if band.columns == columns]
    return replica.sequence(name).tables[number]


def forget_what_was_hit(replica: Replica) -> None:
    """The state that it was copied from stays in the table without a reason."""
    replica.sequence("run").cached_tokens = 8


def commit_beyond_a_state(replica: Replica) -> None:
    """What the window has left is still held."""
    replica.sequence("run").committed_tokens = 13


def keep_other_states(replica: Replica) -> None:
    """A prompt of 17 tokens keeps the state of 16, not that of 20."""
    replica.sequence("run").shape = Shape(17)


def give_a_beam_another_prompt(replica: Replica) -> None:
    """A block of the prompt that is not the same for all."""
    rows = tables_of(replica, "beams", "dense").rows
    rows[1, 0] = rows[1, 2]


def give_a_beam_other_encoder_input(replica: Replica) -> None:
    """The same of what the encoder has computed."""
    rows = tables_of(replica, "beams", "cross").rows
    rows[1, 0] = rows[1, 1]


def compute_with_a_published_state(replica: Replica) -> None:
    """It would be overwritten under its readers."""
    own, kept = tables_of(replica, "run", "state").rows, tables_of(replica, "run", "sparse").rows
    own[0, 0], kept[0, 2] = kept[0, 2], own[0, 0]


BREAKS: list[tuple[Break, str]] = [
    (forget_what_was_hit, "null blocks where the window is: run"),
    (commit_beyond_a_state, "null blocks where the window is: run"),
    (keep_other_states, "null blocks where the window is: run"),
    (give_a_beam_another_prompt, "beams share the wrong blocks: beams, 0, 0"),
    (give_a_beam_other_encoder_input, "beams share the wrong blocks: beams, 2, 0"),
    (compute_with_a_published_state, "a state or a fixed block is published: run"),
]


@pytest.mark.parametrize(("how", "message"), BREAKS, ids=[how.__name__ for how, _ in BREAKS])
def test_what_is_broken_in_a_table_is_noticed(how: Break, message: str) -> None:
    """The error says which invariant it is, with the values."""
    replica = healthy_replica()
    check(replica)

    how(replica)

    with pytest.raises(InvariantError, match=message):
        check(replica)


def test_a_healthy_replica_of_all_kinds_ends_with_everything_free() -> None:
    """Nothing of what the others break is broken without them."""
    end_all(healthy_replica())
