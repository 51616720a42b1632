"""Messages that ask how much sequences need. `messages` exports them with all others."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

from kvtroupe.coordinator.errors import RequestError

if TYPE_CHECKING:
    from kvtroupe.coordinator.errors import SequenceTooLong
    from kvtroupe.coordinator.messages import NewSequence, SequenceId


@dataclass(frozen=True, slots=True)
class Pace:
    """How an engine goes on with a sequence once its prompt is computed.

    Attributes:
        draft_tokens: draft tokens that a step computes besides the one token that it is sure to add.
        lag_tokens: tokens appended before a step and not committed yet when the step asks for room: those of steps that
            run ahead, and of steps whose fence is still to come. 0: every step is committed before the next begins.

    Raises:
        RequestError: one of them is no whole number from 0 on.
    """

    draft_tokens: int = 0
    lag_tokens: int = 0

    def __post_init__(self) -> None:
        for name in ("draft_tokens", "lag_tokens"):
            value = getattr(self, name)
            if type(value) is not int or value < 0:
                raise RequestError(f"a pace with {name} {value!r}; give a whole number, 0 or more")

    @property
    def step_tokens(self) -> int:
        """Tokens that a step asks room for."""
        return 1 + self.draft_tokens


PLAIN_PACE = Pace()


@dataclass(frozen=True, slots=True)
class Estimate:
    """What a sequence needs if all others stay as they are. Pools below the device have zeros.

    Attributes:
        hit_tokens: of a new sequence: what its prompt hits; of a running one: what it has hit.
        slots_now: for each pool the free slots that it takes now: a new one with its admission, cached blocks that it
            hits and nobody uses included; a running one for its next step.
        slots_to_end: for each pool the most free slots that it has taken at any time until its end, `slots_now`
            included; what windows give back on the way is taken off.
        free_slots: for each pool what is free now, reserved slots included.
        fits_now: whether it gets `slots_now`. New sequences are judged in order: those before it have got theirs. None:
            that depends on copies between pools which those before it would begin.
        fits_to_end: whether it could be run to its end with the slots that are free now, were it alone in the request.
        fits_empty: whether it could be run to its end alone in an empty replica. If not, it never fits unless a hit
            makes it smaller.
    """

    hit_tokens: int
    slots_now: tuple[int, ...]
    slots_to_end: tuple[int, ...]
    free_slots: tuple[int, ...]
    fits_now: bool | None
    fits_to_end: bool
    fits_empty: bool


@dataclass(frozen=True, slots=True)
class EstimateRequest:
    """How much would these sequences need, and which of the new ones would be admitted now? Nothing changes.

    Attributes:
        request_id: names the reply.
        running: running sequences.
        sequences: new ones, in the order in which they would be admitted; their ids mean nothing.
        new_tokens_max: for each, running ones first, the tokens that follow its prompt at most, those that it has
            already included.
        pace: of all of them.
    """

    request_id: int
    running: tuple[SequenceId, ...] = ()
    sequences: tuple[NewSequence, ...] = ()
    new_tokens_max: tuple[int, ...] = ()
    pace: Pace = PLAIN_PACE


EstimateResult: TypeAlias = "Estimate | SequenceTooLong"


@dataclass(frozen=True, slots=True)
class EstimateReply:
    """What each sequence needs, running ones first; or why a new one could never be admitted."""

    request_id: int
    estimates: tuple[EstimateResult, ...]
