"""Mirrors: what they know after which news, and when they need a snapshot."""

from __future__ import annotations

import pytest

from kvtroupe.coordinator.errors import InvariantError
from kvtroupe.coordinator.event_mirror import NO_CHANGES, Changes, Mirror
from kvtroupe.coordinator.messages import Cleared, Events, Removed, Snapshot, Stored
from tests.coordinator.support import DIGEST_BYTES, chain, last_digest, split

CHAIN = chain("abcde")
B = last_digest("ab")
EMPTY = Snapshot(0, 1, ())
A = chain("a")


def mirror_of(*facts: Stored | Removed | Cleared) -> Mirror:
    """A mirror that has heard these facts after an empty snapshot."""
    mirror = Mirror(DIGEST_BYTES)
    mirror.fold(EMPTY)
    mirror.fold(Events(0, 1, facts))
    return mirror


# -- places ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("second", ["host", "device"])
@pytest.mark.parametrize("first_gone", [0, 1])
def test_a_block_in_two_places_is_held_until_both_are_gone(second: str, first_gone: int) -> None:
    """K1 to K5, of which K2 is held twice. Whichever goes first, the chain is predicted whole; then one block of it."""
    mirror = mirror_of(Stored(0, "device", b"", CHAIN), Stored(0, second, CHAIN[:DIGEST_BYTES], B))
    media = ["device", second]

    changes = mirror.fold(Events(0, 3, (Removed(0, media[first_gone], B),)))
    assert changes == NO_CHANGES
    assert mirror.prefix_blocks(0, CHAIN) == 5

    changes = mirror.fold(Events(0, 4, (Removed(0, media[1 - first_gone], B),)))
    assert changes == Changes(vanished=((0, B),))
    assert mirror.prefix_blocks(0, CHAIN) == 1


def test_a_block_that_appears_a_second_time_appears_once() -> None:
    """So a reader that keeps a set of what has appeared loses it with the one removal that it is told."""
    mirror = Mirror(DIGEST_BYTES)
    mirror.fold(EMPTY)

    first = mirror.fold(Events(0, 1, (Stored(0, "device", b"", A),)))
    again = mirror.fold(Events(0, 2, (Stored(0, "host", b"", A), Stored(0, "host", b"", A))))
    some = mirror.fold(Events(0, 4, (Removed(0, "host", A), Removed(0, "device", A))))
    last = mirror.fold(Events(0, 6, (Removed(0, "host", A),)))

    assert [first, again, some, last] == [Changes(appeared=((0, A),)), NO_CHANGES, NO_CHANGES, Changes((), ((0, A),))]


def test_what_goes_and_comes_in_one_piece_of_news_has_not_changed() -> None:
    """It has only moved."""
    mirror = mirror_of(Stored(0, "device", b"", A))

    assert mirror.fold(Events(0, 2, (Removed(0, "device", A), Stored(0, "host", b"", A)))) == NO_CHANGES
    assert mirror.places(0, A) == {"host": 1}


def test_groups_and_media_are_told_apart() -> None:
    """Group 0 has a and b on the device and a on the host; group 1 has a on the disk."""
    mirror = mirror_of(Stored(0, "device", b"", chain("ab")), Stored(0, "host", b"", A), Stored(1, "disk", b"", A))

    assert mirror.places(0, A) == {"device": 1, "host": 1}
    assert mirror.places(1, A) == {"disk": 1}
    assert mirror.places(2, A) == {}
    assert [mirror.prefix_blocks(0, CHAIN, medium) for medium in (None, "device", "host", "disk")] == [2, 2, 1, 0]
    assert [mirror.prefix_blocks(group, CHAIN) for group in (0, 1, 2)] == [2, 1, 0]


def test_a_prefix_ends_at_the_first_block_that_is_nowhere() -> None:
    """C to e are held; without b nobody can use them. A prefix in two media is one prefix."""
    mirror = mirror_of(Stored(0, "device", b"", CHAIN), Removed(0, "device", B))
    assert mirror.prefix_blocks(0, CHAIN) == 1

    mirror.fold(Events(0, 3, (Stored(0, "disk", A, B),)))

    assert mirror.prefix_blocks(0, CHAIN) == 5
    assert mirror.prefix_blocks(0, CHAIN[: 2 * DIGEST_BYTES]) == 2


