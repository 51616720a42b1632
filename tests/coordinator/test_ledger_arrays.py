"""Publications in which every slot has its own priority and time, and what can be read of a block afterwards."""

from __future__ import annotations

import math

import numpy as np
import pytest

from kvtroupe.coordinator.errors import InvariantError
from kvtroupe.coordinator.ledger import Holder, Ledger
from tests.coordinator.pools import cache, everything, free, make_ledger
from tests.coordinator.support import DIGEST_BYTES, as_digests, chain, slots, split

SEQUENCE, TRANSFER = Holder.SEQUENCE, Holder.TRANSFER
NEVER_S = math.inf


def cache_each(ledger: Ledger, words: str, priorities: list[int], expires_s: list[float] | None = None) -> list[int]:
    """Publish a chain whose blocks have these priorities and times, and free it, the first block first."""
    taken, _ = ledger.take(len(words), SEQUENCE)
    times_s = None if expires_s is None else np.array(expires_s)
    ledger.publish(taken, as_digests(chain(words)), np.array(priorities, np.uint8), times_s)
    ledger.release(taken, SEQUENCE)
    numbers: list[int] = taken.tolist()
    return numbers


# -- publish -----------------------------------------------------------------------------------------------------------


def test_every_slot_of_a_publication_may_have_its_own_priority() -> None:
    """Lower ones are taken first; within one priority the order of being freed counts."""
    ledger = make_ledger(7)

    assert cache_each(ledger, "abcde", [80, 10, 35, 80, 10]) == [1, 2, 3, 4, 5]

    assert free(ledger) == [6, 2, 5, 3, 1, 4]
    assert ledger.free_order.priority[1:6].tolist() == [80, 10, 35, 80, 10]


def test_an_array_of_default_priorities_is_as_none() -> None:
    """And one priority for all in an array is as that priority alone."""
    alone, arrays = make_ledger(7), make_ledger(7)

    cache(alone, "ab")
    cache(alone, "cd", priority=100)
    cache_each(arrays, "ab", [35, 35], [NEVER_S, NEVER_S])
    cache_each(arrays, "cd", [100, 100])

    assert everything(arrays) == everything(alone)


def test_every_slot_of_a_publication_may_have_its_own_time() -> None:
    """Each falls back at its time, those of one time in the order of their slots, and an infinite one never."""
    ledger = make_ledger(6)
    cache_each(ledger, "abcde", [90] * 5, [20.0, 10.0, NEVER_S, 20.0, 30.0])

    ledger.expire(10.0)
    assert ledger.free_order.priority[1:].tolist() == [90, 35, 90, 90, 90]
    assert ledger.expires_s[1:].tolist() == [20.0, NEVER_S, NEVER_S, 20.0, 30.0]
    ledger.expire(29.0)
    assert free(ledger) == [2, 1, 4, 3, 5]
    ledger.expire(1e9)

    assert free(ledger) == [2, 1, 4, 5, 3]
    assert ledger.free_order.priority[1:].tolist() == [35, 35, 90, 35, 35]


def test_slots_of_one_time_fall_back_from_whatever_priorities_they_have() -> None:
    """They keep the order of the publication, not that of their priorities."""
    ledger = make_ledger(6)
    cache_each(ledger, "abcde", [90, 10, 35, 100, 0], [5.0] * 5)

    ledger.expire(5.0)

    assert free(ledger) == [1, 2, 3, 4, 5]


def test_a_time_of_what_was_there_before_does_not_survive_a_publication_of_arrays() -> None:
    """Infinite times in an array count, whether some of it are finite or none."""
    ledger = make_ledger(3)
    for times_s in ([NEVER_S, 50.0], [NEVER_S, NEVER_S]):
        cache(ledger, "ab", priority=90, expires_s=10.0)
        cache_each(ledger, "cd", [80, 80], times_s)

        assert ledger.expires_s[1:].tolist() == times_s
        ledger.expire(10.0)
        assert ledger.free_order.priority[1:].tolist() == [80, 80]


def test_thousands_of_publications_with_many_times_leave_only_the_last_to_expire() -> None:
    """What is noted about slots taken since is dropped on the way, also where one publication notes many times."""
    ledger = make_ledger(4)
    for number in range(300):
        cache_each(ledger, "abc", [40, 40, 40], [1000.0 + number, 2000.0 + number, 3000.0 + number])
    assert len(ledger._expiring) <= 2 * 4  # noqa: SLF001 - nothing else shows that memory has a bound

    ledger.expire(2298.0)  # the last times are 1299, 2299 and 3299
    assert ledger.free_order.priority[1:].tolist() == [35, 40, 40]
    assert ledger.expires_s[1:].tolist() == [NEVER_S, 2299.0, 3299.0]


