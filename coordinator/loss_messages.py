"""Messages that tell the coordinator of actors that were lost, and of those that took their place.

Hosts send them when a channel closes, when a supervisor has killed an actor that was silent, or has started a new one.
`messages` exports them with all others.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class GroupLostEvent:
    """A group actor is gone, or has missed a message. It is asked nothing until a new one is there."""

    group: int


@dataclass(frozen=True, slots=True)
class GroupReadyEvent:
    """A new group actor, whose index is empty, has taken the place of a lost one."""

    group: int


@dataclass(frozen=True, slots=True)
class TierLostEvent:
    """The tier actor of a pool on one rank is known to be dead.

    Of a pool below the device, its blocks leave the indexes. Of a device pool, the memory itself is gone: all
    sequences fail as well.
    """

    pool: int
    rank: int


@dataclass(frozen=True, slots=True)
class TierReadyEvent:
    """A new tier actor has taken the place of one that was there before; what it holds is asked for.

    Attributes:
        pool: number of the pool.
        rank: of the actor.
        tier_epoch: above that of every tier actor of this pool and rank before it. If its predecessor was not said to
            be lost, it is lost now.
    """

    pool: int
    rank: int
    tier_epoch: int


@dataclass(frozen=True, slots=True)
class RecoverEvent:
    """This coordinator follows one that is gone: the first message that it gets.

    Attributes:
        process_ids: processes that map device memory and may still write into slots that the old one gave them. None of
            these slots is handed out before each of them is known to be dead, or has acknowledged the loss.
        tier_epochs: pool, rank and epoch of tier actors, those that are lost just now as well; of others it is 0.
    """

    process_ids: tuple[str | int, ...]
    tier_epochs: tuple[tuple[int, int, int], ...] = ()
