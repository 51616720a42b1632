"""What a replica has done since it started, as numbers that only grow."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class Counters:
    """Totals since the start.

    Attributes:
        rounds: rounds of admission that were settled.
        admitted: sequences admitted.
        refused: sequences refused for lack of blocks, or because they could never fit.
        deferred: times a request left a round so that an earlier one could be granted.
        prompt_tokens: tokens of the prompts of admitted sequences.
        hit_tokens: those of them that were found in every group.
        grown: times a sequence got more blocks.
        growth_refused: times a sequence got none.
        evictions: published blocks that were taken for other content.
        published: blocks that entered an index.
        duplicates: blocks that stayed private because their digest was published already.
        stale_places: places named by a group that had changed hands before they were claimed.
        late_answers: answers of groups that nobody waited for: to a round that had gone on, or given before.
        released: sequences that ended.
    """

    rounds: int = 0
    admitted: int = 0
    refused: int = 0
    deferred: int = 0
    prompt_tokens: int = 0
    hit_tokens: int = 0
    grown: int = 0
    growth_refused: int = 0
    evictions: int = 0
    published: int = 0
    duplicates: int = 0
    stale_places: int = 0
    late_answers: int = 0
    released: int = 0
