"""The slow, obvious model of a replica: what the fast structures are compared with, in tests and in benchmarks.

Dicts, lists and loops only, and every rule written once, the way it is said. The model takes the messages and the
configuration of a replica and raises its errors, but shares none of the code that decides. Slots are ints here, tables
are lists, and a place is the number of a pool and a slot in it. See also `reference_parts.py`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvtroupe.coordinator import errors
from kvtroupe.coordinator.counters import Counters
from kvtroupe.coordinator.errors import OutOfBlocks, SequenceTooLong
from kvtroupe.coordinator.reference_parts import (
    Ask,
    PublishedBlock,
    ReferenceGroup,
    ReferencePool,
    ReferenceSequence,
    blocks_of,
    can_ever_fit,
    chain_of,
    check_new,
    digest_count,
    last_first,
    places_of,
    retention_of,
    slots_in,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kvtroupe.coordinator.config import Config
    from kvtroupe.coordinator.messages import NewSequence, PinId, SequenceId
    from kvtroupe.coordinator.reference_parts import Place, Tables


class ReferenceReplica:
    """A replica with the direct face of the fast one. Its errors are of the same kinds, in other words."""

    def __init__(self, config: Config) -> None:
        names = [pool.name for pool in config.pools]
        self.config = config
        self.block_tokens = config.block_tokens
        self.counters = Counters()
        self.pools = [ReferencePool(pool.blocks) for pool in config.pools]
        self.groups = [
            ReferenceGroup(names.index(group.pool), group.window_tokens, config.block_tokens) for group in config.groups
        ]
        self.running: dict[SequenceId, ReferenceSequence] = {}
        self.pins: dict[PinId, list[Place]] = {}
        self.fences: list[tuple[int, SequenceId, list[Place]]] = []  # engine step, who gave back, what
        self.done_step = -1

    def _look_up(self, digests: bytes, tokens: int) -> Tables:
        """What a chain hits within its first `tokens` tokens: the longest prefix that every group can serve."""
        chain = chain_of(self.config, digests)[: tokens // self.block_tokens]
        blocks = max(set.intersection(*[group.lengths(chain) for group in self.groups]))
        return [group.table(chain[:blocks]) for group in self.groups]

    def groups_of(self, pool: int) -> int:
        """How many groups draw from a pool."""
        return sum(group.pool == pool for group in self.groups)

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
            if not can_ever_fit(self.config, self.groups, new):
                answers[new.sequence_id] = SequenceTooLong(f"{new.sequence_id!r} does not fit into an empty replica")
        self.counters.refused += len(answers)
        while len(answers) < len(ids):
            answers |= self._round([new for new in sequences if new.sequence_id not in answers])
        return [answers[sequence_id] for sequence_id in ids]

    def _round(self, waiting: list[NewSequence]) -> dict[SequenceId, ReferenceSequence | OutOfBlocks]:
        """Look up all that ride, judge them in order, then claim and take: answers, perhaps not yet for all."""
        sizes = [blocks_of(self.config, new) * len(self.groups) for new in waiting]
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
        for pool, slot in [place for ask in granted for place in places_of(self.groups, ask.hit)]:
            self.pools[pool].claim(slot)
        answers |= {ask.new.sequence_id: self._start(ask) for ask in granted}
        for pool_served in self.pools if granted else []:
            pool_served.end_take()
        return answers

    def _ask(self, new: NewSequence) -> Ask:
        hit = self._look_up(new.digests, new.tokens - 1)  # the last token is always computed: its logits are needed
        return Ask(new, hit, blocks_of(self.config, new) - len(hit[0]))

    def _shortage(self, ask: Ask, granted: list[Ask], later: list[Ask]) -> OutOfBlocks | None:
        """Why a request does not fit while others have their claims, and those granted their new blocks, if so."""
        earlier = [place for one in granted for place in places_of(self.groups, one.hit)]
        claimed = earlier + [place for one in [ask, *later] for place in places_of(self.groups, one.hit)]
        for number, pool in enumerate(self.pools):
            promised = sum(one.new_blocks for one in granted) * self.groups_of(number)
            free = pool.free_once_claimed(slots_in(number, earlier)) - promised
            left = pool.free_once_claimed(slots_in(number, claimed)) - promised
            wanted, reserved = ask.new_blocks * self.groups_of(number), self.config.pools[number].reserved_blocks
            if wanted > left - reserved:
                return self._out_of_blocks(number, wanted + free - left, free, reserved)
        return None

    def _out_of_blocks(self, pool: int, needed: int, free: int, reserved: int) -> OutOfBlocks:
        coming = sum(len(slots_in(pool, places)) for _, _, places in self.fences)
        return OutOfBlocks(self.config.pools[pool].name, needed, free, coming, reserved)

    def _start(self, ask: Ask) -> ReferenceSequence:
        sequence = ReferenceSequence(ask, self.block_tokens)
        self.running[ask.new.sequence_id] = sequence
        self._append_blocks(sequence, ask.new_blocks)
        self.counters.admitted += 1
        self.counters.prompt_tokens += sequence.tokens
        self.counters.hit_tokens += sequence.cached_tokens
        return sequence

    def _append_blocks(self, sequence: ReferenceSequence, blocks: int) -> None:
        for group, table in zip(self.groups, sequence.tables, strict=True):
            for _ in range(blocks):
                slot, lost = self.pools[group.pool].take()
                table.append(slot)
                if lost:
                    del self.groups[lost.group].slot_of[lost.digest]
                    self.counters.evictions += 1
        sequence.capacity_tokens += blocks * self.block_tokens

    def _return(self, sequence_id: SequenceId, fence: int | None, places: list[Place]) -> None:
        if fence is None or fence <= self.done_step:
            self._give_back(places)
        else:
            self.fences.append((fence, sequence_id, places))

    def _give_back(self, places: list[Place]) -> None:
        for pool, slot in places:
            self.pools[pool].give_back(slot)

    def steps_done(self, step: int) -> None:
        """Free what waited for the steps up to this one: by step, then by order of return."""
        if step < self.done_step:
            raise errors.FenceError(f"step {step} done after {self.done_step}")
        self.done_step = step
        for fence, _, places in sorted(self.fences, key=lambda returned: returned[0]):
            if fence <= step:
                self._give_back(places)
        self.fences = [returned for returned in self.fences if returned[0] > step]

    def pin(self, pin_id: PinId, digests: bytes) -> int:
        """Hold what a prefix hits until the pin is given back: its tokens."""
        if pin_id in self.pins:
            raise errors.PinExists(f"pin {pin_id!r} stands")
        if len(self.pins) >= self.config.limits.pins_max:
            raise errors.Overloaded(f"{len(self.pins)} pins stand")
        if not digest_count(self.config, digests):
            raise errors.DigestError("no digests to pin")
        hit = self._look_up(digests, len(digests) * self.block_tokens)
        self.pins[pin_id] = last_first(self.groups, hit)
        for pool, slot in self.pins[pin_id]:
            self.pools[pool].claim(slot)
        self.counters.rounds += 1
        return len(hit[0]) * self.block_tokens

    def unpin(self, pin_id: PinId) -> None:
        """Give a pin back."""
        if pin_id not in self.pins:
            raise errors.UnknownPin(f"no pin {pin_id!r} stands")
        self._give_back(self.pins.pop(pin_id))

    def tick(self, now_s: float) -> None:
        """Let time pass: priorities fall back."""
        for pool in self.pools:
            pool.expire(now_s)

    def sequence(self, sequence_id: SequenceId) -> ReferenceSequence:
        """A running sequence."""
        if sequence_id not in self.running:
            raise errors.UnknownSequence(f"no sequence {sequence_id!r} runs")
        return self.running[sequence_id]

    def _can_grow(self, sequence: ReferenceSequence, blocks: int) -> bool:
        """Whether empty pools have room for a longer sequence, less what leaves its windows when all is computed."""
        room = [pool.blocks - 1 for pool in self.config.pools]
        for group, table in zip(self.groups, sequence.tables, strict=True):
            room[group.pool] -= len(table) + blocks - group.first_block(sequence.capacity_tokens)
        return min(room) >= 0

    def grow(self, sequence_ids: Sequence[SequenceId], blocks: int = 1) -> list[OutOfBlocks | SequenceTooLong | None]:
        """Give sequences more blocks, the first ones first: for each, None or why it got nothing."""
        if blocks < 1 or len(set(sequence_ids)) < len(sequence_ids):
            raise errors.RequestError(f"growth of {sequence_ids} by {blocks} blocks")
        sequences = [self.sequence(sequence_id) for sequence_id in sequence_ids]
        refusals: list[OutOfBlocks | SequenceTooLong | None] = []
        for sequence in sequences:
            wanted = [blocks * self.groups_of(pool) for pool in range(len(self.pools))]
            short = [pool for pool in range(len(self.pools)) if wanted[pool] > self.pools[pool].free()]
            if sequence.capacity_tokens + blocks * self.block_tokens > self.config.limits.sequence_tokens_max:
                refusals.append(SequenceTooLong(f"{sequence.sequence_id!r} would get too long"))
            elif short and not self._can_grow(sequence, blocks):
                refusals.append(SequenceTooLong(f"{sequence.sequence_id!r} does not fit into an empty replica"))
            elif short:
                refusals.append(self._out_of_blocks(short[0], wanted[short[0]], self.pools[short[0]].free(), 0))
            else:
                self._append_blocks(sequence, blocks)
                refusals.append(None)
        for pool_served in self.pools if None in refusals else []:
            pool_served.end_take()
        self.counters.rounds += 1
        self.counters.grown += refusals.count(None)
        self.counters.growth_refused += len(refusals) - refusals.count(None)
        return refusals

    def extend(self, sequence_id: SequenceId, tokens: int = 1) -> None:
        """Append tokens to a sequence, in new blocks if those held are full."""
        sequence = self.sequence(sequence_id)
        if tokens < 1:
            raise errors.TokenError(f"extended by {tokens} tokens")
        missing_tokens = sequence.tokens + tokens - sequence.capacity_tokens
        if missing_tokens > 0:
            refusal = self.grow([sequence_id], -(-missing_tokens // self.block_tokens))[0]
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
        chain = chain_of(self.config, known)[: tokens // self.block_tokens]
        published = [self._publish(sequence, group, chain, now_s) for group in range(len(self.groups))]
        sequence.offered_blocks = max(sequence.offered_blocks, len(chain))
        self._return(sequence_id, fence, self._slide(sequence))
        return published

    def _publish(self, sequence: ReferenceSequence, group: int, chain: list[bytes], now_s: float) -> int:
        """Offer the blocks of a chain that were not offered yet to a group: how many it takes."""
        table, index = sequence.tables[group], self.groups[group].slot_of
        offered = [block for block in range(sequence.offered_blocks, len(chain)) if table[block]]
        new = [block for block in offered if chain[block] not in index]
        for block in new:
            index[chain[block]] = table[block]
            self.counters.published += 1
            priority, duration_s = retention_of(sequence, block * self.block_tokens)
            expires_s = float("inf") if duration_s is None else now_s + duration_s
            self.pools[self.groups[group].pool].published[table[block]] = PublishedBlock(
                group, chain[block], priority, expires_s, self.counters.published
            )
        self.counters.duplicates += len(offered) - len(new)
        return len(new)

    def _slide(self, sequence: ReferenceSequence) -> list[Place]:
        """Replace what has left a window by the null block: the places, group by group, newest block first."""
        gone = []
        for group, table in zip(self.groups, sequence.tables, strict=True):
            for block in reversed(range(group.first_block(sequence.committed_tokens))):
                if not table[block]:
                    break  # so are all before it
                gone.append((group.pool, table[block]))
                table[block] = 0
        return gone

    def release(self, sequence_id: SequenceId, fence: int | None = None) -> None:
        """End a sequence."""
        held = last_first(self.groups, self.sequence(sequence_id).tables)
        del self.running[sequence_id]
        self._return(sequence_id, fence, held)
        self.counters.released += 1

    def published(self, group: int) -> dict[bytes, tuple[int, int]]:
        """Digest -> (slot, generation) of the published blocks of a group."""
        pool = self.pools[self.groups[group].pool]
        return {digest: (slot, pool.generation[slot]) for digest, slot in self.groups[group].slot_of.items()}

    def holders(self) -> list[tuple[str, SequenceId | PinId, list[Place]]]:
        """Everyone who uses slots: kind, id and places."""
        running = [("sequence", one, places_of(self.groups, sequence.tables)) for one, sequence in self.running.items()]
        fenced = [("fence", one, places) for _, one, places in self.fences]
        return [*running, *fenced, *[("pin", one, places) for one, places in self.pins.items()]]
