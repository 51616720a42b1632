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
        partial_hits: sequences whose hit ended within a block.
        grown: times a sequence got more blocks.
        growth_refused: times a sequence got none.
        evictions: published blocks that were taken for other content.
        published: blocks that entered an index.
        duplicates: blocks that stayed private because their digest was published already.
        stale_places: places named by a group that had changed hands before they were claimed.
        late_answers: answers of groups that nobody waited for: to a round that had gone on, or given before.
        released: sequences that ended.
        demoted: blocks whose copy to a pool below began.
        promoted: blocks whose copy to a pool above began.
        landed: blocks that entered an index by a copy.
        dropped: blocks published below the device that were taken for other content.
        demotions_given_up: blocks worth keeping that were evicted, because there was no room for them below.
        copies_failed: blocks whose copy failed.
        sequences_failed: sequences that were undone because what they waited for was lost.
        cancelled: sequences that their clients cancelled, before they were admitted or after.
        waited: times a request for which there was no room was left waiting for some.
        sessions_begun: sessions that were attached for the first time.
        sessions_lost: sessions whose clients stayed away for too long.
        requests_repeated: numbered requests that came again.
    """

    rounds: int = 0
    admitted: int = 0
    refused: int = 0
    deferred: int = 0
    prompt_tokens: int = 0
    hit_tokens: int = 0
    partial_hits: int = 0
    grown: int = 0
    growth_refused: int = 0
    evictions: int = 0
    published: int = 0
    duplicates: int = 0
    stale_places: int = 0
    late_answers: int = 0
    released: int = 0
    demoted: int = 0
    promoted: int = 0
    landed: int = 0
    dropped: int = 0
    demotions_given_up: int = 0
    copies_failed: int = 0
    sequences_failed: int = 0
    cancelled: int = 0
    waited: int = 0
    sessions_begun: int = 0
    sessions_lost: int = 0
    requests_repeated: int = 0
