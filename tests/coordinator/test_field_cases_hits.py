"""Hits on what was never computed, or on all of a prompt (C1, F1).

Faults that users of other KV cache managers have reported, as scenarios here, each with neighbours: the same kind of
fault in another guise.
"""

from __future__ import annotations

import pytest

from kvtroupe.coordinator.check import check, quiescent
from kvtroupe.coordinator.config import PoolConfig
from kvtroupe.coordinator.contents import content_of
from kvtroupe.coordinator.extras import Extras, LoRA
from kvtroupe.coordinator.identity import PrefixDigests, digest_chain
from kvtroupe.coordinator.messages import Admitted, Estimate, MoveRequest, NewSequence, ProcessGoneEvent, ReleaseEvent
from kvtroupe.coordinator.replica import Replica
from tests.coordinator.clients import attached, let_pass
from tests.coordinator.kinds import end_all, recurrent, replica_of, run
from tests.coordinator.losing import FULL, HOST, SLIDING, digests, make
from tests.coordinator.support import (
    admit,
    cache,
    chain,
    free_order,
    last_digest,
    make_config,
    make_replica,
    new,
    split,
)

# -- C1: visible means committed ---------------------------------------------------------------------------------------


def test_a_sequence_that_is_aborted_before_its_commit_leaves_nothing_to_hit() -> None:
    """Its blocks were planned and never written."""
    replica = make_replica("full")
    admit(replica, new("a", "pq"))
    replica.release("a")

    assert admit(replica, new("b", "pq")).cached_tokens == 0


def test_sequences_of_one_round_do_not_read_what_the_others_are_to_write() -> None:
    """Nor do later ones, until the commit; after it they hit both whole blocks."""
    replica = make_replica("full")
    a, b = replica.admit([new("a", "pq"), new("b", "pq")])
    assert isinstance(a, Admitted)
    assert isinstance(b, Admitted)
    assert (a.cached_tokens, b.cached_tokens) == (0, 0)
    assert set(a.tables[0].tolist()).isdisjoint(b.tables[0].tolist())
    assert admit(replica, new("too early", "pq")).cached_tokens == 0

    replica.commit("a", 9)

    hit = admit(replica, new("c", "pq"))
    assert hit.cached_tokens == 8
    assert hit.tables[0][:2].tolist() == a.tables[0][:2].tolist()


@pytest.mark.parametrize("later", ["cancelled", "committed and ended"])
def test_of_two_writers_of_one_digest_the_first_stays_published(later: str) -> None:
    """Whatever becomes of the later one: its blocks are private and are taken first."""
    replica = make_replica("full")
    a, b = replica.admit([new("a", "pq"), new("b", "pq")])
    assert isinstance(a, Admitted)
    assert isinstance(b, Admitted)
    replica.commit("a", 9)
    if later != "cancelled":
        assert replica.commit("b", 9).published_blocks == (0,)
    replica.release("b")

    assert admit(replica, new("c", "pq")).tables[0][:2].tolist() == a.tables[0][:2].tolist()
    replica.release("c")
    replica.release("a")
    assert set(free_order(replica)[:3]).isdisjoint(a.tables[0][:2].tolist())
    check(replica)


def test_what_was_computed_in_part_is_visible_in_part() -> None:
    """Neighbour: chunked prefill. Seven tokens are committed: the first block can be hit, the second cannot."""
    replica = make_replica("full")
    admit(replica, new("a", "pq"))
    replica.commit("a", 7)

    assert admit(replica, new("b", "pq")).cached_tokens == 4


def test_what_has_grown_and_was_not_committed_is_not_visible() -> None:
    """Neighbour: the digests of the answer are known before its tokens are computed; the abort comes in between."""
    replica = make_replica("full")
    admit(replica, new("a", "p", extra_tokens=0))
    replica.commit("a", 4)
    replica.extend("a", 4)
    replica.release("a")

    assert admit(replica, new("b", "pq")).cached_tokens == 4


