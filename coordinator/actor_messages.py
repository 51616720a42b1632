"""Messages between the coordinator and its groups and tiers. `messages` exports them with all others.

Levels number the pools of a stack from the device down: 0 is the device, 1 the pool below it, and so on. A place is a
level, a slot, and the generation under which the slot got its content.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from kvtroupe.coordinator.tier_messages import ContentEpochRequest, DropEvent, DropRequest, InventoryRequest

Slots: TypeAlias = NDArray[np.int64]
Generations: TypeAlias = NDArray[np.int64]

NO_SLOTS: Slots = np.zeros(0, np.int64)
NO_SLOTS.setflags(write=False)


@dataclass(frozen=True, slots=True)
class Content:
    """What blocks stand for that follow one another; needed only where blocks are matched in part.

    `contents.content_of` makes it of what was hashed.

    Attributes:
        token_ids: int32 little-endian each, from the first token of the first block on; the last block may be short.
        block_tokens: tokens of one block.
        extras: for each block the canonical bytes of its extras, empty where it has none; () when no block has any.
    """

    token_ids: bytes
    block_tokens: int
    extras: tuple[bytes, ...] = ()


@dataclass(frozen=True, slots=True)
class Prompt:
    """A chain to look up.

    Attributes:
        digests: block digests of the chain, in the blocks of the group that is asked.
        limit_blocks: the longest hit that is wanted.
        content: of the chain and what follows it, as far as it may be hit; given when blocks that share only their
            first tokens are wanted too.
    """

    digests: bytes
    limit_blocks: int
    content: Content | None = None


@dataclass(frozen=True, slots=True)
class Places:
    """Where the blocks of a chain are on one level below the device.

    Attributes:
        level: 1 or more.
        present: bit i is set when block i of the chain is published there.
        slots: of the blocks along the path; where a block is missing its number means nothing.
        generations: of these slots.
    """

    level: int
    present: int
    slots: Slots
    generations: Generations


@dataclass(frozen=True, slots=True)
class Child:
    """A block at the end of a path that shares leading tokens, and all extras, with what follows there in the prompt.

    Attributes:
        common_tokens: how many; at least 1, and at most the whole block.
        digest: of the block.
        level: where it is; of several places the one nearest to the device.
        slot: there.
        generation: of the slot.
        leaf: nothing published follows it.
    """

    common_tokens: int
    digest: bytes
    level: int
    slot: int
    generation: int
    leaf: bool


@dataclass(frozen=True, slots=True)
class Evidence:
    """What a group knows of a chain; the coordinator judges it.

    Attributes:
        present: bit i is set when block i of the chain is published on the device, up to the limit.
        slots: of the blocks along the path; where a block is missing its number means nothing.
        generations: of these slots when the blocks were published.
        path_blocks: how far the index follows the chain, holes included; the length of both arrays. Where partial
            matches are asked for, the path ends with the last block of the chain that is published on any level.
        lower: the levels below the device that hold a block of the path, from the device down.
        children: where partial matches are asked for, those at the end of the path, most common tokens first; a few of
            them at most.
    """

    present: int
    slots: Slots
    generations: Generations
    path_blocks: int
    lower: tuple[Places, ...] = ()
    children: tuple[Child, ...] = ()


@dataclass(frozen=True, slots=True)
class MatchRequest:
    """What is there of these chains?"""

    round_id: int
    prompts: tuple[Prompt, ...]


@dataclass(frozen=True, slots=True)
class MatchReply:
    """Evidence for each prompt of the round, in order.

    Attributes:
        round_id: of the request.
        group: who answers.
        evidence: for each prompt.
        applied: number of the last message applied before; one that does not fit shows that the group has missed some.
            None: the question came without a number.
        epoch: of the coordinator that has asked.
    """

    round_id: int
    group: int
    evidence: tuple[Evidence, ...]
    applied: int | None = None
    epoch: int = 0


@dataclass(frozen=True, slots=True)
class Arrival:
    """Blocks of the index that are on their way to another level: remembered, never answered, until they land.

    Attributes:
        source_level: where they are now.
        source_slots: there.
        level: where they are going.
        slots: there.
        generations: of these slots.
        source_generations: of the source slots; where one has passed, nothing is remembered. None: whatever the index
            names there.
    """

    source_level: int
    source_slots: Slots
    level: int
    slots: Slots
    generations: Generations
    source_generations: Generations | None = None


@dataclass(frozen=True, slots=True)
class PlacesLost:
    """Places, published or arriving, that hold nothing of the index any more; a generation that has passed means none.

    Attributes:
        level: of all of them.
        slots: the slots.
        generations: of these slots; None: whatever the index names there.
    """

    level: int
    slots: Slots
    generations: Generations | None = None


@dataclass(frozen=True, slots=True)
class BindEvent:
    """What a round and its copies change in a group: first arrivals, then losses.

    Attributes:
        evicted: device slots of published blocks that were taken for other content.
        lost: other places that are no more.
        arrivals: blocks on their way to another level; of a block that is evicted at once, its device place still
            counts here.
    """

    evicted: Slots
    lost: tuple[PlacesLost, ...] = ()
    arrivals: tuple[Arrival, ...] = ()


@dataclass(frozen=True, slots=True)
class PublishRequest:
    """Blocks whose content is complete, for the index of one group.

    Attributes:
        publish_id: names the reply.
        digests: block digests of the chain, from its first block to the last one published.
        start_block: the first block published.
        slots: of the blocks from `start_block` on.
        generations: of these slots.
        sparse: some of the slots are 0: these blocks are not published.
        level: where they are.
        content: of the blocks from `start_block` on, where blocks are matched in part; of the first of them only, if
            no more is known.
    """

    publish_id: int
    digests: bytes
    start_block: int
    slots: Slots
    generations: Generations
    sparse: bool = False
    level: int = 0
    content: Content | None = None


@dataclass(frozen=True, slots=True)
class LandRequest:
    """Arriving places whose bytes are complete on every rank: they enter the index.

    Attributes:
        publish_id: names the reply.
        level: of all of them.
        slots: the slots.
        generations: of these slots.
    """

    publish_id: int
    level: int
    slots: Slots
    generations: Generations


@dataclass(frozen=True, slots=True)
class PublishReply:
    """Which blocks entered the index of a group.

    Attributes:
        publish_id: of the request.
        group: who answers.
        entered: a mask over the slots of the request; None: all of them.
        epoch: of the coordinator that has asked.
    """

    publish_id: int
    group: int
    entered: NDArray[np.bool_] | None
    epoch: int = 0


@dataclass(frozen=True, slots=True)
class ForgetEvent:
    """The index becomes empty: its contents were reset, or it starts anew."""


ToGroup: TypeAlias = MatchRequest | BindEvent | PublishRequest | LandRequest | ForgetEvent


@dataclass(frozen=True, slots=True)
class GroupOutput:
    """A message that the host must deliver to a group, in the order in which outputs were returned.

    Attributes:
        group: who gets it.
        message: what it gets.
        number: counts the messages to this group that change it; a match carries the number of the last one.
        epoch: of the coordinator.
    """

    group: int
    message: ToGroup
    number: int = 0
    epoch: int = 0


@dataclass(frozen=True, slots=True)
class Copies:
    """Blocks to be copied from one pool to another, or within one.

    Attributes:
        source_pool: number of the pool.
        sources: its slots that are read.
        destination_pool: number of the pool.
        destinations: its slots that are written.
        tokens: for each block, how many of its first tokens are read at the destination; None: all of it. Whole blocks
            may be copied all the same, as whoever gets the others writes them before anybody reads them.
        groups: for each block the group that it belongs to; None where nobody below the device keeps it.
        digests: for each block its digest, likewise.
        parents: for each block the digest of the one before it in its chain, zero for a first one; likewise.
    """

    source_pool: int
    sources: Slots
    destination_pool: int
    destinations: Slots
    tokens: NDArray[np.int64] | None = None
    groups: NDArray[np.int64] | None = None
    digests: NDArray[np.void] | None = None
    parents: NDArray[np.void] | None = None


@dataclass(frozen=True, slots=True)
class CopyRequest:
    """One wave of copies; any order among them, after all waves sent before.

    Attributes:
        transfer_id: names the reply.
        epoch: of the coordinator.
        copies: what to copy.
        content_epoch: that the content is of; a tier that has seen a newer one keeps no row of it.
        source_epoch: of the tier actor that has the source pool on this rank. Where another one has taken its place,
            the bytes are not there any more: every copy fails.
        destination_epoch: the same of the destination pool.
    """

    transfer_id: int
    epoch: int
    copies: Copies
    content_epoch: int = 0
    source_epoch: int = 0
    destination_epoch: int = 0


@dataclass(frozen=True, slots=True)
class CopyReply:
    """A rank has done a wave of copies, or failed at some of them.

    Attributes:
        transfer_id: of the request.
        epoch: of the request.
        engine: number of the pool whose tier actor answers.
        rank: that answers.
        failed: positions of the copies that failed; their destinations hold nothing of use.
    """

    transfer_id: int
    epoch: int
    engine: int
    rank: int
    failed: tuple[int, ...] = ()


ToTier: TypeAlias = "CopyRequest | InventoryRequest | DropEvent | DropRequest | ContentEpochRequest"


@dataclass(frozen=True, slots=True)
class TierOutput:
    """A message that the host must deliver to the tier actor of a pool on one rank, in order."""

    engine: int
    rank: int
    message: ToTier
