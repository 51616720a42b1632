"""Every invariant that must hold between two steps, over a whole replica in one process.

Slow on purpose: it reads everything, and believes no count that it can take itself. Tests call it after every step.
`docs/checking.md` lists what must hold. That a refused request leaves no trace is a matter of two states: tests compare
them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from kvtroupe.coordinator.check_events import check_events
from kvtroupe.coordinator.errors import InvariantError
from kvtroupe.coordinator.event_mirror import Mirror
from kvtroupe.coordinator.ledger import NULL_SLOT, Holder

if TYPE_CHECKING:
    from collections.abc import Iterator

    from kvtroupe.coordinator.bands import Band
    from kvtroupe.coordinator.claims import Pool
    from kvtroupe.coordinator.ledger import Ledger
    from kvtroupe.coordinator.prefix_index import PrefixIndex, Run
    from kvtroupe.coordinator.replica import Replica
    from kvtroupe.coordinator.sequences import Sequence
    from kvtroupe.coordinator.tables import BlockTable


def check(replica: Replica, mirror: Mirror | None = None) -> None:
    """Check every invariant.

    Args:
        replica: nothing may be on its way between it and its groups.
        mirror: of its block events, which goes on from where it is; None: a new one, that begins with a snapshot.

    Raises:
        InvariantError: the first one that does not hold, with the values.
    """
    for group in replica.groups:
        _check_runs(group.index)
    for pool in replica.state.pools:
        _check_uses(replica, pool)
        _check_free_order(pool.ledger)
        _check_published(replica, pool)
    _check_tables(replica)
    if replica.config.events:
        check_events(replica, Mirror(replica.config.digest_bytes) if mirror is None else mirror)


def quiescent(replica: Replica) -> bool:
    """Whether every slot but the null blocks is free: what must be so when all that was held has been given back."""
    return all(pool.ledger.free == pool.ledger.blocks - 1 for pool in replica.state.pools)


def _require(holds: bool, what: str, *values: object) -> None:  # noqa: FBT001 - reads as a sentence
    if not holds:
        raise InvariantError(f"{what}: {', '.join(map(str, values))}")


def _check_uses(replica: Replica, pool: Pool) -> None:
    ledger = pool.ledger
    counted = np.zeros(ledger.blocks, np.int64)
    counted[NULL_SLOT] = 1
    by_kind = {holder.name.lower(): 0 for holder in Holder}
    for kind, holder_id, slots in replica.holders(pool.name):
        _require(len(np.unique(slots)) == len(slots), "a holder holds a slot twice", kind, holder_id, slots.tolist())
        _require(NULL_SLOT not in slots, "a holder holds the null block", kind, holder_id)
        counted[slots] += 1
        by_kind[kind] += len(slots)
    wrong = (counted != ledger.uses).nonzero()[0].tolist()
    _require(not wrong, "uses differ from the holders that exist, at slots", wrong)
    for holder in Holder:
        kind = holder.name.lower()
        _require(
            by_kind[kind] == ledger.uses_by_holder[holder],
            "uses by kind of holder",
            kind,
            by_kind[kind],
            ledger.uses_by_holder[holder],
        )


def _check_free_order(ledger: Ledger) -> None:
    order = ledger.free_order.slots()
    free = set((ledger.uses == 0).nonzero()[0].tolist())
    _require(len(order) == ledger.free, "the free order is not as long as it says", len(order), ledger.free)
    _require(len(set(order.tolist())) == len(order), "a slot is in the free order twice", order.tolist())
    _require(set(order.tolist()) == free, "the free order does not hold what is free", order.tolist(), sorted(free))
    published = ledger.published[order] != 0
    _require(
        not np.any(published[:-1] & ~published[1:]), "an unpublished slot is behind a published one", order.tolist()
    )
    levels = ledger.free_order.priority[order[published]]
    _require(not np.any(levels[:-1] > levels[1:]), "free slots are not in order of priority", levels.tolist())


def _check_published(replica: Replica, pool: Pool) -> None:
    ledger = pool.ledger
    place = replica.state.tiers.traffic.places[replica.state.pools.index(pool)]
    seen: set[int] = set()
    for number in replica.state.pools[place.device].groups:
        group = replica.groups[number]
        entries = group.index.entries_below(place.level) if place.level else group.index.entries()
        _check_group_names_published(number, entries, ledger, seen)
    published = set(ledger.published.nonzero()[0].tolist())
    _require(seen == published, "the indexes do not name exactly what is published", sorted(seen ^ published))
    _require(NULL_SLOT not in published, "the null block is published")


def _check_group_names_published(
    group: int, entries: Iterator[tuple[bytes, int, int]], ledger: Ledger, seen: set[int]
) -> None:
    digests: set[bytes] = set()
    for digest, slot, generation in entries:
        where = (group, slot, generation)
        _require(bool(ledger.published[slot]), "an index names a slot that is not published", *where)
        _require(int(ledger.generation[slot]) == generation, "an index names a generation that has passed", *where)
        _require(ledger.digest[slot].tobytes() == digest, "ledger and index disagree on a digest", *where)
        _require(int(ledger.published[slot]) == group + 1, "an index names a slot of another", *where)
        _require(slot not in seen, "a slot is published twice", *where)
        _require(digest not in digests, "a digest is published twice in a group", *where)
        seen.add(slot)
        digests.add(digest)


def _check_runs(index: PrefixIndex) -> None:
    width = index.digest_bytes
    blocks = 0
    reachable = {0}
    todo = [index.root]
    while todo:
        run = todo.pop()
        for offset, heads in run.branches.items():
            _require(bool(heads), "an empty branch", run.number, offset)
            for head, child in heads.items():
                _require(child.parent is run, "a branch has another parent", child.number)
                _require(child.offset == offset <= len(run.slots), "a branch hangs at the wrong place", child.number)
                _require(child.digests[:width] == head, "a branch has another first digest", child.number)
                _require(index.runs[child.number] is child, "a run has another's number", child.number)
                blocks += _check_run(index, child)
                reachable.add(child.number)
                todo.append(child)
    known = {number for number, run in enumerate(index.runs) if run is not None}
    _require(reachable == known, "runs that nothing leads to", sorted(known ^ reachable))
    _require(blocks == index.size, "the index does not hold as many blocks as it says", blocks, index.size)


def _check_run(index: PrefixIndex, run: Run) -> int:
    length = len(run.slots)
    sizes = (len(run.digests), length * index.digest_bytes, len(run.generations))
    _require(length > 0 and sizes == (sizes[1], sizes[1], length), "a run's parts differ in length", run.number, *sizes)
    there = index.generation_of[run.slots] == run.generations
    live = int(np.count_nonzero(there))
    _require(live == int(index.live[run.number]), "a run counts its blocks wrong", run.number, live)
    _require(bool(np.all(index.run_of[run.slots[there]] == run.number)), "a slot names another run", run.number)
    stays = live > 0 or bool(run.branches) or run.number in index.dead or _is_elsewhere(index, run)
    _require(stays, "a dead run that nobody will take out", run.number)
    return live


def _is_elsewhere(index: PrefixIndex, run: Run) -> bool:
    """Whether a block of a run is below the device, or on its way to another level."""
    maps = [places for level in range(len(index.slots_of_levels)) for places in index.further.on(level)]
    return any(places.of(run) is not None and bool(np.any(places.there(run))) for places in maps)


def _check_tables(replica: Replica) -> None:
    for sequence_id in replica.sequences():
        sequence = replica.sequence(sequence_id)
        _require(
            sequence.cached_tokens <= sequence.committed_tokens <= sequence.tokens <= sequence.capacity_tokens,
            "lengths of a sequence are out of order",
            sequence,
        )
        for number in range(len(replica.state.layout.bands)):
            _check_table(replica, sequence, number)


def _check_table(replica: Replica, sequence: Sequence, number: int) -> None:
    band, table = replica.state.layout.bands[number], sequence.tables[number]
    where = sequence.sequence_id, band.groups
    _, end = band.span(0, sequence.capacity_tokens, sequence.shape)
    _require(table.blocks == end, "a table of another length", *where, table.blocks, end)
    expected = _columns_held(replica, sequence, number)
    for row, slots in enumerate(table.rows.tolist()):
        held = [column for column, slot in enumerate(slots) if slot != NULL_SLOT]
        group = band.groups[row // table.beams]
        _require(held == expected[group], "null blocks where the window is", *where, group, held, expected[group])
    _check_beams(band, table, sequence)
    if band.columns in ("state", "fixed"):
        published = replica.state.pools[band.pool].ledger.published[table.rows]
        _require(not np.any(published), "a state or a fixed block is published", *where, table.rows.tolist())


def _columns_held(replica: Replica, sequence: Sequence, number: int) -> dict[int, list[int]]:
    """For each group of a band the columns that have a slot: those that are kept and that a token to come may read."""
    band = replica.state.layout.bands[number]
    _, end = band.span(0, sequence.capacity_tokens, sequence.shape)
    hit = sequence.cached_tokens // band.rule.block_tokens if band.grows else 0
    wanted = band.wanted(0, end, sequence.shape)
    kept = {column for column in range(end) if wanted is None or wanted[column]}
    if wanted is not None:  # of what a hit brings only the last state, whether this sequence would keep it or not
        kept = {column for column in kept if column >= hit} | ({hit - 1} if hit else set())
    held = {}
    for group in band.groups:
        first = replica.state.rules[group].first_block(sequence.committed_tokens) if band.grows else 0
        held[group] = sorted(column for column in kept if column >= first)
    return held


def _check_beams(band: Band, table: BlockTable, sequence: Sequence) -> None:
    """The beams of a group have the same slots in the columns that they share, and different ones in all others."""
    shared = band.shared(0, table.blocks, sequence.shape)
    for place, group in enumerate(band.groups):
        rows = table.rows[place * table.beams : (place + 1) * table.beams]
        for column, slots in enumerate(rows.T.tolist()):
            different = 1 if column < shared or not any(slots) else table.beams
            _require(
                len(set(slots)) == different, "beams share the wrong blocks", sequence.sequence_id, group, column, slots
            )
