"""The invariant of block events: folded into a mirror, they yield exactly the places that are published.

It holds between any two steps, also while messages to groups are under way, since it is about what the coordinator
knows; that the indexes know the same then is for `check` to say.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from kvtroupe.coordinator.errors import InvariantError

if TYPE_CHECKING:
    from kvtroupe.coordinator.event_mirror import Mirror
    from kvtroupe.coordinator.replica import Replica


def check_events(replica: Replica, mirror: Mirror) -> None:
    """Let a mirror follow the events of a replica, and compare it with the ledgers.

    Args:
        replica: with events.
        mirror: of any earlier moment, also one of an earlier coordinator.

    Raises:
        InvariantError: it has places that are not there, or lacks some that are.
    """
    mirror.fold(replica.events_since(mirror.position))
    places: Counter[tuple[int, str, bytes]] = Counter()
    for pool, config in zip(replica.state.pools, replica.config.pools, strict=True):
        ledger = pool.ledger
        for slot in ledger.published.nonzero()[0].tolist():
            places[int(ledger.published[slot]) - 1, config.tier, ledger.digest[slot].tobytes()] += 1
    mirrored = Counter(mirror.counts())
    if places != mirrored:
        raise InvariantError(
            f"a mirror of the events differs from what is published at {mirror.position}: it has "
            f"{sorted((mirrored - places).elements())} too much and {sorted((places - mirrored).elements())} too little"
        )
