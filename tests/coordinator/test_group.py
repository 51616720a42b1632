"""A window group: it answers the coordinator's messages from its index."""

from __future__ import annotations

from kvtroupe.coordinator.group import Group
from kvtroupe.coordinator.messages import (
    NO_SLOTS,
    BindEvent,
    MatchReply,
    MatchRequest,
    PlacesLost,
    Prompt,
    PublishReply,
    PublishRequest,
)
from tests.coordinator.support import DIGEST_BYTES, chain, slots


def make_group() -> Group:
    """The third group of a replica; it has published x, y and z in slots 4 to 6, generation 9."""
    group = Group(2, (21,), DIGEST_BYTES)
    answer = group.handle(PublishRequest(1, chain("xyz"), 0, slots(4, 5, 6), slots(9, 9, 9)))
    assert answer == PublishReply(1, 2, None)
    return group


def look_up(group: Group, *chains: str) -> list[int]:
    """The bits of each chain."""
    answer = group.handle(MatchRequest(7, tuple(Prompt(chain(words), len(words)) for words in chains)))
    assert isinstance(answer, MatchReply)
    assert (answer.round_id, answer.group) == (7, 2)
    return [found.present for found in answer.evidence]


def test_a_group_answers_for_every_prompt_in_order() -> None:
    """One piece of evidence each, under the numbers of the round and of the group."""
    assert look_up(make_group(), "xyzu", "q", "xy") == [0b111, 0, 0b11]


def test_a_group_says_which_blocks_it_took() -> None:
    """Those that it had already stay out."""
    answer = make_group().handle(PublishRequest(8, chain("xyu"), 1, slots(11, 12), slots(10, 10)))

    assert isinstance(answer, PublishReply)
    assert (answer.publish_id, answer.group) == (8, 2)
    assert answer.entered is not None
    assert answer.entered.tolist() == [False, True]


def test_a_group_forgets_what_was_evicted() -> None:
    """Without an answer."""
    group = make_group()

    assert group.handle(BindEvent(slots(5))) is None

    assert look_up(group, "xyz") == [0b101]


def test_a_group_forgets_stale_places() -> None:
    """Only those that it still knows under the generation named."""
    group = make_group()

    assert group.handle(BindEvent(NO_SLOTS, (PlacesLost(0, slots(4, 6), slots(9, 8)),))) is None

    assert look_up(group, "xyz") == [0b110]


def test_a_group_may_hear_of_both_at_once() -> None:
    """And of nothing."""
    group = make_group()

    group.handle(BindEvent(slots(5), (PlacesLost(0, slots(4), slots(9)),)))
    group.handle(BindEvent(NO_SLOTS))

    assert look_up(group, "xyz") == [0b100]
