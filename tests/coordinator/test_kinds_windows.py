"""Full, sliding and chunked groups, worked out by hand: blocks of four tokens, slots in order 1, 2, 3..."""

from __future__ import annotations

import pytest

from kvtroupe.coordinator.check import check
from kvtroupe.coordinator.config import Config, GroupConfig, PoolConfig
from kvtroupe.coordinator.messages import CommitRequest, GroupOutput, NewSequence, PublishReply, PublishRequest
from tests.coordinator.kinds import (
    FULL,
    chunked,
    end_all,
    free,
    published,
    recurrent,
    replica_of,
    run,
    sliding,
    table,
)
from tests.coordinator.support import (
    DIGEST_BYTES,
    Desk,
    admitted,
    cache,
    chain,
    evidence,
    last_digest,
    listed,
    new,
    slots,
    tables,
)

# -- which lengths are hit ---------------------------------------------------------------------------------------------

# What is published of a chain of five blocks, how much of 21 tokens is hit, and which blocks the hit reads.
HITS = [
    (FULL, "", 0, []),
    (FULL, "a", 4, [0]),
    (FULL, "ab de", 8, [0, 1]),
    (FULL, " bcde", 0, []),
    (FULL, "abcde", 20, [0, 1, 2, 3, 4]),
    # A window of one token reads nothing, one of 5 the block before, one of 6 or 9 two blocks, one of 10 three.
    (sliding(1), "", 20, []),
    (sliding(5), "   d ", 16, [3]),
    (sliding(5), "ab   ", 8, [1]),
    (sliding(6), "   d ", 0, []),
    (sliding(6), "  cd ", 16, [2, 3]),
    (sliding(9), "ab de", 20, [3, 4]),
    (sliding(9), "abc e", 12, [1, 2]),
    (sliding(9), "a  d ", 4, [0]),  # the window of a short prefix is all of it
    (sliding(10), "ab de", 8, [0, 1]),
    (sliding(10), "  cde", 20, [2, 3, 4]),
    # Chunks of 8 begin at 0, 8 and 16, those of 12 at 0 and 12, those of 6 within blocks: at 0, 6, 12, 18.
    (chunked(8), "", 16, []),
    (chunked(8), "    e", 20, [4]),
    (chunked(8), "abcd ", 16, []),
    (chunked(12), "", 12, []),
    (chunked(12), "   de", 20, [3, 4]),
    (chunked(12), "    e", 12, []),
    (chunked(12), "   d ", 16, [3]),
    (chunked(6), "", 12, []),
    (chunked(6), "   de", 20, [4]),  # the chunk that begins at 18 needs block 4, which begins at 16
    (chunked(6), " b   ", 12, []),
    (chunked(100), "ab de", 8, [0, 1]),
    (recurrent(4), "", 0, []),
    (recurrent(4), " b   ", 8, [1]),
    (recurrent(4), "abc  ", 12, [2]),
    (recurrent(4), "    e", 20, [4]),
]


