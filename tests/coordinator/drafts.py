"""What the state machine of a replica draws: configurations, prompts that share beginnings, commits."""

from __future__ import annotations

from dataclasses import dataclass

from hypothesis import strategies as st

from kvtroupe.coordinator.config import Config, GroupConfig, Limits, PoolConfig
from kvtroupe.coordinator.retention import DEFAULT_RETENTION, Retention, RetentionRange
from tests.coordinator.support import DIGEST_BYTES


@st.composite
def configs(draw: st.DrawFn) -> Config:
    """Small pools, all mixes of groups, shared and separate pools, hash blocks as large as blocks and smaller."""
    tokens_per_digest, digests_per_block = draw(
        st.sampled_from([(1, 1), (2, 1), (4, 1), (8, 1), (1, 4), (2, 2), (3, 2)])
    )
    block_tokens = tokens_per_digest * digests_per_block
    kinds = draw(st.sampled_from(["f", "s", "fs", "sf", "fss", "ss", "ff"]))
    pool_names = draw(st.sampled_from(["aaa", "abc", "aba"]))[: len(kinds)]
    # A window of one token, of less than a block, of whole blocks, of one token more.
    windows = st.builds(
        lambda blocks, more: max(1, blocks * block_tokens + more), st.integers(0, 4), st.sampled_from([-1, 0, 1, 2])
    )
    groups = [
        GroupConfig(name=str(number), kind="full", pool=pool)
        if kind == "f"
        else GroupConfig(name=str(number), kind="sliding", window_tokens=draw(windows), pool=pool)
        for number, (kind, pool) in enumerate(zip(kinds, pool_names, strict=True))
    ]
    sizes, reserves = st.sampled_from([6, 7, 8, 10, 13, 18, 25, 40, 60]), st.sampled_from([0, 0, 1, 3])
    pools = [
        PoolConfig(name=name, blocks=draw(sizes), reserved_blocks=draw(reserves)) for name in dict.fromkeys(pool_names)
    ]
    limits = Limits(
        sequence_tokens_max=draw(st.sampled_from([2**24, 2**24, 10 * block_tokens])),
        sequences_max=draw(st.sampled_from([65_536, 65_536, 5])),
        pins_max=draw(st.sampled_from([65_536, 2])),
        round_blocks_max=draw(st.sampled_from([8192, 8192, 24, 1])),
    )
    return Config(
        namespace="test",
        block_tokens=block_tokens,
        hash_block_tokens=tokens_per_digest,
        digest_bytes=DIGEST_BYTES,
        groups=tuple(groups),
        pools=tuple(pools),
        events=draw(st.booleans()),
        limits=limits,
    )


@dataclass(frozen=True)
class Oddity:
    """What few prompts have."""

    too_long: bool = False  # for most pools
    untold_digests: int = 0
    spare_blocks: int = 0
    retention: Retention = DEFAULT_RETENTION


USUAL = Oddity()
RETENTIONS = [(80, None), (80, 2.0), (10, None), (10, 2.0), (0, 1.0), (35, 3.0)]
RANGES = [
    Retention(ranges=(RetentionRange(0, 5, 80), RetentionRange(8, None, 10, 2.0))),
    Retention(60, 3.0, (RetentionRange(4, 8, 60, 1.0),), decode_priority=5),
    Retention(decode_priority=90, decode_duration_s=1.0),
]
ODDITIES = [
    *[Oddity(retention=Retention(priority, duration_s)) for priority, duration_s in RETENTIONS],
    *[Oddity(retention=retention) for retention in RANGES],
    *[Oddity(spare_blocks=blocks) for blocks in (1, 2, 5)],
    *[Oddity(untold_digests=count) for count in (1, 5)],
    Oddity(too_long=True),
]


@dataclass(frozen=True)
class Draft:
    """A prompt to be: the beginning of an earlier one, then one word again and again."""

    earlier: int = 0
    kept: int = 0
    word: int = 0
    times: int = 0
    loose_tokens: int = 0
    oddity: Oddity = USUAL


DRAFTS = st.builds(
    Draft,
    earlier=st.integers(0, 7),
    kept=st.integers(0, 60),
    word=st.integers(0, 7),
    times=st.integers(0, 9),
    loose_tokens=st.integers(0, 7),
    oddity=st.sampled_from([USUAL] * len(ODDITIES) + ODDITIES),
)


@dataclass(frozen=True)
class Progress:
    """How far a commit goes, and which words a sequence has put out by then."""

    all_of_it: bool
    blocks: int = 0
    loose_tokens: int = 0
    withheld: int = 0
    word: int = 0


PROGRESS = st.builds(
    Progress,
    all_of_it=st.booleans(),
    blocks=st.sampled_from([0, 1, 2, 3]),
    loose_tokens=st.integers(0, 7),
    withheld=st.sampled_from([0, 0, 0, 1, 3]),
    word=st.integers(0, 1),
)
PICKS = st.integers(0, 30)
FENCES = st.sampled_from([None, None, None, 0, 1, 2, 5])  # steps after the last one done
