"""Window groups in the slow, obvious model of a replica: what each kind reads, keeps and shares. See `reference.py`."""

from __future__ import annotations

from math import gcd
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from kvtroupe.coordinator.config import Config, GroupConfig
    from kvtroupe.coordinator.messages import NewSequence

Rows: TypeAlias = list[list[int]]  # the slots of a table, for each beam; 0: none
Place: TypeAlias = tuple[int, int]  # the number of a pool, and a slot in it
Stretch: TypeAlias = "tuple[int, int | None, Sequence[int]]"  # the number of a part, a beam (None: all), and columns

GROWING = ("full", "sliding", "chunked", "recurrent")
ORDER = {"full": 0, "sliding": 0, "chunked": 0, "recurrent": 1, "cross": 2, "state": 3, "fixed": 4}


class ReferenceGroup:
    """A part of what a sequence holds: its table in one group, or the states that it computes with in one.

    Args:
        group: number of the group.
        pool: number of its pool.
        kind: of the group, or `state`.
        config: of the group.
        block_tokens: tokens of one of its blocks.
    """

    def __init__(self, group: int, pool: int, kind: str, config: GroupConfig, block_tokens: int) -> None:
        self.group = group
        self.pool = pool
        self.kind = kind
        self.config = config
        self.block_tokens = block_tokens
        self.takes_part = self.grows = kind in GROWING
        size = {"recurrent": config.snapshot_tokens or 0, "state": 0, "fixed": config.blocks or 0}
        self.band = ORDER[kind], size.get(kind, block_tokens)  # parts of one band are treated block by block
        self.slot_of: dict[bytes, int] = {}  # what is published

    # -- what is read --------------------------------------------------------------------------------------------------

    def first_token(self, tokens: int) -> int:
        """The first token that the one after `tokens` computed ones looks at."""
        if self.config.window_tokens is not None:
            return max(0, tokens - (self.config.window_tokens - 1))
        if self.config.chunk_tokens is not None:
            return tokens - tokens % self.config.chunk_tokens
        if self.kind == "recurrent":
            return max(0, tokens - 1)  # all before it is in the state after it
        return 0

    def first_block(self, tokens: int) -> int:
        """The first block that is still read once `tokens` are computed."""
        return self.first_token(tokens) // self.block_tokens

    def lengths(self, chain: list[bytes]) -> set[int]:
        """After how many blocks of a chain the group can go on: those where all that it then reads is published."""
        lengths, stretch = {0}, 0
        for length, digest in enumerate(chain, 1):
            stretch = stretch + 1 if digest in self.slot_of else 0
            if stretch >= length - self.first_block(length * self.block_tokens):
                lengths.add(length)
        return lengths

    def row(self, chain: list[bytes]) -> list[int]:
        """The slots of what is read after all blocks of a chain, 0 for blocks that are not."""
        first = self.first_block(len(chain) * self.block_tokens)
        return [0] * first + [self.slot_of[digest] for digest in chain[first:]]

    # -- what is held --------------------------------------------------------------------------------------------------

    def width(self, capacity_tokens: int, new: NewSequence) -> int:
        """How many columns the table of a sequence has."""
        if self.grows:
            return capacity_tokens // self.block_tokens
        if self.kind == "cross":
            return -(-new.encoder_tokens // self.block_tokens)
        return self.config.blocks or 1  # one state

    def keeps(self, column: int, new: NewSequence) -> bool:
        """Whether a column of a recurrent group gets a slot; of the others, all do."""
        end = (column + 1) * self.block_tokens
        if new.beams > 1 and end > new.tokens:
            return False  # every beam goes on with other tokens: nobody can hit their states
        every_tokens = self.config.snapshot_tokens
        is_last_of_prompt = end <= new.tokens - 1 < end + self.block_tokens
        return is_last_of_prompt or (every_tokens is not None and end % every_tokens == 0)

    def shares(self, column: int, new: NewSequence) -> bool:
        """Whether all of several beams have the same slot in a column."""
        if self.kind in ("recurrent", "cross"):
            return True
        return self.takes_part and (column + 1) * self.block_tokens <= new.tokens


def groups_of(config: Config) -> list[ReferenceGroup]:
    """All parts: the tables of the groups, in their order; after them the states of the recurrent ones."""
    pools = [pool.name for pool in config.pools]
    kinds: list[tuple[int, str]] = [(number, group.kind) for number, group in enumerate(config.groups)]
    kinds += [(number, "state") for number, kind in kinds if kind == "recurrent"]
    return [
        ReferenceGroup(number, pools.index(group.pool), kind, group, config.group_block_tokens(number))
        for number, kind in kinds
        for group in [config.groups[number]]
    ]


def stretches_to_fill(
    parts: Sequence[ReferenceGroup], starts: Sequence[int], capacity_tokens: int, new: NewSequence
) -> list[Stretch]:
    """The columns that get slots, in the order in which they do: by band, what beams share first, group by group.

    Args:
        parts: of the replica.
        starts: for each part the first column that is not there yet.
        capacity_tokens: that the tables are to have room for.
        new: whose tables.
    """
    stretches: list[Stretch] = []
    for band in sorted({part.band for part in parts}):
        shared: list[Stretch] = []
        private: list[Stretch] = []
        for number, part in enumerate(parts):
            if part.band == band:
                columns: Sequence[int] = range(starts[number], part.width(capacity_tokens, new))
                if part.kind == "recurrent":
                    columns = [column for column in columns if part.keeps(column, new)]
                if new.beams == 1:
                    shared.append((number, None, columns))
                else:
                    shared.append((number, None, [column for column in columns if part.shares(column, new)]))
                    own = [column for column in columns if not part.shares(column, new)]
                    private += [(number, beam, own) for beam in range(new.beams)]
        stretches += shared + private
    return stretches


def last_first(parts: Sequence[ReferenceGroup], tables: Sequence[Rows]) -> list[Place]:
    """All that tables hold, in the order of giving back.

    What nobody else ever reads comes first, then the blocks of the sequence, those of the last tokens first and the
    groups of a block side by side, then those of its encoder input, the last one first.
    """
    private = sorted({part.band for part in parts if part.kind in ("state", "fixed")})
    batches = [[number for number, part in enumerate(parts) if part.band == band] for band in private]
    batches.append(_by_band(parts, [number for number, part in enumerate(parts) if part.grows]))
    batches.append([number for number, part in enumerate(parts) if part.kind == "cross"])
    return [place for batch in batches for place in side_by_side(parts, batch, tables)]


def _by_band(parts: Sequence[ReferenceGroup], numbers: list[int]) -> list[int]:
    return sorted(numbers, key=lambda number: parts[number].band)


def side_by_side(parts: Sequence[ReferenceGroup], numbers: Iterable[int], tables: Sequence[Rows]) -> list[Place]:
    """What tables of some parts hold, by the ends of the blocks, the last one first; what beams share is there once."""
    rows = [
        (parts[number].pool, parts[number].block_tokens, row) for number in numbers for row in each_once(tables[number])
    ]
    step = gcd(*[size for _, size, _ in rows]) or 1
    return [
        (pool, row[end // size - 1])
        for end in range(max([size * len(row) for _, size, row in rows], default=0), 0, -step)
        for pool, size, row in rows
        if not end % size and end <= size * len(row) and row[end // size - 1]
    ]


def each_once(rows: Rows) -> Rows:
    """The rows of the beams, less the slots that they share with the first one."""
    shared_less = [
        [0 if slot == its_first else slot for slot, its_first in zip(row, rows[0], strict=True)] for row in rows[1:]
    ]
    return [rows[0], *shared_less]
