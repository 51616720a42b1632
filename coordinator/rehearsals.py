"""Rehearsals: which of several new sequences would be admitted now, with nothing changed.

The code that settles rounds claims and judges here, too. Instead of taking slots, a rehearsal keeps in mind which ones
would have been taken: whoever is judged in a later round does not hit what was in them. In the end all claims are
undone.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from kvtroupe.coordinator.round import Round
from kvtroupe.coordinator.waiting import WaitingRoom

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kvtroupe.coordinator.claims import Ask
    from kvtroupe.coordinator.messages import Evidence, Slots
    from kvtroupe.coordinator.parts import Parts
    from kvtroupe.coordinator.round import Grant, Settler
    from kvtroupe.coordinator.tiers import Tiers


class Rehearsals:
    """See the module.

    Args:
        parts: of the state.
        tiers: that claim.
        settler: of rounds.
    """

    def __init__(self, parts: Parts, tiers: Tiers, settler: Settler) -> None:
        self._pools = parts.pools
        self._layout = parts.layout
        self._limits = parts.config.limits
        self._tiers = tiers
        self._settler = settler

    def granted(self, current: Round, now_s: float) -> list[bool | None]:
        """Which requests of a round would be granted, if they came now and nobody else did.

        Args:
            current: the round: new sequences of one message, and the evidence for them.
            now_s: the time now.

        Returns:
            for each request, in order, whether; None: copies that those before it would begin decide.
        """
        found: list[bool | None] = [None] * len(current.asks)
        numbers = {ask.position: number for number, ask in enumerate(current.asks)}
        room = WaitingRoom(self._limits.round_blocks_max, sum(self._layout.strides))
        for ask in current.asks:
            room.add(ask)
        wanted = [0] * len(self._pools)
        gone: list[Slots] | None = None
        grants: list[Grant] = []
        while len(room) and not (gone and self._tiers.has_lower):
            asks = room.next_asks()
            batch = self._batch(current, asks, [numbers[ask.position] for ask in asks], gone)
            settlement = self._settler.rehearse(batch, wanted, now_s)
            room.put_back(settlement.deferred)
            for ask, grant in zip(asks, settlement.grants, strict=False):  # those deferred are the last ones
                found[numbers[ask.position]] = bool(grant.granted) and grant.lost is None
            grants += settlement.grants
            gone = [pool.ledger.peek(count) for pool, count in zip(self._pools, wanted, strict=True)]
        for grant in reversed(grants):
            if grant.claim is not None and grant.granted:
                self._settler.undo(grant.claim)
        return found

    def _batch(self, current: Round, asks: Sequence[Ask], numbers: Sequence[int], gone: list[Slots] | None) -> Round:
        """A round of some of the requests, whose evidence lacks what would be gone by then."""
        batch = Round(current.round_id, asks, len(current.evidence), {}, current.deadline_s)
        for number, pool in enumerate(self._pools):
            for group in pool.groups:
                evidence = current.evidence[group]
                if evidence is not None:
                    some = [evidence[place] for place in numbers]
                    batch.evidence[group] = some if gone is None else [_without(one, gone[number]) for one in some]
        return batch


def _without(evidence: Evidence, gone: Slots) -> Evidence:
    """Evidence that names nothing in these slots."""
    named = np.isin(evidence.slots, gone)
    bits = int.from_bytes(np.packbits(named, bitorder="little").tobytes(), "little")
    return replace(evidence, present=evidence.present & ~bits)