def test_what_no_group_has_taken_yet_is_not_visible() -> None:
    """Neighbour: the commit is made and the group has not answered; its slot is not free before it has."""
    cluster = make()
    (first,) = cluster.admit(new("a", "pq"))
    assert isinstance(first, Admitted)
    group = ("group", 0, 0)
    cluster.silent.add(group)
    cluster.commit("a", 9)
    cluster.send(ReleaseEvent("a"))
    assert set(first.tables[0].tolist()).isdisjoint(free_order(cluster.replica))

    cluster.silent.clear()
    cluster.deliver()

    assert cluster.hit("pq") == 8
    cluster.check()


def test_what_one_of_two_groups_has_not_taken_is_not_visible() -> None:
    """Neighbour: half of a commit. The other group has taken its blocks."""
    cluster = make(FULL, SLIDING)
    cluster.admit(new("a", "pq"))
    cluster.silent.add(("group", 1, 0))
    cluster.commit("a", 9)
    cluster.lose_group(1)
    cluster.silent.clear()

    assert cluster.hit("pq") == 0
    cluster.group_ready(1)
    assert cluster.hit("pq") == 8
    cluster.check()


def test_what_a_lost_client_did_not_commit_is_not_visible() -> None:
    """Neighbour: nobody aborts; the session ends by itself, and the process is known to be dead."""
    cluster = make()
    client = attached(cluster, "p", 1)
    client.admit(new("a", "pq"))
    client.lose_connection()
    let_pass(cluster, 30.0)
    cluster.send(ProcessGoneEvent("p"))

    assert cluster.hit("pq") == 0
    assert quiescent(cluster.replica)


def test_who_hits_what_is_still_being_brought_up_is_told_to_await_it() -> None:
    """Neighbour: the bytes exist, on the host; two sequences read the copy, neither before it is done."""
    cluster = make(blocks=(9, 9), offload="never")
    cluster.cache("pq")
    cluster.send(MoveRequest(1, chain("pq"), 1))
    cluster.cache("abcdefgh")
    cluster.silent.add(("tier", HOST, 0))

    first, second = [cluster.admit(new(name, "pq"))[0] for name in "ab"]

    assert isinstance(first, Admitted)
    assert isinstance(second, Admitted)
    assert first.cached_tokens == second.cached_tokens == 8
    assert first.reads_after == second.reads_after != ()
    assert split(chain("pq"))[0] not in cluster.replica.published("full")
    cluster.silent.clear()
    cluster.deliver()
    assert split(chain("pq"))[0] in cluster.replica.published("full")


def test_another_adapter_never_hits_what_was_computed_before_the_switch() -> None:
    """Neighbour: the same tokens, before and after a change of adapter, one of them never computed."""
    config = make_config("full").changed(digest_bytes=32)
    replica = Replica(config)
    prompts = []
    for name in ("one", "two"):
        prompt = PrefixDigests(digest_chain("sha256", 4, config.namespace), Extras(lora=LoRA(name)))
        prompt.append(range(9))
        prompts.append(prompt.digests)
    admit(replica, NewSequence("aborted", 9, prompts[0]))
    admit(replica, NewSequence("computed", 9, prompts[1]))
    replica.commit("computed", 9)
    replica.release("aborted")

    assert admit(replica, NewSequence("again", 9, prompts[0])).cached_tokens == 0
    assert admit(replica, NewSequence("other", 9, prompts[1])).cached_tokens == 8


# -- F1: the whole prompt is cached ------------------------------------------------------------------------------------


