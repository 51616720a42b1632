"""What is there of a prompt, without claiming it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from kvtroupe.coordinator.agreement import agree, at_multiples
from kvtroupe.coordinator.messages import LookupReply

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kvtroupe.coordinator.bands import Layout
    from kvtroupe.coordinator.claims import Ask, Claim, Claimer, Pool, Stale
    from kvtroupe.coordinator.messages import Evidence


class Lookups:
    """Answers lookups.

    Args:
        pools: of the replica.
        layout: of its tables.
        claimer: that judges evidence.
    """

    def __init__(self, pools: Sequence[Pool], layout: Layout, claimer: Claimer) -> None:
        self._pools = pools
        self._layout = layout
        self._claimer = claimer

    def answer(self, ask: Ask, evidence: Sequence[Evidence | None], stale: Stale) -> LookupReply:
        """Judge evidence as an admission would, and leave no trace.

        Args:
            ask: of the lookup.
            evidence: of every group; None: it did not answer.
            stale: gets the places that have changed hands.
        """
        claim = self._claimer.look(ask, evidence, stale)
        blocks, used_blocks = self._read(claim)
        new_blocks = self._new(ask, claim)
        free_slots = [new + read - used for new, read, used in zip(new_blocks, blocks, used_blocks, strict=True)]
        for lift in claim.lifts:
            free_slots[lift.pool] = 0
            free_slots[lift.device] += len(lift.sources)
        return LookupReply(
            ask.request_id,
            claim.hit_tokens,
            self._on_device(ask, evidence, claim),
            claim.junction_tokens,
            self._of_groups(ask, evidence, claim),
            blocks,
            used_blocks,
            new_blocks,
            tuple(free_slots),
        )

    def _new(self, ask: Ask, claim: Claim) -> tuple[int, ...]:
        """For each pool the blocks beyond the hit."""
        layout = self._layout
        end_tokens = -(-ask.shape.prompt_tokens // layout.unit_tokens) * layout.unit_tokens
        return tuple(
            [
                layout.slots_at_admission(pool, claim.hit_tokens, end_tokens, ask.shape, cross_hit=False)
                for pool in range(len(self._pools))
            ]
        )

    def _read(self, claim: Claim) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """For each pool what the claim would read there, and how much of that is in use."""
        read = [*claim.slots]
        if claim.lifts:
            read = [slots.compress(slots) for slots in read]
            for lift in claim.lifts:
                read[lift.pool] = lift.sources
        used = [
            int(np.count_nonzero(pool.ledger.uses.take(slots))) for pool, slots in zip(self._pools, read, strict=True)
        ]
        return tuple([len(slots) for slots in read]), tuple(used)

    def _on_device(self, ask: Ask, evidence: Sequence[Evidence | None], claim: Claim) -> int:
        if not claim.lifts:
            return claim.hit_tokens
        layout = self._layout
        present = [found.present if (found := evidence[group]) else 0 for group in layout.participating]
        rules = [layout.rules[group] for group in layout.participating]
        strides = [layout.strides[group] for group in layout.participating]
        units = agree(present, rules, strides, ask.limit_units).units
        return min(units * layout.unit_tokens, claim.hit_tokens)

    def _of_groups(self, ask: Ask, evidence: Sequence[Evidence | None], claim: Claim) -> tuple[int, ...]:
        if claim.hit_tokens == ask.limit_units * self._layout.unit_tokens:
            return (claim.hit_tokens,) * len(evidence)  # what all serve together each serves alone
        served = []
        for rule, stride, found in zip(self._layout.rules, self._layout.strides, evidence, strict=True):
            units = ask.limit_units
            if stride:
                present = 0 if found is None else found.present
                for places in () if found is None else found.lower:
                    present |= places.present
                units = at_multiples(rule.servable(present, units * stride), stride).bit_length() - 1
            served.append(units * self._layout.unit_tokens)
        return tuple(served)
