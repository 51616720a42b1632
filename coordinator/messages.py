"""Every message between the actors of a replica.

All are frozen. Arrays in them belong to the receiver or are never written again by the sender. Digests are the bytes
of all digests of a chain, one after the other, from the first block on; slots and generations are int64 arrays.

A name ends with its direction: `...Request` is answered by `...Reply`, `...Event` is not answered.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
from numpy.typing import NDArray

from kvtroupe.coordinator.retention import DEFAULT_RETENTION, Retention

if TYPE_CHECKING:
    from kvtroupe.coordinator.errors import OutOfBlocks, SequenceTooLong, UnknownSequence

SequenceId: TypeAlias = str | int
PinId: TypeAlias = str | int
Slots: TypeAlias = NDArray[np.int64]
Generations: TypeAlias = NDArray[np.int64]

NO_SLOTS: Slots = np.zeros(0, np.int64)
NO_SLOTS.setflags(write=False)

# -- client and coordinator --------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class NewSequence:
    """A sequence to admit.

    Attributes:
        sequence_id: not in use in this replica.
        tokens: tokens of the prompt, at least 1.
        digests: digests of the prompt's hash blocks, from the first on; fewer than the prompt has if the rest is not
            to be shared.
        spare_blocks: blocks in every group beyond those of the prompt, for the tokens to come.
        retention: of the blocks that the sequence publishes.
    """

    sequence_id: SequenceId
    tokens: int
    digests: bytes = b""
    spare_blocks: int = 0
    retention: Retention = DEFAULT_RETENTION


@dataclass(frozen=True, slots=True)
class Admitted:
    """A sequence runs.

    Attributes:
        sequence_id: of the request.
        cached_tokens: tokens whose blocks were found in every group; computing starts there.
        tables: for every group an array of the slots of its blocks, 0 (the null block) where the group's window has
            left a block behind; read-only.
        capacity_tokens: tokens that fit into the blocks of the tables.
    """

    sequence_id: SequenceId
    cached_tokens: int
    tables: tuple[Slots, ...]
    capacity_tokens: int


@dataclass(frozen=True, slots=True)
class AdmitRequest:
    """Sequences to admit in one round, first come first served."""

    request_id: int
    sequences: tuple[NewSequence, ...]


AdmitResult: TypeAlias = "Admitted | OutOfBlocks | SequenceTooLong"


@dataclass(frozen=True, slots=True)
class AdmitReply:
    """For each sequence, in order, what became of it."""

    request_id: int
    results: tuple[AdmitResult, ...]


@dataclass(frozen=True, slots=True)
class GrowRequest:
    """More spare blocks, in every group, for running sequences.

    Attributes:
        request_id: names the reply.
        sequence_ids: the sequences, each at most once.
        blocks: blocks for each of them.
    """

    request_id: int
    sequence_ids: tuple[SequenceId, ...]
    blocks: int


GrowResult: TypeAlias = "OutOfBlocks | SequenceTooLong | UnknownSequence | None"


@dataclass(frozen=True, slots=True)
class GrowReply:
    """What each sequence got.

    Attributes:
        request_id: of the request.
        refused: for each sequence, in order, None or why it got nothing.
        slots: for every pool the new slots [granted sequences, groups of the pool, blocks].
    """

    request_id: int
    refused: tuple[GrowResult, ...]
    slots: tuple[Slots, ...]


@dataclass(frozen=True, slots=True)
class CommitRequest:
    """Tokens whose KV entries are written, in every layer on every rank.

    Attributes:
        request_id: names the reply.
        sequence_id: of a running sequence.
        tokens: all tokens of the sequence that are computed now; never fewer than before.
        digests: of the hash blocks that follow those already known to the replica, none beyond `tokens`.
        fence: the engine step after which nothing of the engine reads blocks that slide out of a window with this
            commit; None: nothing does any more.
    """

    request_id: int
    sequence_id: SequenceId
    tokens: int
    digests: bytes = b""
    fence: int | None = None


@dataclass(frozen=True, slots=True)
class CommitReply:
    """The blocks of the commit are published.

    Attributes:
        request_id: of the request.
        published_blocks: blocks that entered the index of each group; one whose digest was there already stays private.
    """

    request_id: int
    published_blocks: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class ReleaseEvent:
    """A sequence has ended.

    Attributes:
        sequence_id: of a running sequence.
        fence: the engine step after which nothing of the engine touches its slots; None: nothing does any more.
    """

    sequence_id: SequenceId
    fence: int | None = None


@dataclass(frozen=True, slots=True)
class StepsDoneEvent:
    """All engine steps up to and including `step` are complete on every rank."""

    step: int


@dataclass(frozen=True, slots=True)
class PinRequest:
    """Keep what a prompt of these digests would hit, until the pin is given back.

    Attributes:
        request_id: names the reply.
        pin_id: not in use in this replica.
        digests: of the prefix to pin.
    """

    request_id: int
    pin_id: PinId
    digests: bytes


@dataclass(frozen=True, slots=True)
class PinReply:
    """The tokens of the prefix that all groups could serve; their blocks cannot be taken while the pin stands."""

    request_id: int
    pinned_tokens: int


@dataclass(frozen=True, slots=True)
class UnpinEvent:
    """A pin is given back."""

    pin_id: PinId


@dataclass(frozen=True, slots=True)
class TimerEvent:
    """Time has passed: priorities expire, deadlines pass."""


# -- coordinator and group ---------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Prompt:
    """A chain to look up: its block digests, and the longest hit that is wanted, in blocks."""

    digests: bytes
    limit_blocks: int


@dataclass(frozen=True, slots=True)
class Evidence:
    """What a group knows of a chain; the coordinator judges it.

    Attributes:
        present: bit i is set when block i of the chain is published, up to the limit.
        slots: of the blocks along the path; where a block is missing its number means nothing.
        generations: of these slots when the blocks were published.
        path_blocks: how far the index follows the chain, holes included; the length of both arrays.
    """

    present: int
    slots: Slots
    generations: Generations
    path_blocks: int


@dataclass(frozen=True, slots=True)
class MatchRequest:
    """What is there of these chains?"""

    round_id: int
    prompts: tuple[Prompt, ...]


@dataclass(frozen=True, slots=True)
class MatchReply:
    """Evidence for each prompt of the round, in order."""

    round_id: int
    group: int
    evidence: tuple[Evidence, ...]


@dataclass(frozen=True, slots=True)
class BindEvent:
    """Blocks that a group has lost.

    Attributes:
        evicted: slots of published blocks that were taken for other content.
        stale_slots: slots that the group still named under a generation that had passed.
        stale_generations: those generations.
    """

    evicted: Slots
    stale_slots: Slots
    stale_generations: Generations


@dataclass(frozen=True, slots=True)
class PublishRequest:
    """Blocks whose content is complete, for the index of one group.

    Attributes:
        publish_id: names the reply.
        digests: block digests of the chain, from its first block to the last one published.
        start_block: the first block published.
        slots: of the blocks from `start_block` on.
        generations: of these slots.
    """

    publish_id: int
    digests: bytes
    start_block: int
    slots: Slots
    generations: Generations


@dataclass(frozen=True, slots=True)
class PublishReply:
    """Which blocks entered the index of the group: a mask over the slots of the request; None: all of them."""

    publish_id: int
    group: int
    entered: NDArray[np.bool_] | None


ToCoordinator: TypeAlias = (
    AdmitRequest
    | GrowRequest
    | CommitRequest
    | ReleaseEvent
    | StepsDoneEvent
    | PinRequest
    | UnpinEvent
    | TimerEvent
    | MatchReply
    | PublishReply
)
ToClient: TypeAlias = AdmitReply | GrowReply | CommitReply | PinReply
ToGroup: TypeAlias = MatchRequest | BindEvent | PublishRequest


@dataclass(frozen=True, slots=True)
class GroupOutput:
    """A message that the host must deliver to a group, in the order in which outputs were returned."""

    group: int
    message: ToGroup


Output: TypeAlias = GroupOutput | ToClient