@pytest.mark.parametrize(("tokens", "cached", "computed"), [(8, 4, 4), (9, 8, 1), (12, 8, 4), (13, 12, 1)])
def test_at_least_one_token_of_a_prompt_is_computed(tokens: int, cached: int, computed: int) -> None:
    """Twelve tokens are cached; the logits of the last token of a prompt are needed in any case."""
    replica = make_replica("full")
    cache(replica, "pqr")
    published = replica.published("full0")

    admitted = admit(replica, NewSequence("a", tokens, chain("pqr"[: tokens // 4])))
    assert (admitted.cached_tokens, tokens - admitted.cached_tokens) == (cached, computed)

    replica.commit("a", tokens)
    replica.release("a")
    assert replica.published("full0") == published
    assert quiescent(replica)


@pytest.mark.parametrize(("tokens", "cached"), [(8, 4), (9, 8), (12, 8), (13, 12)])
@pytest.mark.parametrize("on_device", [0, 1, 2, 3])
def test_it_is_the_same_where_blocks_come_from_the_host(tokens: int, cached: int, on_device: int) -> None:
    """The scenario goes on: all blocks are on the host, and the first ones, or none, are on the device as well."""
    cluster = make(blocks=(5, 9), offload="never")
    cluster.cache("pqr")
    cluster.send(MoveRequest(1, chain("pqr"), 1))
    cluster.admit(NewSequence("evicts", 4 * (4 - on_device)))
    cluster.send(ReleaseEvent("evicts"))
    assert len(digests("pqr") & set(cluster.replica.published("full"))) == on_device

    (result,) = cluster.admit(NewSequence("a", tokens, chain("pqr"[: tokens // 4])))

    assert isinstance(result, Admitted)
    assert result.cached_tokens == cached
    assert bool(result.reads_after) is (on_device * 4 < cached)
    cluster.commit("a", tokens)
    cluster.send(ReleaseEvent("a"))
    cluster.check()
    if tokens >= 12:
        assert cluster.mirror.places(0, last_digest("pqr")) == {"device": 1, "host": 1}


@pytest.mark.parametrize("block_tokens", [1, 2, 3, 8])
@pytest.mark.parametrize("group", ["full", "sliding:3", "sliding:40"])
def test_whatever_the_block_size_the_last_token_is_computed(group: str, block_tokens: int) -> None:
    """Neighbour: blocks of one token, of which all but the last may be hit, and windows: 24 tokens are cached."""
    config = make_config(group).changed(block_tokens=block_tokens, hash_block_tokens=block_tokens)
    words = range(24 // block_tokens)
    for tokens in range(1, 26):
        replica = Replica(config.changed(pools=(PoolConfig(blocks=200),)))
        admit(replica, NewSequence("first", 24, chain(words)))
        replica.commit("first", 24)
        replica.release("first")

        admitted = admit(replica, NewSequence("a", tokens, chain(words[: tokens // block_tokens])))

        assert admitted.cached_tokens == min(24, (tokens - 1) // block_tokens * block_tokens)


def test_a_state_at_the_very_end_of_a_prompt_is_not_hit() -> None:
    """Neighbour: recurrent layers. There are states after 4, 8 and 12 tokens; a prompt of 12 begins after 8."""
    replica = replica_of(recurrent(4))
    for name, tokens, cached in (("first", 12, 0), ("same", 12, 8), ("longer", 13, 12)):
        assert run(replica, NewSequence(name, tokens, chain("pqr"))).cached_tokens == cached
        replica.commit(name, tokens)
    end_all(replica)


def test_a_hit_within_a_block_leaves_the_last_token_too() -> None:
    """Neighbour: blocks are reused in part. Of the same twelve tokens eleven are hit, and of twelve and one, twelve."""
    config = make_config("full").changed(digest_bytes=32, partial_reuse="copy")
    replica = Replica(config)
    for name, tokens, cached in (("first", 12, 0), ("same", 12, 11), ("longer", 13, 12)):
        prompt = PrefixDigests(digest_chain("sha256", 4, config.namespace))
        prompt.append(range(tokens))
        sequence = NewSequence(name, tokens, prompt.digests, content=content_of(prompt, 4))
        assert admit(replica, sequence).cached_tokens == cached
        replica.commit(name, tokens)
        replica.release(name)
    assert quiescent(replica)


def test_a_lookup_and_an_estimate_count_the_last_token_as_the_admission_does() -> None:
    """Neighbour: the limit is computed in one place. A pin keeps all that is there; what it holds costs no slot."""
    replica = make_replica("full")
    cache(replica, "pqr")
    assert replica.pin("all", chain("pqr")) == 12
    for tokens, cached in ((8, 4), (9, 8), (12, 8), (13, 12)):
        digests = chain("pqr"[: tokens // 4])
        (estimate,) = replica.what_if([NewSequence("a", tokens, digests)])
        assert isinstance(estimate, Estimate)
        assert replica.lookup(digests, tokens).hit_tokens == cached
        assert estimate.slots_now == (-(-tokens // 4) - cached // 4,)
