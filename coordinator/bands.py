"""Which columns the tables of a sequence have, and how many slots they take.

A band is a set of groups of one pool whose tables have the same columns. The tables of a band are rows of one array, so
that what all its groups do with a block is one operation. Most replicas have one band in every pool.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Literal, NamedTuple, TypeAlias

import numpy as np

from kvtroupe.coordinator.attention import AttentionRule, CrossAttention, FixedBlocks, RecurrentState

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from kvtroupe.coordinator.config import Config

Span: TypeAlias = tuple[int, int]
Columns: TypeAlias = Literal["dense", "sparse", "state", "fixed", "cross"]


SPANS_KEPT = 4096  # lengths of hits; most are among those that have come before


class Shape(NamedTuple):
    """What decides how many slots a sequence takes.

    Attributes:
        prompt_tokens: of its prompt.
        encoder_tokens: of its encoder input.
        beams: rows of its tables in each group.
    """

    prompt_tokens: int
    encoder_tokens: int = 0
    beams: int = 1


@dataclass(frozen=True, slots=True)
class Band:
    """See the module.

    Attributes:
        pool: number of the pool.
        groups: their numbers.
        rule: of the first of them; the others have the same columns.
        columns: `dense`: a slot in every column; `sparse`: in those that the rule wants; both grow with the sequence.
            `state`: one column, the state that a sequence computes with. `fixed`: as many as the rule says. `cross`:
            those of the encoder input.
        scale: number of the block size among those of the layout; digests are told apart by it.
    """

    pool: int
    groups: tuple[int, ...]
    rule: AttentionRule
    columns: Columns
    scale: int

    @property
    def grows(self) -> bool:
        """Whether longer sequences have more columns."""
        return self.columns in ("dense", "sparse")

    def span(self, start_tokens: int, end_tokens: int, shape: Shape) -> tuple[int, int]:
        """The columns for the tokens from `start_tokens` on; of a band that does not grow, all of them or none."""
        if self.grows:
            return start_tokens // self.rule.block_tokens, end_tokens // self.rule.block_tokens
        if isinstance(self.rule, FixedBlocks):
            return 0, self.rule.blocks
        if isinstance(self.rule, CrossAttention):
            return 0, -(-shape.encoder_tokens // self.rule.block_tokens)
        return 0, 1

    def shared(self, start: int, end: int, shape: Shape) -> int:
        """How many of the columns from `start` to `end` are the same slots in every beam: those that the prompt fills.

        Snapshots and encoder blocks are always shared; a state and fixed blocks never are.
        """
        if self.columns in ("sparse", "cross") or shape.beams == 1:
            return end - start
        if self.columns == "dense":
            return min(max(shape.prompt_tokens // self.rule.block_tokens - start, 0), end - start)
        return 0

    def wanted(self, start: int, end: int, shape: Shape) -> NDArray[np.bool_] | None:
        """Which columns from `start` to `end` have a slot; None: all of them."""
        wanted = self.rule.wanted(start, end, shape.prompt_tokens) if self.columns == "sparse" else None
        if wanted is not None and shape.beams > 1:
            # Beyond the prompt every beam computes other tokens: no state there could be hit.
            wanted[max(0, shape.prompt_tokens // self.rule.block_tokens - start) :] = False
        return wanted

    def slots(self, start: int, end: int, shape: Shape) -> int:
        """How many slots the columns from `start` to `end` take in all groups and beams together."""
        if self.columns == "dense" and shape.beams == 1:
            return len(self.groups) * (end - start)
        wanted = self.wanted(start, end, shape)
        if wanted is not None:
            return len(self.groups) * int(np.count_nonzero(wanted))
        shared = self.shared(start, end, shape)
        return len(self.groups) * (shared + (end - start - shared) * shape.beams)

    def costs(self, start: int, end: int, shape: Shape) -> NDArray[np.int64]:
        """How many slots each column from `start` to `end` takes in one group, those of all beams together."""
        wanted = self.wanted(start, end, shape)
        if wanted is not None:
            return wanted.astype(np.int64)
        costs = np.full(end - start, shape.beams, np.int64)
        costs[: self.shared(start, end, shape)] = 1
        return costs


class Layout:
    """The bands of a replica, and what follows from its configuration for groups and block sizes.

    Args:
        config: of the replica.

    Attributes:
        unit_tokens: hits, capacities and growth are multiples of it.
        rules: of the groups.
        participating: numbers of the groups that decide how long hits are.
        indexed: numbers of the groups that have an index.
        scales: block sizes in tokens, each once; the digests of cross groups are a scale of their own, the last one.
        scale_of: for each group the number of its scale.
        strides: for each group its blocks in one unit; 0 where the group does not participate.
        bands: of all pools, pool by pool.
        bands_of: for each pool the numbers of its bands.
        growing_rows: for each pool the slots that one more unit takes in its dense bands, for each beam.
        is_plain: for each pool whether all its bands are dense.
        spans: for a hit of so many units, the first block that it reads of each group and the one after the last.
    """

    def __init__(self, config: Config) -> None:
        self.unit_tokens = config.unit_tokens
        self.rules = config.rules()
        self.participating = tuple([number for number, rule in enumerate(self.rules) if rule.participates])
        self.indexed = tuple([n for n, rule in enumerate(self.rules) if not isinstance(rule, FixedBlocks)])
        self.strides = tuple([rule.participates * self.unit_tokens // rule.block_tokens for rule in self.rules])
        sizes = sorted({self.rules[group].block_tokens for group in self.participating})
        self.has_cross = any(isinstance(rule, CrossAttention) for rule in self.rules)
        self.scales = tuple(sizes)
        self.scale_of = tuple([self._scale(rule) for rule in self.rules])
        bands: list[Band] = []
        self.bands_of: list[tuple[int, ...]] = []
        for number, pool in enumerate(config.pools):
            groups = [g for g, group in enumerate(config.groups) if group.pool == pool.name]
            first = len(bands)
            bands += self._bands(number, groups)
            self.bands_of.append(tuple(range(first, len(bands))))
        self.bands = tuple(bands)
        self.growing_rows = [
            sum([len(band.groups) * self.strides[band.groups[0]] for band in self._in_pool(pool, "dense")])
            for pool in range(len(config.pools))
        ]
        self.is_plain = [all(self.bands[number].columns == "dense" for number in numbers) for numbers in self.bands_of]
        self.spans = lru_cache(SPANS_KEPT)(self._spans)

    def _spans(self, units: int) -> tuple[Span, ...]:
        hit_tokens = units * self.unit_tokens
        return tuple(
            [
                (rule.first_block(hit_tokens), units * stride) if stride and units else (0, 0)
                for rule, stride in zip(self.rules, self.strides, strict=True)
            ]
        )

    def _scale(self, rule: AttentionRule) -> int:
        return self.scales.index(rule.block_tokens) if rule.participates else len(self.scales)

    def _in_pool(self, pool: int, columns: Columns) -> list[Band]:
        return [self.bands[number] for number in self.bands_of[pool] if self.bands[number].columns == columns]

    def _bands(self, pool: int, groups: list[int]) -> list[Band]:
        """Groups of one pool by what their columns are: dense ones first."""
        order: list[Columns] = ["dense", "sparse", "cross", "state", "fixed"]
        by_columns: dict[tuple[int, int, int], list[int]] = {}
        for group in groups:
            rule = self.rules[group]
            if isinstance(rule, RecurrentState):
                by_columns.setdefault((order.index("sparse"), rule.snapshot_tokens or 0, 0), []).append(group)
                by_columns.setdefault((order.index("state"), 0, 0), []).append(group)
            elif isinstance(rule, FixedBlocks):
                by_columns.setdefault((order.index("fixed"), rule.blocks, 0), []).append(group)
            else:
                kind: Columns = "dense" if rule.participates else "cross"
                by_columns.setdefault((order.index(kind), rule.block_tokens, 0), []).append(group)
        return [
            Band(pool, tuple(members), self.rules[members[0]], order[key[0]], self.scale_of[members[0]])
            for key, members in sorted(by_columns.items())
        ]

    def slots_at_admission(self, pool: int, hit_tokens: int, end_tokens: int, shape: Shape, *, cross_hit: bool) -> int:
        """How many slots of a pool a new sequence takes beyond what it hits.

        Args:
            pool: number of the pool.
            hit_tokens: agreed length.
            end_tokens: its capacity.
            shape: of the sequence.
            cross_hit: whether its encoder blocks are hit.
        """
        if self.is_plain[pool] and shape.beams == 1:
            return (end_tokens - hit_tokens) // self.unit_tokens * self.growing_rows[pool]
        slots = 0
        for number in self.bands_of[pool]:
            band = self.bands[number]
            if not (cross_hit and band.columns == "cross"):
                slots += band.slots(*band.span(hit_tokens, end_tokens, shape), shape)
        return slots

    def slots_to_grow(self, pool: int, capacity_tokens: int, units: int, shape: Shape) -> int:
        """How many slots of a pool a running sequence takes for `units` more."""
        if self.is_plain[pool]:
            return units * self.growing_rows[pool] * shape.beams
        end_tokens = capacity_tokens + units * self.unit_tokens
        growing = [self.bands[number] for number in self.bands_of[pool] if self.bands[number].grows]
        return sum([band.slots(*band.span(capacity_tokens, end_tokens, shape), shape) for band in growing])
