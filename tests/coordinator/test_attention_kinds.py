"""Chunked attention and recurrent states against their definition, over every pattern of short chains."""

from __future__ import annotations

import pytest

from kvtroupe.coordinator.attention import ChunkedAttention, FullAttention, RecurrentState

LONGEST = 7  # blocks; every one of the 2 ** LONGEST patterns of present blocks is tried


def chunk_blocks(length: int, chunk_tokens: int, block_tokens: int) -> set[int]:
    """The blocks of the positions from the start of the next token's chunk up to it."""
    end = length * block_tokens
    return {position // block_tokens for position in range(end - end % chunk_tokens, end)}


@pytest.mark.parametrize("block_tokens", [1, 2, 3, 8])
def test_chunked_attention_serves_the_lengths_whose_own_chunk_is_there(block_tokens: int) -> None:
    """Over all patterns, limits and chunks up to one longer than the chain: nothing before the chunk is read."""
    for chunk_tokens in range(1, (LONGEST + 1) * block_tokens + 2):
        rule = ChunkedAttention(chunk_tokens, block_tokens)
        needed = [chunk_blocks(length, chunk_tokens, block_tokens) for length in range(LONGEST + 1)]
        for present in range(2**LONGEST):
            there = {block for block in range(LONGEST) if present >> block & 1}
            everywhere = sum(1 << length for length, blocks in enumerate(needed) if blocks <= there)
            for limit in (0, 1, LONGEST - 2, LONGEST):
                expected = everywhere & ((2 << limit) - 1)
                assert rule.servable(present, limit) == expected, (bin(present), limit, chunk_tokens)


def test_chunked_attention_needs_nothing_where_a_chunk_begins() -> None:
    """Chunks of 8 in blocks of 4: lengths 0, 8 and 16 tokens with an empty index; 12 as soon as block 2 is there."""
    rule = ChunkedAttention(8, 4)

    assert rule.servable(0, 4) == 0b10101
    assert rule.servable(0b100, 4) == 0b11101


def test_chunked_attention_reads_from_the_block_in_which_the_chunk_begins() -> None:
    """Chunks of 6 in blocks of 4 begin at tokens 0, 6, 12: in blocks 0, 1 and 3."""
    rule = ChunkedAttention(6, 4)

    assert [rule.first_block(computed) for computed in (0, 5, 6, 11, 12, 17)] == [0, 0, 1, 1, 3, 3]


def test_a_recurrent_group_serves_exactly_the_lengths_at_which_a_state_ends() -> None:
    """Over all patterns: length 0, and every length whose last block is there, whatever lies before it."""
    rule = RecurrentState(4)

    for limit in range(LONGEST + 1):
        for present in range(2**LONGEST):
            expected = 1 | sum(1 << length for length in range(1, limit + 1) if present >> (length - 1) & 1)
            assert rule.servable(present, limit) == expected, (bin(present), limit)


def test_a_recurrent_hit_reads_only_its_last_state() -> None:
    """8 computed tokens in blocks of 4 are all in the state of block 1; before the first token nothing is read."""
    rule = RecurrentState(4)

    assert [rule.first_block(computed) for computed in (0, 1, 4, 5, 8, 9)] == [0, 0, 0, 1, 1, 2]


def test_snapshots_are_kept_at_their_interval_and_before_the_end_of_the_prompt() -> None:
    """Blocks of 4, snapshots every 12: columns ending at 12 and 24; a prompt of 21 can be resumed at 20, column 4."""
    rule = RecurrentState(4, snapshot_tokens=12)

    assert rule.wanted(0, 6, 21).nonzero()[0].tolist() == [2, 4, 5]
    assert rule.wanted(3, 6, 21).nonzero()[0].tolist() == [1, 2]  # columns 3 to 5
    assert rule.wanted(6, 10, 21).nonzero()[0].tolist() == [2]  # column 8 ends at 36


def test_a_prompt_that_ends_at_a_boundary_keeps_the_state_before_it() -> None:
    """20 tokens in blocks of 4: the same prompt may hit 19 at most, so the last state of use ends at 16, column 3."""
    assert RecurrentState(4).wanted(0, 5, 20).nonzero()[0].tolist() == [3]
    assert RecurrentState(4).wanted(0, 1, 4).tolist() == [False]  # no boundary lies before the last token


def test_other_kinds_fill_every_column() -> None:
    """None stands for all columns, so that nobody pays for a mask that says nothing."""
    assert FullAttention(4).wanted(0, 6, 21) is None
    assert ChunkedAttention(8, 4).wanted(0, 6, 21) is None
