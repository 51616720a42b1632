"""The coordinator and its groups under random interleavings: slow groups, late answers, releases during rounds.

The test models what is in the slots: whoever commits writes the digests of its blocks there, and whoever hits must find
those of its own chain.
"""

from __future__ import annotations

import random
from collections import deque
from typing import TYPE_CHECKING

import pytest

from kvtroupe.coordinator.check import check, quiescent
from kvtroupe.coordinator.config import Limits
from kvtroupe.coordinator.messages import (
    AdmitReply,
    AdmitRequest,
    Admitted,
    CommitRequest,
    GroupOutput,
    GrowRequest,
    NewSequence,
    PinReply,
    PinRequest,
    ReleaseEvent,
    StepsDoneEvent,
    TimerEvent,
    UnpinEvent,
)
from kvtroupe.coordinator.replica import Replica
from kvtroupe.coordinator.retention import Retention
from tests.coordinator.support import BLOCK_TOKENS, chain, make_config, split, tables, tables_of

if TYPE_CHECKING:
    from kvtroupe.coordinator.messages import SequenceId, ToCoordinator, ToGroup

LIMITS = Limits(match_deadline_s=3.0, round_blocks_max=12)
RETENTIONS = [Retention(), Retention(), Retention(80, 5.0), Retention(10), Retention(decode_priority=90)]


