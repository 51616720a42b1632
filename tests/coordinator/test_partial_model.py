"""Random prompts of few tokens: what is hit of them, within a block too, is what the slow model says."""

from __future__ import annotations

import random
from functools import partial
from typing import TYPE_CHECKING

from kvtroupe.coordinator import index_children
from kvtroupe.coordinator.check import check, quiescent
from kvtroupe.coordinator.config import Config, GroupConfig, PoolConfig
from kvtroupe.coordinator.contents import content_of
from kvtroupe.coordinator.extras import Extras, LoRA, MultimodalItem
from kvtroupe.coordinator.identity import PrefixDigests, digest_chain
from kvtroupe.coordinator.messages import Admitted, NewSequence
from kvtroupe.coordinator.reference_partial import KnownBlock, PartialGroup, PartialPrompt, hit_of
from kvtroupe.coordinator.replica import Replica

if TYPE_CHECKING:
    import pytest

    from kvtroupe.coordinator.identity import DigestChain
    from tests.conftest import Search

WIDTH = 32
STEPS = 80
EXTRAS = [
    Extras(),
    Extras(),
    Extras(),
    Extras(lora=LoRA("adapter")),
    Extras(multimodal=(MultimodalItem("image", 3, 2),)),
    Extras(cache_salt="salt"),
]


def make_config(chance: random.Random, *, has_host: bool) -> Config:
    """A replica of any mix of groups that may reuse parts of blocks; its pools are small."""
    block_tokens = chance.choice([4, 8, 16])
    kinds = [
        GroupConfig(name="full"),
        GroupConfig(
            name="sliding", kind="sliding", window_tokens=chance.choice([1, 2, block_tokens, 2 * block_tokens])
        ),
        GroupConfig(name="chunked", kind="chunked", chunk_tokens=chance.choice([3, block_tokens, 3 * block_tokens])),
    ]
    groups = chance.sample(kinds, chance.randint(1, 3))
    device: dict[str, object] = {"name": "device", "blocks": len(groups) * chance.randint(8, 30) + 1}
    pools = [device, {"name": "host", "tier": "host", "blocks": chance.randint(4, 60)}] if has_host else [device]
    if has_host:
        device["below"] = "host"
    return Config(
        namespace="model",
        block_tokens=block_tokens,
        groups=tuple(groups),
        pools=tuple(PoolConfig.model_validate(pool) for pool in pools),
        partial_reuse="copy",
    )


def first_token(group: GroupConfig, tokens: int) -> int:
    """The first token that a group still reads once so many are computed."""
    if group.window_tokens is not None:
        return max(0, tokens - group.window_tokens + 1)
    return 0 if group.chunk_tokens is None else tokens // group.chunk_tokens * group.chunk_tokens


