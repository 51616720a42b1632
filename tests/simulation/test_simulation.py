"""Everything at once, in any order, with every fault: nothing is wrong, and nothing is lost."""

from __future__ import annotations

import random
import re
from typing import TYPE_CHECKING

from kvtroupe.coordinator.config import Config, GroupConfig, Limits, PoolConfig
from tests.coordinator.support import BLOCK_TOKENS, DIGEST_BYTES
from tests.simulation.shrink import shrink
from tests.simulation.world import Faults, World

if TYPE_CHECKING:
    from tests.conftest import Search

STEPS = 1200
NO_LOSSES = Faults(losses=0, restarts=0, resets=0, clients=0, drops=0)
FEW_LOSSES = Faults(losses=0.02, restarts=0.006, resets=0.006, clients=0.03, drops=0.004)
TRIES = 600  # runs to make a failing one shorter


def make_config(chance: random.Random) -> Config:
    """A small replica of any shape."""
    kinds = [
        GroupConfig(name="full"),
        GroupConfig(name="sliding", kind="sliding", window_tokens=chance.choice([4, 5, 9])),
        GroupConfig(name="chunked", kind="chunked", chunk_tokens=8),
        GroupConfig(name="recurrent", kind="recurrent", snapshot_tokens=8),
    ]
    groups = [kinds[0], *chance.sample(kinds[1:], chance.randint(0, 2))]
    levels = chance.choice([1, 2, 2, 3, 3])
    blocks = [len(groups) * chance.randint(9, 20), chance.choice([chance.randint(5, 8), chance.randint(5, 30)])]
    blocks.append(chance.randint(8, 50))
    pools = []
    for level, tier in enumerate(["device", "host", "disk"][:levels]):
        values: dict[str, object] = {"name": tier, "tier": tier, "blocks": blocks[level]}
        if level + 1 < levels:
            values["below"] = ["host", "disk"][level]
            values["offload"] = chance.choice(["on_evict", "on_evict", "on_commit", "never"])
            values["copies_max_blocks"] = chance.choice([3, 4096])
        pools.append(PoolConfig.model_validate(values))
    return Config(
        namespace="simulation",
        block_tokens=BLOCK_TOKENS,
        digest_bytes=DIGEST_BYTES,
        groups=tuple(groups),
        pools=tuple(pools),
        ranks=chance.choice([1, 2]),
        events=True,
        limits=Limits(
            match_deadline_s=1.0,
            transfer_deadline_s=5.0,
            tier_retry_s=0.5,
            grace_s=4.0,
            event_blocks_kept_max=chance.choice([10, 100, 262_144]),
        ),
        partial_reuse="off"
        if any(group.kind == "recurrent" for group in groups)
        else chance.choice(["off", "copy", "copy"]),
    )


def run(seed: int) -> None:
    """Half of the worlds have no faults but slow answers and failed copies, so that the others do not hide anything.

    Of the others, half have few faults, so that content lives long enough to go down to the disk and to come back.
    """
    chance = random.Random(seed)  # noqa: S311 - chooses test cases
    config = make_config(chance)
    faults = (NO_LOSSES, Faults(), NO_LOSSES, FEW_LOSSES)[seed % 4]
    decisions = [chance.randrange(2**32) for _ in range(STEPS)]
    try:
        World(config, faults).run(decisions)
    except Exception as error:
        shortest = shrink(decisions, lambda shorter: failure_of(config, faults, shorter), TRIES)
        error.add_note(f"\n{len(shortest)} of {STEPS} decisions suffice: {shortest}")
        raise


def failure_of(config: Config, faults: Faults, decisions: list[int]) -> str | None:
    """In which way a run fails, without the numbers that differ from run to run; None if it does not."""
    try:
        World(config, faults).run(decisions)
    except Exception as error:  # noqa: BLE001 - any failure is one
        return f"{type(error).__name__} {re.sub('[0-9]+', '', str(error))[:40]}"
    return None


def test_nothing_is_wrong_and_nothing_is_lost(search: Search) -> None:
    """Every invariant after every step, whatever the order of events."""
    search.each(run)
