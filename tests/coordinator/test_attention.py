"""The attention rules against their definition, over every pattern of short chains, and at the edges of windows."""

from __future__ import annotations

import itertools
import random

import pytest

from kvtroupe.coordinator.attention import AttentionRule, FullAttention, SlidingWindow
from kvtroupe.coordinator.config import Config, GroupConfig, PoolConfig
from kvtroupe.coordinator.messages import Admitted, NewSequence
from kvtroupe.coordinator.replica import Replica
from tests.coordinator.support import DIGEST_BYTES, chain

LONGEST = 7  # blocks; every one of the 2 ** LONGEST patterns of present blocks is tried


def needed_by_full(length: int) -> set[int]:
    """Full attention reads every block before the next token."""
    return set(range(length))


def needed_by_window(length: int, window_tokens: int, block_tokens: int) -> set[int]:
    """A sliding window reads the blocks of the last window - 1 positions before the next token."""
    end = length * block_tokens
    return {position // block_tokens for position in range(max(0, end - (window_tokens - 1)), end)}


def lengths(needed: list[set[int]], present: int) -> int:
    """The lengths that can be served, given which blocks each needs."""
    there = {block for block in range(present.bit_length()) if present >> block & 1}
    return sum(1 << length for length, blocks in enumerate(needed) if blocks <= there)


def test_full_attention_serves_every_length_up_to_the_first_hole() -> None:
    """Over all patterns and limits: a length is served exactly when every block before it is there."""
    rule = FullAttention(4)

    for limit in range(LONGEST + 1):
        needed = [needed_by_full(length) for length in range(limit + 1)]
        for present in range(2**LONGEST):
            assert rule.servable(present, limit) == lengths(needed, present), (bin(present), limit)


@pytest.mark.parametrize("block_tokens", [1, 2, 3, 8])
def test_a_sliding_window_serves_the_lengths_whose_window_is_there(block_tokens: int) -> None:
    """Over all patterns, limits and windows up to one longer than the chain: only what the next token sees counts."""
    for window_tokens in range(1, (LONGEST + 1) * block_tokens + 2):
        rule = SlidingWindow(window_tokens, block_tokens)
        needed = [needed_by_window(length, window_tokens, block_tokens) for length in range(LONGEST + 1)]
        for present in range(2**LONGEST):
            everywhere = lengths(needed, present)
            for limit in (0, 1, LONGEST - 2, LONGEST):
                expected = everywhere & ((2 << limit) - 1)
                assert rule.servable(present, limit) == expected, (bin(present), limit, window_tokens)


def test_long_windows_over_long_chains() -> None:
    """Chains of hundreds of blocks with a few holes, windows of any length: as the definition says."""
    chance = random.Random(7)  # noqa: S311 - chooses test cases
    for _ in range(60):
        blocks, block_tokens = chance.randint(1, 300), chance.choice([1, 4, 16])
        window_tokens = chance.randint(1, blocks * block_tokens + 20)
        holes = {chance.randrange(blocks) for _ in range(chance.choice([0, 1, 2, 5]))}
        present = sum(1 << block for block in range(blocks) if block not in holes)
        needed = [needed_by_window(length, window_tokens, block_tokens) for length in range(blocks + 1)]

        found = SlidingWindow(window_tokens, block_tokens).servable(present, blocks)

        assert found == lengths(needed, present), (blocks, block_tokens, window_tokens, sorted(holes))


@pytest.mark.parametrize("rule", [FullAttention(4), SlidingWindow(1, 4), SlidingWindow(5, 4), SlidingWindow(1000, 4)])
def test_nothing_can_always_be_served(rule: AttentionRule) -> None:
    """A prompt of which nothing is there starts at length 0, whatever the rule and the limit."""
    for limit in (0, 1, 100):
        assert rule.servable(0, limit) & 1


def test_a_window_of_one_token_serves_every_length_of_an_unknown_chain() -> None:
    """A token that sees only itself needs no block before it."""
    assert SlidingWindow(1, 16).servable(0, 5) == 0b111111


def test_the_first_block_is_the_one_of_the_oldest_token_that_is_still_seen() -> None:
    """Once c tokens are computed, the next sees positions c - window + 1 to c; blocks before those may go."""
    for block_tokens, window_tokens in itertools.product([1, 2, 3, 4, 8], range(1, 20)):
        rule = SlidingWindow(window_tokens, block_tokens)
        for computed in range(41):
            seen = [position // block_tokens for position in range(computed + 1) if position > computed - window_tokens]
            assert rule.first_block(computed) == min(seen), (block_tokens, window_tokens, computed)


def test_full_attention_never_leaves_a_block_behind() -> None:
    """All of the chain is read, however long it is."""
    assert [FullAttention(4).first_block(computed) for computed in (0, 1, 16, 10**6)] == [0, 0, 0, 0]


def test_what_a_hit_reads_is_exactly_what_makes_its_length_servable() -> None:
    """The blocks from first_block on suffice for a length, and none of them can be missed."""
    for window_tokens, length in itertools.product(range(1, 30), range(1, LONGEST + 1)):
        rule = SlidingWindow(window_tokens, 4)
        read = range(rule.first_block(length * 4), length)
        present = sum(1 << block for block in read)

        assert rule.servable(present, length) >> length & 1
        for missing in read:
            assert not rule.servable(present & ~(1 << missing), length) >> length & 1


@pytest.mark.parametrize("kinds", [("sliding",), ("full", "sliding"), ("sliding", "full")])
@pytest.mark.parametrize("window_tokens", [1, 4, 8, 9])
def test_what_was_inserted_is_matchable_in_full(kinds: tuple[str, ...], window_tokens: int) -> None:
    """Blocks of 8 tokens, lengths 1 to 40: every complete block is hit again, while its writer runs and afterwards.

    Windows that are shorter than a block, or that end exactly at its border, leave blocks behind with the commit; none
    of these may be lost to the next prompt that shares them.
    """
    for tokens in range(1, 41):
        replica = _replica(kinds, window_tokens)
        whole = tokens // 8
        replica.admit([NewSequence("writer", tokens, chain(range(whole)))])
        replica.commit("writer", tokens)

        assert _cached_tokens(replica, "while it runs", whole) == whole * 8
        replica.release("writer")
        assert _cached_tokens(replica, "afterwards", whole) == whole * 8


def _replica(kinds: tuple[str, ...], window_tokens: int) -> Replica:
    groups = []
    for number, kind in enumerate(kinds):
        if kind == "full":
            groups.append(GroupConfig(name=f"group {number}"))
        else:
            groups.append(GroupConfig(name=f"group {number}", kind="sliding", window_tokens=window_tokens))
    return Replica(
        Config(
            namespace="test",
            block_tokens=8,
            digest_bytes=DIGEST_BYTES,
            groups=tuple(groups),
            pools=(PoolConfig(blocks=40),),
        )
    )


def _cached_tokens(replica: Replica, sequence_id: str, shared_blocks: int) -> int:
    """What a prompt hits that shares some blocks and has one token more."""
    (result,) = replica.admit([NewSequence(sequence_id, shared_blocks * 8 + 1, chain(range(shared_blocks)))])
    assert isinstance(result, Admitted)
    return result.cached_tokens
