"""The engine of a client of a simulation: it asks for sequences, computes them in steps that run ahead, and gives back.

A step is begun at one moment and done on each rank at some other; what it reads and writes it does then. The client
begins no step before what it was told to await is over, and names as fence the last step that it has begun.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from kvtroupe.coordinator.errors import OutOfBlocks
from kvtroupe.coordinator.messages import (
    AdmitReply,
    AdmitRequest,
    Admitted,
    CommitRequest,
    Content,
    GrowReply,
    GrowRequest,
    LookupRequest,
    MoveRequest,
    NewSequence,
    PinReply,
    PinRequest,
    ReleaseEvent,
    ResetRequest,
    SequenceFailedEvent,
    StepsDoneEvent,
    TransfersDoneEvent,
    UnpinEvent,
)
from kvtroupe.coordinator.retention import Retention
from tests.coordinator.support import BLOCK_TOKENS, DIGEST_BYTES, chain
from tests.simulation.memory import TOKENS_OF, written

if TYPE_CHECKING:
    import random
    from collections.abc import Callable, Iterable, Iterator

    from kvtroupe.coordinator.attention import AttentionRule
    from kvtroupe.coordinator.config import Config
    from kvtroupe.coordinator.messages import ClientMessage, HeldSequence, Notice, SequenceId, ToClient
    from tests.simulation.memory import Memory

AHEAD_MAX = 2
ALPHABET = "aabbc"
WORDS_MAX = 12
TOLD_SHARE = 0.9  # of the sequences tell their tokens


def content_of(words: str, start_token: int, end_token: int) -> Content:
    """What a client tells of some tokens."""
    token_ids = np.array([TOKENS_OF[word] for word in words], "<i4").ravel()[start_token:end_token]
    return Content(token_ids.tobytes(), BLOCK_TOKENS)


@dataclass
class Running:
    """A sequence as its client knows it.

    Attributes:
        number: its id.
        words: a word for each block that it may ever have.
        tokens: of the prompt and what was decoded so far.
        computed_tokens: by the steps that were begun.
        done_tokens: by the steps that are done on every rank.
        tables: for each group its slots.
        states: for each group the slot of its live state; 0 where it has none.
        capacity_tokens: that fit.
        digests_told: how many digests the coordinator has.
        tokens_told: of how many tokens it has the content; None: it is not told.
        reads_after: transfers to await before reading.
        writes_after: transfers to await before writing.
        last_step: the last step that touches it.
        is_growing: whether it has asked for more.
    """

    number: int
    words: str
    tokens: int
    computed_tokens: int
    done_tokens: int
    tables: list[list[int]]
    states: list[int]
    capacity_tokens: int
    digests_told: int
    tokens_told: int | None
    reads_after: set[int]
    writes_after: set[int]
    last_step: int | None = None
    is_growing: bool = False


@dataclass
class Step:
    """A step that was begun.

    Attributes:
        number: its number.
        sequence: whose tokens it computes.
        first_token: the first of them.
        end_token: the one after the last.
        ranks_left: where it is not done.
    """

    number: int
    sequence: Running
    first_token: int
    end_token: int
    ranks_left: set[int]


@dataclass
class Engine:
    """See the module.

    Attributes:
        config: of the replica.
        memory: that it computes in.
        rules: of the groups.
        is_running: whether the coordinator has a sequence for running; what it has failed may read anything.
        outbox: what it asks of the coordinator, and its client has not sent yet.
        resets_before: how many resets there were when a sequence was admitted.
        ids: of sequences and requests, none of which any other engine uses.
        running: sequences that were admitted, by id.
        asked: by sequence, its words, tokens of the prompt, and digests sent; by request, the sequence to grow.
        requests: by request, the sequences of admissions under way.
        told: sequences whose tokens are told.
        cancelled: sequences to be given back as soon as they are admitted.
        steps: begun, not done on every rank.
    """

    config: Config
    memory: Memory
    rules: list[AttentionRule]
    is_running: Callable[[int], bool]
    resets_before: Callable[[int], int]
    ids: Iterator[int]
    outbox: deque[ClientMessage] = field(default_factory=deque)
    running: dict[int, Running] = field(default_factory=dict)
    asked: dict[int, tuple[str, int, int]] = field(default_factory=dict)
    requests: dict[int, list[SequenceId]] = field(default_factory=dict)
    told: set[int] = field(default_factory=set)
    cancelled: set[int] = field(default_factory=set)
    steps: list[Step] = field(default_factory=list)
    pins: list[int] = field(default_factory=list)
    done_transfers: set[int] = field(default_factory=set)
    last_step: int = -1
    told_step: int = -1

    def __post_init__(self) -> None:
        pools = [pool.name for pool in self.config.pools]
        self._recent: deque[str] = deque(maxlen=4)
        self._pool_of = [pools.index(group.pool) for group in self.config.groups]

    # -- requests ------------------------------------------------------------------------------------------------------

    def ask(self, chance: random.Random) -> None:
        """Ask for a sequence or two."""
        wanted = []
        for _ in range(chance.choice([1, 1, 2])):
            number = next(self.ids)
            words = self._words(chance)
            blocks = chance.randint(0, 5)
            tokens = max(1, blocks * BLOCK_TOKENS + chance.randint(0, BLOCK_TOKENS - 1))
            digests = min(tokens // BLOCK_TOKENS, chance.choice([blocks, blocks, max(0, blocks - 1)]))
            retention = Retention(chance.choice([10, 35, 80]), chance.choice([None, None, 2.0]))
            self.asked[number] = words, tokens, digests
            spare_blocks = chance.randint(0, 2)
            content = None
            if chance.random() < TOLD_SHARE:
                self.told.add(number)
                content = content_of(words, 0, tokens)
            new = NewSequence(number, tokens, chain(words[:digests]), spare_blocks, retention, content=content)
            wanted.append(new)
        request_id = next(self.ids)
        self.requests[request_id] = [one.sequence_id for one in wanted]
        wait_s = chance.choice([0.0, 3.0]) if len(wanted) == 1 else 0.0
        self.outbox.append(AdmitRequest(request_id, tuple(wanted), wait_s))

    def _words(self, chance: random.Random) -> str:
        """Often those of another sequence, up to some block."""
        shared = chance.choice(self._recent)[: chance.randint(0, 6)] if self._recent else ""
        words = shared + "".join(chance.choice(ALPHABET) for _ in range(WORDS_MAX - len(shared)))
        self._recent.append(words)
        return words

    def ask_about(self, chance: random.Random) -> None:
        """A lookup, a move, a pin, or the end of one."""
        request_id = next(self.ids)
        words = self._words(chance)[: chance.randint(1, 4)]
        what = chance.random()
        if what < 0.4:
            level = chance.randrange(len(self.config.stack_of(0)))
            self.outbox.append(MoveRequest(request_id, chain(words), level))
        elif what < 0.5:
            self.outbox.append(LookupRequest(request_id, chain(words)))
        elif self.pins and what < 0.8:
            self.outbox.append(UnpinEvent(self.pins.pop()))
        elif len(self.pins) < 2:
            self.outbox.append(PinRequest(request_id, request_id, chain(words)))

    def reset(self) -> None:
        """Have all cached content thrown away."""
        self.outbox.append(ResetRequest(next(self.ids)))

    def grow(self, chance: random.Random) -> None:
        """Ask for more room for a sequence."""
        one = chance.choice(self.able_to_grow())
        one.is_growing = True
        request_id = next(self.ids)
        self.asked[request_id] = "", one.number, 0
        self.outbox.append(GrowRequest(request_id, (one.number,), 1))

    def able_to_grow(self) -> list[Running]:
        """Sequences that may ask for more room."""
        longest = (WORDS_MAX - 1) * BLOCK_TOKENS
        return [one for one in self.running.values() if not one.is_growing and one.capacity_tokens <= longest]

    def end(self, chance: random.Random) -> None:
        """Release a sequence, or cancel one that was asked for."""
        if not self.running or chance.random() < 0.2:
            waiting = [number for number, (words, _, _) in self.asked.items() if words]
            self.cancelled.update(waiting[:1])
        else:
            self.release(chance.choice(list(self.running.values())))

    def release(self, one: Running) -> None:
        """Give a sequence back; steps that touch it may still be under way."""
        del self.running[one.number]
        self.outbox.append(ReleaseEvent(one.number, one.last_step))

    # -- steps ---------------------------------------------------------------------------------------------------------

    def begin_step(self, chance: random.Random) -> None:
        """Begin a step for a sequence that has something to compute and nothing to await."""
        one = chance.choice(self.able_to_compute())
        if one.computed_tokens == one.tokens:
            one.tokens += 1  # decode
        end = min(one.tokens, one.computed_tokens + chance.randint(1, 10))
        self.last_step += 1
        one.last_step = self.last_step
        self.steps.append(Step(self.last_step, one, one.computed_tokens, end, set(range(self.config.ranks))))
        one.computed_tokens = end

    def able_to_compute(self) -> list[Running]:
        """Sequences for which a step may begin."""
        if self.last_step - self.told_step > AHEAD_MAX:
            return []
        return [one for one in self.running.values() if self._can_compute(one)]

    def _can_compute(self, one: Running) -> bool:
        one.reads_after -= self.done_transfers
        one.writes_after -= self.done_transfers
        has_room = one.computed_tokens < min(one.capacity_tokens, WORDS_MAX * BLOCK_TOKENS)
        return not one.reads_after and not one.writes_after and has_room

    def work(self, rank: int) -> None:
        """Do the next step on a rank; when it is done on all of them, tell."""
        step = next((one for one in self.steps if rank in one.ranks_left), None)
        if step is None:
            return
        self._compute(step, rank)
        step.ranks_left.remove(rank)
        while self.steps and not self.steps[0].ranks_left:
            self._done(self.steps.pop(0))

    def ranks_with_work(self) -> list[int]:
        """Ranks that have a step to do."""
        return sorted({rank for step in self.steps for rank in step.ranks_left})

    def _compute(self, step: Step, rank: int) -> None:
        one = step.sequence
        verifies = self.is_running(one.number)
        resets = self.resets_before(one.number)
        for group, rule in enumerate(self.rules):
            pool = self._pool_of[group]
            if one.states[group]:
                self._compute_state(step, group, rank, verifies=verifies)
                continue
            table = one.tables[group]
            for block in range(rule.first_block(step.first_token), -(-step.first_token // BLOCK_TOKENS)):
                if verifies:
                    expected = written(one.words, min((block + 1) * BLOCK_TOKENS, step.first_token), 0)
                    self.memory.expect((pool, rank, table[block]), expected, f"step {step.number} of {one.number}")
            for block in range(step.first_token // BLOCK_TOKENS, -(-step.end_token // BLOCK_TOKENS)):
                content = written(one.words, min((block + 1) * BLOCK_TOKENS, step.end_token), resets)
                self.memory.put((pool, rank, table[block]), content)

    def _compute_state(self, step: Step, group: int, rank: int, *, verifies: bool) -> None:
        """A recurrent group: its state goes on from where it was, and is kept at some ends of blocks."""
        one, pool = step.sequence, self._pool_of[group]
        resets = self.resets_before(one.number)
        state = pool, rank, one.states[group]
        if step.first_token and verifies:
            expected = written(one.words, step.first_token, 0)
            self.memory.expect(state, expected, f"state in step {step.number} of {one.number}")
        for block in range(step.first_token // BLOCK_TOKENS, step.end_token // BLOCK_TOKENS):
            slot = one.tables[group][block]
            if slot:
                self.memory.put((pool, rank, slot), written(one.words, (block + 1) * BLOCK_TOKENS, resets))
        self.memory.put(state, written(one.words, step.end_token, resets))

    def _done(self, step: Step) -> None:
        one = step.sequence
        one.done_tokens = step.end_token
        if one.number in self.running:
            blocks = one.done_tokens // BLOCK_TOKENS
            digests = chain(one.words[:blocks])[one.digests_told * DIGEST_BYTES :]
            one.digests_told = max(one.digests_told, blocks)
            content = None
            if one.tokens_told is not None and one.tokens_told < one.done_tokens:
                content = content_of(one.words, one.tokens_told, one.done_tokens)
                one.tokens_told = one.done_tokens
            self.outbox.append(
                CommitRequest(next(self.ids), one.number, one.done_tokens, digests, self.last_step, content)
            )
        self.told_step = step.number
        self.outbox.append(StepsDoneEvent(step.number))

    # -- answers -------------------------------------------------------------------------------------------------------

    def hear(self, message: ToClient | Notice) -> None:
        """Read a message."""
        if isinstance(message, AdmitReply):
            for number, result in zip(self.requests.pop(message.request_id), message.results, strict=True):
                assert isinstance(number, int)
                words, tokens, digests = self.asked.pop(number)
                if isinstance(result, Admitted):
                    self._admitted(number, result, (words, tokens, digests))
        elif isinstance(message, GrowReply):
            self._grown(message)
        elif isinstance(message, PinReply):
            self.pins.append(message.request_id)
        elif isinstance(message, TransfersDoneEvent):
            self.done_transfers.update(message.transfer_ids)
        elif isinstance(message, SequenceFailedEvent):
            assert isinstance(message.sequence_id, int)
            one = self.running.get(message.sequence_id)
            if one is not None and message.must_be_released:
                self.release(one)
            elif one is not None:
                self._undone(one)

    def refused(self, message: object) -> None:
        """A request named a sequence that does not run any more."""
        if isinstance(message, GrowRequest):
            del self.asked[message.request_id]

    def forget(self, request_id: int) -> None:
        """The answer to a request is not wanted."""
        for number in self.requests.pop(request_id, ()):
            assert isinstance(number, int)
            del self.asked[number]

    def held(self, held: Iterable[HeldSequence]) -> None:
        """What the coordinator has for its sequences, after some of what it has said may have been lost."""
        by_number = {one.sequence_id: one for one in held}
        for one in list(self.running.values()):
            told = by_number.get(one.number)
            if told is None:
                self._undone(one)
            elif told.error is not None:
                self.release(one)
            else:
                one.reads_after &= {*told.awaited}
                one.writes_after &= {*told.awaited}

    def _undone(self, one: Running) -> None:
        assert one.last_step is None, "what was computed has to be released by its client"
        del self.running[one.number]

    def _admitted(self, number: int, result: Admitted, asked: tuple[str, int, int]) -> None:
        words, tokens, digests = asked
        one = Running(
            number=number,
            words=words,
            tokens=tokens,
            computed_tokens=result.cached_tokens,
            done_tokens=result.cached_tokens,
            tables=[table.tolist() for table in result.tables],
            states=[int(slots[0]) if len(slots) else 0 for slots in result.states],
            capacity_tokens=result.capacity_tokens,
            digests_told=digests,
            tokens_told=tokens if number in self.told else None,
            reads_after=set(result.reads_after),
            writes_after=set(result.writes_after),
        )
        assert result.cached_tokens < tokens, "the last token is always computed"
        self.running[one.number] = one
        if one.number in self.cancelled:
            self.release(one)

    def _grown(self, reply: GrowReply) -> None:
        _, number, _ = self.asked.pop(reply.request_id)
        one = self.running.get(number)
        if one is None:
            return
        one.is_growing = False
        if reply.refused == (None,):
            for table, slots in zip(one.tables, reply.slots, strict=True):
                table.extend(slots[0].tolist())
            one.capacity_tokens += BLOCK_TOKENS
            one.writes_after.update(reply.writes_after)
        elif isinstance(reply.refused[0], OutOfBlocks) and not self.steps:
            self.release(one)  # somebody has to make room
