"""A fast replica and the slow model of it do the same, and agree after every step on all that can be seen of them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from kvtroupe.coordinator import free_order, prefix_index, tables
from kvtroupe.coordinator.check import check, quiescent
from kvtroupe.coordinator.errors import KVTroupeError, OutOfBlocks
from kvtroupe.coordinator.event_mirror import Mirror
from kvtroupe.coordinator.messages import (
    Admitted,
    CommitReply,
    GrowReply,
    MatchReply,
    MatchRequest,
    NewSequence,
    Prompt,
)
from kvtroupe.coordinator.reference import ReferenceReplica
from kvtroupe.coordinator.reference_parts import ReferenceSequence, chain_of, split
from kvtroupe.coordinator.replica import Replica
from tests.coordinator.drafts import DRAFTS, FENCES, PICKS, PROGRESS, Draft, Encoder, Progress, configs, slots_of_unit
from tests.coordinator.support import DIGEST_BYTES, chain

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from kvtroupe.coordinator.config import Config
    from kvtroupe.coordinator.messages import SequenceId

Either: TypeAlias = Any  # a fast or a slow replica: their direct faces differ only in what answers are made of


# Sizes that the fast code chooses for large pools, and smaller ones, so that small pools come past them.
SIZES: list[tuple[object, str, list[int]]] = [
    (free_order, "SMALLEST_LOG", [4, 1024]),
    (free_order, "SCRUB_SLACK", [0, 64]),
    (prefix_index, "APPENDED_RUN_MAX", [1, 4, 1024]),
    (prefix_index, "REAPED_PER_INSERT", [1, 4]),
    (tables, "SPARE_COLUMNS", [0, 16]),
]

# Each is refused by both, and changes neither.
BAD_CALLS: dict[str, Callable[[Either, ReferenceSequence], object]] = {
    "an id that runs": lambda replica, one: replica.admit([NewSequence("new", 1), NewSequence(one.sequence_id, 1)]),
    "an id twice": lambda replica, _: replica.admit([NewSequence("new", 1), NewSequence("new", 1)]),
    "no tokens": lambda replica, _: replica.admit([NewSequence("new", 1), NewSequence("other", 0)]),
    "fewer spare blocks than none": lambda replica, _: replica.admit([NewSequence("new", 1, spare_blocks=-1)]),
    "a torn digest": lambda replica, _: replica.admit([NewSequence("new", 100, b"torn")]),
    "more digests than tokens": lambda replica, _: replica.admit([NewSequence("new", 1, bytes(2 * DIGEST_BYTES))]),
    "no beams": lambda replica, _: replica.admit([NewSequence("new", 1, beams=0)]),
    "too many beams": lambda replica, _: replica.admit([NewSequence("new", 1, beams=65)]),
    "negative encoder input": lambda replica, _: replica.admit([NewSequence("new", 1, encoder_tokens=-1)]),
    "digests of no encoder input": lambda replica, _: replica.admit(
        [NewSequence("new", 1, encoder_digests=bytes(DIGEST_BYTES))]
    ),
    "extension by nothing": lambda replica, one: replica.extend(one.sequence_id, 0),
    "extension of nobody": lambda replica, _: replica.extend("nobody"),
    "growth by nothing": lambda replica, one: replica.grow([one.sequence_id], 0),
    "growth of one twice": lambda replica, one: replica.grow([one.sequence_id, one.sequence_id]),
    "growth of nobody": lambda replica, one: replica.grow([one.sequence_id, "nobody"]),
    "a commit by nobody": lambda replica, _: replica.commit("nobody", 1),
    "a commit beyond the blocks": lambda replica, one: replica.commit(one.sequence_id, one.capacity_tokens + 1),
    "a commit backwards": lambda replica, one: replica.commit(one.sequence_id, one.committed_tokens - 1),
    "a torn digest at a commit": lambda replica, one: replica.commit(one.sequence_id, one.committed_tokens, b"torn"),
    "more digests than committed": lambda replica, one: replica.commit(
        one.sequence_id, one.committed_tokens, bytes((one.committed_tokens + 1) * DIGEST_BYTES)
    ),
    "the release of nobody": lambda replica, _: replica.release("nobody"),
    "a pin of nothing": lambda replica, _: replica.pin("new", b""),
    "a pin of a torn digest": lambda replica, _: replica.pin("new", b"torn"),
    "a pin given back by nobody": lambda replica, _: replica.unpin("nobody"),
    "steps that go backwards": lambda replica, _: replica.steps_done(-2),
}


# -- what is compared --------------------------------------------------------------------------------------------------


def plain(answer: object) -> object:
    """An answer of either replica, so that equal ones compare equal. Of an error, its kind and its numbers count."""
    if isinstance(answer, OutOfBlocks):
        return OutOfBlocks, answer.args
    if isinstance(answer, KVTroupeError):
        return type(answer)
    if isinstance(answer, Admitted | ReferenceSequence):
        return _plain_admitted(answer)
    if isinstance(answer, CommitReply):
        return list(answer.published_blocks)
    if isinstance(answer, GrowReply):
        return [plain(refusal) for refusal in answer.refused]
    return [plain(one) for one in answer] if isinstance(answer, list) else answer


def _plain_admitted(answer: Admitted | ReferenceSequence) -> object:
    numbers = answer.sequence_id, answer.cached_tokens, answer.capacity_tokens, answer.junction_tokens
    if isinstance(answer, Admitted):
        assert not answer.writes_after, "copies are over before the next round"
        copies_states = bool(answer.reads_after)
    else:
        copies_states = answer.copies_states
    return numbers, answer.encoder_cached, listed(answer.tables), listed(answer.states), copies_states


def listed(tables: Iterable[Any]) -> list[object]:
    """Arrays, or lists of lists, as lists of lists of ints."""
    return [np.asarray(table, np.int64).tolist() for table in tables]


def outcome(call: Callable[[Either], object], replica: Either) -> object:
    """What a call answers or raises."""
    try:
        return plain(call(replica))
    except KVTroupeError as error:
        return plain(error)


def seen_of(replica: Replica) -> dict[str, object]:
    """All that a fast replica shows, in lists and dicts."""
    names = [pool.name for pool in replica.config.pools]
    running = {one: replica.sequence(one) for one in replica.sequences()}
    held = [(kind, one, name, slots) for name in names for kind, one, slots in replica.holders(name)]
    return {
        "free": {name: replica.free_order(name).tolist() for name in names},
        "published": [replica.published(group.name) for group in replica.config.groups],
        "tables": {one: listed(replica.tables(one)) for one in running},
        "states": {one: listed(replica.state.tables.lent(it)[1]) for one, it in running.items()},
        "tokens": {one: (it.tokens, it.committed_tokens, it.capacity_tokens) for one, it in running.items()},
        "held": sorted((kind, str(one), name, sorted(slots.tolist())) for kind, one, name, slots in held if len(slots)),
        "counters": replica.counters(),
    }


def expected_of(model: ReferenceReplica) -> dict[str, object]:
    """The same of the model."""
    names = [pool.name for pool in model.config.pools]
    held = [
        (kind, str(one), name, sorted(slot for its_pool, slot in places if its_pool == pool))
        for pool, name in enumerate(names)
        for kind, one, places in model.holders()
    ]
    return {
        "free": {name: pool.free_order() for name, pool in zip(names, model.pools, strict=True)},
        "published": [model.published(group) for group in range(len(model.groups))],
        "tables": {one: it.tables for one, it in model.running.items()},
        "states": {one: it.states for one, it in model.running.items()},
        "tokens": {one: (it.tokens, it.committed_tokens, it.capacity_tokens) for one, it in model.running.items()},
        "held": sorted(holder for holder in held if holder[-1]),
        "counters": model.counters,
    }


class ReplicaMachine(RuleBasedStateMachine):
    """Does the same with a fast replica and with its model."""

    def __init__(self) -> None:
        super().__init__()
        self.usual_sizes = [(module, name, getattr(module, name)) for module, name, _ in SIZES]
        self.prompts: list[list[int]] = [[]]  # words of the last ones, and of what came out of them
        self.words: dict[SequenceId, list[int]] = {}  # of every sequence ever admitted, as far as it got
        self.last_id = 0
        self.is_full = False
        self.now_s = 0.0

    @initialize(config=configs(), sizes=st.tuples(*[st.sampled_from(values) for _, _, values in SIZES]))
    def start(self, config: Config, sizes: tuple[int, ...]) -> None:
        """Make both."""
        for (module, name, _), size in zip(SIZES, sizes, strict=True):
            setattr(module, name, size)
        self.config = config
        self.fast = Replica(config)
        self.slow = ReferenceReplica(config)
        self.mirror = Mirror(config.digest_bytes)

    def both(self, call: Callable[[Either], object]) -> None:
        """Make the same call to both: the outcome is the same."""
        expected = outcome(call, self.slow)
        assert outcome(call, self.fast) == expected

    def running(self, pick: int) -> ReferenceSequence:
        """One of the running sequences."""
        return list(self.slow.running.values())[pick % len(self.slow.running)]

    def fence(self, steps: int | None) -> int | None:
        """So many engine steps after the last one done."""
        return None if steps is None else self.slow.done_step + steps

    def words_of(self, draft: Draft) -> list[int]:
        """The words of a draft, as many as some of the pools have room for; of an oddly long one, perhaps more."""
        room = min(pool.blocks // slots_of_unit(self.config, pool.name) for pool in self.config.pools)
        longest = max(2, room * self.config.unit_tokens // self.config.tokens_per_digest * 2 // 3)
        earlier = self.prompts[draft.earlier % len(self.prompts)]
        words = earlier[: draft.kept % (longest + 1)] + [draft.word] * draft.times
        return words if draft.oddity.too_long else words[:longest]

    # -- sequences -----------------------------------------------------------------------------------------------------

    def new_sequences(self, batch: list[Draft]) -> list[NewSequence]:
        """Sequences to admit."""
        per_digest = self.config.tokens_per_digest
        new = []
        for draft in batch:
            self.last_id += 1
            words = self.words[self.last_id] = self.words_of(draft)
            tokens = max(1, len(words) * per_digest + draft.loose_tokens % per_digest)
            told = chain(words[: max(0, len(words) - draft.oddity.untold_digests)])
            spare_blocks, retention, beams = draft.oddity.spare_blocks, draft.oddity.retention, draft.oddity.beams
            encoder = self.encoder_input(draft.encoder)
            new.append(NewSequence(self.last_id, tokens, told, spare_blocks, retention, beams, *encoder))
        self.prompts = ([self.words[one.sequence_id] for one in new] + self.prompts)[:8]
        return new

    def encoder_input(self, draft: Encoder) -> tuple[int, bytes]:
        """Its tokens, and the digests of its blocks if they are to be shared; none where nothing would hold it."""
        sizes = [self.config.group_block_tokens(n) for n, it in enumerate(self.config.groups) if it.kind == "cross"]
        if not sizes or not draft.blocks:
            return 0, b""
        digests = chain(["encoder", draft.subject, *range(draft.blocks - 1)])[-draft.blocks * DIGEST_BYTES :]
        return draft.blocks * sizes[0] - draft.loose_tokens % sizes[0], digests if draft.is_shared else b""

    def admit_all(self, new: list[NewSequence]) -> None:
        """Admit sequences; if the last ones did not fit, end the oldest first, so that pools do not stay full."""
        if self.is_full and self.slow.running:
            self.release(pick=0, fence=None)
        before = self.slow.counters.refused
        self.both(lambda replica: replica.admit(new))
        self.is_full = self.slow.counters.refused > before

    @rule(batch=st.lists(DRAFTS, min_size=1, max_size=4))
    def admit(self, batch: list[Draft]) -> None:
        """Admit some sequences at once."""
        self.admit_all(self.new_sequences(batch))

    @rule(
        batch=st.lists(DRAFTS, min_size=1, max_size=3), more=st.sampled_from([-2, -1, 0, 0, 1]), place=st.integers(0, 1)
    )
    def crowd(self, batch: list[Draft], more: int, place: int) -> None:
        """Admit one that needs just about all that is free, among others that may hit some of it."""
        new = self.new_sequences(batch)
        self.last_id += 1
        self.words[self.last_id] = []
        pools = zip(self.slow.pools, self.config.pools, strict=True)
        units = [(pool.free() - its.reserved_blocks) // slots_of_unit(self.config, its.name) for pool, its in pools]
        new.insert(place, NewSequence(self.last_id, max(1, (min(units) + more) * self.config.unit_tokens)))
        self.admit_all(new)

    @rule(batch=st.lists(DRAFTS, min_size=1, max_size=3))
    def serve(self, batch: list[Draft]) -> None:
        """Admit sequences, compute all of their prompts, and end them, one after the other: this fills the pools."""
        for draft in batch:
            self.admit([draft])
            if self.last_id in self.slow.running:
                self.commit(pick=-1, progress=Progress(all_of_it=True), fence=None)
                self.release(pick=-1, fence=None)

    @precondition(lambda self: self.slow.running)
    @rule(pick=PICKS, progress=PROGRESS, fence=FENCES)
    def commit(self, pick: int, progress: Progress, fence: int | None) -> None:
        """Commit more tokens of a sequence, with the digests that are complete then, less some withheld."""
        one = self.running(pick)
        words = self.words[one.sequence_id]
        more = progress.blocks * self.config.block_tokens + progress.loose_tokens % self.config.unit_tokens
        tokens = one.tokens if progress.all_of_it else min(one.committed_tokens + more, one.capacity_tokens)
        complete = tokens // self.config.tokens_per_digest
        words.extend([progress.word] * (complete - len(words)))
        digests = chain(words[: max(0, complete - progress.withheld)])[len(one.digests) :]
        until = self.fence(fence)
        self.both(lambda replica: replica.commit(one.sequence_id, tokens, digests, until, now_s=self.now_s))

    @precondition(lambda self: self.slow.running)
    @rule(pick=PICKS, tokens=st.integers(1, 12))
    def extend(self, pick: int, tokens: int) -> None:
        """Append tokens to a sequence."""
        one = self.running(pick)
        self.both(lambda replica: replica.extend(one.sequence_id, tokens))

    @precondition(lambda self: self.slow.running)
    @rule(several=st.lists(PICKS, min_size=1, max_size=4), blocks=st.sampled_from([1, 1, 2, 5]))
    def grow(self, several: list[int], blocks: int) -> None:
        """Give sequences more blocks: the slots that the answer names are the new ends of their tables."""
        picked = [self.running(pick) for pick in several]
        ids = list(dict.fromkeys(one.sequence_id for one in picked if one.new.beams == picked[0].new.beams))
        refused = self.slow.grow(ids, blocks)
        reply = self.fast.grow(ids, blocks)
        assert plain(reply) == plain(refused)
        granted = [self.slow.running[one] for one, refusal in zip(ids, refused, strict=True) if not refusal]
        for group, slots in zip(self.slow.groups, reply.slots, strict=True):
            added = blocks * self.config.unit_tokens // group.block_tokens
            ends = [[row[-added:] for row in one.rows[group.group]] for one in granted if group.grows]
            assert slots.tolist() == (ends if picked[0].new.beams > 1 else [rows[0] for rows in ends])

    @precondition(lambda self: self.slow.running)
    @rule(pick=PICKS, fence=FENCES)
    def release(self, pick: int, fence: int | None) -> None:
        """End a sequence."""
        one, until = self.running(pick), self.fence(fence)
        self.both(lambda replica: replica.release(one.sequence_id, until))

    # -- all else ------------------------------------------------------------------------------------------------------

    @rule(steps=st.integers(0, 3))
    def steps_done(self, steps: int) -> None:
        """Let the engine end some steps."""
        step = self.slow.done_step + steps
        self.both(lambda replica: replica.steps_done(step))

    @rule(pin_id=st.integers(0, 2), draft=DRAFTS)
    def pin(self, pin_id: int, draft: Draft) -> None:
        """Pin a prefix; a pin that stands already is refused, and then given back."""
        stands = pin_id in self.slow.pins
        self.both(lambda replica: replica.pin(pin_id, chain(self.words_of(draft))))
        if stands:
            self.both(lambda replica: replica.unpin(pin_id))

    @precondition(lambda self: self.slow.pins)
    @rule(pick=PICKS)
    def unpin(self, pick: int) -> None:
        """Give a pin back."""
        pin_id = list(self.slow.pins)[pick % len(self.slow.pins)]
        self.both(lambda replica: replica.unpin(pin_id))

    @rule(passed_s=st.sampled_from([0.0, 0.5, 1.0, 3.0]))
    def tick(self, passed_s: float) -> None:
        """Let time pass."""
        self.now_s += passed_s
        self.both(lambda replica: replica.tick(self.now_s))

    @rule(wanted=st.integers(0, 3), fence=FENCES)
    def end_all(self, wanted: int, fence: int | None) -> None:
        """Now and then, end all sequences, steps and pins: then every slot is free."""
        if wanted:
            return
        while self.slow.running:
            self.release(pick=-1, fence=fence)
        while self.slow.pins:
            self.unpin(pick=0)
        self.steps_done(steps=10)
        assert quiescent(self.fast)

    @rule(draft=DRAFTS)
    def look_up(self, draft: Draft) -> None:
        """Ask every group for a chain: it knows what is published of it, where, and how long a hit can be."""
        digests = chain(self.words_of(draft))
        for number, group in enumerate(self.fast.groups):
            slow = self.slow.groups[number]
            blocks = chain_of(self.config, digests, slow.block_tokens)
            if slow.kind == "cross":
                blocks = split(self.config, self.encoder_input(draft.encoder)[1])
            reply = group.handle(MatchRequest(0, (Prompt(b"".join(blocks), len(blocks)),)))
            assert isinstance(reply, MatchReply)
            found, published = reply.evidence[0], self.slow.published(number)
            places = dict(enumerate(zip(found.slots.tolist(), found.generations.tolist(), strict=True)))
            present = {block: places[block] for block in range(len(blocks)) if found.present >> block & 1}
            assert present == {block: published[digest] for block, digest in enumerate(blocks) if digest in published}
            assert len(places) == found.path_blocks
            assert found.present >> found.path_blocks == 0
            if slow.takes_part:
                lengths = self.fast.state.rules[number].servable(found.present, len(blocks))
                assert lengths == sum(1 << length for length in slow.lengths(blocks))

    @precondition(lambda self: self.slow.running)
    @rule(what=st.sampled_from(sorted(BAD_CALLS)), pick=PICKS)
    def bad_call(self, what: str, pick: int) -> None:
        """Ask for what is wrong: it is refused for the same reason, and nothing changes."""
        one = self.running(pick)
        before = seen_of(self.fast)
        expected = outcome(lambda model: BAD_CALLS[what](model, one), self.slow)
        assert isinstance(expected, type)
        assert issubclass(expected, KVTroupeError)
        assert outcome(lambda replica: BAD_CALLS[what](replica, one), self.fast) == expected
        assert seen_of(self.fast) == before

    @invariant()
    def agree(self) -> None:
        """The fast replica shows what the model shows, and is sound."""
        seen, expected = seen_of(self.fast), expected_of(self.slow)
        for what in expected:
            assert seen[what] == expected[what]
        check(self.fast, self.mirror)

    def teardown(self) -> None:
        """Put the usual sizes back."""
        for module, name, size in self.usual_sizes:
            setattr(module, name, size)


def test_the_fast_replica_does_what_the_model_does(search: Callable[[type[RuleBasedStateMachine]], None]) -> None:
    """Whatever is asked of them, in whatever order, they answer and look the same."""
    search(ReplicaMachine)
