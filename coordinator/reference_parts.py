"""What the slow, obvious model of a replica is made of: pools, window groups, sequences. See `reference.py`."""

from __future__ import annotations

from collections import Counter, OrderedDict
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

from kvtroupe.coordinator.errors import DigestError, TokenError
from kvtroupe.coordinator.retention import DEFAULT_PRIORITY

if TYPE_CHECKING:
    from collections.abc import Iterable

    from kvtroupe.coordinator.config import Config
    from kvtroupe.coordinator.messages import NewSequence

Tables: TypeAlias = list[list[int]]  # for each group the slots of the first blocks of a chain; 0: not held
Place: TypeAlias = tuple[int, int]  # the number of a pool, and a slot in it


@dataclass
class Ask:
    """A sequence to admit, what it hits, and the blocks that it needs beyond that in every group."""

    new: NewSequence
    hit: Tables
    new_blocks: int


class ReferenceSequence:
    """A running sequence, and the answer to its admission."""

    def __init__(self, ask: Ask, block_tokens: int) -> None:
        self.sequence_id = ask.new.sequence_id
        self.tokens = self.prompt_tokens = ask.new.tokens
        self.cached_tokens = self.committed_tokens = self.capacity_tokens = len(ask.hit[0]) * block_tokens
        self.digests = ask.new.digests
        self.offered_blocks = len(ask.hit[0])  # hit, or offered to the indexes already
        self.retention = ask.new.retention
        self.tables = ask.hit


def retention_of(sequence: ReferenceSequence, token: int) -> tuple[int, float | None]:
    """Priority and duration of the block that begins with a token."""
    retention = sequence.retention
    if token >= sequence.prompt_tokens and retention.decode_priority is not None:
        return retention.decode_priority, retention.decode_duration_s
    for one in retention.ranges:
        if one.start_tokens <= token < min(one.end_tokens or sequence.prompt_tokens, sequence.prompt_tokens):
            return one.priority, one.duration_s
    return retention.priority, retention.duration_s


@dataclass
class PublishedBlock:
    """What is published in a slot."""

    group: int
    digest: bytes
    priority: int
    expires_s: float
    publication: int  # counts all blocks ever published


class ReferenceGroup:
    """What is published in one window group, and what its layers read of a chain of blocks."""

    def __init__(self, pool: int, window_tokens: int | None, block_tokens: int) -> None:
        self.pool = pool
        self.window_tokens = window_tokens
        self.block_tokens = block_tokens
        self.slot_of: dict[bytes, int] = {}

    def first_block(self, tokens: int) -> int:
        """The first block that is still read once `tokens` are computed: the next token sees a window before it."""
        if self.window_tokens is None:
            return 0
        return max(0, tokens - (self.window_tokens - 1)) // self.block_tokens

    def lengths(self, chain: list[bytes]) -> set[int]:
        """After how many blocks of a chain the group can go on: those where all that it then reads is published."""
        lengths, stretch = {0}, 0
        for length, digest in enumerate(chain, 1):
            stretch = stretch + 1 if digest in self.slot_of else 0
            if stretch >= length - self.first_block(length * self.block_tokens):
                lengths.add(length)
        return lengths

    def table(self, chain: list[bytes]) -> list[int]:
        """The slots of what is read after all blocks of a chain, 0 for blocks that are not."""
        first = self.first_block(len(chain) * self.block_tokens)
        return [0] * first + [self.slot_of[digest] for digest in chain[first:]]


