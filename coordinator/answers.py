"""From what a round has granted to what clients are told, and what runs from then on."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from kvtroupe.coordinator.errors import SequenceCancelled
from kvtroupe.coordinator.ledger import Holder
from kvtroupe.coordinator.messages import Admitted, GrowReply, MoveRequest, NewSequence, PinReply, PinRequest
from kvtroupe.coordinator.records import Pin
from kvtroupe.coordinator.round import Growth
from kvtroupe.coordinator.sequences import Sequence, unknown_sequence
from kvtroupe.coordinator.waits import NOTHING_AWAITED, Awaited

if TYPE_CHECKING:
    from kvtroupe.coordinator.asks import Edge
    from kvtroupe.coordinator.claims import Ask, Claim
    from kvtroupe.coordinator.extensions import Extension
    from kvtroupe.coordinator.grants import Tables
    from kvtroupe.coordinator.messages import GrowResult, Output, Slots
    from kvtroupe.coordinator.moves import Moves
    from kvtroupe.coordinator.parts import Parts
    from kvtroupe.coordinator.records import Records
    from kvtroupe.coordinator.round import Grant
    from kvtroupe.coordinator.tiers import Tiers
    from kvtroupe.coordinator.waiting import WaitingRoom


@dataclass(frozen=True)
class Answers:
    """See the module.

    Attributes:
        parts: of the state.
        records: of who holds slots.
        tables: of sequences.
        tiers: that bring up what a hit reads.
        edge: that knows what could ever be granted.
        waiting: requests not answered yet.
        moves: copies that clients ask for.
    """

    parts: Parts
    records: Records
    tables: Tables
    tiers: Tiers
    edge: Edge
    waiting: WaitingRoom
    moves: Moves

    def answer(self, grant: Grant, now_s: float) -> list[Output]:
        """Let run what was granted: the reply, if its message is answered with it."""
        ask = grant.ask
        if isinstance(ask, Growth):
            return [self._grow(ask, grant)]
        if grant.found is not None:
            return [grant.found]
        if isinstance(ask.request, NewSequence):
            is_cancelled = isinstance(grant.lost, SequenceCancelled)
            self.parts.counters.cancelled += is_cancelled
            self.parts.counters.refused += not is_cancelled and (grant.refusal or grant.lost) is not None
            result = grant.lost or grant.refusal or self._admit(ask, ask.request, grant, now_s)
            reply = self.waiting.admitted(ask, ask.request.sequence_id, result)
            return [reply] if reply else []
        assert grant.claim is not None, "who keeps or moves something has a claim"
        if isinstance(ask.request, PinRequest):
            return [self._pin(ask.request, grant.claim)]
        assert isinstance(ask.request, MoveRequest), "lookups are answered above"
        return [self.moves.begin(ask.request, grant.claim, now_s)]

    def _admit(self, ask: Ask, new: NewSequence, grant: Grant, now_s: float) -> Admitted:
        claim, layout = grant.claim, self.parts.layout
        assert claim is not None, "a new sequence has a claim"
        blocks_hit = [claim.hit_tokens // block_tokens for block_tokens in layout.scales]
        if layout.has_cross:
            blocks_hit.append(ask.prompts[-1].limit_blocks if claim.cross_hit else 0)
        capacity_tokens = ask.units * layout.unit_tokens
        cached_tokens = claim.hit_tokens + (claim.extension.tokens if claim.extension is not None else 0)
        sequence = Sequence(
            sequence_id=new.sequence_id,
            shape=ask.shape,
            tokens=new.tokens,
            cached_tokens=cached_tokens,
            committed_tokens=cached_tokens,
            capacity_tokens=capacity_tokens,
            digests=[prompt.digests for prompt in ask.prompts],
            digest_count=len(new.digests) // self.parts.config.digest_bytes,
            considered_blocks=blocks_hit,
            tables=self.tables.new(claim, grant.slots, capacity_tokens, ask.shape),
            retention=new.retention,
            session=ask.session,
            request_id=ask.request_id,
            content=new.content if self.edge.contents is not None else None,
        )
        self.records.sequences[new.sequence_id] = sequence
        counters = self.parts.counters
        counters.admitted += 1
        counters.prompt_tokens += new.tokens
        counters.hit_tokens += sequence.cached_tokens
        counters.partial_hits += claim.extension is not None
        awaited = self._begin_copies(sequence, claim, grant.slots, now_s)
        if claim.extension is not None:
            self.records.slide(sequence, None)  # the longer hit may read less than that of whole blocks
        tables, states = self.tables.lent(sequence)
        return Admitted(
            new.sequence_id,
            sequence.cached_tokens,
            tables,
            capacity_tokens,
            claim.junction_tokens,
            claim.cross_hit,
            states,
            awaited.reads_after,
            awaited.writes_after,
        )

    def _begin_copies(self, sequence: Sequence, claim: Claim, fresh: tuple[Slots, ...], now_s: float) -> Awaited:
        """Begin the copies that a new sequence needs: what it has to await."""
        if claim.is_lifted:
            self.tiers.lifts.begin(claim)
        copied = self.tables.states_hit(sequence, claim)
        for pool, sources, destinations in copied:
            self.tiers.copy_within(pool, sources, destinations, now_s)
        if claim.extension is not None:
            copied += self._begin_extension(sequence, claim.extension, claim.hit_tokens, now_s)
        if not self.tiers.is_busy():
            return NOTHING_AWAITED
        reads_after = self.tiers.reads_after([*enumerate(claim.slots), *[(pool, slots) for pool, _, slots in copied]])
        writes_after = tuple([one for one in self.tiers.writes_after(enumerate(fresh)) if one not in reads_after])
        awaited = Awaited(reads_after, writes_after)
        if awaited:
            self._wait(sequence, awaited)
        return awaited

    def _begin_extension(
        self, sequence: Sequence, extension: Extension, hit_tokens: int, now_s: float
    ) -> list[tuple[int, Slots, Slots]]:
        """Begin to copy the first tokens of a block; what is read is kept until that is over."""
        extender = self.tiers.extender
        copied = list(extender.copies(sequence, extension, hit_tokens))
        for pool, sources, destinations in copied:
            transfer_ids = self.tiers.copy_within(pool, sources, destinations, now_s, tokens=extension.tokens)
            for transfer_id in np.unique(transfer_ids).tolist():
                self.records.keep(transfer_id, pool, np.unique(sources.compress(transfer_ids == transfer_id)))
        extender.begun(extension)
        return copied

    def _wait(self, sequence: Sequence, awaited: Awaited) -> None:
        self.records.waits.begin(sequence, awaited, [len(slots) for slots in self.tables.held(sequence)])

    def _grow(self, growth: Growth, grant: Grant) -> GrowReply:
        granted = growth.sequences[: grant.granted]
        slots = self.tables.grow(granted, growth.blocks, grant.slots)
        refused: tuple[GrowResult, ...] = (None,) * grant.granted
        if grant.granted < len(growth.request.sequence_ids):
            refused = self._why_not_grown(growth, grant)
        counters = self.parts.counters
        counters.grown += grant.granted
        counters.growth_refused += len(refused) - grant.granted
        writes_after = self.tiers.writes_after(enumerate(grant.slots)) if self.tiers.is_busy() else ()
        if writes_after:
            for sequence in granted:
                self._wait(sequence, Awaited((), writes_after))
        return GrowReply(growth.request.request_id, refused, slots, writes_after)

    def _why_not_grown(self, growth: Growth, grant: Grant) -> tuple[GrowResult, ...]:
        granted = {sequence.sequence_id for sequence in growth.sequences[: grant.granted]}
        results: list[GrowResult] = []
        for sequence_id in growth.request.sequence_ids:
            sequence = self.records.sequences.get(sequence_id)
            if sequence is None:
                results.append(unknown_sequence(sequence_id))
            elif sequence_id in granted:
                results.append(None)
            else:
                results.append(self.edge.outgrown(sequence, growth.blocks) or grant.refusal)
        return tuple(results)

    def _pin(self, request: PinRequest, claim: Claim) -> PinReply:
        ask = self.waiting.pins.pop(request.pin_id)
        held = self.tables.claimed(claim)
        self.records.pins[request.pin_id] = Pin(request.session, request.request_id, held)
        for lift in claim.lifts:
            self.parts.pools[lift.pool].ledger.hand_over(len(lift.sources), Holder.TRANSFER, Holder.PIN)
        for pool, slots in zip(self.parts.pools, held, strict=True):
            if pool.groups:
                pool.ledger.hand_over(len(slots), Holder.SEQUENCE, Holder.PIN)
        if ask.is_cancelled:
            self.records.unpin(request.pin_id)
        return PinReply(request.request_id, claim.hit_tokens)
