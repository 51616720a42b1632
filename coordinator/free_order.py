"""The order in which the free slots of a pool are taken.

A free slot is in exactly one place:

- in the front stack when its content is worth nothing: newest first, before all others;
- in the back queue of its priority when its content is published: lowest priority first, and within a priority the
  one that has been free the longest.

A back queue is a log. Freeing a slot appends an entry and notes the entry as the slot's place; an entry counts while it
is its slot's place and the slot has no uses. So a claim only raises the uses and leaves its entry behind, and a claim
that is undone finds its slot exactly where it was. Entries that no longer count are passed over when they come up, and
scrubbed a few per append, so that no single call pays for many.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from kvtroupe.coordinator.retention import DEFAULT_PRIORITY

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from kvtroupe.coordinator.messages import Slots

NO_PLACE = -1
SMALLEST_LOG = 1024
SCRUB_SLACK = 64  # entries scrubbed per append, on top of four for each entry appended
_TAG_SHIFT = 40  # a place is (number of the queue) << _TAG_SHIFT | position, so that it names one entry of all queues


class BackQueue:
    """The log of one priority.

    While it is scrubbed, the entries that count are moved to its beginning, a few per append. The order is then
    `log[kept_start:kept_end]` followed by `log[head:tail]`. What is kept cannot overtake the head, as it is never more
    than what the head has passed.

    The log holds at least three times the entries that count. Scrubbing begins when the tail would pass two thirds of
    it and reads four entries for each one appended, so it ends before the tail has gone a further two ninths.
    """

    __slots__ = ("counting", "head", "kept_end", "kept_start", "log", "scrubbing", "tag", "tail")

    def __init__(self, tag: int, capacity: int) -> None:
        self.tag = tag
        self.log = np.zeros(capacity, np.int64)
        self.kept_start = self.kept_end = 0
        self.head = self.tail = 0
        self.counting = 0  # entries that count
        self.scrubbing = False


class FreeOrder:
    """All free slots of a pool, in the order in which they are taken. It reads the uses of slots and never writes them.

    Args:
        uses: [blocks], how many holders a slot has; slot 0, the null block, must have one for ever.
    """

    def __init__(self, uses: NDArray[np.int32]) -> None:
        blocks = len(uses)
        self.count = blocks - 1
        self.priority = np.full(blocks, DEFAULT_PRIORITY, np.uint8)
        self._uses = uses
        self._place = np.full(blocks, NO_PLACE, np.int64)
        self._front = np.arange(blocks - 1, -1, -1, dtype=np.int64)  # the top of the stack is at _front_count - 1
        self._front_count = blocks - 1
        self._positions = np.arange(3 * blocks, dtype=np.int64)
        self._queue_of: dict[int, BackQueue] = {DEFAULT_PRIORITY: BackQueue(0, 3 * blocks)}
        self._queues = [self._queue_of[DEFAULT_PRIORITY]]  # lowest priority first

    # -- leaving the order ---------------------------------------------------------------------------------------------

    def take(self, count: int) -> tuple[Slots, int]:
        """Remove the next `count` slots.

        Returns:
            the slots in order, and how many of them, the first ones, came from the front stack.
        """
        from_front = min(count, self._front_count)
        top = self._front_count
        self._front_count = top - from_front
        parts = [self._front[top - from_front : top][::-1]]
        missing = count - from_front
        for queue in self._queues:
            if missing and queue.counting:
                missing -= self._pop(queue, min(missing, queue.counting), parts)
        self.count -= count
        return np.concatenate(parts), from_front

    def take_out(self, slots: Slots) -> None:
        """Remove slots that are on the front stack, wherever they are there. It reads the whole stack: seldom used."""
        front = self._front[: self._front_count]
        left = front.compress(~np.isin(front, slots))
        self._front[: len(left)] = left
        self.count -= self._front_count - len(left)
        self._front_count = len(left)

    def peek(self, count: int) -> tuple[Slots, int]:
        """What `take` would return. Nothing changes, so that a claim can still be undone."""
        counts = self.count, self._front_count
        positions = [(queue, queue.kept_start, queue.head, queue.counting) for queue in self._queues]
        found = self.take(count)  # it only moves these numbers
        self.count, self._front_count = counts
        for queue, kept_start, head, counting in positions:
            queue.kept_start, queue.head, queue.counting = kept_start, head, counting
        return found

    def _pop(self, queue: BackQueue, count: int, parts: list[Slots]) -> int:
        missing = count
        if queue.kept_start < queue.kept_end:
            queue.kept_start, missing = self._scan(queue, queue.kept_start, queue.kept_end, missing, parts)
        if missing:
            queue.head, missing = self._scan(queue, queue.head, queue.tail, missing, parts)
        assert not missing, "a back queue holds fewer entries that count than it says"
        queue.counting -= count
        return count

    def _scan(self, queue: BackQueue, start: int, end: int, missing: int, parts: list[Slots]) -> tuple[int, int]:
        """Collect up to `missing` slots from log[start:end]: where the scan stopped, and how many are still missing."""
        width = missing
        while missing and start < end:
            window, counts = self._window(queue, start, min(start + width, end))
            found = int(np.count_nonzero(counts))
            if found > missing:
                last = int(counts.nonzero()[0][missing - 1]) + 1
                window, counts, found = window[:last], counts[:last], missing
            start += len(window)
            if found:
                parts.append(window.copy() if found == len(window) else window.compress(counts))
                missing -= found
            width = missing if 2 * found > len(window) else max(2 * width, 1024)  # cross long stale stretches fast
        return start, missing

    def _window(self, queue: BackQueue, start: int, end: int) -> tuple[Slots, NDArray[np.bool_]]:
        """The slots in log[start:end], and a mask of the entries that count."""
        window = queue.log[start:end]
        positions = self._positions[start:end]
        counts = self._place.take(window) == (positions + queue.tag if queue.tag else positions)
        counts &= self._uses.take(window) == 0
        return window, counts

    def claimed(self, slots: Slots) -> None:
        """These slots of back queues have got their first use: their entries stay behind and no longer count."""
        self.count -= len(slots)
        self._recount(slots, -1)

    # -- entering the order --------------------------------------------------------------------------------------------

    def unclaimed(self, slots: Slots) -> None:
        """The last use of these slots is undone: their entries count again, where they are.

        Good only before the next take or append, either of which may pass or drop entries that do not count.
        """
        self.count += len(slots)
        self._recount(slots, 1)

    def push_front(self, slots: Slots) -> None:
        """Put slots whose content is worth nothing on the front stack, one after the other: the last is taken first."""
        top = self._front_count
        self._front[top : top + len(slots)] = slots
        self._front_count = top + len(slots)
        self.count += len(slots)

    def push_back(self, slots: Slots) -> None:
        """Append slots to the back queues of their priorities, in the order given."""
        self.count += len(slots)
        for queue, part in self._by_queue(slots):
            self._append(queue, part)

    def _append(self, queue: BackQueue, slots: Slots) -> None:
        count = len(slots)
        capacity = len(queue.log)
        if 3 * (queue.counting + count) > capacity:
            capacity = self._grow(queue, 3 * (queue.counting + count))
        if queue.scrubbing or 3 * (queue.tail + count) > 2 * capacity:
            self._scrub(queue, 4 * count + SCRUB_SLACK)
        start, end = queue.tail, queue.tail + count
        queue.log[start:end] = slots
        positions = self._positions[start:end]
        self._place[slots] = positions + queue.tag if queue.tag else positions
        queue.tail = end
        queue.counting += count

    def _grow(self, queue: BackQueue, needed: int) -> int:
        """Make the log of a priority that is used more than before at least twice as long, up to its full size."""
        capacity = min(max(needed, 2 * len(queue.log)), 3 * len(self._uses))
        log = np.zeros(capacity, np.int64)
        log[: queue.tail] = queue.log[: queue.tail]
        queue.log = log
        return capacity

    def _scrub(self, queue: BackQueue, budget: int) -> None:
        """Move those of the next `budget` entries that count to the beginning of the log."""
        if not queue.scrubbing:
            queue.scrubbing = True
            queue.kept_start = queue.kept_end = 0
        end = min(queue.head + budget, queue.tail)
        window, counts = self._window(queue, queue.head, end)
        kept = window.compress(counts)
        kept_end = queue.kept_end + len(kept)
        queue.log[queue.kept_end : kept_end] = kept
        self._place[kept] = self._positions[queue.kept_end : kept_end] + queue.tag
        queue.kept_end = kept_end
        queue.head = end
        if end == queue.tail:
            queue.head, queue.tail = queue.kept_start, kept_end
            queue.kept_start = queue.kept_end = 0
            queue.scrubbing = False

    # -- changing place ------------------------------------------------------------------------------------------------

    def set_priority(self, slots: Slots, priority: int) -> None:
        """Give slots in use a priority: it decides where they go when they become free."""
        if priority not in self._queue_of:
            self._add_queue(priority)
        if len(self._queues) > 1:
            self.priority[slots] = priority

    def set_priorities(self, slots: Slots, priorities: NDArray[np.uint8]) -> None:
        """The same with a priority for each slot."""
        for priority in np.bincount(priorities).nonzero()[0].tolist():
            if priority not in self._queue_of:
                self._add_queue(priority)
        if len(self._queues) > 1:
            self.priority[slots] = priorities

    def _add_queue(self, priority: int) -> None:
        capacity = min(SMALLEST_LOG, 3 * len(self._uses))
        self._queue_of[priority] = BackQueue(len(self._queue_of) << _TAG_SHIFT, capacity)
        self._queues = [self._queue_of[level] for level in sorted(self._queue_of)]

    def move_back(self, slots: Slots, priority: int) -> None:
        """Move free slots from the back queues they are in to the end of that of another priority."""
        self.claimed(slots)
        self.set_priority(slots, priority)
        self.push_back(slots)

    def move_front(self, slots: Slots) -> None:
        """The content of these free slots of back queues is worth nothing any more: move them to the front stack."""
        self.claimed(slots)
        self._place[slots] = NO_PLACE
        self.push_front(slots)

    def forget_places(self, slots: Slots) -> None:
        """Slots in use will not go back to their queues: no entry left behind may ever count again."""
        self._place[slots] = NO_PLACE

    # -- queues --------------------------------------------------------------------------------------------------------

    def _by_queue(self, slots: Slots) -> list[tuple[BackQueue, Slots]]:
        """The slots sorted into the queues of their priorities; the order within a queue is kept."""
        if len(self._queues) == 1:
            return [(self._queues[0], slots)]
        levels = self.priority.take(slots)
        present = np.bincount(levels).nonzero()[0].tolist()
        if len(present) == 1:
            return [(self._queue_of[present[0]], slots)]
        return [(self._queue_of[level], slots.compress(levels == level)) for level in present]

    def _recount(self, slots: Slots, sign: int) -> None:
        for queue, part in self._by_queue(slots):
            queue.counting += sign * len(part)

    def slots(self) -> Slots:
        """Every free slot in the order in which it would be taken. Reads the whole order: for inspection."""
        parts = [self._front[: self._front_count][::-1]]
        for queue in self._queues:
            for start, end in ((queue.kept_start, queue.kept_end), (queue.head, queue.tail)):
                window, counts = self._window(queue, start, end)
                parts.append(window.compress(counts))
        return np.concatenate(parts)
