"""The state of a coordinator: its ledgers, its running sequences, its rounds. It is the only writer of all three.

`step` takes a message and the time and returns the messages that are to be sent. It never waits: a round that needs
match answers goes on when the last of them, or the timer, comes in. One round runs at a time; requests that arrive
meanwhile ride in the next one, growth of running sequences in the one that runs.

A malformed request raises out of `step` and has changed nothing.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any

import numpy as np

from kvtroupe.coordinator.asks import Edge, check_id, check_new_sequences, check_step, check_time, repeated_ids
from kvtroupe.coordinator.counters import Counters
from kvtroupe.coordinator.errors import (
    InvariantError,
    Overloaded,
    PinExists,
    RequestError,
    SequenceExists,
    UnknownPin,
)
from kvtroupe.coordinator.ledger import Holder, Ledger
from kvtroupe.coordinator.messages import (
    NO_SLOTS,
    AdmitRequest,
    Admitted,
    BindEvent,
    CommitReply,
    CommitRequest,
    GroupOutput,
    GrowReply,
    GrowRequest,
    MatchReply,
    MatchRequest,
    NewSequence,
    PinReply,
    PinRequest,
    PublishReply,
    ReleaseEvent,
    StepsDoneEvent,
    TimerEvent,
    UnpinEvent,
)
from kvtroupe.coordinator.publications import Publications
from kvtroupe.coordinator.round import Ask, Growth, Pool, Round, Settler
from kvtroupe.coordinator.sequences import BlockTable, Return, Returns, Sequence, unknown_sequence
from kvtroupe.coordinator.waiting import WaitingRoom

if TYPE_CHECKING:
    from collections.abc import Callable

    from kvtroupe.coordinator.config import Config
    from kvtroupe.coordinator.messages import (
        GrowResult,
        Output,
        PinId,
        SequenceId,
        Slots,
        ToCoordinator,
    )
    from kvtroupe.coordinator.round import Claim, Grant, Settlement


class CoordinatorState:
    """All that a coordinator decides. See the module for its rules.

    Args:
        config: of the replica.
    """

    def __init__(self, config: Config) -> None:
        self.config = config
        self.counters = Counters()
        self.rules = [group.rule(config.block_tokens) for group in config.groups]
        self.pools = [
            Pool(
                pool.name,
                Ledger(pool.blocks, config.digest_bytes),
                tuple([number for number, group in enumerate(config.groups) if group.pool == pool.name]),
                pool.reserved_blocks,
            )
            for pool in config.pools
        ]
        self.group_numbers = range(len(self.rules))
        self.sequences: dict[SequenceId, Sequence] = {}
        self.pins: dict[PinId, tuple[Slots, ...]] = {}  # for each pool, in the order of giving back
        self.returns = Returns([pool.ledger for pool in self.pools])
        self.publications = Publications(self.pools, config, self.counters)
        self._edge = Edge(config, self.pools, self.rules)
        self._settler = Settler(self.pools, self.rules, config.block_tokens)
        self._round: Round | None = None
        self._last_round_id = 0
        self._waiting = WaitingRoom(config.limits.round_blocks_max, len(self.rules))
        self._growing: deque[GrowRequest] = deque()  # settled with the round that runs
        self._handlers: dict[type, Callable[[Any, float], list[Output]]] = {
            AdmitRequest: self._on_admit,
            GrowRequest: self._on_grow,
            CommitRequest: self._on_commit,
            ReleaseEvent: self._on_release,
            StepsDoneEvent: self._on_steps_done,
            PinRequest: self._on_pin,
            UnpinEvent: self._on_unpin,
            TimerEvent: self._on_timer,
            MatchReply: self._on_match,
            PublishReply: self._on_published,
        }

    def step(self, message: ToCoordinator, now_s: float) -> list[Output]:
        """Apply one message.

        Args:
            message: from a client, a group or the timer.
            now_s: the time now.

        Returns:
            messages to be sent, in order.

        Raises:
            RequestError: the message is malformed or names what does not exist; nothing was changed.
            Overloaded: a limit of the configuration is reached; nothing was changed.
        """
        check_time(now_s)
        handler = self._handlers.get(type(message))
        if handler is None:
            raise RequestError(f"{message!r:.60} is no message to a coordinator; see messages.ToCoordinator")
        return handler(message, now_s)

    # -- requests that need a round ------------------------------------------------------------------------------------

    def _on_admit(self, message: AdmitRequest, now_s: float) -> list[Output]:
        check_new_sequences(message.sequences)
        new_ids = [new.sequence_id for new in message.sequences]
        self._check_new_ids(new_ids)
        self._waiting.check_new(message.request_id)
        asks = [self._edge.admission(message, position) for position in range(len(new_ids))]
        self.counters.refused += sum([not isinstance(ask, Ask) for ask in asks])
        reply = self._waiting.admit(message.request_id, asks)
        return [reply] if reply else self._start_round(now_s)

    def _check_new_ids(self, new_ids: list[SequenceId]) -> None:
        running = self.sequences
        for sequence_id in new_ids:
            check_id("sequence", sequence_id)
            if sequence_id in running or sequence_id in self._waiting.sequence_ids:
                raise SequenceExists(f"sequence {sequence_id!r} runs or waits already; release it or choose another id")
        if len(new_ids) > 1 and len(set(new_ids)) < len(new_ids):
            raise SequenceExists(f"one request admits sequences twice: {repeated_ids(new_ids)}; choose distinct ids")
        held = len(running) + len(self._waiting.sequence_ids)
        if held + len(new_ids) > self.config.limits.sequences_max:
            raise Overloaded(
                f"{held} sequences run or wait and {len(new_ids)} more were sent; "
                f"sequences_max is {self.config.limits.sequences_max}; try again when some have ended"
            )

    def _on_grow(self, message: GrowRequest, now_s: float) -> list[Output]:  # noqa: ARG002 - as every handler
        for sequence_id in message.sequence_ids:
            self.running(sequence_id)
        self._edge.check_growth(message)
        if len(self._growing) >= self.config.limits.sequences_max:
            raise Overloaded(
                f"{len(self._growing)} requests for growth wait, as many as sequences_max; try again later"
            )
        self._growing.append(message)
        return [] if self._round is not None else self._settle(None)

    def _on_pin(self, message: PinRequest, now_s: float) -> list[Output]:
        check_id("pin", message.pin_id)
        if message.pin_id in self.pins or message.pin_id in self._waiting.pin_ids:
            raise PinExists(f"pin {message.pin_id!r} stands or waits already; give it back or choose another id")
        held = len(self.pins) + len(self._waiting.pin_ids)
        if held >= self.config.limits.pins_max:
            raise Overloaded(f"{held} pins stand, which is pins_max; give some back first")
        self._waiting.pin(message.pin_id, self._edge.pin(message))
        return self._start_round(now_s)

    # -- rounds --------------------------------------------------------------------------------------------------------

    def _start_round(self, now_s: float) -> list[Output]:
        """Ask the groups, if no round runs and somebody waits."""
        if self._round is not None or not self._waiting:
            return []
        asks = self._waiting.next_asks()
        self._last_round_id += 1
        groups = len(self.rules)
        self._round = Round(self._last_round_id, asks, groups, now_s + self.config.limits.match_deadline_s)
        request = MatchRequest(self._last_round_id, tuple([ask.prompt for ask in asks]))
        return [GroupOutput(group, request) for group in range(groups)]

    def _on_match(self, message: MatchReply, now_s: float) -> list[Output]:
        current = self._round
        if current is None or message.round_id != current.round_id:
            self.counters.late_answers += 1
            return []
        if message.group not in self.group_numbers or len(message.evidence) != len(current.asks):
            raise InvariantError(
                f"group {message.group} answers a round of {len(current.asks)} requests and {len(self.rules)} groups "
                f"with evidence for {len(message.evidence)}"
            )
        return self._finish_round(current, now_s) if current.add_evidence(message.group, message.evidence) else []

    def _on_timer(self, message: TimerEvent, now_s: float) -> list[Output]:  # noqa: ARG002 - it says nothing but when
        for pool in self.pools:
            pool.ledger.expire(now_s)
        current = self._round
        return self._finish_round(current, now_s) if current is not None and now_s >= current.deadline_s else []

    def _finish_round(self, current: Round, now_s: float) -> list[Output]:
        """Settle a round with the evidence that has come in, and start the next one."""
        self._round = None
        outputs = self._settle(current)
        while self._growing:
            outputs += self._settle(None)
        return outputs + self._start_round(now_s)

    def _settle(self, current: Round | None) -> list[Output]:
        settlement = self._settler.settle(self._next_growth(), current)
        self.counters.rounds += 1
        self.counters.deferred += len(settlement.deferred)
        self._waiting.put_back(settlement.deferred)
        outputs = self._bind(settlement)
        for grant in settlement.grants:
            outputs += self._answer(grant)
        return outputs

    def _next_growth(self) -> list[Growth]:
        """Growth that waits, in order, up to the first request that names a sequence again."""
        growth: list[Growth] = []
        named: set[SequenceId] = set()
        while self._growing and named.isdisjoint(self._growing[0].sequence_ids):
            request = self._growing.popleft()
            named.update(request.sequence_ids)
            growth.append(self._growth_now(request))
        return growth

    def _growth_now(self, request: GrowRequest) -> Growth:
        """Growth of those sequences of a request that run still and may grow."""
        longest = self._edge.capacity_tokens_max(request.blocks)
        known = [self.sequences.get(sequence_id) for sequence_id in request.sequence_ids]
        return Growth(request, [one for one in known if one is not None and one.capacity_tokens <= longest])

    def _bind(self, settlement: Settlement) -> list[Output]:
        """Tell each group what it has lost."""
        outputs: list[Output] = []
        for group, evicted in settlement.evicted.items():
            outputs.append(GroupOutput(group, BindEvent(evicted, NO_SLOTS, NO_SLOTS)))
            self.counters.evictions += len(evicted)
        for group, places in settlement.stale.items():
            slots, generations = np.array([*places], np.int64), np.array([*places.values()], np.int64)
            outputs.append(GroupOutput(group, BindEvent(NO_SLOTS, slots, generations)))
            self.counters.stale_places += len(places)
        return outputs

    # -- answers -------------------------------------------------------------------------------------------------------

    def _answer(self, grant: Grant) -> list[Output]:
        ask = grant.ask
        if isinstance(ask, Growth):
            return [self._grow(ask, grant)]
        assert grant.claim is not None, "whoever looks a chain up has a claim"
        if isinstance(ask.request, PinRequest):
            return [self._make_pin(ask.request, grant.claim, grant.slots)]
        result = grant.refusal or self._admit(ask, ask.request, grant.claim, grant.slots)
        self.counters.refused += grant.refusal is not None
        reply = self._waiting.admitted(ask, ask.request.sequence_id, result)
        return [reply] if reply else []

    def _admit(self, ask: Ask, new: NewSequence, claim: Claim, fresh: tuple[Slots, ...]) -> Admitted:
        block_tokens = self.config.block_tokens
        sequence = Sequence(
            sequence_id=new.sequence_id,
            prompt_tokens=new.tokens,
            tokens=new.tokens,
            cached_tokens=claim.hit_blocks * block_tokens,
            committed_tokens=claim.hit_blocks * block_tokens,
            capacity_tokens=ask.blocks * block_tokens,
            digests=ask.prompt.digests,
            digest_count=len(new.digests) // self.config.digest_bytes,
            considered_blocks=claim.hit_blocks,
            tables=self._new_tables(claim, fresh),
            retention=new.retention,
        )
        self.sequences[new.sequence_id] = sequence
        self.counters.admitted += 1
        self.counters.prompt_tokens += new.tokens
        self.counters.hit_tokens += sequence.cached_tokens
        return Admitted(new.sequence_id, sequence.cached_tokens, self.tables(sequence), sequence.capacity_tokens)

    def _new_tables(self, claim: Claim, fresh: tuple[Slots, ...]) -> tuple[BlockTable, ...]:
        """Tables of what a hit reads, followed by fresh slots."""
        tables = []
        for pool, claimed, slots in zip(self.pools, claim.slots, fresh, strict=True):
            hit = []
            end = 0
            for group in pool.groups:
                start, end = end, end + claim.hit_blocks - claim.first_blocks[group]
                hit.append(claimed[start:end])
            tables.append(BlockTable(hit, claim.hit_blocks, slots[0]))
        return tuple(tables)

    def tables(self, sequence: Sequence) -> tuple[Slots, ...]:
        """For each group the slots of the blocks of a sequence; read-only copies."""
        rows: list[Slots] = [NO_SLOTS] * len(self.rules)
        for pool, table in zip(self.pools, sequence.tables, strict=True):
            copy = table.rows.copy()
            copy.setflags(write=False)
            for row, group in enumerate(pool.groups):
                rows[group] = copy[row]
        return tuple(rows)

    def _grow(self, growth: Growth, grant: Grant) -> GrowReply:
        added_tokens = growth.blocks * self.config.block_tokens
        for pool, slots in enumerate(grant.slots):
            for sequence, added in zip(growth.sequences, slots, strict=False):  # the first ones, as many as are granted
                sequence.tables[pool].append(added)
        for sequence in growth.sequences[: grant.granted]:
            sequence.capacity_tokens += added_tokens
        refused: tuple[GrowResult, ...] = (None,) * grant.granted
        if grant.granted < len(growth.request.sequence_ids):
            refused = self._why_not_grown(growth, grant)
        self.counters.grown += grant.granted
        self.counters.growth_refused += len(refused) - grant.granted
        return GrowReply(growth.request.request_id, refused, grant.slots)

    def _why_not_grown(self, growth: Growth, grant: Grant) -> tuple[GrowResult, ...]:
        granted = {sequence.sequence_id for sequence in growth.sequences[: grant.granted]}
        results: list[GrowResult] = []
        for sequence_id in growth.request.sequence_ids:
            sequence = self.sequences.get(sequence_id)
            if sequence is None:
                results.append(unknown_sequence(sequence_id))
            elif sequence_id in granted:
                results.append(None)
            else:
                results.append(self._edge.outgrown(sequence, growth.blocks) or grant.refusal)
        return tuple(results)

    def _make_pin(self, request: PinRequest, claim: Claim, no_slots: tuple[Slots, ...]) -> PinReply:
        self._waiting.pin_ids.remove(request.pin_id)
        held = tuple([table.held() for table in self._new_tables(claim, no_slots)])
        self.pins[request.pin_id] = held
        for pool, slots in zip(self.pools, held, strict=True):
            pool.ledger.hand_over(len(slots), Holder.SEQUENCE, Holder.PIN)
        return PinReply(request.request_id, claim.hit_blocks * self.config.block_tokens)

    # -- requests that need no round -----------------------------------------------------------------------------------

    def _on_unpin(self, message: UnpinEvent, now_s: float) -> list[Output]:  # noqa: ARG002 - as every handler
        check_id("pin", message.pin_id)
        if message.pin_id not in self.pins:
            raise UnknownPin(f"no pin {message.pin_id!r} stands: it was never made, or it was given back already")
        for pool, slots in zip(self.pools, self.pins.pop(message.pin_id), strict=True):
            pool.ledger.release(slots, Holder.PIN)
        return []

    def _on_commit(self, message: CommitRequest, now_s: float) -> list[Output]:
        sequence = self.running(message.sequence_id)
        new_digests = self._edge.check_commit(message, sequence)
        if message.fence is not None:
            check_step("fence", message.fence)
        if new_digests:
            sequence.digests += self._edge.block_digests(message.digests, sequence.digest_count)
            sequence.digest_count += new_digests
        sequence.committed_tokens = message.tokens
        sequence.tokens = max(sequence.tokens, message.tokens)
        outputs = self.publications.offer(message.request_id, sequence, now_s)
        self._slide(sequence, message.fence)
        return outputs

    def _slide(self, sequence: Sequence, fence: int | None) -> None:
        """Give back the blocks that no token to come can attend to."""
        gone = []
        for pool, table in zip(self.pools, sequence.tables, strict=True):
            parts = [
                table.slide(row, self.rules[group].first_block(sequence.committed_tokens))
                for row, group in enumerate(pool.groups)
            ]
            gone.append(np.concatenate(parts))
        if any(map(len, gone)):
            self.returns.give_back(sequence, Return(sequence.sequence_id, fence, tuple(gone)))

    def _on_published(self, message: PublishReply, now_s: float) -> list[Output]:  # noqa: ARG002 - as every handler
        publication = self.publications.answered(message)
        if publication is None or publication.missing:
            return []
        if not publication.sequence.publishing:
            self.returns.published(publication.sequence)
        return [CommitReply(publication.request_id, tuple(publication.published_blocks))]

    def _on_release(self, message: ReleaseEvent, now_s: float) -> list[Output]:  # noqa: ARG002 - as every handler
        sequence = self.running(message.sequence_id)
        if message.fence is not None:
            check_step("fence", message.fence)
        del self.sequences[message.sequence_id]
        held = tuple([table.held() for table in sequence.tables])
        self.returns.give_back(sequence, Return(message.sequence_id, message.fence, held))
        self.counters.released += 1
        return []

    def _on_steps_done(self, message: StepsDoneEvent, now_s: float) -> list[Output]:  # noqa: ARG002 - as every handler
        check_step("step", message.step)
        self.returns.steps_done(message.step)
        return []

    # -- inspection ----------------------------------------------------------------------------------------------------

    def holders(self, pool: int) -> list[tuple[str, SequenceId | PinId, Slots]]:
        """Everyone who uses slots of a pool, as (kind, id, slots)."""
        publishing = {id(one.sequence): one.sequence for one in self.publications.unanswered()}
        returned = [one for sequence in publishing.values() for one in sequence.returned] + self.returns.fenced()
        return [
            *[("sequence", one.sequence_id, one.tables[pool].held()) for one in self.sequences.values()],
            *[("fence", one.sequence_id, one.slots[pool]) for one in returned],
            *[("pin", pin_id, slots[pool]) for pin_id, slots in self.pins.items()],
        ]

    @property
    def round_runs(self) -> bool:
        """Whether a round waits for answers of groups."""
        return self._round is not None

    def running(self, sequence_id: SequenceId) -> Sequence:
        """The record of a running sequence.

        Raises:
            UnknownSequence: it is not running.
        """
        try:
            return self.sequences[sequence_id]
        except (KeyError, TypeError):  # a value that cannot be hashed names nothing
            raise unknown_sequence(sequence_id) from None