@pytest.mark.parametrize(
    ("priorities", "times_s", "message"),
    [
        ([1], [2.0, 2.0], "2 slots to be published, 1 priorities"),
        ([1, 1, 1], [2.0, 2.0], "2 slots to be published, 3 priorities"),
        ([1, 1], [2.0], "2 slots to be published, 1 times of expiry"),
        ([1, 1], [NEVER_S] * 3, "2 slots to be published, 3 times of expiry"),
    ],
)
def test_arrays_of_another_length_are_a_bug_and_change_nothing(
    priorities: list[int], times_s: list[float], message: str
) -> None:
    """One value would otherwise be spread over all slots."""
    ledger = make_ledger(4)
    taken, _ = ledger.take(2, SEQUENCE)
    before = everything(ledger)

    with pytest.raises(InvariantError, match=message):
        ledger.publish(taken, as_digests(chain("ab")), np.array(priorities, np.uint8), np.array(times_s))

    assert everything(ledger) == before


def test_nothing_can_be_published_with_arrays() -> None:
    """A group may have refused every block."""
    ledger = make_ledger(4)
    before = everything(ledger)

    ledger.publish(slots(), as_digests(b""), np.zeros(0, np.uint8), np.zeros(0))

    assert everything(ledger) == before


# -- what was published ------------------------------------------------------------------------------------------------


def test_what_was_published_can_be_read_until_the_next_publication() -> None:
    """A block that moves to another pool takes it along, and its slot may have been taken meanwhile."""
    ledger = make_ledger(4)
    cache_each(ledger, "abc", [80, 10, 35], [20.0, NEVER_S, 30.0])

    def seen() -> tuple[list[bytes], list[int], list[float]]:
        asked = slots(3, 1, 2)
        digests = [digest.tobytes() for digest in ledger.digests_of(asked)]
        return digests, ledger.priority_of(asked).tolist(), ledger.expires_of(asked).tolist()

    first, second, third = split(chain("abc"))
    expected = ([third, first, second], [35, 80, 10], [30.0, 20.0, NEVER_S])
    assert seen() == expected
    taken, _ = ledger.take(3, SEQUENCE)
    assert seen() == expected
    ledger.publish(taken, as_digests(chain("xyz")), 50)  # taken is 2, 3, 1

    assert seen() == (
        [split(chain("xyz"))[1], split(chain("xyz"))[2], split(chain("xyz"))[0]],
        [50, 50, 50],
        [NEVER_S] * 3,
    )


def test_what_is_read_is_of_the_width_of_a_digest_and_does_not_change_later() -> None:
    """The next publication in the slot must not write into what was read."""
    ledger = make_ledger(3)
    cache(ledger, "a", priority=80, expires_s=5.0)
    digests, priorities = ledger.digests_of(slots(1)), ledger.priority_of(slots(1))
    times_s = ledger.expires_of(slots(1))

    cache(ledger, "xy")

    assert (digests.tobytes(), digests.itemsize) == (chain("a"), DIGEST_BYTES)
    assert (priorities.tolist(), times_s.tolist()) == ([80], [5.0])


def test_what_has_expired_is_read_as_the_default_for_good() -> None:
    """A block that moves later must not expire again."""
    ledger = make_ledger(4)
    cache_each(ledger, "ab", [80, 90], [5.0, 9.0])

    ledger.expire(6.0)

    assert ledger.priority_of(slots(1, 2)).tolist() == [35, 90]
    assert ledger.expires_of(slots(1, 2)).tolist() == [NEVER_S, 9.0]


def test_a_block_moves_between_ledgers_with_priority_and_time() -> None:
    """What is read of one ledger can be published in another, where it goes on as it was."""
    above, below = make_ledger(4), make_ledger(8)
    cache_each(above, "abc", [80, 10, 35], [20.0, NEVER_S, NEVER_S])
    sources, _ = above.take(3, SEQUENCE)
    assert sources.tolist() == [2, 3, 1]

    landed, _ = below.take(3, TRANSFER)
    below.publish(landed, above.digests_of(sources), above.priority_of(sources), above.expires_of(sources))
    below.release(landed, TRANSFER)

    assert free(below) == [4, 5, 6, 7, 1, 2, 3]
    assert below.digests_of(slots(3)).tobytes() == split(chain("abc"))[0]
    below.expire(20.0)
    assert below.priority_of(landed).tolist() == [10, 35, 35]