class Host:
    """A replica whose groups answer when chance lets them, and clients that do anything they may."""

    def __init__(self, replica: Replica, seed: int) -> None:
        self.replica = replica
        self.chance = random.Random(seed)  # noqa: S311 - chooses test cases
        self.inboxes: list[deque[ToGroup]] = [deque() for _ in replica.groups]
        self.pool_of = {group: pool.name for pool in replica.state.pools for group in pool.groups}
        self.content: dict[tuple[str, int], bytes] = {}
        self.words_of: dict[SequenceId, str] = {}
        self.written_blocks: dict[SequenceId, int] = {}
        self.pins: list[int] = []
        self.now_s = 0.0
        self.engine_step = 0
        self.last_id = 0

    # -- clients

    def admit(self) -> None:
        """Some prompts of few words, so that many share their beginnings."""
        news = []
        for _ in range(self.chance.randint(1, 3)):
            words = "".join(self.chance.choice("ab") for _ in range(self.chance.randint(0, 5)))
            tokens = len(words) * BLOCK_TOKENS + self.chance.randint(0 if words else 1, 3)
            self.last_id += 1
            self.words_of[self.last_id] = words
            spare_blocks, retention = self.chance.randint(0, 2), self.chance.choice(RETENTIONS)
            news.append(NewSequence(self.last_id, tokens, chain(words), spare_blocks, retention))
        self.last_id += 1
        self.send(AdmitRequest(self.last_id, tuple(news)))

    def running(self) -> list[SequenceId]:
        """Sequences of which their client knows that they run."""
        return [one for one in self.replica.sequences() if one in self.written_blocks]

    def grow(self) -> None:
        """One or all of those that run."""
        ids = self.running()
        if ids:
            some = self.chance.sample(ids, self.chance.randint(1, len(ids)))
            self.last_id += 1
            self.send(GrowRequest(self.last_id, tuple(some), self.chance.randint(1, 2)))

    def commit(self) -> None:
        """Write blocks and say so; generated ones get words of their own."""
        ids = self.running()
        if not ids:
            return
        one = self.chance.choice(ids)
        sequence = self.replica.sequence(one)
        tokens = self.chance.randint(sequence.committed_tokens, sequence.capacity_tokens)
        words, known = self.words_of[one], len(self.words_of[one])
        while len(words) < tokens // BLOCK_TOKENS and self.chance.random() < 0.8:
            words += self.chance.choice("ab")
        digests = split(chain(words))
        whole = min(len(digests), tokens // BLOCK_TOKENS)
        for group, table in enumerate(tables_of(self.replica, one)):
            for block in range(self.written_blocks[one], whole):
                self.content[self.pool_of[group], table[block]] = digests[block]
        self.words_of[one], self.written_blocks[one] = words, whole
        self.last_id += 1
        self.send(CommitRequest(self.last_id, one, tokens, b"".join(digests[known:]), self.fence()))

    def fence(self) -> int | None:
        """None, or a step about now."""
        return self.chance.choice([None, self.engine_step, self.engine_step + self.chance.randint(1, 3)])

    def release(self) -> None:
        """In the middle of anything."""
        ids = self.running()
        if ids:
            self.send(ReleaseEvent(self.chance.choice(ids), self.fence()))

    def steps(self) -> None:
        """The engine goes on."""
        self.engine_step += 1
        self.send(StepsDoneEvent(self.engine_step))

    def pin(self) -> None:
        """Some prefix, or no longer."""
        if self.pins and self.chance.random() < 0.6:
            self.send(UnpinEvent(self.pins.pop()))
            return
        self.last_id += 1
        self.send(PinRequest(self.last_id, self.last_id, chain(self.chance.choice(["a", "ab", "bb", "aba"]))))

    def wait(self) -> None:
        """Time passes, now and then beyond the deadline of a round."""
        self.now_s += self.chance.choice([0.1, 0.5, 4.0])
        self.send(TimerEvent())

    # -- messages

    def send(self, message: ToCoordinator) -> None:
        """Step, and deliver what comes out: to clients at once, to groups some time."""
        for output in self.replica.step(message, self.now_s):
            if isinstance(output, GroupOutput):
                self.inboxes[output.group].append(output.message)
            elif isinstance(output, AdmitReply):
                for result in output.results:
                    if isinstance(result, Admitted):
                        self.look_at(result)
            elif isinstance(output, PinReply):
                self.pins.append(output.request_id)

    def look_at(self, result: Admitted) -> None:
        """What a hit reads is what the digests of the prompt say."""
        digests = split(chain(self.words_of[result.sequence_id]))
        hit_blocks = self.written_blocks[result.sequence_id] = result.cached_tokens // BLOCK_TOKENS
        for group, table in enumerate(tables(result)):
            for block in range(hit_blocks):
                if table[block]:
                    assert self.content[self.pool_of[group], table[block]] == digests[block]

    def deliver(self) -> None:
        """One message to one group, and its answer."""
        busy = [group for group, inbox in enumerate(self.inboxes) if inbox]
        if busy:
            group = self.chance.choice(busy)
            answer = self.replica.groups[group].handle(self.inboxes[group].popleft())
            if answer is not None:
                self.send(answer)

    def settle_down(self) -> None:
        """Deliver all that is under way."""
        while any(self.inboxes):
            self.deliver()


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("groups", [("full",), ("full", "sliding:5"), ("sliding:4@a", "full@b", "sliding:9@a")])
def test_any_interleaving_serves_right_blocks_and_frees_everything(groups: tuple[str, ...], seed: int) -> None:
    """No hit ever reads a block of another chain; whenever nothing is under way, every invariant holds."""
    blocks = {"a": 25, "b": 15} if "@" in groups[0] else 14 * len(groups)
    host = Host(Replica(make_config(*groups, blocks=blocks, reserved_blocks=1, limits=LIMITS)), seed)
    clients = [host.admit, host.admit, host.commit, host.commit, host.release, host.grow, host.steps, host.pin]

    for step in range(700):
        host.chance.choice([*clients, host.wait] if host.chance.random() < 0.5 else [host.deliver])()
        if step % 50 == 49:
            host.settle_down()
            check(host.replica)

    host.settle_down()
    for sequence_id in host.replica.sequences():
        host.send(ReleaseEvent(sequence_id))
    for pin_id in host.pins:
        host.send(UnpinEvent(pin_id))
    host.send(StepsDoneEvent(host.engine_step + 3))
    check(host.replica)
    assert quiescent(host.replica)
    counters = host.replica.counters()
    assert min(counters.hit_tokens, counters.evictions, counters.refused, counters.late_answers) > 0
