"""Estimates against what happens: sequences run to their end, and admissions made, on a replica of random groups."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import TYPE_CHECKING

from kvtroupe.coordinator.check import check
from kvtroupe.coordinator.config import Config, GroupConfig, Limits, PoolConfig
from kvtroupe.coordinator.errors import SequenceTooLong
from kvtroupe.coordinator.messages import Admitted, Estimate, NewSequence, Pace
from kvtroupe.coordinator.replica import Replica
from tests.coordinator.support import DIGEST_BYTES, chain, snapshot

if TYPE_CHECKING:
    from tests.conftest import Search

HASH_TOKENS = 2  # of every digest; blocks have one or two


def random_groups(chance: random.Random) -> list[GroupConfig]:
    """One to four groups of any kinds, in one pool or two, with blocks of one size or two."""
    sizes = chance.choice([(2,), (4,), (2, 4)])
    pools = chance.choice(["a", "ab"])
    made = []
    for number in range(chance.randint(1, 4)):
        kinds = ["full", "full", "sliding", "chunked", "recurrent", *(["cross", "fixed"] if number else [])]
        kind = chance.choice(kinds)
        values: dict[str, object] = {"name": str(number), "kind": kind, "pool": pools[number % len(pools)]}
        if kind in ("full", "sliding", "chunked"):
            values["block_tokens"] = chance.choice(sizes)
        if kind == "sliding":
            values["window_tokens"] = chance.choice([1, 2, 5, 8, 9, 17])
        if kind == "chunked":
            values["chunk_tokens"] = chance.choice([2, 3, 8, 12, 20])
        if kind == "recurrent":
            values["snapshot_tokens"] = chance.choice([None, 4, 8, 16])
        if kind == "fixed":
            values["blocks"] = chance.randint(1, 3)
        made.append(GroupConfig.model_validate(values))
    return made


def random_config(chance: random.Random, blocks: tuple[int, int], *, tiers: bool = False, **limits: int) -> Config:
    """A replica of random groups.

    Args:
        chance: that decides.
        blocks: of a pool, at least and at most.
        tiers: whether device pools have pools below them.
        limits: others than the usual ones.
    """
    groups = random_groups(chance)
    pools = []
    for name in dict.fromkeys(group.pool for group in groups):
        below = f"host {name}" if tiers else None
        size, reserved = chance.randint(*blocks), chance.choice([0, 0, 0, 2])
        pools.append(PoolConfig(name=name, blocks=size, reserved_blocks=reserved, below=below))
        if below:
            pools.append(PoolConfig(name=below, tier="host", blocks=chance.randint(*blocks)))
    return Config(
        namespace="test",
        block_tokens=4,
        hash_block_tokens=HASH_TOKENS,
        digest_bytes=DIGEST_BYTES,
        groups=tuple(groups),
        pools=tuple(pools),
        limits=Limits(**limits),
    )


def random_sequence(chance: random.Random, sequence_id: int, words_max: int, *, beams: bool) -> NewSequence:
    """A prompt of a few words that many prompts begin with, perhaps with encoder input, spare blocks and beams."""
    words = [chance.choice("aaab") for _ in range(chance.randint(0, words_max))]
    encoder = [chance.choice("xy") for _ in range(chance.randint(1, 3))]
    return NewSequence(
        sequence_id,
        len(words) * HASH_TOKENS + chance.randint(0 if words else 1, 3),
        chain(words),
        chance.choice([0, 0, 1, 3]),
        beams=chance.choice([1, 2, 3]) if beams else 1,
        encoder_tokens=4 * len(encoder),
        encoder_digests=chain(encoder),
    )


def has_cross(config: Config) -> bool:
    """Whether a group takes encoder input."""
    return any(group.kind == "cross" for group in config.groups)


def draw(chance: random.Random, config: Config, sequence_id: int, words_max: int, *, beams: bool) -> NewSequence:
    """A random sequence that the replica takes."""
    new = random_sequence(chance, sequence_id, words_max, beams=beams)
    if has_cross(config):
        return new
    return NewSequence(new.sequence_id, new.tokens, new.digests, new.spare_blocks, beams=new.beams)


def free(replica: Replica) -> list[int]:
    """Free slots of every pool."""
    return [pool.ledger.free for pool in replica.state.pools]


class Meter:
    """The most slots of each pool that are gone since it was made."""

    def __init__(self, replica: Replica) -> None:
        self.replica = replica
        self.start = free(replica)
        self.most = [0] * len(self.start)

    def read(self) -> None:
        """Look now."""
        for number, (start, now) in enumerate(zip(self.start, free(self.replica), strict=True)):
            self.most[number] = max(self.most[number], start - now)


@dataclass(frozen=True)
class Engine:
    """Runs a sequence as a pace says: room for a token and its drafts, which are never accepted, and late commits."""

    replica: Replica
    pace: Pace
    end_tokens: int

    def run(self, sequence_id: int, until_tokens: int, *meters: Meter) -> None:
        """Append tokens one by one, and read meters whenever something may have changed."""
        sequence = self.replica.sequence(sequence_id)
        while sequence.tokens < until_tokens:
            missing = min(sequence.tokens + self.pace.step_tokens, self.end_tokens) - sequence.capacity_tokens
            if missing > 0:
                assert self.replica.grow([sequence_id], -(-missing // self.replica.config.unit_tokens)).refused == (
                    None,
                )
            for meter in meters:
                meter.read()
            self.replica.extend(sequence_id)
            self.commit(sequence_id)

    def commit(self, sequence_id: int) -> None:
        """Commit what is not behind."""
        sequence = self.replica.sequence(sequence_id)
        self.replica.commit(sequence_id, max(sequence.committed_tokens, sequence.tokens - self.pace.lag_tokens))


def test_a_sequence_that_runs_to_its_end_takes_what_was_estimated_at_most_and_at_some_time(search: Search) -> None:
    """Alone and beside others that share its prompt, from before its admission, and again from its middle on."""

    def run(seed: int) -> None:
        chance = random.Random(seed)  # noqa: S311 - chooses test cases
        config = random_config(chance, (800, 800))
        replica = Replica(config)
        for other in range(chance.randint(0, 3)):
            assert isinstance(replica.admit([draw(chance, config, other, 8, beams=False)])[0], Admitted)
            replica.commit(other, replica.sequence(other).tokens)
            if chance.random() < 0.5:
                replica.release(other)
        new, new_tokens = draw(chance, config, 99, 8, beams=True), chance.choice([0, 1, 10, 60])
        pace = Pace(chance.choice([0, 0, 1, 5]), chance.choice([0, 0, 1, 3]))
        engine = Engine(replica, pace, new.tokens + new_tokens)

        [estimate] = replica.what_if([new], [new_tokens], pace)
        assert isinstance(estimate, Estimate)
        whole = Meter(replica)
        [admitted] = replica.admit([new])
        assert isinstance(admitted, Admitted)
        whole.read()
        assert (estimate.hit_tokens, list(estimate.slots_now)) == (admitted.cached_tokens, whole.most)
        engine.commit(99)
        engine.run(99, new.tokens + chance.randint(0, new_tokens), whole)
        rest_estimate = replica.estimate(99, new_tokens, pace)
        rest = Meter(replica)
        engine.run(99, engine.end_tokens, whole, rest)

        assert list(estimate.slots_to_end) == whole.most
        assert list(rest_estimate.slots_to_end) == rest.most
        check(replica)

    search.each(run)


# -- what if -----------------------------------------------------------------------------------------------------------


def make_busy(replica: Replica, chance: random.Random) -> None:
    """Admit, commit and release some sequences; some of them stay."""
    for number in range(chance.randint(0, 10)):
        [result] = replica.admit([draw(chance, replica.config, number, 10, beams=False)])
        if isinstance(result, Admitted):
            replica.commit(number, replica.sequence(number).tokens)
            if chance.random() < 0.7:
                replica.release(number)


def try_what_if(seed: int, *, tiers: bool) -> tuple[list[bool | None], list[bool]]:
    """What is said of some sequences, and what becomes of them then; what cannot be admitted at all is left out."""
    chance = random.Random(seed)  # noqa: S311 - chooses test cases
    config = random_config(chance, (8, 40), tiers=tiers, round_blocks_max=chance.choice([8192, 8192, 30, 1]))
    replica = Replica(config)
    make_busy(replica, chance)
    new = [draw(chance, config, 100 + number, 10, beams=True) for number in range(chance.randint(1, 7))]
    before = snapshot(replica)

    estimates = replica.what_if(new)

    assert snapshot(replica) == before
    results = replica.admit(new)
    check(replica)
    assert [isinstance(one, SequenceTooLong) for one in estimates] == [
        isinstance(one, SequenceTooLong) for one in results
    ]
    said = [one.fits_now for one in estimates if isinstance(one, Estimate)]
    return said, [isinstance(one, Admitted) for one in results if not isinstance(one, SequenceTooLong)]


def test_an_admission_grants_what_was_said_before_and_asking_changes_nothing(search: Search) -> None:
    """Over several rounds, too: evictions of the first ones shorten the hits of those deferred."""

    def run(seed: int) -> None:
        said, became = try_what_if(seed, tiers=False)

        assert said == became

    search.each(run)


def test_with_pools_below_the_device_a_rehearsal_goes_as_far_as_it_can_know(search: Search) -> None:
    """Those that have to wait for copies of others are left open; what is said of the others holds."""

    def run(seed: int) -> None:
        said, became = try_what_if(seed, tiers=True)

        known = said.index(None) if None in said else len(said)
        assert said[:known] == became[:known]
        assert all(one is None for one in said[known:])

    search.each(run)