class Comparison:
    """A replica, and all that its clients have told it."""

    def __init__(self, config: Config) -> None:
        self.config = config
        self.replica = Replica(config)
        self.chain: DigestChain = digest_chain("sha256", config.block_tokens, config.namespace)
        self.known: dict[bytes, KnownBlock] = {}
        self.running: dict[int, PrefixDigests] = {}
        self.told: dict[int, int] = {}
        self.earlier: list[list[int]] = [[]]
        self.last_id = 0

    def groups(self) -> list[PartialGroup]:
        """What is published now."""
        found = []
        for group in self.replica.groups:
            config = self.config.groups[group.number]
            device = {digest for digest, _, _ in group.index.entries()}
            below = {digest for digest, _, _ in group.index.entries_below(1)}
            found.append(
                PartialGroup(
                    partial(first_token, config),
                    device,
                    device | below,
                    list(self.known.values()),
                )
            )
        return found

    def tokens(self, chance: random.Random) -> list[int]:
        """Often those of another prompt up to some token; the others are 0, 1 or 2."""
        earlier = chance.choice(self.earlier)
        kept = earlier[: chance.randint(0, len(earlier))]
        longest = 4 * self.config.block_tokens
        tokens = [*kept, *[chance.choice([0, 0, 1, 2]) for _ in range(chance.randint(1, longest))]][:longest]
        self.earlier = [tokens, *self.earlier][:6]
        return tokens

    def admit(self, chance: random.Random) -> None:
        """Admit a prompt: its hit is what the model says, unless the copy would need the last free slots."""
        tokens = self.tokens(chance)
        prefix = PrefixDigests(self.chain, chance.choice(EXTRAS))
        prefix.append(tokens)
        digests = prefix.digests[: chance.choice([len(prefix.digests), WIDTH * (len(tokens) // 20)])]
        content = content_of(prefix, self.config.block_tokens)
        blocks = -(-len(tokens) // self.config.block_tokens)
        prompt = PartialPrompt(
            tuple(tokens),
            [digests[at : at + WIDTH] for at in range(0, len(digests), WIDTH)],
            list(content.extras or (b"",) * blocks),
        )
        whole, part = hit_of(prompt, self.groups(), self.config.block_tokens)
        self.last_id += 1
        (result,) = self.replica.admit([NewSequence(self.last_id, len(tokens), digests, content=content)])
        if not isinstance(result, Admitted):
            return
        if result.cached_tokens != whole * self.config.block_tokens + part:
            assert result.cached_tokens == whole * self.config.block_tokens
            assert self.replica.pool("device").ledger.free < len(self.config.groups)
        self.running[self.last_id] = prefix
        self.told[self.last_id] = len(digests) // WIDTH
        self._learn(prefix, self.told[self.last_id])

    def _learn(self, prefix: PrefixDigests, blocks: int) -> None:
        """Blocks that may be published from now on."""
        size = self.config.block_tokens
        extras = content_of(prefix, size).extras or (b"",) * (len(prefix.tokens) // size + 1)
        chain = [prefix.digests[at : at + WIDTH] for at in range(0, blocks * WIDTH, WIDTH)]
        for block, digest in enumerate(chain):
            tokens = tuple(prefix.tokens[block * size : (block + 1) * size].tolist())
            self.known[digest] = KnownBlock(digest, chain[block - 1] if block else None, tokens, extras[block])

    def compute(self, chance: random.Random) -> None:
        """Some tokens of a sequence more are computed."""
        number = chance.choice(list(self.running))
        sequence, prefix = self.replica.sequence(number), self.running[number]
        tokens = chance.randint(sequence.committed_tokens, sequence.capacity_tokens)
        known = len(prefix.tokens)
        if tokens > known:
            prefix.append([chance.choice([0, 1]) for _ in range(tokens - known)])
        complete = max(tokens // self.config.block_tokens, self.told[number])
        fresh = prefix.digests[self.told[number] * WIDTH : complete * WIDTH]
        content = content_of(prefix, self.config.block_tokens, known, tokens) if tokens > known else None
        self.told[number] = complete
        self._learn(prefix, complete)
        self.replica.commit(number, tokens, fresh, content=content)

    def end(self, chance: random.Random) -> None:
        """A sequence ends."""
        number = chance.choice(list(self.running))
        del self.running[number]
        self.replica.release(number)

    def step(self, chance: random.Random) -> None:
        """Anything."""
        what = chance.random()
        if what < 0.5 or not self.running:
            self.admit(chance)
        elif what < 0.7:
            self.compute(chance)
        else:
            self.end(chance)
        check(self.replica)


def compare(monkeypatch: pytest.MonkeyPatch, seed: int, *, has_host: bool = False) -> None:
    """Compare for a while, then let everything end."""
    hits_of(monkeypatch, seed, has_host=has_host)


def hits_of(monkeypatch: pytest.MonkeyPatch, seed: int, *, has_host: bool = False) -> int:
    """The same: how many hits have ended within a block."""
    chance = random.Random(seed)  # noqa: S311 - chooses test cases
    monkeypatch.setattr(index_children, "GONE_SLACK", chance.choice([0, 64]))
    one = Comparison(make_config(chance, has_host=has_host))
    for _ in range(STEPS):
        one.step(chance)
    while one.running:
        one.end(chance)
    assert quiescent(one.replica) or has_host
    return one.replica.counters().partial_hits


def test_what_is_hit_is_what_the_model_says(search: Search, monkeypatch: pytest.MonkeyPatch) -> None:
    """Over every mix of groups and every size of block, while blocks come and go."""
    search.each(partial(compare, monkeypatch))


def test_it_is_with_a_pool_below(search: Search, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is below makes paths longer, but only what is on the device is copied in part."""
    search.each(partial(compare, monkeypatch, has_host=True))


def test_the_search_meets_what_it_looks_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """Hits within blocks are no rare event in it."""
    assert sum(hits_of(monkeypatch, seed) for seed in range(10)) > 30
