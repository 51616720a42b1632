"""Messages that ask about content, keep it, move it, or throw it away. `messages` exports them with all others."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from kvtroupe.coordinator.session_messages import LOCAL_SESSION

PinId: TypeAlias = str | int


@dataclass(frozen=True, slots=True)
class LookupRequest:
    """What would a prompt of these digests hit now? Nothing is claimed, and nothing is brought up.

    Attributes:
        request_id: names the reply.
        digests: of the prompt's hash blocks.
        tokens: of the prompt, whose last one is always computed; None: all that the digests stand for may be hit.
    """

    request_id: int
    digests: bytes
    tokens: int | None = None


@dataclass(frozen=True, slots=True)
class LookupReply:
    """What is there of a prompt; it may have changed when the answer arrives.

    Attributes:
        request_id: of the request.
        hit_tokens: what all groups together serve of whole blocks, wherever these are.
        device_tokens: what they serve of blocks on the device.
        junction_tokens: how much more than `hit_tokens` the first group serves.
        group_tokens: what each group serves alone, in whole units; all that is wanted for groups without a say.
        blocks: for each pool the blocks that the hit reads there.
        used_blocks: those of them that somebody uses now, and that therefore cost no free slot.
        new_blocks: for each pool the blocks of the prompt that would have to be computed, for one beam and without
            spare room; what every sequence takes for itself, like the state that it computes with, included.
        free_slots: for each pool the free slots that the prompt would take with its admission: those of new blocks, of
            blocks that are hit on the device and that nobody uses, and of blocks that are brought up to it.
    """

    request_id: int
    hit_tokens: int
    device_tokens: int
    junction_tokens: int
    group_tokens: tuple[int, ...]
    blocks: tuple[int, ...]
    used_blocks: tuple[int, ...]
    new_blocks: tuple[int, ...]
    free_slots: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class MoveRequest:
    """Bring what a prompt of these digests would hit to a level: nearer to the device, or a copy of it further away.

    Attributes:
        request_id: names the reply.
        digests: of the prefix.
        level: 0 brings blocks to the device, into free slots (onboard); 1 and 2 copy them to the pools below: up from
            further down (prefetch) and down from above (offload). Every block is copied one level on, and stays where
            it was, too.
    """

    request_id: int
    digests: bytes
    level: int


@dataclass(frozen=True, slots=True)
class MoveReply:
    """The copies that have begun.

    Attributes:
        request_id: of the request.
        hit_tokens: of the prefix that all groups serve.
        begun_blocks: blocks whose copies have begun, counted in every group.
        missing_blocks: blocks of the hit that are not on the level and not on their way there: there was no room.
    """

    request_id: int
    hit_tokens: int
    begun_blocks: int
    missing_blocks: int


@dataclass(frozen=True, slots=True)
class PinRequest:
    """Keep what a prompt of these digests would hit, until the pin is given back.

    Attributes:
        request_id: names the reply.
        pin_id: not in use in this replica.
        digests: of the prefix to pin.
        session: of the client.
    """

    request_id: int
    pin_id: PinId
    digests: bytes
    session: int = LOCAL_SESSION


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
class ResetRequest:
    """Throw all cached content away. Running sequences go on and publish nothing any more."""

    request_id: int


@dataclass(frozen=True, slots=True)
class ResetReply:
    """Nothing of what was published before can be hit, now or after a restart.

    Attributes:
        request_id: of the request.
        content_epoch: of what is published from now on.
    """

    request_id: int
    content_epoch: int
