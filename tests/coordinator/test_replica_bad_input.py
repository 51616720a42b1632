"""Every bad request has its own clear error, and leaves a replica in the middle of its work exactly as it was."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

import pytest

from kvtroupe.coordinator.check import check, quiescent
from kvtroupe.coordinator.config import Limits
from kvtroupe.coordinator.errors import (
    CommitError,
    DigestError,
    FenceError,
    KVTroupeError,
    OutOfBlocks,
    Overloaded,
    PinExists,
    RequestError,
    SequenceExists,
    TokenError,
    UnknownPin,
    UnknownSequence,
)
from kvtroupe.coordinator.messages import NewSequence
from kvtroupe.coordinator.replica import Replica
from tests.coordinator.support import DIGEST_BYTES, admit, cache, chain, make_config, new, snapshot, split

Call: TypeAlias = Callable[[Replica], object]


def odd(value: object) -> Any:  # noqa: ANN401 - that is what it is for
    """A value of a wrong type."""
    return value


def busy_replica() -> Replica:
    """Two running sequences, one behind a fence, cached chains, a pin; two hash blocks to a block; tight limits."""
    limits = Limits(sequence_tokens_max=40, sequences_max=3, pins_max=1)
    replica = Replica(make_config("full", "sliding:5", blocks=41, digests_per_block=2, limits=limits))
    admit(replica, NewSequence("old", 8, chain("abcd")))
    replica.commit("old", 8)
    replica.release("old")
    admit(replica, NewSequence("run", 14, chain("abcdef"), spare_blocks=1))
    replica.commit("run", 13)
    admit(replica, NewSequence("next", 6))
    admit(replica, NewSequence("gone", 9, chain("xyzw")))
    replica.commit("gone", 9)
    replica.release("gone", fence=12)
    replica.steps_done(9)
    replica.pin("pin", chain("abcd"))
    check(replica)
    return replica


BAD_ADMISSIONS: dict[str, tuple[Call, type[KVTroupeError], str]] = {
    "of an id that runs": (lambda it: it.admit([NewSequence("run", 8)]), SequenceExists, "'run' runs"),
    "of one id twice": (lambda it: it.admit([NewSequence(7, 8), NewSequence(7, 8)]), SequenceExists, "twice: 7"),
    "behind a good one": (lambda it: it.admit([NewSequence("a", 8), NewSequence("run", 8)]), SequenceExists, "'run'"),
    "of more than the limit": (lambda it: it.admit([NewSequence(one, 8) for one in "ab"]), Overloaded, "max is 3"),
    "of no tokens": (lambda it: it.admit([NewSequence("a", 0)]), TokenError, "'a' has 0 tokens"),
    "of fewer than none": (lambda it: it.admit([NewSequence("a", -8)]), TokenError, "'a' has -8 tokens"),
    "of half a token": (lambda it: it.admit([NewSequence("a", odd(1.5))]), TokenError, "'a' has 1.5 tokens"),
    "of negative room": (lambda it: it.admit([new("a", "x", spare_blocks=-1)]), TokenError, "-1 spare blocks"),
    "with half a digest": (lambda it: it.admit([NewSequence("a", 8, bytes(12))]), DigestError, "12 bytes.* 8 bytes"),
    "with a digest too many": (
        lambda it: it.admit([NewSequence("a", 7, chain("abcd"))]),
        DigestError,
        "4 digests for 7 tokens, which complete only 3 hash blocks of 2",
    ),
    "with text for digests": (lambda it: it.admit([NewSequence("a", 8, odd("00"))]), RequestError, "str .* bytes"),
    "with a number for retention": (
        lambda it: it.admit([NewSequence("a", 8, retention=odd(50))]),
        RequestError,
        "int where Retention belongs",
    ),
    "without an id": (lambda it: it.admit([NewSequence(odd(None), 8)]), RequestError, "None cannot name a sequence"),
    "under a list": (lambda it: it.admit([NewSequence(odd([1]), 8)]), RequestError, r"\[1\] cannot name a sequence"),
}
BAD_COMMITS: dict[str, tuple[Call, type[KVTroupeError], str]] = {
    "of what does not run": (lambda it: it.commit("nobody", 4), UnknownSequence, "no sequence 'nobody' is running"),
    "of what was released": (lambda it: it.commit("gone", 9), UnknownSequence, "no sequence 'gone' is running"),
    "backwards": (lambda it: it.commit("run", 12), CommitError, "'run' has committed 13 tokens already, and now 12"),
    "below zero": (lambda it: it.commit("next", -1), CommitError, "committed 0 tokens already, and now -1"),
    "beyond its blocks": (lambda it: it.commit("run", 21), CommitError, "'run' commits 21 tokens .* for 20"),
    "beyond all measure": (lambda it: it.commit("run", 2**70), CommitError, f"commits {2**70} tokens"),
    "of half a token": (lambda it: it.commit("run", odd(13.5)), CommitError, "now 13.5"),
    "with half a digest": (lambda it: it.commit("run", 16, bytes(7)), DigestError, "'run' has 7 bytes of digests"),
    "with digests of tokens to come": (
        lambda it: it.commit("run", 15, chain("gh")),
        DigestError,
        "brings 2 digests on top of 6; 15 tokens complete only 7 hash blocks",
    ),
    "with digests and no tokens": (lambda it: it.commit("next", 0, chain("p")), DigestError, "brings 1 digests on top"),
    "with text for digests": (lambda it: it.commit("run", 16, odd("0" * 8)), RequestError, "str where bytes"),
    "with half a fence": (lambda it: it.commit("run", 16, fence=odd(1.5)), FenceError, "1.5"),
}
BAD_GROWTH: dict[str, tuple[Call, type[KVTroupeError], str]] = {
    "of what does not run": (lambda it: it.grow(["run", "nobody"]), UnknownSequence, "no sequence 'nobody'"),
    "of one twice": (lambda it: it.grow(["run", "next", "run"]), RequestError, "twice: run"),
    "by nothing": (lambda it: it.grow(["run"], 0), RequestError, "growth by 0 blocks"),
    "by less than nothing": (lambda it: it.grow(["run"], -2), RequestError, "growth by -2 blocks"),
    "by half a block": (lambda it: it.grow(["run"], odd(0.5)), RequestError, "growth by 0.5 blocks"),
    "of tokens of nobody": (lambda it: it.extend("nobody"), UnknownSequence, "no sequence 'nobody'"),
    "by no tokens": (lambda it: it.extend("run", 0), TokenError, "'run' is extended by 0 tokens"),
    "by fewer than none": (lambda it: it.extend("run", -1), TokenError, "'run' is extended by -1 tokens"),
    "by half a token": (lambda it: it.extend("run", odd(0.5)), TokenError, "'run' is extended by 0.5 tokens"),
}
BAD_ENDS: dict[str, tuple[Call, type[KVTroupeError], str]] = {
    "release of nobody": (lambda it: it.release("nobody"), UnknownSequence, "no sequence 'nobody' is running"),
    "second release": (lambda it: it.release("old"), UnknownSequence, "no sequence 'old' .* released already"),
    "second release behind a fence": (lambda it: it.release("gone", fence=20), UnknownSequence, "no sequence 'gone'"),
    "half a fence": (lambda it: it.release("run", fence=odd(1.5)), FenceError, "1.5"),
    "steps backwards": (lambda it: it.steps_done(8), FenceError, "step 8 was reported done after step 9"),
    "half a step": (lambda it: it.steps_done(odd(9.5)), FenceError, "9.5"),
    "no step": (lambda it: it.steps_done(odd(None)), FenceError, "None"),
}
BAD_PINS: dict[str, tuple[Call, type[KVTroupeError], str]] = {
    "an id that stands": (lambda it: it.pin("pin", chain("ab")), PinExists, "pin 'pin' stands"),
    "one more than the limit": (lambda it: it.pin("second", chain("ab")), Overloaded, "1 pins stand"),
    "unpin of nothing": (lambda it: it.unpin("none"), UnknownPin, "no pin 'none' stands"),
}
BAD_QUESTIONS: dict[str, tuple[Call, type[KVTroupeError], str]] = {
    "tables of nobody": (lambda it: it.tables("nobody"), UnknownSequence, "no sequence 'nobody'"),
    "record of nobody": (lambda it: it.sequence("old"), UnknownSequence, "no sequence 'old'"),
    "free order of no pool": (lambda it: it.free_order("host"), RequestError, r"no pool 'host'; .* \['device'\]"),
    "holders of no pool": (lambda it: it.holders("host"), RequestError, "no pool 'host'"),
    "blocks of no group": (lambda it: it.published("x"), RequestError, r"no group 'x'; .* \['full0', 'sliding1'\]"),
}
BAD_CALLS = {
    f"{what}: {name}": case
    for what, cases in [
        ("admission", BAD_ADMISSIONS),
        ("commit", BAD_COMMITS),
        ("growth", BAD_GROWTH),
        ("end", BAD_ENDS),
        ("pin", BAD_PINS),
        ("question", BAD_QUESTIONS),
    ]
    for name, case in cases.items()
}


@pytest.mark.parametrize("name", BAD_CALLS)
def test_a_bad_request_has_its_own_error_and_changes_nothing(name: str) -> None:
    """The error is of the documented kind and names the values; free order, generations, counters are as before."""
    call, kind, message = BAD_CALLS[name]
    replica = busy_replica()
    before = snapshot(replica)

    with pytest.raises(KVTroupeError, match=message) as raised:
        call(replica)

    assert type(raised.value) is kind
    assert snapshot(replica) == before
    check(replica)


BAD_DIGESTS_OF_PINS: list[tuple[Any, type[KVTroupeError], str]] = [
    (b"", DigestError, "pin 'p' names no digests"),
    (bytes(DIGEST_BYTES + 1), DigestError, "pin 'p' has 9 bytes of digests"),
    ("0" * DIGEST_BYTES, RequestError, "str where bytes belongs"),
]


@pytest.mark.parametrize(("digests", "kind", "message"), BAD_DIGESTS_OF_PINS)
def test_a_pin_of_bad_digests_is_refused(digests: Any, kind: type[KVTroupeError], message: str) -> None:  # noqa: ANN401
    """It does not stand afterwards, and its id is free."""
    replica = busy_replica()
    replica.unpin("pin")
    before = snapshot(replica)

    with pytest.raises(kind, match=message):
        replica.pin("p", digests)
    assert snapshot(replica) == before

    assert replica.pin("p", chain("abcd")) == 8


def test_a_pin_given_back_is_gone() -> None:
    """The second time it is unknown, and its blocks are not given back twice."""
    replica = busy_replica()
    replica.unpin("pin")
    before = snapshot(replica)

    with pytest.raises(UnknownPin, match="no pin 'pin' stands"):
        replica.unpin("pin")

    assert snapshot(replica) == before


@pytest.mark.parametrize("name", BAD_CALLS)
def test_work_goes_on_after_a_bad_request(name: str) -> None:
    """What was running can be extended, committed and released, and in the end everything is free."""
    call, kind, _ = BAD_CALLS[name]
    replica = busy_replica()
    with pytest.raises(kind):
        call(replica)

    replica.extend("run", 7)
    replica.commit("run", 21, split(chain("abcdefgh"))[6] + split(chain("abcdefgh"))[7])
    assert admit(replica, NewSequence("reader", 17, chain("abcdefgh"))).cached_tokens == 16
    for sequence_id in ("run", "next", "reader"):
        replica.release(sequence_id)
    replica.unpin("pin")
    replica.steps_done(12)

    check(replica)
    assert quiescent(replica)


def test_a_refused_request_can_be_sent_again() -> None:
    """Its id is not taken by the refusal, and it hits what it would have hit before."""
    replica = Replica(make_config("full", blocks=9))
    cache(replica, "xyz")
    admit(replica, new("large", "abcde", extra_tokens=0))
    (refused,) = replica.admit([new("small", "xyz")])
    assert isinstance(refused, OutOfBlocks)

    replica.release("large")

    assert admit(replica, new("small", "xyz")).cached_tokens == 12
