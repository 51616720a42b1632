"""One replica in one process: the coordinator's state and its window groups, with two faces.

- `step(message, now_s)` takes a message to the coordinator and returns what is to be sent. Hosts run this one: they
  deliver the outputs to groups and clients wherever those are, and bring the answers back.
- `admit`, `commit` and the others run a request to its end against the groups of this process. Each is a loop over
  `step`. Simulations, benchmarks and checkers use them, and whoever embeds a replica without actors.

Nothing here is safe to call from several threads at once.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from kvtroupe.coordinator.errors import RequestError, TokenError
from kvtroupe.coordinator.estimate_messages import PLAIN_PACE
from kvtroupe.coordinator.group import Group
from kvtroupe.coordinator.messages import (
    AdmitReply,
    AdmitRequest,
    CommitReply,
    CommitRequest,
    Estimate,
    EstimateReply,
    EstimateRequest,
    GroupOutput,
    GrowReply,
    GrowRequest,
    LookupReply,
    LookupRequest,
    MoveReply,
    MoveRequest,
    PinReply,
    PinRequest,
    ReleaseEvent,
    ResetReply,
    ResetRequest,
    SequenceFailedEvent,
    StepsDoneEvent,
    TierOutput,
    TimerEvent,
    TransfersDoneEvent,
    UnpinEvent,
)
from kvtroupe.coordinator.sessions import Sessions
from kvtroupe.coordinator.state import CoordinatorState
from kvtroupe.coordinator.tier_without_bytes import answer_without_bytes

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kvtroupe.coordinator.claims import Pool
    from kvtroupe.coordinator.config import Config
    from kvtroupe.coordinator.counters import Counters
    from kvtroupe.coordinator.messages import (
        AdmitResult,
        Content,
        EstimateResult,
        Events,
        NewSequence,
        Pace,
        PinId,
        SequenceId,
        SessionsOutput,
        Slots,
        Snapshot,
        ToClient,
        ToCoordinator,
        ToSessions,
    )
    from kvtroupe.coordinator.sequences import Sequence as RunningSequence


class Replica:
    """Admits, grows, commits and releases sequences over the pools and groups of a configuration.

    It is not safe to call from several threads at once. Where priorities have durations, `now_s` must come from one
    clock in all calls, and `tick` has to be called now and then; otherwise `now_s` may be left out.

    Args:
        config: of the replica.
    """

    def __init__(self, config: Config) -> None:
        self.config = config
        self.state = CoordinatorState(config)
        self.sessions = Sessions(self.state)
        numbers = {pool.name: number for number, pool in enumerate(config.pools)}
        self.groups = [
            Group(number, self._slots_of_levels(numbers[group.pool]), config.digest_bytes)
            for number, group in enumerate(config.groups)
        ]
        self._last_request_id = 0

    def _slots_of_levels(self, device: int) -> tuple[int, ...]:
        return tuple([self.config.pools[number].blocks for number in self.config.stack_of(device)])

    def restart(self, epoch: int) -> None:
        """Begin anew as the coordinator of another epoch, which knows nothing; the groups stay. Send `RecoverEvent`."""
        self.state = CoordinatorState(self.config, epoch)
        self.sessions = Sessions(self.state)

    # -- the face for hosts --------------------------------------------------------------------------------------------

    def step(self, message: ToSessions, now_s: float) -> list[SessionsOutput]:
        """Apply one message to the coordinator; see `Sessions.step`."""
        return self.sessions.step(message, now_s)

    # -- the direct face -----------------------------------------------------------------------------------------------

    def admit(self, sequences: Sequence[NewSequence], now_s: float = 0.0) -> list[AdmitResult]:
        """Admit sequences, first come first served.

        Args:
            sequences: to admit.
            now_s: the time now.

        Returns:
            for each sequence, in order, `Admitted`, or the `OutOfBlocks` or `SequenceTooLong` for which it was refused.
            A refused one leaves no trace.

        Raises:
            SequenceExists: an id is in use, or named twice.
            TokenError: a prompt without tokens, a negative number of spare blocks, or content of other tokens.
            DigestError: digests of the wrong width, or more than the prompt has.
            Overloaded: more sequences than the limit. Whatever is raised, nothing was admitted.
        """
        reply = self._run(AdmitRequest(self._new_id(), tuple(sequences)), now_s)
        assert isinstance(reply, AdmitReply), "an admission is answered by its reply"
        return list(reply.results)

    def grow(self, sequence_ids: Sequence[SequenceId], blocks: int = 1, now_s: float = 0.0) -> GrowReply:
        """Give running sequences more spare blocks in every group.

        Args:
            sequence_ids: the sequences, each once; the first ones get theirs if not all can.
            blocks: blocks for each.
            now_s: the time now.

        Returns:
            for each sequence None or why it got nothing, and for each group the new slots [granted sequences, blocks].

        Raises:
            UnknownSequence: one of them is not running.
            RequestError: fewer than one block, or a sequence named twice. Whatever is raised, nothing has grown.
        """
        reply = self._run(GrowRequest(self._new_id(), tuple(sequence_ids), blocks), now_s)
        assert isinstance(reply, GrowReply), "growth is answered by its reply"
        return reply

    def extend(self, sequence_id: SequenceId, tokens: int = 1, now_s: float = 0.0) -> None:
        """Append tokens to a sequence: into its spare blocks, and into new ones when those are full.

        Raises:
            UnknownSequence: it is not running.
            TokenError: fewer than one token.
            OutOfBlocks: no room for the new blocks now; nothing was appended.
            SequenceTooLong: it could not fit even into an empty pool, or would pass the limit on the length of a
                sequence; nothing was appended.
        """
        sequence = self.state.records.running(sequence_id)
        if type(tokens) is not int or tokens < 1:
            raise TokenError(f"sequence {sequence_id!r} is extended by {tokens!r} tokens; append at least one")
        total = sequence.tokens + tokens
        if total > sequence.capacity_tokens:
            missing_blocks = -((sequence.capacity_tokens - total) // self.config.unit_tokens)
            refused = self.grow([sequence_id], missing_blocks, now_s).refused[0]
            if refused is not None:
                raise refused
        sequence.tokens = total

    def commit(  # noqa: PLR0913 - all that a commit can say
        self,
        sequence_id: SequenceId,
        tokens: int,
        digests: bytes = b"",
        fence: int | None = None,
        now_s: float = 0.0,
        *,
        content: Content | None = None,
    ) -> CommitReply:
        """Say that the first `tokens` tokens of a sequence are computed: their complete blocks can be hit from now on.

        Args:
            sequence_id: of a running sequence.
            tokens: computed so far, those of earlier commits included; more than were appended count as appended.
            digests: of the hash blocks that follow those the replica knows, as far as they are complete.
            fence: the engine step after which nothing reads blocks that leave a window now.
            now_s: the time now, at which the duration of the priority of these blocks begins.
            content: of the tokens that the replica does not know yet, up to the last one computed; where blocks are
                reused in part.

        Raises:
            UnknownSequence: it is not running.
            CommitError: fewer tokens than before, or more than there are blocks for.
            TokenError: content of other tokens.
            DigestError: digests of the wrong width, or of hash blocks that are not complete.
        """
        reply = self._run(CommitRequest(self._new_id(), sequence_id, tokens, digests, fence, content), now_s)
        assert isinstance(reply, CommitReply), "a commit is answered by its reply"
        return reply

    def release(self, sequence_id: SequenceId, fence: int | None = None, now_s: float = 0.0) -> None:
        """End a sequence. What it published stays as cache until its slots are needed.

        Args:
            sequence_id: of a running sequence.
            fence: the engine step after which nothing touches its slots; they are not handed out before.
            now_s: the time now.

        Raises:
            UnknownSequence: it is not running, or was released already.
        """
        self._run(ReleaseEvent(sequence_id, fence), now_s)

    def steps_done(self, step: int, now_s: float = 0.0) -> None:
        """All engine steps up to `step` are complete: what waited for them is free.

        Raises:
            FenceError: a later step was reported before.
        """
        self._run(StepsDoneEvent(step), now_s)

    def pin(self, pin_id: PinId, digests: bytes, now_s: float = 0.0) -> int:
        """Keep what all groups can serve of a prefix until the pin is given back.

        Returns:
            how many tokens that is; a pin of 0 tokens stands as well, and has to be given back.

        Raises:
            PinExists: the id is in use.
            DigestError: digests of the wrong width, or none.
            Overloaded: more pins than the limit.
        """
        reply = self._run(PinRequest(self._new_id(), pin_id, digests), now_s)
        assert isinstance(reply, PinReply), "a pin is answered by its reply"
        return reply.pinned_tokens

    def unpin(self, pin_id: PinId, now_s: float = 0.0) -> None:
        """Give a pin back.

        Raises:
            UnknownPin: it does not stand, or was given back already.
        """
        self._run(UnpinEvent(pin_id), now_s)

    # -- what is there, and what fits ----------------------------------------------------------------------------------

    def lookup(self, digests: bytes, tokens: int | None = None, now_s: float = 0.0) -> LookupReply:
        """What a prompt would hit now. Nothing is claimed, and nothing is brought up.

        Args:
            digests: of the prompt's hash blocks.
            tokens: of the prompt, whose last one is always computed; None: all that the digests stand for may be hit.
            now_s: the time now.

        Returns:
            the hit, and for each pool how many blocks of the prompt are new, used by others, or cached.

        Raises:
            DigestError: digests of the wrong width.
            TokenError: a prompt without tokens.
            SequenceTooLong: a prompt longer than any sequence may be.
        """
        reply = self._run(LookupRequest(self._new_id(), digests, tokens), now_s)
        assert isinstance(reply, LookupReply), "a lookup is answered by its reply"
        return reply

    def move(self, digests: bytes, level: int, now_s: float = 0.0) -> MoveReply:
        """Bring what a prompt would hit to a level: nearer to the device, or a copy of it further away.

        Args:
            digests: of the prefix.
            level: 0: the device; 1 and 2: the pools below it. Every block is copied one level on.
            now_s: the time now.

        Returns:
            how many copies have begun, and how many blocks there was no room for.

        Raises:
            DigestError: digests of the wrong width.
            RequestError: no level of the replica.
        """
        reply = self._run(MoveRequest(self._new_id(), digests, level), now_s)
        assert isinstance(reply, MoveReply), "a move is answered by its reply"
        return reply

    def estimate(
        self, sequence_id: SequenceId, new_tokens_max: int, pace: Pace = PLAIN_PACE, now_s: float = 0.0
    ) -> Estimate:
        """How many slots a running sequence needs for its next step, and until its end.

        Args:
            sequence_id: of the sequence.
            new_tokens_max: tokens that follow its prompt at most, those that it has already included.
            pace: at which it goes on.
            now_s: the time now.

        Raises:
            UnknownSequence: it is not running.
            RequestError: fewer new tokens than none.
        """
        [estimate] = self._estimates(
            EstimateRequest(self._new_id(), (sequence_id,), (), (new_tokens_max,), pace), now_s
        )
        assert isinstance(estimate, Estimate), "what runs is not too long"
        return estimate

    def what_if(
        self,
        sequences: Sequence[NewSequence],
        new_tokens_max: Sequence[int] | None = None,
        pace: Pace = PLAIN_PACE,
        now_s: float = 0.0,
    ) -> list[EstimateResult]:
        """Which of some sequences would be admitted now, and how many slots each needs. Nothing changes.

        Args:
            sequences: in the order in which they would be admitted; their ids may be in use.
            new_tokens_max: for each the tokens that follow its prompt at most; None: none.
            pace: at which they would go on.
            now_s: the time now.

        Returns:
            for each sequence, in order, its estimate, or why it could never be admitted.

        Raises:
            RequestError: what an admission would refuse as malformed, or fewer new tokens than none.
            Overloaded: more sequences than the limit.
        """
        to_come = (0,) * len(sequences) if new_tokens_max is None else tuple(new_tokens_max)
        return self._estimates(EstimateRequest(self._new_id(), (), tuple(sequences), to_come, pace), now_s)

    def _estimates(self, request: EstimateRequest, now_s: float) -> list[EstimateResult]:
        reply = self._run(request, now_s)
        assert isinstance(reply, EstimateReply), "a request for estimates is answered by its reply"
        return list(reply.estimates)

    # -- the whole replica ---------------------------------------------------------------------------------------------

    def reset(self, now_s: float = 0.0) -> int:
        """Throw all cached content away. Running sequences go on, and publish nothing any more.

        Returns:
            the content epoch that begins.
        """
        reply = self._run(ResetRequest(self._new_id()), now_s)
        assert isinstance(reply, ResetReply), "a reset is answered by its reply"
        return reply.content_epoch

    def tick(self, now_s: float) -> None:
        """Let time pass: priorities whose duration is over fall back to the default."""
        self._run(TimerEvent(), now_s)

    def _new_id(self) -> int:
        self._last_request_id += 1
        return self._last_request_id

    def _run(self, message: ToCoordinator, now_s: float) -> ToClient | None:
        """Step, and deliver what goes to groups, until nothing is left to deliver: the reply to the client, if any."""
        if self.state.round_runs or self.sessions.attached():
            raise RequestError(
                "the direct face is for a replica without sessions, between rounds; bring the answers of the groups, "
                "or send what you want as a message"
            )
        reply: ToClient | None = None
        step = self.state.step
        outputs = step(message, now_s)
        for output in outputs:  # grows while it is gone through
            if isinstance(output, GroupOutput):
                answer = self.groups[output.group].handle(output.message, output.number, output.epoch)
                if answer is not None:
                    outputs += step(answer, now_s)
            elif isinstance(output, TierOutput):
                done = answer_without_bytes(output, self.config)
                if done is not None:
                    outputs += step(done, now_s)
            elif not isinstance(output, TransfersDoneEvent | SequenceFailedEvent):
                reply = output
        return reply

    # -- inspection ----------------------------------------------------------------------------------------------------

    def sequences(self) -> list[SequenceId]:
        """Ids of the running sequences, in order of admission."""
        return list(self.state.records.sequences)

    def sequence(self, sequence_id: SequenceId) -> RunningSequence:
        """The record of a running sequence. Read it only.

        Raises:
            UnknownSequence: it is not running.
        """
        return self.state.records.running(sequence_id)

    def tables(self, sequence_id: SequenceId) -> tuple[Slots, ...]:
        """For each group an array of the slots of a sequence's blocks, 0 where a window has left one behind.

        Raises:
            UnknownSequence: it is not running.
        """
        return self.state.tables.lent(self.sequence(sequence_id))[0]

    def free_order(self, pool: str) -> Slots:
        """Every free slot of a pool, in the order in which they would be taken."""
        return self.pool(pool).ledger.free_order.slots()

    def holders(self, pool: str) -> list[tuple[str, SequenceId | PinId, Slots]]:
        """Everyone who uses slots of a pool.

        Returns:
            (kind, id, slots) of each; the kind is `sequence`, `fence` (given back, not free yet), `quarantine` (of lost
            clients, likewise; ids are of sequences), `pin`, or `transfer` (a copy; the id says which).
        """
        return self.state.holders(self.state.pools.index(self.pool(pool)))

    def published(self, group: str) -> dict[bytes, tuple[int, int]]:
        """The published blocks of a group: digest -> (slot, generation)."""
        names = [config.name for config in self.config.groups]
        if group not in names:
            raise RequestError(f"no group {group!r}; the groups are {names}")
        index = self.groups[names.index(group)].index
        return {digest: (slot, generation) for digest, slot, generation in index.entries()}

    def events_since(self, position: tuple[int, int] | None = None) -> Events | Snapshot:
        """What has happened to published blocks since a block event, or, where that is not known, what is published.

        Args:
            position: epoch and number of the last event that is known, as `Mirror.position` has them; None: none is.

        Raises:
            RequestError: the configuration has events switched off, or the position is malformed.
        """
        return self.state.events.since(position)

    def counters(self) -> Counters:
        """What has happened since the start; a copy."""
        return replace(self.state.counters)

    def pool(self, name: str) -> Pool:
        """A pool by its name.

        Raises:
            RequestError: there is none of this name.
        """
        for pool in self.state.pools:
            if pool.name == name:
                return pool
        raise RequestError(f"no pool {name!r}; the pools are {[pool.name for pool in self.state.pools]}")
