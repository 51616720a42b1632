"""The state of a coordinator: its ledgers, its running sequences, its rounds. It is the only writer of all three.

`step` takes a message and the time and returns the messages that are to be sent. It never waits: a round that needs
match answers goes on when the last of them, or the timer, comes in. One round runs at a time; requests that arrive
meanwhile ride in the next one, growth of running sequences in the one that runs.

A malformed request raises out of `step` and has changed nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kvtroupe.coordinator.answers import Answers
from kvtroupe.coordinator.asks import Edge, check_id, check_new_sequences, check_step, check_time, repeated_ids
from kvtroupe.coordinator.claims import Ask
from kvtroupe.coordinator.errors import (
    CommitError,
    Overloaded,
    PinExists,
    RequestError,
    SequenceExists,
    UnknownPin,
)
from kvtroupe.coordinator.estimator import Estimator
from kvtroupe.coordinator.events import BlockEvents
from kvtroupe.coordinator.grants import Tables
from kvtroupe.coordinator.leases import Leases
from kvtroupe.coordinator.losses import Losses
from kvtroupe.coordinator.messages import (
    AdmitRequest,
    CancelEvent,
    CommitRequest,
    ContentEpochReply,
    CopyReply,
    DropReply,
    EpochAcknowledgedEvent,
    EstimateRequest,
    EventsRequest,
    GroupLostEvent,
    GroupReadyEvent,
    GrowRequest,
    InventoryReply,
    LookupRequest,
    MatchReply,
    MoveRequest,
    PinRequest,
    PublishReply,
    RecoverEvent,
    ReleaseEvent,
    ResetRequest,
    SessionBeganEvent,
    SessionLostEvent,
    SessionOverEvent,
    StepsDoneEvent,
    TierLostEvent,
    TierReadyEvent,
    TimerEvent,
    UnpinEvent,
)
from kvtroupe.coordinator.moves import Moves
from kvtroupe.coordinator.outcomes import Outcomes
from kvtroupe.coordinator.parts import make_parts
from kvtroupe.coordinator.publications import Publications
from kvtroupe.coordinator.records import Records
from kvtroupe.coordinator.recovery import Recovery
from kvtroupe.coordinator.resets import Resets
from kvtroupe.coordinator.round import Settler
from kvtroupe.coordinator.rounds import Rounds
from kvtroupe.coordinator.takeovers import Takeovers
from kvtroupe.coordinator.tiers import Tiers
from kvtroupe.coordinator.waiting import WaitingRoom

if TYPE_CHECKING:
    from collections.abc import Callable

    from kvtroupe.coordinator.config import Config
    from kvtroupe.coordinator.messages import Output, PinId, SequenceId, Slots, ToCoordinator
    from kvtroupe.coordinator.round import Round
    from kvtroupe.coordinator.sequences import Sequence


class CoordinatorState:
    """All that a coordinator decides. See the module for its rules.

    Args:
        config: of the replica.
        epoch: above that of every coordinator before it.
    """

    def __init__(self, config: Config, epoch: int = 0) -> None:
        self.config = config
        parts = make_parts(config, epoch)
        self.pools, self.layout, self.counters = parts.pools, parts.layout, parts.counters
        self.rules = parts.layout.rules
        self.events = BlockEvents(parts)
        self.tables = Tables(parts.pools, parts.layout)
        self.records = Records(parts, self.tables)
        self.tiers = Tiers(parts, self.records.waits)
        self.publications = Publications(parts, self.tiers.demotions)
        self.mail = self._mail = parts.mail
        self._edge = Edge(config, parts.pools, parts.layout)
        settler = Settler(parts.pools, parts.layout, self.tiers)
        self._estimator = Estimator(parts, self._edge, self.records, self.tiers, settler)
        self.waiting = WaitingRoom(config.limits.round_blocks_max, sum(parts.layout.strides))
        self._outcomes = Outcomes(parts, self.records, self.tables, self.tiers)
        self._answers = Answers(
            parts, self.records, self.tables, self.tiers, self._edge, self.waiting, Moves(self.tiers)
        )
        self._leases = Leases(parts, self.records, self.waiting)
        self._takeovers = Takeovers(parts, self.tiers.traffic)
        self.resets = Resets(parts, self.records, self.tiers, self.publications, self._outcomes, self._takeovers)
        self._losses = Losses(
            parts, self.records, self.tiers, self.publications, self._outcomes, self._takeovers, self.resets
        )
        device = {place.pool: self.pools[place.pool].ledger for place in self.tiers.traffic.places if not place.level}
        self._recovery = Recovery(device)
        self._rounds = Rounds(parts, settler, self._answers, self.waiting, self._estimator)
        self._handlers: dict[type, Callable[[Any, float], list[Output]]] = {
            AdmitRequest: self._on_admit,
            GrowRequest: self._on_grow,
            CommitRequest: self._on_commit,
            ReleaseEvent: self._on_release,
            StepsDoneEvent: self._on_steps_done,
            PinRequest: self._on_pin,
            UnpinEvent: self._on_unpin,
            LookupRequest: self._on_lookup,
            MoveRequest: self._on_move,
            EstimateRequest: self._on_estimate,
            TimerEvent: self._on_timer,
            MatchReply: self._on_match,
            PublishReply: self._on_published,
            CopyReply: self._on_copied,
            DropReply: self._on_dropped,
            GroupLostEvent: self._on_group_lost,
            GroupReadyEvent: self._on_group_ready,
            TierLostEvent: lambda message, now_s: self._losses.tier_lost(message.pool, message.rank, now_s),
            TierReadyEvent: self._on_tier_ready,
            InventoryReply: lambda message, _: self._losses.told(message),
            RecoverEvent: self._on_recover,
            ResetRequest: lambda message, _: self.resets.reset(message),
            EventsRequest: lambda message, _: self.events.reply(message),
            ContentEpochReply: lambda message, _: self.resets.durable(message),
            CancelEvent: self._on_cancel,
            SessionBeganEvent: self._on_session_began,
            SessionLostEvent: self._on_session_lost,
            SessionOverEvent: self._on_session_over,
            EpochAcknowledgedEvent: self._on_epoch_acknowledged,
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
        outputs = handler(message, now_s)
        if self.waiting.for_room:
            outputs += self._rounds.try_again(now_s)
        outputs += self.tiers.flush(now_s)
        return self._mail.deliverable(outputs) if self._mail.lost else outputs

    # -- requests that need a round ------------------------------------------------------------------------------------

    def _on_admit(self, message: AdmitRequest, now_s: float) -> list[Output]:
        check_new_sequences(message.sequences)
        new_ids = [new.sequence_id for new in message.sequences]
        self._check_new_ids(new_ids)
        self.waiting.check_new(message.request_id)
        waits_until_s = self._edge.waits_until_s(message, now_s)
        asks = [self._edge.admission(message, position) for position in range(len(new_ids))]
        if waits_until_s > now_s:
            for ask in asks:
                if isinstance(ask, Ask):
                    ask.waits_until_s = waits_until_s
        self.counters.refused += sum([not isinstance(ask, Ask) for ask in asks])
        reply = self.waiting.admit(message.request_id, asks)
        return [reply] if reply else self._rounds.start(now_s)

    def _check_new_ids(self, new_ids: list[SequenceId]) -> None:
        running, failed = self.records.sequences, self.records.failed
        for sequence_id in new_ids:
            check_id("sequence", sequence_id)
            if sequence_id in running or sequence_id in failed or sequence_id in self.waiting.sequences:
                raise SequenceExists(
                    f"sequence {sequence_id!r} runs or waits already, or has failed and was not released; release it "
                    "or choose another id"
                )
        if len(new_ids) > 1 and len(set(new_ids)) < len(new_ids):
            raise SequenceExists(f"one request admits sequences twice: {repeated_ids(new_ids)}; choose distinct ids")
        held = len(running) + len(failed) + len(self.waiting.sequences)
        if held + len(new_ids) > self.config.limits.sequences_max:
            raise Overloaded(
                f"{held} sequences run or wait and {len(new_ids)} more were sent; "
                f"sequences_max is {self.config.limits.sequences_max}; try again when some have ended"
            )

    def _on_grow(self, message: GrowRequest, now_s: float) -> list[Output]:
        self._edge.check_growth(message, [self.records.running(sequence_id) for sequence_id in message.sequence_ids])
        return self._rounds.grow(message, now_s)

    def _on_pin(self, message: PinRequest, now_s: float) -> list[Output]:
        check_id("pin", message.pin_id)
        if message.pin_id in self.records.pins or message.pin_id in self.waiting.pins:
            raise PinExists(f"pin {message.pin_id!r} stands or waits already; give it back or choose another id")
        held = len(self.records.pins) + len(self.waiting.pins)
        if held >= self.config.limits.pins_max:
            raise Overloaded(f"{held} pins stand, which is pins_max; give some back first")
        self.waiting.pin(message.pin_id, self._edge.pin(message))
        return self._rounds.start(now_s)

    def _on_lookup(self, message: LookupRequest, now_s: float) -> list[Output]:
        ask = self._edge.lookup(message)
        self._check_room_to_wait()
        self.waiting.add(ask)
        return self._rounds.start(now_s)

    def _on_move(self, message: MoveRequest, now_s: float) -> list[Output]:
        ask = self._edge.move(message, max([place.level for place in self.tiers.traffic.places]) + 1)
        self._check_room_to_wait()
        self.waiting.add(ask)
        return self._rounds.start(now_s)

    def _on_estimate(self, message: EstimateRequest, now_s: float) -> list[Output]:
        reply = self._estimator.add(message)
        return [reply] if reply else self._rounds.start(now_s)

    def _check_room_to_wait(self) -> None:
        if len(self.waiting) >= self.config.limits.sequences_max:
            raise Overloaded(f"{len(self.waiting)} requests wait, as many as sequences_max; try again later")

    def _on_match(self, message: MatchReply, now_s: float) -> list[Output]:
        has_missed, outputs = self._rounds.answered(message, now_s)
        return self._begin_group_anew(message.group, now_s) if has_missed else outputs

    def _on_timer(self, message: TimerEvent, now_s: float) -> list[Output]:  # noqa: ARG002 - it says nothing but when
        for pool in self.pools:
            pool.ledger.expire(now_s)
        return self._outcomes.overdue(now_s) + self._rounds.time_passed(now_s)

    # -- requests that need no round -----------------------------------------------------------------------------------

    def _on_unpin(self, message: UnpinEvent, now_s: float) -> list[Output]:  # noqa: ARG002 - as every handler
        check_id("pin", message.pin_id)
        if message.pin_id not in self.records.pins:
            raise UnknownPin(f"no pin {message.pin_id!r} stands: it was never made, or it was given back already")
        self.records.unpin(message.pin_id)
        return []

    def _on_commit(self, message: CommitRequest, now_s: float) -> list[Output]:
        sequence = self.records.running(message.sequence_id)
        new_digests = self._edge.check_commit(message, sequence)
        contents = self._edge.contents
        content = sequence.content if contents is None else contents.after_commit(message, sequence)
        self._check_has_read(sequence)
        if message.fence is not None:
            check_step("fence", message.fence)
        if new_digests:
            for scale in range(len(self.layout.scales)):
                sequence.digests[scale] += self._edge.block_digests(message.digests, scale, sequence.digest_count)
            sequence.digest_count += new_digests
        sequence.content = content
        sequence.committed_tokens = message.tokens
        sequence.tokens = max(sequence.tokens, message.tokens)
        outputs = self.publications.offer(message.request_id, sequence, now_s)
        self.records.slide(sequence, message.fence)
        return outputs

    def _check_has_read(self, sequence: Sequence) -> None:
        """Refuse to publish what was computed from blocks that are not there yet."""
        missing = self.records.waits.reads(sequence.sequence_id)
        if missing:
            raise CommitError(
                f"sequence {sequence.sequence_id!r} is committed while transfers {sorted(missing)} still bring what it "
                "reads; compute and commit when they are done"
            )

    def _on_published(self, message: PublishReply, now_s: float) -> list[Output]:
        if message.epoch != self._mail.epoch:
            self.counters.late_answers += 1
            return []
        if self.tiers.has_lower:
            for what in (self.tiers.landings.answered(message, now_s), self._takeovers.answered(message)):
                if what is not None:
                    return what
        publication = self.publications.answered(message, now_s)
        return [] if publication is None or publication.offers else self._outcomes.published([publication])

    def _on_release(self, message: ReleaseEvent, now_s: float) -> list[Output]:  # noqa: ARG002 - as every handler
        sequence = self.records.holding(message.sequence_id)
        if message.fence is not None:
            check_step("fence", message.fence)
        self.records.end(sequence, message.fence)
        self.counters.released += 1
        return []

    def _on_steps_done(self, message: StepsDoneEvent, now_s: float) -> list[Output]:  # noqa: ARG002 - as every handler
        check_step("step", message.step)
        self.records.returns.steps_done(message.session, message.step)
        return []

    # -- copies --------------------------------------------------------------------------------------------------------

    def _on_copied(self, message: CopyReply, now_s: float) -> list[Output]:
        return self._outcomes.finished(self.tiers.traffic.transfers.answered(message), now_s)

    def _on_dropped(self, message: DropReply, now_s: float) -> list[Output]:  # noqa: ARG002 - as every handler
        self.tiers.traffic.transfers.dropped(message)
        return []

    # -- losses --------------------------------------------------------------------------------------------------------

    def _on_group_lost(self, message: GroupLostEvent, now_s: float) -> list[Output]:
        outputs = self._losses.group_lost(message.group)
        return outputs + self._rounds.give_up(message.group, now_s)

    def _on_group_ready(self, message: GroupReadyEvent, now_s: float) -> list[Output]:
        return self._begin_group_anew(message.group, now_s)

    def _begin_group_anew(self, group: int, now_s: float) -> list[Output]:
        return self._losses.group_ready(group, now_s) + self._rounds.give_up(group, now_s)

    def _on_recover(self, message: RecoverEvent, now_s: float) -> list[Output]:  # noqa: ARG002 - as every handler
        outputs = self._losses.recover(message.tier_epochs)
        self._recovery.begin(message.process_ids)
        return outputs

    def _on_tier_ready(self, message: TierReadyEvent, now_s: float) -> list[Output]:
        return self._losses.tier_ready(message.pool, message.rank, message.tier_epoch, now_s)

    # -- sessions ------------------------------------------------------------------------------------------------------

    def _on_session_began(self, message: SessionBeganEvent, now_s: float) -> list[Output]:  # noqa: ARG002 - as all
        self._leases.begin(message.session)
        return []

    def _on_session_lost(self, message: SessionLostEvent, now_s: float) -> list[Output]:
        self._leases.lost(message.session)
        return self._rounds.start(now_s)  # what was cancelled is answered

    def _on_session_over(self, message: SessionOverEvent, now_s: float) -> list[Output]:
        self._leases.over(message.session)
        return self._rounds.start(now_s)

    def _on_cancel(self, message: CancelEvent, now_s: float) -> list[Output]:
        self._leases.cancel(message)
        return self._rounds.start(now_s)

    def _on_epoch_acknowledged(self, message: EpochAcknowledgedEvent, now_s: float) -> list[Output]:  # noqa: ARG002
        self._recovery.acknowledged(message.process_id)
        return []

    # -- inspection ----------------------------------------------------------------------------------------------------

    def holders(self, pool: int) -> list[tuple[str, SequenceId | PinId, Slots]]:
        """Everyone who uses slots of a pool, as (kind, id, slots)."""
        publishing = {id(one.sequence): one.sequence for one in self.publications.unanswered()}
        return [
            *self.records.holders(pool, [*publishing.values()]),
            *self.tiers.holders(pool),
            *self._takeovers.holders(pool),
            *self._recovery.holders(pool),
        ]

    @property
    def current_round(self) -> Round | None:
        """The round that waits for answers of groups, to look at; None: none does."""
        return self._rounds.current