@pytest.mark.parametrize(
    ("cleared", "left"),
    [
        (Cleared(), set()),
        (Cleared(0), {(1, "device"), (1, "host")}),
        (Cleared(None, "device"), {(0, "host"), (1, "host")}),
        (Cleared(1, "host"), {(0, "device"), (0, "host"), (1, "device")}),
    ],
)
def test_what_is_cleared_is_gone_and_nothing_else(cleared: Cleared, left: set[tuple[int, str]]) -> None:
    """Two groups, each with a block in two media."""
    stored = [Stored(group, medium, b"", A) for group in (0, 1) for medium in ("device", "host")]

    assert {(group, medium) for group, medium, _ in mirror_of(*stored, cleared).counts()} == left


def test_a_place_that_was_never_stored_cannot_be_removed() -> None:
    """The facts do not fit together."""
    mirror = mirror_of(Stored(0, "device", b"", A))

    with pytest.raises(InvariantError, match="removed from host, where it is not"):
        mirror.fold(Events(0, 2, (Removed(0, "host", A),)))


# -- gaps and epochs ---------------------------------------------------------------------------------------------------


def test_a_mirror_begins_with_a_snapshot() -> None:
    """Events alone tell it nothing."""
    mirror = Mirror(DIGEST_BYTES)

    assert mirror.fold(Events(0, 0, (Cleared(), Stored(0, "device", b"", A)))) == NO_CHANGES
    assert mirror.position is None
    assert mirror.counts() == {}

    assert mirror.fold(Snapshot(0, 7, (Stored(0, "device", b"", A),))) == Changes(appeared=((0, A),))
    assert mirror.position == (0, 7)


def test_after_a_gap_a_mirror_needs_a_snapshot() -> None:
    """Facts 3 and 4 are missing. What it knew counts until it has one, which tells it what has changed since."""
    mirror = mirror_of(Stored(0, "device", b"", chain("ab")))

    assert mirror.fold(Events(0, 4, (Stored(0, "host", b"", A),))) == NO_CHANGES
    assert mirror.position is None
    assert mirror.prefix_blocks(0, CHAIN) == 2
    assert mirror.fold(Events(0, 2, ())) == NO_CHANGES
    assert mirror.position is None

    changes = mirror.fold(Snapshot(0, 5, (Stored(0, "host", b"", A), Stored(1, "device", b"", A))))
    assert changes == Changes(appeared=((1, A),), vanished=((0, B),))
    assert mirror.counts() == {(0, "host", A): 1, (1, "device", A): 1}


def test_facts_that_come_twice_count_once() -> None:
    """News may overlap with what is known."""
    mirror = mirror_of(Stored(0, "device", b"", A))
    stored, removed = Stored(0, "device", A, B), Removed(0, "device", A)

    for after, facts in (
        (1, (Stored(0, "device", b"", A),)),
        (1, (Stored(0, "device", b"", A), stored)),
        (2, (stored,)),
    ):
        mirror.fold(Events(0, after, facts))
    assert mirror.position == (0, 3)
    assert mirror.counts() == {(0, "device", A): 1, (0, "device", B): 1}

    mirror.fold(Events(0, 2, (stored, removed)))
    assert mirror.position == (0, 4)
    assert mirror.counts() == {(0, "device", B): 1}


def test_an_older_snapshot_changes_nothing() -> None:
    """It was asked for before events came that are newer."""
    mirror = mirror_of(Stored(0, "device", b"", A))

    assert mirror.fold(EMPTY) == NO_CHANGES
    assert mirror.position == (0, 2)
    assert mirror.prefix_blocks(0, A) == 1


def test_a_new_epoch_needs_a_snapshot_and_the_old_one_counts_no_more() -> None:
    """Whatever an earlier coordinator still says is late."""
    mirror = mirror_of(Stored(0, "device", b"", A))

    news: list[Events | Snapshot] = [
        Events(3, 0, (Cleared(),)),
        Snapshot(0, 9, (Stored(0, "device", b"", CHAIN),)),
        Snapshot(3, 1, (Stored(0, "host", b"", B),)),
        Events(0, 2, (Removed(0, "device", A),)),
    ]
    seen = [(mirror.fold(one), mirror.position) for one in news]

    assert seen == [
        (NO_CHANGES, None),
        (NO_CHANGES, None),
        (Changes(((0, B),), ((0, A),)), (3, 1)),
        (NO_CHANGES, (3, 1)),
    ]


def test_a_snapshot_of_a_new_epoch_is_taken_whatever_its_number() -> None:
    """Numbers of another epoch mean nothing."""
    mirror = mirror_of(*[Stored(0, "device", b"", digest) for digest in split(CHAIN)])
    assert mirror.position == (0, 6)

    mirror.fold(Snapshot(1, 1, ()))

    assert mirror.position == (1, 1)
    assert mirror.counts() == {}
