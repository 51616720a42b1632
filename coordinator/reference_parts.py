"""What the slow, obvious model of a replica is made of: pools and sequences. See `reference.py`."""

from __future__ import annotations

from collections import Counter, OrderedDict
from dataclasses import dataclass
from typing import TYPE_CHECKING

from kvtroupe.coordinator.errors import DigestError, RequestError, TokenError
from kvtroupe.coordinator.reference_groups import stretches_to_fill
from kvtroupe.coordinator.retention import DEFAULT_PRIORITY

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from kvtroupe.coordinator.config import Config
    from kvtroupe.coordinator.messages import NewSequence
    from kvtroupe.coordinator.reference_groups import Place, ReferenceGroup, Rows, Stretch


@dataclass
class Hit:
    """What a chain hits.

    Attributes:
        tokens: agreed length.
        junction_tokens: how much more the first group that takes part could serve.
        rows: for each part the slots that are read, with 0 for columns that are not.
        encoder_cached: whether the encoder input is hit.
    """

    tokens: int
    junction_tokens: int
    rows: Rows
    encoder_cached: bool = False


@dataclass
class Ask:
    """A sequence to admit, what it hits, and the columns of its tables that need slots beyond that."""

    new: NewSequence
    hit: Hit
    capacity_tokens: int
    stretches: list[Stretch]


class ReferenceSequence:
    """A running sequence, and the answer to its admission.

    Its tables grow from what it hits: `parts` says which they are, in which order.
    """

    def __init__(self, ask: Ask, parts: Sequence[ReferenceGroup], groups: int) -> None:
        hit = ask.hit
        self.new = ask.new
        self.sequence_id = ask.new.sequence_id
        self.tokens = self.prompt_tokens = ask.new.tokens
        self.cached_tokens = self.committed_tokens = hit.tokens
        self.junction_tokens, self.encoder_cached = hit.junction_tokens, hit.encoder_cached
        self.copies_states = hit.tokens > 0 and any(part.kind == "state" for part in parts)
        self.capacity_tokens = ask.capacity_tokens
        self.digests = ask.new.digests
        self.offered_blocks = [len(row) for row in hit.rows]  # of each part, hit or offered to the indexes already
        self.left_blocks = [0 for _ in parts]  # of each part, columns that the window has left behind
        self.retention = ask.new.retention
        self.rows = [[list(row) for _ in range(ask.new.beams)] for row in hit.rows]
        self._parts, self._groups = parts, groups

    @property
    def tables(self) -> list[list[int] | Rows]:
        """The table of each group: a list of slots, or one for each beam."""
        return [rows[0] if self.new.beams == 1 else rows for rows in self.rows[: self._groups]]

    @property
    def states(self) -> list[list[int]]:
        """For each group the slots of its states, one for each beam; none but for recurrent ones."""
        states: list[list[int]] = [[] for _ in range(self._groups)]
        for part, rows in zip(self._parts[self._groups :], self.rows[self._groups :], strict=True):
            states[part.group] = [row[0] for row in rows]
        return states


def retention_of(sequence: ReferenceSequence, part: ReferenceGroup, block: int) -> tuple[int, float | None]:
    """Priority and duration of a block: those of its first token, if it is one of the prompt or of the answer to it."""
    retention, token = sequence.retention, block * part.block_tokens
    if part.kind == "cross":
        return retention.priority, retention.duration_s
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
        self.has_taken = False
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
        self.has_taken = True
        return slot, self.published.pop(slot, None)

    def end_take(self) -> None:
        """What is taken from here on gets another generation, if anything was taken since the last time."""
        self.next_generation += self.has_taken
        self.has_taken = False

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


def chain_of(config: Config, digests: bytes, block_tokens: int) -> list[bytes]:
    """The digests of blocks: that of a block is the one of the last hash block in it."""
    width, step = config.digest_bytes, config.digest_bytes * block_tokens // config.tokens_per_digest
    return [digests[end - width : end] for end in range(step, len(digests) + 1, step)]


def split(config: Config, digests: bytes) -> list[bytes]:
    """Digests one by one."""
    width = config.digest_bytes
    return [digests[at : at + width] for at in range(0, len(digests), width)]


def units_of(config: Config, new: NewSequence) -> int:
    """How many units a sequence gets."""
    return -(-new.tokens // config.unit_tokens) + new.spare_blocks


def check_new(config: Config, new: NewSequence) -> None:
    """Refuse a sequence that makes no sense."""
    if new.tokens < 1 or new.spare_blocks < 0:
        raise TokenError(f"{new.tokens} tokens and {new.spare_blocks} spare blocks")
    if not 1 <= new.beams <= config.limits.beams_max:
        raise RequestError(f"{new.beams} beams")
    if digest_count(config, new.digests) > new.tokens // config.tokens_per_digest:
        raise DigestError(f"{new.tokens} tokens have fewer digests")
    sizes = {config.group_block_tokens(n) for n, group in enumerate(config.groups) if group.kind == "cross"}
    if not sizes and (new.encoder_tokens or new.encoder_digests):
        raise RequestError("encoder input that no group holds")
    if new.encoder_tokens < 0:
        raise TokenError(f"{new.encoder_tokens} tokens of encoder input")
    for block_tokens in sizes:
        blocks = -(-new.encoder_tokens // block_tokens)
        if digest_count(config, new.encoder_digests) not in (0, blocks):
            raise DigestError(f"{blocks} blocks of encoder input have other digests")


def can_ever_fit(config: Config, parts: Sequence[ReferenceGroup], new: NewSequence) -> bool:
    """Whether empty pools have room for a sequence, less what some hit that is possible leaves behind."""
    unit_tokens = config.unit_tokens
    capacity_tokens = units_of(config, new) * unit_tokens
    if capacity_tokens > config.limits.sequence_tokens_max:
        return False
    digest_tokens = digest_count(config, new.digests) * config.tokens_per_digest
    longest_units = min(new.tokens - 1, digest_tokens) // unit_tokens
    for units in range(longest_units + 1):
        starts = [units * unit_tokens // part.block_tokens * part.grows for part in parts]
        needed = slots_of(parts, stretches_to_fill(parts, starts, capacity_tokens, new))
        for part, start in zip(parts, starts, strict=True):
            needed[part.pool] += start - part.first_block(units * unit_tokens) if start else 0
        if all(needed[number] <= pool.blocks - 1 - pool.reserved_blocks for number, pool in enumerate(config.pools)):
            return True
    return False


def can_ever_grow(config: Config, parts: Sequence[ReferenceGroup], sequence: ReferenceSequence, units: int) -> bool:
    """Whether empty pools have room for a longer sequence, less what leaves its windows when all is computed."""
    starts = [part.first_block(sequence.capacity_tokens) if part.grows else 0 for part in parts]
    longer_tokens = sequence.capacity_tokens + units * config.unit_tokens
    needed = slots_of(parts, stretches_to_fill(parts, starts, longer_tokens, sequence.new))
    return all(needed[number] <= pool.blocks - 1 for number, pool in enumerate(config.pools))


def slots_of(parts: Sequence[ReferenceGroup], stretches: Iterable[Stretch]) -> Counter[int]:
    """For each pool how many slots these columns take."""
    counted: Counter[int] = Counter()
    for number, _, columns in stretches:
        counted[parts[number].pool] += len(columns)
    return counted


def slots_in(pool: int, places: list[Place]) -> list[int]:
    """Those of some places that are in one pool."""
    return [slot for its_pool, slot in places if its_pool == pool]
