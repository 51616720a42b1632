"""Makes a run that fails shorter, as long as it fails in the same way."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable


def shrink(decisions: list[int], failure_of: Callable[[list[int]], str | None], tries: int) -> list[int]:
    """Leave out decisions that a failure does not need.

    Args:
        decisions: of a run that fails.
        failure_of: runs decisions anew: how it fails, or None.
        tries: runs at most.

    Returns:
        decisions that fail in the same way; after enough tries, leaving out any one of them would not.
    """
    failure = failure_of(decisions)
    if failure is None:
        raise ValueError("a run that does not fail cannot be made shorter")
    size = len(decisions) // 2
    while size and tries > 0:
        at = len(decisions)
        shorter_found = False
        while at > 0 and tries > 0:
            shorter = decisions[: max(0, at - size)] + decisions[at:]
            tries -= 1
            if failure_of(shorter) == failure:
                decisions = shorter
                shorter_found = True
            at -= size
        if not shorter_found:
            size //= 2
    return decisions
