"""Blocks that are taken for each other, or not known again (E1, E6).

Faults that users of other KV cache managers have reported, as scenarios here, each with neighbours: the same kind of
fault in another guise.
"""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from kvtroupe.coordinator.check import quiescent
from kvtroupe.coordinator.config import Config, PoolConfig
from kvtroupe.coordinator.contents import content_of
from kvtroupe.coordinator.errors import ConfigError
from kvtroupe.coordinator.extras import Extras, LoRA, MultimodalItem, TokenExtraIds
from kvtroupe.coordinator.identity import PrefixDigests, digest_chain
from kvtroupe.coordinator.messages import Admitted, MoveRequest, NewSequence, ReleaseEvent
from kvtroupe.coordinator.replica import Replica
from tests.coordinator.cluster import Cluster
from tests.coordinator.losing import FULL, below
from tests.coordinator.support import admit

CHAINS = ("sha256", "sha256_cbor")
HASH_SEEDS = ("0", "1", "4294967295", "random")

# The five of the report, where what it calls an extra is a name of an adapter; and neighbours: other places for a text.
IDENTITIES = {
    "adapter foo": Extras(lora=LoRA("foo")),
    "salt foo": Extras(cache_salt="foo"),
    "salt fo, adapter o": Extras(cache_salt="fo", lora=LoRA("o")),
    "salt f, adapter oo": Extras(cache_salt="f", lora=LoRA("oo")),
    "nothing": Extras(),
    "image foo": Extras(multimodal=(MultimodalItem("foo", 0, 8),)),
    "image foo, one token later": Extras(multimodal=(MultimodalItem("foo", 1, 7),)),
    "adapter f from oo": Extras(lora=LoRA("f", "oo")),
    "adapter fo from o": Extras(lora=LoRA("fo", "o")),
}


def _digests(extras: Extras, chain: str = "sha256", namespace: str = "test", tokens: int = 8) -> bytes:
    prompt = PrefixDigests(digest_chain(chain, 4, namespace), extras)
    prompt.append(range(tokens))
    return prompt.digests


def _cluster(device_blocks: int) -> Cluster:
    """A device and a host with whole digests."""
    pools = (
        PoolConfig(name="device", blocks=device_blocks, below="host", offload="never"),
        PoolConfig(name="host", tier="host", blocks=40),
    )
    return Cluster(Config(namespace="test", block_tokens=4, groups=(FULL,), pools=pools))


# -- E1: what makes a block --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("chain", CHAINS)
def test_equal_texts_in_different_places_make_different_blocks(chain: str) -> None:
    """The scenario: for block 0 and for block 1. Neighbours: images, paths of adapters, and where an image lies."""
    found = [_digests(extras, chain) for extras in IDENTITIES.values()]

    for block in (0, 32):
        assert len({digests[block : block + 32] for digests in found}) == len(IDENTITIES)


@pytest.mark.parametrize("tier", ["device", "host"])
@pytest.mark.parametrize("cached", IDENTITIES)
def test_only_the_same_identity_hits_on_every_tier(cached: str, tier: str) -> None:
    """The scenario goes on: eight equal tokens are cached under one identity; the others compute theirs."""
    cluster = _cluster(device_blocks=6)
    cluster.admit(NewSequence("first", 8, _digests(IDENTITIES[cached])))
    cluster.commit("first", 8)
    cluster.send(ReleaseEvent("first"))
    if tier == "host":
        cluster.send(MoveRequest(1, _digests(IDENTITIES[cached]), 1))
        cluster.admit(NewSequence("evicts", 20))
        cluster.send(ReleaseEvent("evicts"))
        assert cluster.replica.published("full") == {}

    for name, extras in IDENTITIES.items():
        (result,) = cluster.admit(NewSequence(name, 9, _digests(extras)))
        assert isinstance(result, Admitted)
        assert result.cached_tokens == (8 if name == cached else 0)
        cluster.send(ReleaseEvent(name))
        if name == cached:
            assert bool(result.reads_after) is (tier == "host")
    assert quiescent(cluster.replica)


@pytest.mark.parametrize("other", [name for name in IDENTITIES if name != "nothing"])
def test_no_block_is_copied_in_part_for_another_identity(other: str) -> None:
    """Neighbour: hits within a block compare tokens, which are equal. Of the same identity three tokens are hit."""
    replica = Replica(
        Config(namespace="test", block_tokens=4, groups=(FULL,), pools=(PoolConfig(blocks=9),), partial_reuse="copy")
    )

    def prompt(name: str, extras: Extras) -> NewSequence:
        digests = PrefixDigests(digest_chain("sha256", 4, "test"), extras)
        digests.append([0, 1, 2, 3] if name == "first" else [0, 1, 2, 9])
        return NewSequence(name, 4, digests.digests, content=content_of(digests, 4))

    admit(replica, prompt("first", IDENTITIES[other]))
    replica.commit("first", 4)

    assert admit(replica, prompt("other", Extras())).cached_tokens == 0
    assert admit(replica, prompt("same", IDENTITIES[other])).cached_tokens == 3