@pytest.mark.parametrize(("group", "there", "hit_tokens", "read"), HITS)
def test_a_hit_is_the_longest_prefix_whose_next_token_can_be_computed(
    group: GroupConfig, there: str, hit_tokens: int, read: list[int]
) -> None:
    """And its table begins with what that token reads, and nothing else."""
    pools = (PoolConfig(blocks=31),)
    desk = Desk(Config(namespace="test", block_tokens=4, digest_bytes=DIGEST_BYTES, groups=(group,), pools=pools))
    first = desk.admit_unknown(1, 1, NewSequence("first", 21))[:5]  # hits nothing, as it names nothing yet
    for output in desk.send(CommitRequest(2, "first", 21, chain("abcde"))):
        assert isinstance(output, GroupOutput)
        assert isinstance(output.message, PublishRequest)
        desk.send(PublishReply(output.message.publish_id, 0, None))

    desk.ask(3, new("second", "abcde"))
    present = sum(1 << block for block, word in enumerate(there) if word != " ")
    (result,) = admitted(desk.answer(2, [evidence(slots(*first), present=present)]))

    assert result.cached_tokens == hit_tokens
    expected = [first[block] if block in read else 0 for block in range(hit_tokens // 4)]
    assert listed(result.tables[0])[: hit_tokens // 4] == expected


# -- a life ------------------------------------------------------------------------------------------------------------


def test_a_full_group_keeps_everything_and_publishes_complete_blocks() -> None:
    """13 tokens take four of ten slots; what was committed of them is hit by the next turn, which adds one block."""
    replica = replica_of(FULL, usable=10)
    run(replica, new("a", "abc"))
    assert (table(replica, "a"), free(replica)) == ([1, 2, 3, 4], 6)

    assert replica.commit("a", 13).published_blocks == (3,)
    assert (table(replica, "a"), free(replica)) == ([1, 2, 3, 4], 6)

    assert [listed(slots[0]) for slots in replica.grow(["a"]).slots] == [[5]]
    assert replica.commit("a", 16, last_digest("abcd")).published_blocks == (1,)
    assert published(replica, "full") == {last_digest("abcd"[:end]): end for end in (1, 2, 3, 4)}
    assert (table(replica, "a"), free(replica)) == ([1, 2, 3, 4, 5], 5)

    turn_2 = run(replica, new("b", "abcd"))
    assert (turn_2.cached_tokens, turn_2.junction_tokens, tables(turn_2), free(replica)) == (
        16,
        0,
        [[1, 2, 3, 4, 6]],
        4,
    )

    replica.release("b")
    replica.release("a")
    assert listed(replica.free_order("device")) == [5, 6, 7, 8, 9, 10, 4, 3, 2, 1]
    end_all(replica)


def test_a_sliding_group_gives_back_what_no_token_to_come_sees() -> None:
    """A window of 6: once n tokens are computed, the next one sees n - 5 and what follows: block (n - 5) // 4 on."""
    replica = replica_of(sliding(6), usable=10)
    run(replica, new("a", "abcd"))
    assert (table(replica, "a"), free(replica)) == ([1, 2, 3, 4, 5], 5)

    assert replica.commit("a", 8).published_blocks == (2,)  # 3 // 4: all blocks are still seen
    assert (table(replica, "a"), free(replica)) == ([1, 2, 3, 4, 5], 5)
    assert replica.commit("a", 9).published_blocks == (0,)
    assert (table(replica, "a"), free(replica)) == ([0, 2, 3, 4, 5], 6)
    assert replica.commit("a", 17).published_blocks == (2,)  # also the third, which leaves with the same commit
    assert (table(replica, "a"), free(replica)) == ([0, 0, 0, 4, 5], 8)
    assert listed(replica.free_order("device")) == [6, 7, 8, 9, 10, 1, 3, 2]

    hit = run(replica, new("b", "abcd"))  # after 16 tokens the next one sees 11 to 15: blocks 2 and 3
    assert (hit.cached_tokens, tables(hit), free(replica)) == (16, [[0, 0, 3, 4, 6]], 6)

    assert [listed(slots[0]) for slots in replica.grow(["a"], 2).slots] == [[7, 8]]
    replica.commit("a", 25)  # 20 // 4
    assert (table(replica, "a"), free(replica)) == ([0, 0, 0, 0, 0, 7, 8], 5)  # b still uses slot 4, not slot 5
    end_all(replica)


def test_a_window_of_one_token_reads_nothing() -> None:
    """Every length is hit, with an empty cache; of 17 tokens only the last one is to be computed."""
    replica = replica_of(sliding(1), usable=10)
    hit = run(replica, new("a", "abcd"))
    assert (hit.cached_tokens, tables(hit), free(replica)) == (16, [[0, 0, 0, 0, 1]], 9)

    assert replica.commit("a", 20, last_digest("abcde")).published_blocks == (1,)
    assert (table(replica, "a"), free(replica)) == ([0] * 5, 10)
    end_all(replica)


def test_a_chunked_group_gives_a_chunk_back_when_the_next_one_begins() -> None:
    """Chunks of 8: at 7 tokens all is kept, at 8 the first two blocks go, at 17 only what began at 16 stays."""
    replica = replica_of(chunked(8), usable=10)
    run(replica, NewSequence("a", 17))
    assert (table(replica, "a"), free(replica)) == ([1, 2, 3, 4, 5], 5)

    assert replica.commit("a", 7, chain("a")).published_blocks == (1,)
    assert (table(replica, "a"), free(replica)) == ([1, 2, 3, 4, 5], 5)
    assert replica.commit("a", 8, last_digest("ab")).published_blocks == (1,)
    assert (table(replica, "a"), free(replica)) == ([0, 0, 3, 4, 5], 7)
    assert replica.commit("a", 17, chain("abcd")[2 * DIGEST_BYTES :]).published_blocks == (2,)
    assert (table(replica, "a"), free(replica)) == ([0, 0, 0, 0, 5], 9)

    inside = run(replica, new("b", "abc"))  # its chunk begins at 8: block 2 is read
    assert (inside.cached_tokens, tables(inside), free(replica)) == (12, [[0, 0, 3, 6]], 7)
    at_start = run(replica, new("c", "wxyz"))  # a chunk begins at 16, whatever the tokens before it are
    assert (at_start.cached_tokens, tables(at_start), free(replica)) == (16, [[0, 0, 0, 0, 7]], 6)
    other = run(replica, new("d", "wxy"))
    assert (other.cached_tokens, tables(other), free(replica)) == (8, [[0, 0, 8, 9]], 4)
    end_all(replica)


def test_groups_of_several_kinds_agree_on_the_longest_length_that_all_serve() -> None:
    """Of a, b, c and d the full group loses d, the chunked one c and d, and the sliding one nothing."""
    replica = replica_of(
        FULL.model_copy(update={"pool": "f"}),
        sliding(5, pool="s"),
        chunked(8, pool="c"),
        usable={"f": 6, "s": 12, "c": 5},
    )
    cache(replica, "abcd")
    run(replica, NewSequence("takes three", 12))  # of the full group two free ones and d; of the chunked one d and c
    replica.release("takes three")

    hit = run(replica, new("b", "abcd"))

    # full: 4, 8, 12; sliding: all; chunked: 4, and 8 and 16 without any block. The full group could serve 12.
    assert (hit.cached_tokens, hit.junction_tokens) == (8, 4)
    assert [table[:2] for table in tables(hit)] == [[1, 2], [0, 2], [0, 0]]


# -- field cases -------------------------------------------------------------------------------------------------------

KINDS = [
    FULL,
    *[sliding(tokens) for tokens in (1, 4, 8, 9)],
    *[chunked(tokens) for tokens in (1, 4, 8, 9)],
    recurrent(4),
]


@pytest.mark.parametrize("group", KINDS)
def test_of_a_prompt_that_is_cached_whole_one_token_is_computed(group: GroupConfig) -> None:
    """F1: 12 tokens are cached; prompts of 8, 9, 12, 13 tokens hit 4, 8, 8, 12 and compute 4, 1, 4, 1."""
    replica = replica_of(group)
    run(replica, NewSequence("first", 12))
    replica.commit("first", 12, chain("abc"))
    replica.release("first")

    for tokens, hit_tokens in ((8, 4), (9, 8), (12, 8), (13, 12)):
        name = f"of {tokens}"
        assert run(replica, NewSequence(name, tokens, chain("abc"[: tokens // 4]))).cached_tokens == hit_tokens
        replica.commit(name, tokens)
        replica.release(name)
        assert set(published(replica, group.name)) == {last_digest("abc"[:end]) for end in (1, 2, 3)}
        check(replica)
    assert replica.counters().duplicates == 2  # block 1 by the prompt of 8, block 2 by that of 12
    end_all(replica)


@pytest.mark.parametrize("tokens_of_commit", [1, 3, 8, 40])
@pytest.mark.parametrize("window", [1, 4, 8, 9])
@pytest.mark.parametrize("make", [sliding, chunked])
def test_what_was_inserted_is_found_in_full(make: type, window: int, tokens_of_commit: int) -> None:
    """G4: pages of 8 and windows below, at and above them, for lengths of 1 to 40, committed at once and in parts."""
    for tokens in range(1, 41):
        for groups in ((make(window),), (FULL, make(window))):
            replica = replica_of(*groups, usable=40, block_tokens=8)
            words = "abcde"[: tokens // 8]
            run(replica, NewSequence("first", tokens))
            for done in [*range(tokens_of_commit, tokens, tokens_of_commit), tokens]:
                known = len(replica.sequence("first").digests[0])
                replica.commit("first", done, chain("abcde"[: done // 8])[known:])
                check(replica)
            for when in ("running", "ended"):
                hit = run(replica, NewSequence(when, 8 * len(words) + 1, chain(words)))
                assert hit.cached_tokens == 8 * len(words), (tokens, when)
                replica.release("first" if when == "running" else "running")
            end_all(replica)
