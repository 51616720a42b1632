"""What of a chain is stored, in chunks and behind windows, can be hit in full (D6, G4).

Faults that users of other KV cache managers have reported, as scenarios here, each with neighbours: the same kind of
fault in another guise.
"""

from __future__ import annotations

import pytest

from kvtroupe.coordinator.check import check
from kvtroupe.coordinator.config import Config, GroupConfig, PoolConfig
from kvtroupe.coordinator.extras import Extras
from kvtroupe.coordinator.identity import PrefixDigests, digest_chain
from kvtroupe.coordinator.messages import NewSequence
from kvtroupe.coordinator.replica import Replica
from tests.coordinator.kinds import FULL, chunked, end_all, published, recurrent, replica_of, run, sliding
from tests.coordinator.losing import SLIDING, below, digests, make
from tests.coordinator.support import (
    DIGEST_BYTES,
    admit,
    chain,
    make_config,
    make_replica,
    new,
    split,
)

# -- D6: no block is left out for ever ---------------------------------------------------------------------------------


@pytest.mark.parametrize("held_back_blocks", [0, 1, 2])
@pytest.mark.parametrize("chunk_tokens", [1, 3, 4, 8, 9, 32])
def test_commits_in_chunks_leave_no_gaps(chunk_tokens: int, held_back_blocks: int) -> None:
    """Also when the digests of the last blocks of every chunk come with the next one only."""
    replica = make_replica("full")
    digests = split(chain("abcdefgh"))
    admit(replica, NewSequence("a", 32))
    told = 0
    for committed in [*range(chunk_tokens, 32, chunk_tokens), 32]:
        tell = max(told, committed // 4 - held_back_blocks)
        replica.commit("a", committed, b"".join(digests[told:tell]))
        told = tell

    assert list(replica.published("full0")) == digests[: 8 - held_back_blocks]


@pytest.mark.parametrize("group", ["sliding:5", "sliding:40"])
@pytest.mark.parametrize("chunk_tokens", [3, 4, 8, 32])
def test_commits_in_chunks_leave_no_gaps_in_a_window_either(group: str, chunk_tokens: int) -> None:
    """Neighbour: blocks leave the window with the commit that completes them, and the digests come one block late."""
    replica = make_replica(group, blocks=40)
    digests = split(chain("abcdefgh"))
    admit(replica, NewSequence("a", 32))
    told = 0
    for committed in [*range(chunk_tokens, 32, chunk_tokens), 32]:
        tell = max(told, committed // 4 - 1)
        replica.commit("a", committed, b"".join(digests[told:tell]))
        told = tell
    replica.commit("a", 32, digests[7])

    held = set(replica.published(replica.config.groups[0].name))
    whole_blocks_of_the_window = {"sliding:5": digests[6:], "sliding:40": digests}[group]
    assert held >= set(whole_blocks_of_the_window)
    assert admit(replica, NewSequence("b", 33, b"".join(digests))).cached_tokens == 32
    check(replica)


@pytest.mark.parametrize("chunk_tokens", [3, 8])
@pytest.mark.parametrize("lookahead_tokens", [1, 4])
def test_digests_that_wait_for_lookahead_tokens_leave_no_gaps(lookahead_tokens: int, chunk_tokens: int) -> None:
    """Neighbour: as in the report, a draft model sees tokens after a block; the last digest waits for them."""
    config = make_config("full").changed(digest_bytes=32)
    replica = Replica(config)
    chain_of_model = digest_chain("sha256", 4, config.namespace)
    prompt = PrefixDigests(chain_of_model, Extras(lookahead_tokens=lookahead_tokens))
    admit(replica, NewSequence("a", 32))
    for first in range(0, 32, chunk_tokens):
        end = min(first + chunk_tokens, 32)
        replica.commit("a", end, prompt.append(range(first, end)))

    assert list(replica.published("full0")) == [prompt.digests[at : at + 32] for at in range(0, 7 * 32, 32)]


@pytest.mark.parametrize("chunk_tokens", [3, 4, 8, 32])
def test_copies_at_commit_leave_no_gaps_below(chunk_tokens: int) -> None:
    """Neighbour: what the report was about, the tier below: it has what the device has, after chunks of any size."""
    cluster = make(blocks=(12, 12), offload="on_commit")
    cluster.admit(new("a", "abcdefgh", extra_tokens=0))
    for committed in [*range(chunk_tokens, 32, chunk_tokens), 32]:
        cluster.commit("a", committed)

    assert below(cluster, 1) == set(cluster.replica.published("full")) == digests("abcdefgh")
    cluster.check()


@pytest.mark.parametrize("digests_per_block", [2, 4])
@pytest.mark.parametrize("chunk_tokens", [1, 3, 5, 8])
def test_digests_finer_than_blocks_leave_no_gaps(chunk_tokens: int, digests_per_block: int) -> None:
    """Neighbour: a chunk ends within a block, with some of the digests of that block."""
    replica = Replica(make_config("full", digests_per_block=digests_per_block))
    fine = split(chain(range(8 * digests_per_block)))
    tokens_per_digest = 4 // digests_per_block
    admit(replica, NewSequence("a", 32))
    told = 0
    for committed in [*range(chunk_tokens, 32, chunk_tokens), 32]:
        tell = committed // tokens_per_digest
        replica.commit("a", committed, b"".join(fine[told:tell]))
        told = tell

    assert list(replica.published("full0")) == fine[digests_per_block - 1 :: digests_per_block]


def test_a_group_that_is_lost_between_two_chunks_gets_those_before_as_well() -> None:
    """Neighbour: the cursor is kept by the coordinator, and the index that had the first blocks is gone."""
    cluster = make()
    cluster.admit(new("a", "abcdefgh", extra_tokens=0))
    cluster.commit("a", 16)
    cluster.lose_group(0)
    cluster.commit("a", 24)
    cluster.group_ready(0)
    cluster.commit("a", 32)

    assert set(cluster.replica.published("full")) == digests("abcdefgh")
    assert cluster.hit("abcdefgh") == 32
    cluster.check()


# -- G4: pages and windows ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kinds", ["s", "fs", "ss"])
@pytest.mark.parametrize("window_tokens", [1, 4, 8, 9])
@pytest.mark.parametrize("block_tokens", [1, 4, 8])
def test_what_a_sequence_has_published_can_be_hit_in_full(kinds: str, window_tokens: int, block_tokens: int) -> None:
    """Whatever left the window while it ran; for every length, around every border of blocks and windows."""
    groups = [
        GroupConfig(name=str(number), kind="full")
        if kind == "f"
        else GroupConfig(name=str(number), kind="sliding", window_tokens=window_tokens * (number + 1))
        for number, kind in enumerate(kinds)
    ]
    config = Config(
        namespace="test",
        block_tokens=block_tokens,
        digest_bytes=DIGEST_BYTES,
        groups=tuple(groups),
        pools=(PoolConfig(blocks=200),),
    )
    for tokens in range(1, 41):
        replica = Replica(config)
        digests = chain(range(tokens // block_tokens))
        cached_tokens = admit(replica, NewSequence("a", tokens, digests)).cached_tokens
        assert cached_tokens == 0 or (kinds, window_tokens) == ("s", 1)  # such layers read nothing before a token
        for committed in range(cached_tokens, tokens + 1):
            replica.commit("a", committed)
        admitted = admit(replica, NewSequence("while it runs", tokens + 1, digests))
        assert admitted.cached_tokens == tokens // block_tokens * block_tokens

        replica.release("a")
        replica.release("while it runs")
        admitted = admit(replica, NewSequence("after it", tokens + 1, digests))
        assert admitted.cached_tokens == tokens // block_tokens * block_tokens
        check(replica)


def test_a_page_larger_than_the_window_stays_when_its_end_is_the_border() -> None:
    """The scenario: pages of 8, a window of 4, 20 tokens. Two pages are kept, and 16 tokens are hit by what follows."""
    replica = replica_of(sliding(4), block_tokens=8)
    run(replica, NewSequence("a", 20, chain("pq")))
    replica.commit("a", 20)

    table = replica.tables("a")[0].tolist()
    assert table[:2] == [0, 0]  # tokens from 17 on are seen; what has left is published
    assert set(published(replica, "sliding")) == digests("pq")
    assert run(replica, NewSequence("follows", 17, chain("pq"))).cached_tokens == 16
    replica.release("a")
    assert run(replica, NewSequence("too", 17, chain("pq"))).cached_tokens == 16
    end_all(replica)


@pytest.mark.parametrize("chunk_tokens", [1, 4, 8, 12])
def test_what_a_sequence_with_chunks_has_published_can_be_hit_in_full(chunk_tokens: int) -> None:
    """Neighbour: chunked attention leaves blocks behind at the borders of its chunks."""
    for tokens in range(1, 41):
        replica = replica_of(FULL, chunked(chunk_tokens), usable=200, block_tokens=8)
        digests = chain(range(tokens // 8))
        run(replica, NewSequence("a", tokens, digests))
        for committed in range(1, tokens + 1):
            replica.commit("a", committed)
        replica.release("a")

        assert run(replica, NewSequence("b", tokens + 1, digests)).cached_tokens == tokens // 8 * 8
        end_all(replica)


@pytest.mark.parametrize("snapshot_tokens", [8, 16, None])
def test_the_last_state_of_a_prompt_can_be_hit(snapshot_tokens: int | None) -> None:
    """Neighbour: recurrent layers keep a state at the last border before the end of a prompt, and where told."""
    for tokens in range(1, 41):
        replica = replica_of(recurrent(snapshot_tokens), usable=200, block_tokens=8)
        digests = chain(range(tokens // 8))
        run(replica, NewSequence("a", tokens, digests))
        for committed in range(1, tokens + 1):
            replica.commit("a", committed)
        replica.release("a")

        kept = [(tokens - 1) // 8 * 8, tokens // snapshot_tokens * snapshot_tokens if snapshot_tokens else 0]
        assert run(replica, NewSequence("b", tokens + 1, digests)).cached_tokens == max(kept)
        end_all(replica)


@pytest.mark.parametrize("window_tokens", [1, 4, 5, 8, 9])
def test_blocks_of_different_sizes_can_be_hit_in_full(window_tokens: int) -> None:
    """Neighbour: windows over blocks of 4 beside full attention over blocks of 8: hits are in units of 8."""
    for tokens in range(1, 41):
        replica = replica_of(FULL, sliding(window_tokens, block_tokens=4), usable=200, block_tokens=8, hash_tokens=4)
        digests = chain(range(tokens // 4))
        run(replica, NewSequence("a", tokens, digests))
        for committed in range(1, tokens + 1):
            replica.commit("a", committed)
        replica.release("a")

        assert run(replica, NewSequence("b", tokens + 1, digests)).cached_tokens == tokens // 8 * 8
        end_all(replica)


def test_what_was_demoted_of_a_window_can_be_hit_in_full() -> None:
    """Neighbour: the page that covers the window is on the host when what follows comes."""
    cluster = make(SLIDING, blocks=(9, 20))
    cluster.cache("abcd")
    cluster.cache("vwxyz")
    cluster.cache("uvwxy")

    assert below(cluster, 1) >= digests("abcd")
    assert cluster.hit("abcd") == 16
    cluster.check()
