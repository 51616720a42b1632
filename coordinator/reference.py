"""The slow, obvious model of a replica: what the fast structures are compared with, in tests and in benchmarks.

Dicts, lists and loops only, and every rule written once, the way it is said. The model takes the messages and the
configuration of a replica and raises its errors, but shares none of the code that decides. Slots are ints here, tables
are lists, and a place is the number of a pool and a slot in it. See also `reference_groups.py`, what the kinds of
window group are, `reference_holders.py`, who holds what, `reference_lookups.py` and `reference_parts.py`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvtroupe.coordinator import errors
from kvtroupe.coordinator.errors import OutOfBlocks, SequenceTooLong
from kvtroupe.coordinator.reference_groups import last_first, side_by_side, stretches_to_fill
from kvtroupe.coordinator.reference_holders import ReferenceHolders
from kvtroupe.coordinator.reference_lookups import look_up, look_up_encoder, places_of, publishing_order, to_publish
from kvtroupe.coordinator.reference_parts import (
    Ask,
    PublishedBlock,
    ReferenceSequence,
    can_ever_fit,
    can_ever_grow,
    check_new,
    digest_count,
    retention_of,
    slots_in,
    slots_of,
    units_of,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kvtroupe.coordinator.messages import NewSequence, PinId, SequenceId
    from kvtroupe.coordinator.reference_groups import Place, Stretch


class ReferenceReplica(ReferenceHolders):
    """A replica with the direct face of the fast one. Its errors are of the same kinds, in other words."""

    def admit(self, sequences: Sequence[NewSequence]) -> list[ReferenceSequence | OutOfBlocks | SequenceTooLong]:
        """Admit sequences in as many rounds as it takes: an answer for each."""
        ids = [new.sequence_id for new in sequences]
        if len(set(ids)) < len(ids) or any(sequence_id in self.running for sequence_id in ids):
            raise errors.SequenceExists(f"of {ids}, some run already or are named twice")
        if len(self.running) + len(ids) > self.config.limits.sequences_max:
            raise errors.Overloaded(f"{len(self.running)} sequences run; {len(ids)} more are too many")
        answers: dict[SequenceId, ReferenceSequence | OutOfBlocks | SequenceTooLong] = {}
        for new in sequences:
            check_new(self.config, new)
            if not can_ever_fit(self.config, self.parts, new):
                answers[new.sequence_id] = SequenceTooLong(f"{new.sequence_id!r} does not fit into an empty replica")
        self.counters.refused += len(answers)
        while len(answers) < len(ids):
            answers |= self._round([new for new in sequences if new.sequence_id not in answers])
        return [answers[sequence_id] for sequence_id in ids]

    def _round(self, waiting: list[NewSequence]) -> dict[SequenceId, ReferenceSequence | OutOfBlocks]:
        """Look up all that ride, judge them in order, then claim and take: answers, perhaps not yet for all."""
        blocks_of_unit = sum(self.unit_tokens // group.block_tokens for group in self.groups if group.takes_part)
        sizes = [units_of(self.config, new) * blocks_of_unit for new in waiting]
        riding = sum(sum(sizes[: end + 1]) <= self.config.limits.round_blocks_max for end in range(len(sizes)))
        asks = [self._ask(new) for new in waiting[: max(1, riding)]]
        answers: dict[SequenceId, ReferenceSequence | OutOfBlocks] = {}
        granted: list[Ask] = []
        while asks:
            ask = asks.pop(0)
            refusal = self._shortage(ask, granted, [])
            if refusal:
                answers[ask.new.sequence_id] = refusal
                continue
            while asks and self._shortage(ask, granted, asks):  # the claims of later ones stand in its way
                asks.pop()
                self.counters.deferred += 1
            granted.append(ask)
        self.counters.rounds += 1
        self.counters.refused += len(answers)
        for pool, slot in [place for ask in granted for place in places_of(self.parts, ask.hit.rows)]:
            self.pools[pool].claim(slot)
        answers |= {ask.new.sequence_id: self._start(ask) for ask in granted}
        for pool_served in self.pools:
            pool_served.end_take()
        return answers

    def _ask(self, new: NewSequence) -> Ask:
        ask = self._ask_with_hit(new, new.tokens - 1)  # the last token is always computed: its logits are needed
        if not self._is_too_large(ask):
            return ask
        # A state that is hit takes a slot beside that of its copy: better none than one that leaves no room.
        without_hit = self._ask_with_hit(new, 0)
        return ask if self._is_too_large(without_hit) else without_hit

    def _is_too_large(self, ask: Ask) -> bool:
        """Whether empty pools have no room for what a request hits and needs."""
        needed = slots_of(self.parts, ask.stretches)
        for part, row in zip(self.parts, ask.hit.rows, strict=True):
            needed[part.pool] += len(row) - row.count(0)
        return any(
            needed[number] > pool.blocks - 1 - pool.reserved_blocks for number, pool in enumerate(self.config.pools)
        )

    def _ask_with_hit(self, new: NewSequence, tokens: int) -> Ask:
        hit = look_up(self.config, self.parts, new.digests, tokens)
        look_up_encoder(self.config, self.groups, new.encoder_digests, hit)
        capacity_tokens = units_of(self.config, new) * self.unit_tokens
        starts = [len(row) for row in hit.rows]
        return Ask(new, hit, capacity_tokens, stretches_to_fill(self.parts, starts, capacity_tokens, new))

    def _shortage(self, ask: Ask, granted: list[Ask], later: list[Ask]) -> OutOfBlocks | None:
        """Why a request does not fit while others have their claims, and those granted their new blocks, if so."""
        earlier = [place for one in granted for place in places_of(self.parts, one.hit.rows)]
        claimed = earlier + [place for one in [ask, *later] for place in places_of(self.parts, one.hit.rows)]
        wanted = slots_of(self.parts, ask.stretches)
        promised = slots_of(self.parts, [stretch for one in granted for stretch in one.stretches])
        for number, pool in enumerate(self.pools):
            free = pool.free_once_claimed(slots_in(number, earlier)) - promised[number]
            left = pool.free_once_claimed(slots_in(number, claimed)) - promised[number]
            reserved = self.config.pools[number].reserved_blocks
            if wanted[number] > max(0, left - reserved):
                return self._out_of_blocks(number, wanted[number] + free - left, free, reserved)
        return None

    def _start(self, ask: Ask) -> ReferenceSequence:
        sequence = ReferenceSequence(ask, self.parts, len(self.groups))
        self.running[ask.new.sequence_id] = sequence
        self._fill(sequence, ask.stretches)
        self.counters.admitted += 1
        self.counters.prompt_tokens += sequence.tokens
        self.counters.hit_tokens += sequence.cached_tokens
        return sequence

    def _fill(self, sequence: ReferenceSequence, stretches: list[Stretch]) -> None:
        """Make the tables as wide as the room of their sequence, with new slots in these columns."""
        for part, rows in zip(self.parts, sequence.rows, strict=True):
            for row in rows:
                row.extend([0] * (part.width(sequence.capacity_tokens, sequence.new) - len(row)))
        for number, beam, columns in stretches:
            pool = self.pools[self.parts[number].pool]
            rows = sequence.rows[number] if beam is None else [sequence.rows[number][beam]]
            for column in columns:
                slot, lost = pool.take()
                for row in rows:
                    row[column] = slot
                if lost:
                    del self.groups[lost.group].slot_of[lost.digest]
                    self.counters.evictions += 1

    def pin(self, pin_id: PinId, digests: bytes) -> int:
        """Hold what a prefix hits until the pin is given back: its tokens."""
        if pin_id in self.pins:
            raise errors.PinExists(f"pin {pin_id!r} stands")
        if len(self.pins) >= self.config.limits.pins_max:
            raise errors.Overloaded(f"{len(self.pins)} pins stand")
        if not digest_count(self.config, digests):
            raise errors.DigestError("no digests to pin")
        hit = look_up(self.config, self.parts, digests, len(digests) * self.unit_tokens)
        tables = [[row] for row in hit.rows]
        self.pins[pin_id] = side_by_side(self.parts, range(len(self.groups)), tables)
        for pool, slot in self.pins[pin_id]:
            self.pools[pool].claim(slot)
        self.counters.rounds += 1
        return hit.tokens

    def _stretches_of_growth(self, sequence: ReferenceSequence, units: int) -> list[Stretch]:
        starts = [len(rows[0]) for rows in sequence.rows]
        return stretches_to_fill(self.parts, starts, sequence.capacity_tokens + units * self.unit_tokens, sequence.new)

    def grow(self, sequence_ids: Sequence[SequenceId], blocks: int = 1) -> list[OutOfBlocks | SequenceTooLong | None]:
        """Give sequences more units, the first ones first: for each, None or why it got nothing."""
        if blocks < 1 or len(set(sequence_ids)) < len(sequence_ids):
            raise errors.RequestError(f"growth of {sequence_ids} by {blocks} blocks")
        sequences = [self.sequence(sequence_id) for sequence_id in sequence_ids]
        if len({sequence.new.beams for sequence in sequences}) > 1:
            raise errors.RequestError("growth of sequences with different beams")
        refusals: list[OutOfBlocks | SequenceTooLong | None] = []
        shortage: OutOfBlocks | None = None  # of the first one that does not fit: nobody after it gets anything
        for sequence in sequences:
            stretches = self._stretches_of_growth(sequence, blocks)
            too_long = sequence.capacity_tokens + blocks * self.unit_tokens > self.config.limits.sequence_tokens_max
            if not too_long:
                shortage = shortage or self._shortage_of_growth(stretches)
            if too_long or (shortage and not can_ever_grow(self.config, self.parts, sequence, blocks)):
                refusals.append(SequenceTooLong(f"{sequence.sequence_id!r} would get too long"))
            elif shortage:
                refusals.append(shortage)
            else:
                sequence.capacity_tokens += blocks * self.unit_tokens
                self._fill(sequence, stretches)
                refusals.append(None)
        for pool in self.pools:
            pool.end_take()
        self.counters.rounds += 1
        self.counters.grown += refusals.count(None)
        self.counters.growth_refused += len(refusals) - refusals.count(None)
        return refusals

    def _shortage_of_growth(self, stretches: list[Stretch]) -> OutOfBlocks | None:
        """Why these stretches cannot be filled now, if so: what is reserved is reserved for them."""
        wanted = slots_of(self.parts, stretches)
        for number, pool in enumerate(self.pools):
            if wanted[number] > pool.free():
                return self._out_of_blocks(number, wanted[number], pool.free(), 0)
        return None

    def extend(self, sequence_id: SequenceId, tokens: int = 1) -> None:
        """Append tokens to a sequence, in new blocks if those held are full."""
        sequence = self.sequence(sequence_id)
        if tokens < 1:
            raise errors.TokenError(f"extended by {tokens} tokens")
        missing_tokens = sequence.tokens + tokens - sequence.capacity_tokens
        if missing_tokens > 0:
            refusal = self.grow([sequence_id], -(-missing_tokens // self.unit_tokens))[0]
            if refusal:
                raise refusal
        sequence.tokens += tokens

    def commit(
        self, sequence_id: SequenceId, tokens: int, digests: bytes = b"", fence: int | None = None, now_s: float = 0.0
    ) -> list[int]:
        """Publish what is computed and has a digest; then blocks leave their windows. Blocks published, by group."""
        sequence = self.sequence(sequence_id)
        if not sequence.committed_tokens <= tokens <= sequence.capacity_tokens:
            raise errors.CommitError(f"{tokens} tokens after {sequence.committed_tokens} of {sequence.capacity_tokens}")
        known = sequence.digests + digests
        if digest_count(self.config, known) > tokens // self.config.tokens_per_digest and digests:
            raise errors.DigestError(f"{tokens} tokens have fewer digests")
        sequence.digests = known
        sequence.committed_tokens = tokens
        sequence.tokens = max(sequence.tokens, tokens)
        published = [0 for _ in self.groups]
        for number in sorted(range(len(self.groups)), key=lambda number: publishing_order(self.groups[number])):
            if self.groups[number].kind != "fixed":
                published[number] = self._publish(sequence, number, now_s)
        self._return(sequence_id, fence, self._slide(sequence))
        return published

    def _publish(self, sequence: ReferenceSequence, number: int, now_s: float) -> int:
        """Offer the blocks that were not offered yet to a group: how many it takes."""
        group = self.groups[number]
        chain, table, index = to_publish(self.config, sequence, group), sequence.rows[number][0], group.slot_of
        offered = [block for block in range(sequence.offered_blocks[number], len(chain)) if table[block]]
        new = [block for block in offered if chain[block] not in index]
        for block in new:
            index[chain[block]] = table[block]
            self.counters.published += 1
            priority, duration_s = retention_of(sequence, group, block)
            expires_s = float("inf") if duration_s is None else now_s + duration_s
            self.pools[group.pool].published[table[block]] = PublishedBlock(
                number, chain[block], priority, expires_s, self.counters.published
            )
        self.counters.duplicates += len(offered) - len(new)
        sequence.offered_blocks[number] = max(sequence.offered_blocks[number], len(chain))
        return len(new)

    def _slide(self, sequence: ReferenceSequence) -> list[Place]:
        """Replace what has left a window by the null block: the places, group by group, newest block first."""
        gone = []
        for number in sorted(range(len(self.groups)), key=lambda number: self.groups[number].band):
            group, rows = self.groups[number], sequence.rows[number]
            first = group.first_block(sequence.committed_tokens)
            for column in reversed(range(sequence.left_blocks[number], first)):
                gone += [(group.pool, slot) for slot in dict.fromkeys([row[column] for row in rows]) if slot]
                for row in rows:
                    row[column] = 0
            sequence.left_blocks[number] = max(first, sequence.left_blocks[number])
        return gone

    def release(self, sequence_id: SequenceId, fence: int | None = None) -> None:
        """End a sequence."""
        held = last_first(self.parts, self.sequence(sequence_id).rows)
        del self.running[sequence_id]
        self._return(sequence_id, fence, held)
        self.counters.released += 1

    def published(self, group: int) -> dict[bytes, tuple[int, int]]:
        """Digest -> (slot, generation) of the published blocks of a group."""
        pool = self.pools[self.groups[group].pool]
        return {digest: (slot, pool.generation[slot]) for digest, slot in self.groups[group].slot_of.items()}
