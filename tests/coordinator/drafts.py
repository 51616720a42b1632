"""What the state machine of a replica draws: configurations, prompts that share beginnings, commits."""

from __future__ import annotations

from dataclasses import dataclass
from math import lcm

from hypothesis import strategies as st

from kvtroupe.coordinator.config import Config, GroupConfig, Limits, PoolConfig
from kvtroupe.coordinator.retention import DEFAULT_RETENTION, Retention, RetentionRange
from tests.coordinator.support import DIGEST_BYTES

GROWING = ("full", "sliding", "chunked", "recurrent")


# By letters: full, sliding, chunked, recurrent, x for cross, n for so many blocks (fixed).
KINDS = {"f": "full", "s": "sliding", "c": "chunked", "r": "recurrent", "x": "cross", "n": "fixed"}
PLAIN = ["f", "s", "fs", "sf", "fss", "ss", "ff"]
MIXED = [
    "c",
    "r",
    "fc",
    "cs",
    "fr",
    "rf",
    "sr",
    "cr",
    "rr",
    "fx",
    "xf",
    "fn",
    "rxn",
    "fsc",
    "frs",
    "fxx",
    "xfx",
    "xnr",
    "fscrxn",
]


@st.composite
def configs(draw: st.DrawFn) -> Config:
    """Small pools, all mixes of groups, shared and separate pools, hash blocks as large as blocks and smaller."""
    tokens_per_digest, digests_per_block = draw(
        st.sampled_from([(1, 1), (2, 1), (4, 1), (8, 1), (1, 4), (2, 2), (3, 2)])
    )
    block_tokens = tokens_per_digest * digests_per_block
    kinds = draw(st.sampled_from(PLAIN + MIXED))
    sizes = draw(
        st.lists(st.sampled_from([1, 2, 4]), min_size=6, max_size=6) if draw(st.booleans()) else st.just([0] * 6)
    )
    own_sizes = [tokens_per_digest * size or None for size in sizes]
    own_sizes[: len(kinds)] = [None if kind in "rn" else size for kind, size in zip(kinds, own_sizes, strict=False)]
    encoder_size = draw(st.sampled_from([None, tokens_per_digest]))
    unit_tokens = lcm(*[own or block_tokens for kind, own in zip(kinds, own_sizes, strict=False) if kind in "fsc"])
    if set(kinds) <= set("rxn"):
        unit_tokens = block_tokens
    pool_names = (draw(st.sampled_from(["aaa", "abc", "aba"])) * 2)[: len(kinds)]
    groups = []
    for number, (kind, own, pool) in enumerate(zip(kinds, own_sizes, pool_names, strict=False)):
        values: dict[str, object] = {"name": str(number), "kind": KINDS[kind], "pool": pool}
        values["block_tokens"] = encoder_size if kind == "x" else own or None
        values |= draw(_sizes(kind, unit_tokens if kind == "r" else own or block_tokens))
        groups.append(GroupConfig.model_validate(values))
    pools = [_pool(draw, name, [group for group in groups if group.pool == name]) for name in dict.fromkeys(pool_names)]
    limits = Limits(
        sequence_tokens_max=draw(st.sampled_from([2**24, 2**24, 10 * unit_tokens])),
        sequences_max=draw(st.sampled_from([65_536, 65_536, 5])),
        pins_max=draw(st.sampled_from([65_536, 2])),
        round_blocks_max=draw(st.sampled_from([8192, 8192, 24, 1])),
        beams_max=draw(st.sampled_from([64, 2])),
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


@st.composite
def _sizes(draw: st.DrawFn, letter: str, block_tokens: int) -> dict[str, int | None]:
    """What a group of a kind has besides its blocks."""
    if letter in "sc":
        # A window or a chunk of one token, of less than a block, of whole blocks, of one token more.
        tokens = max(1, draw(st.integers(0, 4)) * block_tokens + draw(st.sampled_from([-1, 0, 1, 2])))
        return {"window_tokens" if letter == "s" else "chunk_tokens": tokens}
    if letter == "r":
        return {"snapshot_tokens": draw(st.sampled_from([None, block_tokens, 2 * block_tokens, 3 * block_tokens]))}
    return {"blocks": draw(st.integers(1, 3))} if letter == "n" else {}


def _pool(draw: st.DrawFn, name: str, groups: list[GroupConfig]) -> PoolConfig:
    """A pool with room for something besides what every sequence takes."""
    always = sum(group.blocks or group.kind == "recurrent" for group in groups)
    blocks = draw(st.sampled_from([6, 7, 8, 10, 13, 18, 25, 40, 60])) + always
    return PoolConfig(name=name, blocks=blocks, reserved_blocks=draw(st.sampled_from([0, 0, 1, 3])))


def slots_of_unit(config: Config, pool: str) -> int:
    """About how many slots of a pool one unit of a sequence takes."""
    numbers = [number for number, group in enumerate(config.groups) if group.pool == pool and group.kind in GROWING]
    return max(1, sum(config.unit_tokens // config.group_block_tokens(number) for number in numbers))


@dataclass(frozen=True)
class Oddity:
    """What few prompts have."""

    too_long: bool = False  # for most pools
    untold_digests: int = 0
    spare_blocks: int = 0
    retention: Retention = DEFAULT_RETENTION
    beams: int = 1


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
    *[Oddity(beams=beams) for beams in (2, 2, 3)],
    *[Oddity(beams=2, spare_blocks=2), Oddity(beams=2, untold_digests=1)],
]


@dataclass(frozen=True)
class Encoder:
    """Encoder input to be; those of one subject begin alike."""

    subject: int = 0
    blocks: int = 0
    loose_tokens: int = 0
    is_shared: bool = True


NO_ENCODER = Encoder()


@dataclass(frozen=True)
class Draft:
    """A prompt to be: the beginning of an earlier one, then one word again and again."""

    earlier: int = 0
    kept: int = 0
    word: int = 0
    times: int = 0
    loose_tokens: int = 0
    oddity: Oddity = USUAL
    encoder: Encoder = NO_ENCODER


DRAFTS = st.builds(
    Draft,
    earlier=st.integers(0, 7),
    kept=st.integers(0, 60),
    word=st.integers(0, 7),
    times=st.integers(0, 9),
    loose_tokens=st.integers(0, 7),
    oddity=st.sampled_from([USUAL] * len(ODDITIES) + ODDITIES),
    encoder=st.builds(
        Encoder,
        subject=st.integers(0, 1),
        blocks=st.sampled_from([0, 1, 2, 2, 4]),
        loose_tokens=st.integers(0, 7),
        is_shared=st.sampled_from([True, True, True, False]),
    ),
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
