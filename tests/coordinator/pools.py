"""Pools without a replica around them: a ledger, or only its free order, changed the way its owner changes it."""

from __future__ import annotations

import numpy as np

from kvtroupe.coordinator.free_order import FreeOrder
from kvtroupe.coordinator.ledger import Holder, Ledger
from tests.coordinator.support import DIGEST_BYTES, as_digests, chain, listed, slots


class Shelf:
    """A free order with the uses that it reads, changed together as a ledger changes them."""

    def __init__(self, blocks: int) -> None:
        self.uses = np.zeros(blocks, np.int32)
        self.uses[0] = 1
        self.order = FreeOrder(self.uses)

    def free(self) -> list[int]:
        """The order, which must be as long as it says."""
        order = listed(self.order.slots())
        assert len(order) == self.order.count
        return order

    def take(self, count: int) -> list[int]:
        """Take slots: each gets its first use."""
        taken, _ = self.order.take(count)
        self.uses[taken] = 1
        return listed(taken)

    def put_front(self, *freed: int) -> None:
        """Free slots whose content is worth nothing."""
        self.uses[list(freed)] = 0
        self.order.push_front(slots(*freed))

    def put_back(self, *freed: int, priority: int | None = None) -> None:
        """Free slots whose content is published, with a new priority or the one they have."""
        if priority is not None:
            self.order.set_priority(slots(*freed), priority)
        self.uses[list(freed)] = 0
        self.order.push_back(slots(*freed))

    def claim(self, *claimed: int) -> None:
        """Give free slots of back queues their first use."""
        self.uses[list(claimed)] += 1
        self.order.claimed(slots(*claimed))

    def undo(self, *claimed: int) -> None:
        """Take that use away again."""
        self.uses[list(claimed)] -= 1
        self.order.unclaimed(slots(*claimed))


def make_ledger(blocks: int = 11) -> Ledger:
    """A ledger of which nothing is in use."""
    return Ledger(blocks, DIGEST_BYTES)


def publish(ledger: Ledger, words: str, *, priority: int = 35, expires_s: float | None = None) -> list[int]:
    """Take a slot for each word and publish the blocks of that chain in them; they stay in use."""
    taken, _ = ledger.take(len(words), Holder.SEQUENCE)
    ledger.publish(taken, as_digests(chain(words)), priority, expires_s)
    return listed(taken)


def cache(ledger: Ledger, words: str, *, priority: int = 35, expires_s: float | None = None) -> list[int]:
    """The same, and free them, the first block first."""
    published = publish(ledger, words, priority=priority, expires_s=expires_s)
    ledger.release(slots(*published), Holder.SEQUENCE)
    return published


def claim(ledger: Ledger, *claimed: int, holder: Holder = Holder.SEQUENCE) -> int:
    """Claim slots under the generations that they have now."""
    return ledger.claim(slots(*claimed), ledger.generation.take(slots(*claimed)), holder)


def free(ledger: Ledger) -> list[int]:
    """The free order, which is as long as the ledger says."""
    order = listed(ledger.free_order.slots())
    assert len(order) == ledger.free
    return order


def everything(ledger: Ledger) -> list[object]:
    """All that can be seen of a ledger."""
    return [
        free(ledger),
        ledger.uses.tolist(),
        list(ledger.uses_by_holder),
        ledger.generation.tolist(),
        ledger.last_generation,
        ledger.published.tolist(),
        ledger.digest.tolist(),
        ledger.free_order.priority.tolist(),
        ledger.expires_s.tolist(),
    ]
