"""Recurrent groups, worked out by hand: states at boundaries of four tokens, slots in order 1, 2, 3..."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from kvtroupe.coordinator.check import check, quiescent
from kvtroupe.coordinator.config import GroupConfig
from kvtroupe.coordinator.errors import CommitError, OutOfBlocks, SequenceTooLong
from kvtroupe.coordinator.messages import (
    AdmitRequest,
    Admitted,
    CopyReply,
    CopyRequest,
    NewSequence,
    ReleaseEvent,
    TransfersDoneEvent,
)
from kvtroupe.coordinator.reference import ReferenceReplica
from tests.coordinator.kinds import (
    FULL,
    copies_of,
    end_all,
    free,
    published,
    recurrent,
    replica_of,
    run,
    sliding,
    step,
    table,
)
from tests.coordinator.support import admitted, cache, chain, last_digest, listed, new, tables

if TYPE_CHECKING:
    from kvtroupe.coordinator.messages import TierOutput


def copied(output: TierOutput) -> tuple[list[int], list[int]]:
    """The slots that a copy reads and writes."""
    assert isinstance(output.message, CopyRequest)
    return listed(output.message.copies.sources), listed(output.message.copies.destinations)


def done(output: TierOutput) -> CopyReply:
    """The answer to a copy."""
    assert isinstance(output.message, CopyRequest)
    return CopyReply(output.message.transfer_id, output.message.epoch, output.engine, output.rank)


def states(result: Admitted) -> list[list[int]]:
    """Of every group."""
    return [listed(slots) for slots in result.states]


# -- a life ------------------------------------------------------------------------------------------------------------


def test_a_sequence_holds_its_state_and_those_that_later_ones_may_go_on_from() -> None:
    """Snapshots every 8 tokens, 21 tokens of prompt: columns that end at 8, 16, 20 (the last of the prompt) and 24."""
    replica = replica_of(recurrent(8), usable=10)

    result = run(replica, new("a", "abcde"))
    assert (tables(result), states(result)) == ([[0, 1, 0, 2, 3, 4]], [[5]])
    assert free(replica) == 5

    assert replica.commit("a", 21).published_blocks == (3,)
    assert published(replica, "recurrent") == {
        last_digest("abcde"[:end]): slot for end, slot in ((2, 1), (4, 2), (5, 3))
    }
    # All that the next token needs is in the state: the snapshots before it are given back, the newest first.
    assert (table(replica, "a"), free(replica)) == ([0, 0, 0, 0, 0, 4], 8)
    assert listed(replica.free_order("device")) == [6, 7, 8, 9, 10, 3, 2, 1]

    assert replica.grow(["a"]).slots[0].tolist() == [[0]]  # a column that ends at 28 is not kept
    assert replica.grow(["a"]).slots[0].tolist() == [[6]]  # one that ends at 32 is
    assert free(replica) == 7

    assert replica.commit("a", 24, last_digest("abcdef")).published_blocks == (1,)
    assert table(replica, "a") == [0, 0, 0, 0, 0, 4, 0, 6]  # the state after 24 tokens is that of the last one
    replica.commit("a", 25)
    assert (table(replica, "a"), free(replica)) == ([0, 0, 0, 0, 0, 0, 0, 6], 8)

    replica.release("a")
    assert set(listed(replica.free_order("device"))[:2]) == {5, 6}  # its own state, and a snapshot never computed
    end_all(replica)


def test_without_an_interval_only_the_last_state_of_a_prompt_is_kept() -> None:
    """It ends before the last token, which is always computed: a prompt of 20 tokens keeps that of 16."""
    for tokens, column in ((21, 4), (20, 3), (17, 3), (5, 0)):
        replica = replica_of(recurrent(), usable=10)
        run(replica, NewSequence("a", tokens, chain("abcde"[: tokens // 4]), spare_blocks=3))
        assert [at for at, slot in enumerate(table(replica, "a")) if slot] == [column]
        assert free(replica) == 8
        replica.commit("a", tokens)
        assert list(published(replica, "recurrent")) == [last_digest("abcde"[: column + 1])]
        end_all(replica)


def test_a_prompt_within_its_first_block_keeps_no_state() -> None:
    """Of four tokens three can be hit at most: there is no boundary before that."""
    replica = replica_of(recurrent(), usable=10)
    run(replica, new("a", "a", extra_tokens=0))

    assert (table(replica, "a"), free(replica)) == ([0], 9)
    assert replica.commit("a", 4).published_blocks == (0,)
    end_all(replica)


@pytest.mark.parametrize("tokens_of_commit", [1, 3, 8, 40])
@pytest.mark.parametrize("every_tokens", [None, 8, 16])
def test_what_was_kept_is_found_in_full(every_tokens: int | None, tokens_of_commit: int) -> None:
    """G4: boundaries of 8, lengths of 1 to 40, in one commit and in parts: the last kept state is hit.

    Without an interval that is the last boundary before the last token; with 8 it is the last boundary, with 16 the
    later of that before the last token and the last multiple of 16.
    """
    for tokens in range(1, 41):
        replica = replica_of(FULL, recurrent(every_tokens), usable=40, block_tokens=8)
        words = "abcde"[: tokens // 8]
        run(replica, NewSequence("first", tokens, chain(words)))
        for committed in [*range(tokens_of_commit, tokens, tokens_of_commit), tokens]:
            replica.commit("first", committed)
            check(replica)

        hit = run(replica, NewSequence("second", 8 * len(words) + 1, chain(words)))

        last_of_prompt = (tokens - 1) // 8 * 8
        last_multiple = tokens // every_tokens * every_tokens if every_tokens else 0
        assert hit.cached_tokens == max(last_of_prompt, last_multiple), tokens
        assert hit.junction_tokens == 8 * len(words) - hit.cached_tokens
        end_all(replica)


# -- a hit -------------------------------------------------------------------------------------------------------------


def test_a_state_that_is_hit_is_copied_for_the_reader_who_awaits_it() -> None:
    """Two readers at once: the state of 16 tokens is in slot 2, and each copies it into its own; it stays published."""
    replica = replica_of(recurrent(8), usable=12)
    cache(replica, "abcde")  # 20 tokens keep the states of 8 and 16 in slots 1 and 2
    prompt = "abcdx"

    outputs = step(replica, AdmitRequest(1, (new("b", prompt), new("c", prompt))))

    b, c = admitted(outputs)
    # Both go on from 16 tokens, slot 2, and keep states that end at 20 and 24.
    assert [one.cached_tokens for one in (b, c)] == [16, 16]
    assert [tables(one)[0][:4] for one in (b, c)] == [[0, 0, 0, 2]] * 2
    assert [len(set(tables(one)[0][4:])) for one in (b, c)] == [2, 2]
    (copy,) = copies_of(outputs)
    assert copied(copy) == ([2, 2], [states(b)[0][0], states(c)[0][0]])
    assert b.reads_after == c.reads_after == (1,)
    assert b.writes_after == c.writes_after == ()
    assert published(replica, "recurrent")[last_digest("abcd")] == 2
    check(replica)

    with pytest.raises(CommitError, match=r"transfers \[1\] still bring what it reads"):
        replica.commit("b", 21)
    assert step(replica, done(copy)) == [TransfersDoneEvent((1,))]
    assert replica.commit("b", 21).published_blocks == (1,)
    assert table(replica, "b")[3] == 0  # what it has hit is given back, and c still uses it
    assert table(replica, "c")[3] == 2
    end_all(replica)


def test_every_beam_gets_a_copy_of_its_own() -> None:
    """Three beams copy one state three times."""
    replica = replica_of(recurrent(8), usable=12)
    cache(replica, "ab")

    outputs = step(replica, AdmitRequest(1, (replace(new("b", "ab"), beams=3),)))

    (b,) = admitted(outputs)
    (copy,) = copies_of(outputs)
    assert b.cached_tokens == 8
    assert copied(copy) == ([published(replica, "recurrent")[last_digest("ab")]] * 3, states(b)[0])
    assert len(set(states(b)[0])) == 3
    step(replica, done(copy))
    end_all(replica)


def test_states_are_hit_as_long_as_there_is_room_for_their_copies() -> None:
    """Five blocks may be copied at one time in a pool of five slots; without room for its copy, a state is not hit."""
    replica = replica_of(recurrent(), usable=4)
    cache(replica, "ab")
    copies = []
    hits = []
    for number in range(8):
        outputs = step(replica, AdmitRequest(number, (new(f"reader {number}", "a"),)))
        (result,) = admitted(outputs)
        hits.append(result.cached_tokens)
        copies += copies_of(outputs)
        step(replica, ReleaseEvent(f"reader {number}"))
        check(replica)

    assert hits == [4] * 5 + [0] * 3
    assert len(copies) == 5
    for copy in copies:
        step(replica, done(copy))
    check(replica)
    assert quiescent(replica)
    assert admitted(step(replica, AdmitRequest(9, (new("later", "a"),))))[0].cached_tokens == 4


@pytest.mark.parametrize(
    ("groups", "junction_tokens"), [((FULL, recurrent()), 8), ((recurrent(), FULL), 0), ((FULL, recurrent(8)), 0)]
)
def test_the_junction_says_where_a_state_would_have_helped(
    groups: tuple[GroupConfig, ...], junction_tokens: int
) -> None:
    """17 tokens keep the state of 16; a prompt that shares 8 of them finds 8 in the full group, and no state there."""
    replica = replica_of(*groups)
    run(replica, new("a", "abcd"))
    replica.commit("a", 17)

    forks = run(replica, new("b", "abxy"))

    hit_tokens = 8 if groups[-1].snapshot_tokens else 0
    assert (forks.cached_tokens, forks.junction_tokens) == (hit_tokens, junction_tokens)
    end_all(replica)


def test_of_several_groups_those_of_states_decide_the_length_and_the_others_keep_what_they_read() -> None:
    """States of 8 and 12 tokens, a window of 6: of 13 tokens 12 are hit; the window reads blocks 1 and 2."""
    replica = replica_of(FULL, sliding(6), recurrent(8), usable=30)
    run(replica, new("a", "abc"))
    # In order: full 1 to 4, sliding 5 to 8, states that end at 8, 12 and 16 in 9, 10 and 11, the own state 12.
    assert replica.tables("a")[2].tolist() == [0, 9, 10, 11]
    assert replica.commit("a", 13).published_blocks == (3, 3, 2)
    assert free(replica) == 30 - (4 + 2 + 2)  # sliding: from (13 - 5) // 4 on; one state to come, and its own

    hit = run(replica, new("b", "abc"))

    assert hit.cached_tokens == 12
    assert [row[:3] for row in tables(hit)] == [[1, 2, 3], [0, 6, 7], [0, 0, 10]]
    end_all(replica)


# -- what can never fit ------------------------------------------------------------------------------------------------


def test_what_fits_into_no_pool_with_any_one_hit_can_never_fit() -> None:
    """Without a hit two states fit, but not five blocks of the other pool; with one, three states are too many.

    20 tokens, of which 12 have digests. No hit: the state of 16 and the own one; five blocks. A hit of 12 tokens: that
    state besides; two blocks, as a window of one reads none.
    """
    replica = replica_of(recurrent(pool="states"), sliding(1, pool="blocks"), usable={"states": 2, "blocks": 3})
    prompt = NewSequence("a", 20, chain("abc"))

    for either in (replica, ReferenceReplica(replica.config)):
        (result,) = either.admit([prompt])
        assert isinstance(result, SequenceTooLong)
    assert quiescent(replica)

    roomy = replica_of(recurrent(pool="states"), sliding(1, pool="blocks"), usable={"states": 3, "blocks": 3})
    (result,) = roomy.admit([prompt])
    assert isinstance(result, OutOfBlocks)  # it waits for somebody who publishes what it can hit


def test_a_state_whose_hit_would_leave_no_room_is_not_hit() -> None:
    """13 tokens keep one state beside their own: two slots. A state of 8 tokens that is hit would be a third one.

    Nobody runs, so that waiting would never help.
    """
    replica = replica_of(recurrent(), usable=2)
    cache(replica, "abx")
    assert list(published(replica, "recurrent")) == [last_digest("ab")]

    result = run(replica, new("b", "abc"))

    assert (result.cached_tokens, result.junction_tokens, result.reads_after) == (0, 0, ())
    assert sorted([*tables(result)[0], *states(result)[0]]) == [0, 0, 0, 1, 2]
    end_all(replica)

    roomy = replica_of(recurrent(), usable=3)
    cache(roomy, "abx")
    assert run(roomy, new("b", "abc")).cached_tokens == 8
    end_all(roomy)
