"""How much there is of everything that has a limit, for statistics."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from kvtroupe.coordinator.ledger import Holder

if TYPE_CHECKING:
    from kvtroupe.coordinator.sessions import Sessions
    from kvtroupe.coordinator.state import CoordinatorState


@dataclass(frozen=True, slots=True)
class PoolGauges:
    """One pool.

    Attributes:
        blocks: slots, the null block included.
        free_blocks: those that nobody uses; what is published in some of them can still be hit.
        published_blocks: slots whose content can be hit, used or not.
        fenced_uses: uses by what was given back and waits for a fence.
        pinned_uses: uses by pins.
        transfer_uses: uses by copies.
        quarantined_uses: uses by lost clients, and by earlier coordinators.
    """

    blocks: int
    free_blocks: int
    published_blocks: int
    fenced_uses: int
    pinned_uses: int
    transfer_uses: int
    quarantined_uses: int


@dataclass(frozen=True, slots=True)
class Gauges:
    """A replica at one moment.

    Attributes:
        sequences_running: admitted and not ended.
        sequences_failed: whose clients have not released them.
        sequences_waiting: for a round, or for room; of limit `sequences_max` together with the two above.
        pins: that stand or wait; of limit `pins_max`.
        sessions_attached: with a connection; of limit `sessions_max` together with the two below.
        sessions_away: whose clients may come back.
        sessions_quarantined: whose processes may still write.
        kept_answers: of the session with the most that are wanted or not confirmed; of limit `kept_answers_max`.
        arriving_blocks: on their way to another level; of limit `arriving_blocks_max`.
        transfers: copies that some rank has not answered.
        pools: in the order of the configuration.
    """

    sequences_running: int
    sequences_failed: int
    sequences_waiting: int
    pins: int
    sessions_attached: int
    sessions_away: int
    sessions_quarantined: int
    kept_answers: int
    arriving_blocks: int
    transfers: int
    pools: tuple[PoolGauges, ...]


def gauges_of(state: CoordinatorState, sessions: Sessions) -> Gauges:
    """The gauges of a replica.

    Args:
        state: of its coordinator.
        sessions: of its clients.
    """
    records, traffic = state.records, state.tiers.traffic
    pools = []
    for pool in state.pools:
        ledger = pool.ledger
        uses = ledger.uses_by_holder
        pools.append(
            PoolGauges(
                ledger.blocks,
                ledger.free,
                int((ledger.published != 0).sum()),
                uses[Holder.FENCE],
                uses[Holder.PIN],
                uses[Holder.TRANSFER],
                uses[Holder.QUARANTINE],
            )
        )
    return Gauges(
        len(records.sequences),
        len(records.failed),
        len(state.waiting.sequences),
        len(records.pins) + len(state.waiting.pins),
        sessions.attached(),
        sessions.away(),
        len(sessions.quarantined()),
        sessions.kept_answers(),
        sum([arriving.count for arriving in traffic.arriving if arriving is not None]),
        len(traffic.transfers.open_transfers()),
        tuple(pools),
    )
