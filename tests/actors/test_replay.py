"""Replay of requests, and the proof that reused blocks hold what they should."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from kvtroupe.actors.replay import HashedRequest, Replay, hash_prompts
from kvtroupe.actors.replay_report import ReplayOptions, report_on
from kvtroupe.actors.trace import TraceRequest, read_trace
from kvtroupe.coordinator.check import check
from kvtroupe.coordinator.config import Config, GroupConfig, Limits, PoolConfig
from kvtroupe.coordinator.errors import CorruptBlock
from kvtroupe.coordinator.identity import Sha256Chain
from kvtroupe.coordinator.messages import AdmitResult, Admitted, NewSequence, SequenceId, Slots
from kvtroupe.coordinator.replica import Replica
from kvtroupe.kernels.memory_pool import MemoryPool

CONVERSATION = Path(__file__).parents[2] / "examples" / "traces" / "mooncake_conversation.jsonl.xz"
NAMESPACE = "tests"
FULL = GroupConfig(name="full")
SLIDING = GroupConfig(name="sliding", kind="sliding", window_tokens=513)


def _config(device_blocks: int, groups: Sequence[GroupConfig] = (FULL,), block_tokens: int = 512) -> Config:
    return Config(
        namespace=NAMESPACE,
        block_tokens=block_tokens,
        groups=tuple(groups),
        pools=(PoolConfig(blocks=device_blocks),),
    )


def _replay(device_blocks: int, groups: Sequence[GroupConfig] = (FULL,), block_tokens: int = 512) -> Replay:
    return Replay(_config(device_blocks, groups, block_tokens), MemoryPool(device_blocks, block_bytes=24))


def _replay_with_pool(device_blocks: int, groups: Sequence[GroupConfig] = (FULL,)) -> tuple[Replay, MemoryPool]:
    """A replay, and the bytes that a test can damage while it runs."""
    pool = MemoryPool(device_blocks, block_bytes=24)
    return Replay(_config(device_blocks, groups), pool), pool


def _request(
    number: int, hash_ids: list[int], input_tokens: int, output_tokens: int = 1, block_tokens: int = 512
) -> HashedRequest:
    request = TraceRequest(number, 0.0, input_tokens, output_tokens, np.array(hash_ids, np.int64))
    (hashed,) = hash_prompts([request], Sha256Chain(NAMESPACE, block_tokens))
    return hashed


@pytest.fixture(scope="module")
def conversation() -> list[HashedRequest]:
    """The whole example trace, read and hashed once for all replays of it."""
    return list(hash_prompts(read_trace(CONVERSATION), Sha256Chain(NAMESPACE, 512)))


@pytest.mark.parametrize(
    ("device_blocks", "token_hit_rate"),
    [
        (500, 0.0430),
        (1000, 0.0459),
        (2000, 0.0564),
        (5000, 0.1209),
        (10_000, 0.2192),
        (50_000, 0.3632),
        (400_000, 0.3734),  # more than the trace has blocks
    ],
)
def test_the_hit_rate_of_a_real_service_is_that_of_least_recently_used(
    conversation: list[HashedRequest], device_blocks: int, token_hit_rate: float
) -> None:
    """The rates are those of another implementation of the same policy on the same hour of requests."""
    replay = _replay(device_blocks)
    for hashed in conversation:
        replay.run(hashed)
    tally = replay.tally

    assert (tally.requests, tally.prompt_tokens, tally.refused) == (12_031, 144_793_823, 0)
    assert tally.hit_tokens / tally.prompt_tokens == pytest.approx(token_hit_rate, abs=0.0005)
    assert (tally.blocks_verified, tally.blocks_wrong) == (tally.hit_tokens // 512, 0)
    assert replay.replica.sequences() == []


def test_groups_of_several_kinds_verify_every_block_of_the_trace(conversation: list[HashedRequest]) -> None:
    """Two full groups and two sliding ones share a pool in which everything is evicted again and again."""
    groups = (FULL, SLIDING, GroupConfig(name="full#2"), GroupConfig(name="wide", kind="sliding", window_tokens=4096))
    replay = _replay(6000, groups)
    for hashed in conversation[:500]:
        replay.run(hashed)

    assert replay.replica.counters().evictions > 6000
    assert replay.tally.blocks_verified > 2 * replay.tally.hit_tokens // 512 > 0
    assert replay.tally.blocks_wrong == 0
    check(replay.replica)


def test_a_common_prefix_is_hit_and_verified() -> None:
    """Blocks of equal ids are found up to the first that differs."""
    replay = _replay(20)
    replay.run(_request(1, [1, 2, 3], 1300))
    replay.run(_request(2, [1, 2, 4], 1300))

    assert (replay.tally.requests, replay.tally.prompt_tokens) == (2, 2600)
    assert (replay.tally.hit_tokens, replay.tally.blocks_verified, replay.tally.blocks_wrong) == (1024, 2, 0)


def test_the_last_token_of_a_prompt_is_never_hit() -> None:
    """A prompt of whole blocks computes its last block again, because its last token gives the first of the answer."""
    replay = _replay(20)
    for number in (1, 2):
        replay.run(_request(number, [1, 2], 1024))

    assert replay.tally.hit_tokens == 512


@pytest.mark.parametrize("block_tokens", [1, 16, 100, 1024])
def test_blocks_of_other_sizes_divide_or_join_the_tokens_of_the_trace(block_tokens: int) -> None:
    """A prompt of 1,300 tokens hits all of its complete blocks but one that would hold its last token."""
    replay = _replay(4000, block_tokens=block_tokens)
    for number in (1, 2):
        replay.run(_request(number, [1, 2, 3], 1300, block_tokens=block_tokens))
    hit_blocks = 1299 // block_tokens

    assert replay.tally.hit_tokens == hit_blocks * block_tokens
    assert replay.tally.blocks_verified == hit_blocks


def test_a_flipped_bit_in_a_cached_block_ends_the_replay() -> None:
    """Request, group, block and slot are named; the block before it was right. The free slots were taken from 1 on."""
    replay, pool = _replay_with_pool(20)
    replay.run(_request(1, [1, 2, 3], 1300))
    pool.blocks[2, 23] ^= 1

    with pytest.raises(CorruptBlock) as caught:
        replay.run(_request(2, [1, 2, 4], 1300))

    assert str(caught.value).startswith("request 2, group 'full', block 1, slot 2: ")
    assert (replay.tally.blocks_verified, replay.tally.blocks_wrong) == (2, 1)


def test_a_wrong_block_of_a_later_group_is_named_by_that_group() -> None:
    """Slots go to all blocks of the first group, then to those of the second: 1 to 3 and 4 to 6."""
    replay, pool = _replay_with_pool(20, (FULL, SLIDING))
    replay.run(_request(1, [1, 2, 3], 1300))
    pool.blocks[5, 0] ^= 0x80

    with pytest.raises(CorruptBlock, match=r"^request 2, group 'sliding', block 1, slot 5: "):
        replay.run(_request(2, [1, 2, 4], 1300))

    assert replay.tally.blocks_wrong == 1


def test_all_wrong_blocks_of_a_hit_are_counted() -> None:
    """The first one in the order of groups is named."""
    replay, pool = _replay_with_pool(20, (FULL, SLIDING))
    replay.run(_request(1, [1, 2, 3], 1300))
    pool.blocks[[1, 2, 5], 7] ^= 1

    with pytest.raises(CorruptBlock, match=r"^request 2, group 'full', block 0, slot 1: "):
        replay.run(_request(2, [1, 2, 4], 1300))

    assert replay.tally.blocks_wrong == 3


def test_the_block_of_another_group_is_wrong() -> None:
    """The same prefix has other contents in other layers."""
    replay, pool = _replay_with_pool(20, (FULL, SLIDING))
    replay.run(_request(1, [1, 2, 3], 1300))
    pool.blocks[5] = pool.blocks[2]

    with pytest.raises(CorruptBlock, match="group 'sliding', block 1, slot 5"):
        replay.run(_request(2, [1, 2, 4], 1300))


def test_the_block_of_another_prefix_is_wrong() -> None:
    """Equal tokens after other tokens are another block."""
    replay, pool = _replay_with_pool(20)
    replay.run(_request(1, [1, 2, 3], 1300))
    replay.run(_request(2, [9, 2, 3], 1300))
    other = replay.replica.published("full")[_request(0, [9, 2], 1024).digests[32:]][0]
    pool.blocks[2] = pool.blocks[other]

    with pytest.raises(CorruptBlock, match="group 'full', block 1, slot 2"):
        replay.run(_request(3, [1, 2, 4], 1300))


def test_only_blocks_within_a_window_are_read() -> None:
    """After 2,048 tokens a window of 513 reads position 1,536 and later ones: of four blocks the last."""
    replay, pool = _replay_with_pool(40, (FULL, SLIDING))
    replay.run(_request(1, [1, 2, 3, 4, 5], 2100))
    sliding_slots = replay.replica.published("sliding")
    before_window = [slot for slot, _ in sliding_slots.values()][:3]
    pool.blocks[before_window] ^= 0xFF
    replay.run(_request(2, [1, 2, 3, 4, 6], 2100))

    assert replay.tally.hit_tokens == 2048
    assert (replay.tally.blocks_verified, replay.tally.blocks_wrong) == (4 + 1, 0)


class ReplicaWithoutTables(Replica):
    """A broken replica: it says what is cached, but all blocks of its tables are the null block."""

    def admit(self, sequences: Sequence[NewSequence], now_s: float = 0.0) -> list[AdmitResult]:
        """Admit, then forget where the blocks of a hit are."""
        return [self._broken(result) for result in super().admit(sequences, now_s)]

    def _broken(self, result: AdmitResult) -> AdmitResult:
        if not isinstance(result, Admitted) or not result.cached_tokens:
            return result
        return replace(result, tables=tuple(np.zeros_like(table) for table in result.tables))


def test_a_null_block_in_place_of_a_block_that_is_read_is_wrong() -> None:
    """What a hit reads follows from the rules, not from the table that is on trial."""
    replay = _replay(20)
    replay.replica = ReplicaWithoutTables(_config(20))
    replay.run(_request(1, [1, 2, 3], 1300))

    with pytest.raises(CorruptBlock, match="request 2, group 'full', block 0, slot 0"):
        replay.run(_request(2, [1, 2, 4], 1300))


def test_blocks_that_stay_private_are_cleared() -> None:
    """Of a prompt of 600 tokens and an answer of 1,000 the first block is shared and three are not: slots 2 to 4."""
    replay, pool = _replay_with_pool(20)
    pool.blocks[:] = 7
    replay.run(_request(1, [1, 2], 600, output_tokens=1000))

    assert pool.blocks[2:5].max() == 0
    assert set(pool.blocks[5:].ravel().tolist()) == {7}
    assert len(set(pool.blocks[1].tolist())) > 2
    assert len(replay.replica.published("full")) == 1


class ReplicaThatGivesAwayCache(Replica):
    """A broken replica: sequence 2 gets slot 1, in which a block of sequence 1 is still published."""

    def tables(self, sequence_id: SequenceId) -> tuple[Slots, ...]:
        """The table of sequence 2 is wrong."""
        return (np.array([1]),) if sequence_id == 2 else super().tables(sequence_id)


def test_a_slot_given_away_while_it_was_published_shows_at_the_next_hit() -> None:
    """A short prompt writes over a cached block, although no complete block was written for it."""
    replay = _replay(20)
    replay.replica = ReplicaThatGivesAwayCache(_config(20))
    replay.run(_request(1, [1, 2, 3], 1300))
    replay.run(_request(2, [9], 100))

    with pytest.raises(CorruptBlock, match="request 3, group 'full', block 0, slot 1"):
        replay.run(_request(3, [1, 2, 4], 1300))


def test_a_request_larger_than_the_pool_is_counted_and_the_replay_goes_on() -> None:
    """Its tokens count as tokens that were not hit; the cache is as it was."""
    replay = _replay(5)
    replay.run(_request(1, [1, 2], 1024))
    replay.run(_request(2, [1, 2, 3, 4, 5], 2100))
    replay.run(_request(3, [1, 2], 1024))

    assert (replay.tally.requests, replay.tally.refused) == (3, 1)
    assert (replay.tally.prompt_tokens, replay.tally.hit_tokens) == (1024 + 2100 + 1024, 512)
    assert replay.tally.first_refusal is not None
    assert replay.tally.first_refusal.startswith("request 2: ")
    assert replay.replica.sequences() == []


def test_a_request_whose_answer_does_not_fit_is_counted_and_released() -> None:
    """Two blocks hold the prompt; an answer of 1,100 tokens needs three more, and the pool has two."""
    replay = _replay(5)
    replay.run(_request(1, [1, 2], 1024, output_tokens=1100))
    replay.run(_request(2, [3, 4], 1024, output_tokens=1024))

    assert (replay.tally.requests, replay.tally.refused) == (2, 1)
    assert replay.tally.first_refusal is not None
    assert replay.tally.first_refusal.startswith("request 1: ")
    assert replay.replica.sequences() == []


def test_an_answer_beyond_the_longest_sequence_is_counted_and_released() -> None:
    """The limit of the configuration holds for prompt and answer together."""
    limits = Limits(sequence_tokens_max=1536)
    config = Config(
        namespace=NAMESPACE, block_tokens=512, groups=(FULL,), pools=(PoolConfig(blocks=20),), limits=limits
    )
    replay = Replay(config, MemoryPool(20, block_bytes=8))
    replay.run(_request(1, [1, 2], 1024, output_tokens=512))
    replay.run(_request(2, [3, 4], 1024, output_tokens=513))

    assert replay.tally.refused == 1
    assert replay.tally.first_refusal is not None
    assert replay.tally.first_refusal.startswith("request 2: ")
    assert replay.replica.sequences() == []


def test_every_complete_block_of_a_prompt_has_a_digest() -> None:
    """The incomplete last one has none."""
    (request,) = [_request(1, [1, 2], 600).request]

    for block_tokens, blocks in [(16, 37), (512, 1), (600, 1), (601, 0)]:
        (hashed,) = hash_prompts([request], Sha256Chain(NAMESPACE, block_tokens))
        assert len(hashed.digests) == 32 * blocks


def test_a_report_has_what_was_counted() -> None:
    """Rates and quantiles are worked out from the counts and durations."""
    replay = _replay(5)
    replay.run(_request(1, [1, 2, 3], 1300))
    replay.run(_request(2, [1, 2, 4], 1300))
    replay.run(_request(3, [5, 6, 7], 1300))
    for position, duration_ns in enumerate((1000, 9000, 2000)):
        replay.tally.admit_ns[position] = duration_ns
    options = ReplayOptions("t.jsonl", True, "full", 512, 24, 5, "lru", None, 0)  # noqa: FBT003 - as many as it has

    report = report_on(replay, options, elapsed_s=0.5)

    assert (report.requests, report.prompt_tokens, report.hit_tokens) == (3, 3900, 1024)
    assert report.token_hit_rate == pytest.approx(1024 / 3900)
    assert report.hit_tokens_by_tier == {"device": 1024}
    assert (report.blocks_verified, report.blocks_wrong, report.moved_bytes, report.waited) == (2, 0, 0, 0)
    # Of four slots two hold published blocks; request 3 takes three slots, those two last.
    assert (report.evictions, report.refused) == (1, 0)
    assert report.admit_us.p50 == pytest.approx(2)
    assert report.admit_us.p99 == pytest.approx(2 + 0.98 * 7)
    assert report.requests_per_s == pytest.approx(6)