class ReferencePool:
    """Slots of one pool: the free ones in the order in which they are taken, and the uses of the others.

    Args:
        blocks: slots, the null block included.
    """

    def __init__(self, blocks: int) -> None:
        self.front = list(range(blocks - 1, 0, -1))  # not published; the last one is taken first
        self.back: dict[int, OrderedDict[int, None]] = {}  # published: priority -> slots, the first is taken first
        self.uses: Counter[int] = Counter()  # how many holders a slot has
        self.generation = [0] * blocks
        self.next_generation = 1
        self.published: dict[int, PublishedBlock] = {}

    def free_order(self) -> list[int]:
        """Free slots, the next one to be taken first."""
        return self.front[::-1] + [slot for priority in sorted(self.back) for slot in self.back[priority]]

    def free(self) -> int:
        """How many slots are free."""
        return len(self.front) + sum(map(len, self.back.values()))

    def free_once_claimed(self, slots: Iterable[int]) -> int:
        """How many slots would still be free if these had a holder."""
        return self.free() - len({slot for slot in slots if not self.uses[slot]})

    def claim(self, slot: int) -> None:
        """Give a published slot one more holder; a free one leaves the free order."""
        if not self.uses[slot]:
            del self.back[self.published[slot].priority][slot]
        self.uses[slot] += 1

    def take(self) -> tuple[int, PublishedBlock | None]:
        """Give the next free slot its first holder: the slot, and what was published in it until now."""
        if self.front:
            slot = self.front.pop()
        else:
            queue = self.back[min(priority for priority, queue in self.back.items() if queue)]
            slot, _ = queue.popitem(last=False)
        self.uses[slot] = 1
        self.generation[slot] = self.next_generation
        return slot, self.published.pop(slot, None)

    def end_take(self) -> None:
        """What is taken from here on gets another generation."""
        self.next_generation += 1

    def give_back(self, slot: int) -> None:
        """Take one holder away; without any, the slot is free."""
        self.uses[slot] -= 1
        if self.uses[slot]:
            return
        if slot in self.published:
            self.back.setdefault(self.published[slot].priority, OrderedDict())[slot] = None
        else:
            self.front.append(slot)

    def expire(self, now_s: float) -> None:
        """Let priorities whose time has passed fall back to the default, in the order of their times."""
        passed = [(slot, block) for slot, block in self.published.items() if block.expires_s <= now_s]
        for slot, block in sorted(passed, key=lambda pair: (pair[1].expires_s, pair[1].publication)):
            if not self.uses[slot]:
                del self.back[block.priority][slot]
                self.back.setdefault(DEFAULT_PRIORITY, OrderedDict())[slot] = None
            block.priority, block.expires_s = DEFAULT_PRIORITY, float("inf")


def digest_count(config: Config, digests: bytes) -> int:
    """How many digests these are."""
    count, rest = divmod(len(digests), config.digest_bytes)
    if rest:
        raise DigestError(f"{len(digests)} bytes are no digests of {config.digest_bytes}")
    return count


def chain_of(config: Config, digests: bytes) -> list[bytes]:
    """The digests of blocks: that of a block is the one of the last hash block in it."""
    width, step = config.digest_bytes, config.digest_bytes * config.digests_per_block
    return [digests[end - width : end] for end in range(step, len(digests) + 1, step)]


def blocks_of(config: Config, new: NewSequence) -> int:
    """How many blocks a sequence gets in every group."""
    return -(-new.tokens // config.block_tokens) + new.spare_blocks


def check_new(config: Config, new: NewSequence) -> None:
    """Refuse a sequence that makes no sense."""
    if new.tokens < 1 or new.spare_blocks < 0:
        raise TokenError(f"{new.tokens} tokens and {new.spare_blocks} spare blocks")
    if digest_count(config, new.digests) > new.tokens // config.tokens_per_digest:
        raise DigestError(f"{new.tokens} tokens have fewer digests")


def can_ever_fit(config: Config, groups: list[ReferenceGroup], new: NewSequence) -> bool:
    """Whether empty pools have room for a sequence, less the blocks that the longest possible hit leaves behind."""
    digest_tokens = digest_count(config, new.digests) * config.tokens_per_digest
    hit_tokens = min(new.tokens - 1, digest_tokens) // config.block_tokens * config.block_tokens
    room = [pool.blocks - 1 - pool.reserved_blocks for pool in config.pools]
    for group in groups:
        room[group.pool] -= blocks_of(config, new) - group.first_block(hit_tokens)
    return min(room) >= 0 and blocks_of(config, new) * config.block_tokens <= config.limits.sequence_tokens_max


def places_of(groups: list[ReferenceGroup], tables: Tables) -> list[Place]:
    """All that tables hold."""
    return [(group.pool, slot) for group, table in zip(groups, tables, strict=True) for slot in table if slot]


def last_first(groups: list[ReferenceGroup], tables: Tables) -> list[Place]:
    """All that tables hold, in the order of giving back: last block first, and the groups of a block side by side."""
    rows = list(zip(groups, tables, strict=True))
    blocks = range(len(tables[0]))
    return [(group.pool, table[block]) for block in reversed(blocks) for group, table in rows if table[block]]


def slots_in(pool: int, places: list[Place]) -> list[int]:
    """Those of some places that are in one pool."""
    return [slot for its_pool, slot in places if its_pool == pool]
