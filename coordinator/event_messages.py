"""Block events: what is published where, and where it is no more. `messages` exports them with all others.

Facts are about places: a block on the device and on the host is stored twice, and a block that goes from one to the
other is stored in the one and removed from the other, at different times. Whoever does not care where a block is counts
places, as `event_mirror` does.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias


@dataclass(frozen=True, slots=True)
class Stored:
    """Consecutive blocks of a chain can be hit in one place more.

    Attributes:
        group: number of their group.
        medium: the tier that they are in now: `device`, `host` or `disk`.
        parent: digest of the block before the first one; empty if that is the first of its chain.
        digests: of the blocks, one after the other.
    """

    group: int
    medium: str
    parent: bytes
    digests: bytes


@dataclass(frozen=True, slots=True)
class Removed:
    """Blocks, of any chains, can be hit in one place less.

    Attributes:
        group: number of their group.
        medium: the tier that they were in.
        digests: of the blocks, one after the other.
    """

    group: int
    medium: str
    digests: bytes


@dataclass(frozen=True, slots=True)
class Cleared:
    """Nothing can be hit any more.

    Attributes:
        group: of the blocks of this group; None: of any.
        medium: in this tier; None: in any.
    """

    group: int | None = None
    medium: str | None = None


BlockFact: TypeAlias = Stored | Removed | Cleared


@dataclass(frozen=True, slots=True)
class Events:
    """Facts in the order in which they came true.

    Attributes:
        epoch: of the coordinator. Every one numbers its facts from 1 on; the first is that everything is cleared.
        after: number of the fact before the first one here.
        facts: all that follow it, up to the newest.
    """

    epoch: int
    after: int
    facts: tuple[BlockFact, ...]


@dataclass(frozen=True, slots=True)
class Snapshot:
    """All that is published.

    Attributes:
        epoch: of the coordinator.
        number: of the last fact that is part of it.
        stored: everything that can be hit.
    """

    epoch: int
    number: int
    stored: tuple[Stored, ...]


@dataclass(frozen=True, slots=True)
class EventsRequest:
    """What has happened?

    Attributes:
        request_id: names the reply.
        since: epoch and number of the last fact that the reader knows; None: it knows nothing.
    """

    request_id: int
    since: tuple[int, int] | None = None


@dataclass(frozen=True, slots=True)
class EventsReply:
    """What has happened since, or, if that is not known any more, what is there now.

    Attributes:
        request_id: of the request.
        news: for the reader.
    """

    request_id: int
    news: Events | Snapshot