def test_two_models_share_no_block() -> None:
    """Neighbour: the namespace, one of which begins like the other; the cbor chain takes a seed instead."""
    default = [_digests(Extras(), namespace=name)[:32] for name in ("model", "model2", "mode")]
    cbor = [digest_chain("sha256_cbor", 4, "model", cbor_seed=seed).root for seed in ("a", "b")]

    assert len({*default, *cbor}) == 5


# -- E6: the same block in every process -------------------------------------------------------------------------------


def _printed_by(program: str) -> list[list[str]]:
    """What a program prints in fresh processes with different seeds of Python's own hashes."""
    return [
        subprocess.run(
            [sys.executable, "-P", "-c", program],
            env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True,
            check=True,
            text=True,
            timeout=60,
        ).stdout.split()
        for seed in HASH_SEEDS
    ]


DIGESTS = """
from kvtroupe.coordinator.extras import Extras
from kvtroupe.coordinator.identity import PrefixDigests, digest_chain

for chain in ("sha256", "sha256_cbor"):
    for tokens in (8, 12, 40):
        for extras in (Extras(), Extras(cache_salt="s")):
            prompt = PrefixDigests(digest_chain(chain, 4, "test"), extras)
            prompt.append(range(tokens))
            print(prompt.digests.hex())
"""


def test_four_processes_make_the_same_digests() -> None:
    """The scenario: three prompts, with and without a salt, under four hash seeds; this process has a fifth."""
    here = [
        _digests(extras, chain, tokens=tokens).hex()
        for chain in CHAINS
        for tokens in (8, 12, 40)
        for extras in (Extras(), Extras(cache_salt="s"))
    ]

    assert _printed_by(DIGESTS) == [here] * 4
    assert len(set(here)) == 12


def test_what_one_process_has_stored_is_hit_by_another() -> None:
    """Neighbour: a restart. The host has the blocks of this process; another one asks for them by its own digests."""
    cluster = _cluster(device_blocks=9)
    digests = _digests(Extras(), tokens=12)
    cluster.admit(NewSequence("first", 12, digests))
    cluster.commit("first", 12)
    cluster.send(ReleaseEvent("first"))
    cluster.send(MoveRequest(1, digests, 1))
    assert len(below(cluster, 1)) == 3

    for printed in _printed_by(DIGESTS):
        assert cluster.replica.lookup(bytes.fromhex(printed[2]), 13).hit_tokens == 12


def test_there_is_no_chain_that_differs_from_process_to_process() -> None:
    """The scenario goes on: Python's own hash is no chain, and extras that a chain would ignore are refused."""
    for name in ("builtin", "hash", "", "sha256 "):
        with pytest.raises(ConfigError, match="no digest chain"):
            digest_chain(name, 4, "test")
    with pytest.raises(ConfigError, match="no place for token extra ids"):
        PrefixDigests(digest_chain("sha256_cbor", 4, "test"), Extras(token_extra_ids=TokenExtraIds.from_ids([1])))


DECISIONS = """
from kvtroupe import Admitted, Config, GroupConfig, NewSequence, PoolConfig, PrefixDigests, Replica, digest_chain

groups = (GroupConfig(name="full"), GroupConfig(name="window", kind="sliding", window_tokens=9))
pools = (PoolConfig(name="device", blocks=27, below="host"), PoolConfig(name="host", tier="host", blocks=30))
replica = Replica(Config(namespace="test", block_tokens=4, groups=groups, pools=pools, ranks=2, events=True))
chain = digest_chain("sha256", 4, "test")
for number in range(20):
    prompt = PrefixDigests(chain)
    prompt.append(range(number % 7, number % 7 + 13 + number % 3))
    name = f"sequence {number}"
    [result] = replica.admit([NewSequence(name, len(prompt.tokens), prompt.digests)])
    replica.pin(f"pin {number}", prompt.digests)
    if isinstance(result, Admitted):
        replica.commit(name, len(prompt.tokens))
        replica.release(name, fence=number)
    if number % 3:
        replica.steps_done(number)
    if number > 1:
        replica.unpin(f"pin {number - 2}")
    print(replica.free_order("device"), replica.free_order("host"))
print(replica.events_since((0, 0)))
print(replica.holders("device"), replica.counters())
"""


def test_four_processes_decide_the_same() -> None:
    """Neighbour: no decision follows the order of a set of texts: free orders, events and holders are the same."""
    printed = _printed_by(DECISIONS)

    assert printed == [printed[0]] * 4
    assert len(printed[0]) > 500
