"""What must hold between the groups of a replica, its pools and its block sizes.

The checks that a configuration makes of itself raise `ValueError` with what is wrong and what to do; it makes a
`ConfigError` of it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvtroupe.coordinator.errors import ConfigError

if TYPE_CHECKING:
    from kvtroupe.coordinator.config import Config

BLOCKWISE_KINDS = ("full", "sliding", "chunked")  # participating groups that hold the KV entries of each block
UNIT_TOKENS_MAX = 2**20
AS_MANY_AS_FIT = 2**31  # blocks of a pool that is not sized yet


def block_sizes(config: Config, kinds: tuple[str, ...]) -> list[int]:
    """The different block sizes of the groups of some kinds, in tokens, smallest first."""
    return sorted({group.block_tokens or config.block_tokens for group in config.groups if group.kind in kinds})


def check_pools_of_groups(config: Config) -> None:
    """Groups draw from device pools, every device pool has a group, and what a sequence always takes fits into it."""
    pools = {pool.name: pool for pool in config.pools}
    always_taken = {pool.name: 0 for pool in config.pools if pool.tier == "device"}
    unused = dict.fromkeys(always_taken)
    for group in config.groups:
        if group.pool not in pools:
            raise ValueError(
                f"group {group.name!r} draws from pool {group.pool!r}, which is not one of {list(pools)}: "
                "add it, or name one of these"
            )
        if group.pool not in always_taken:
            raise ValueError(
                f"group {group.name!r} draws from {pools[group.pool].tier} pool {group.pool!r}: "
                "name a device pool, and that one below it"
            )
        unused.pop(group.pool, None)
        # A recurrent group takes one for the state that a sequence computes with. More beams take more than this.
        always_taken[group.pool] += 1 if group.kind == "recurrent" else group.blocks or 0
    for name in unused:
        raise ValueError(f"no group draws from pool {name!r}; remove it or name it in a group")
    for name, blocks in always_taken.items():
        room = pools[name].blocks - 1 - pools[name].reserved_blocks
        if blocks > room:
            raise ValueError(
                f"the fixed and recurrent groups of pool {name!r} take {blocks} blocks for any sequence, of {room} "
                "that new sequences can have: no sequence could ever be admitted"
            )


def check_block_sizes(config: Config) -> None:
    """Block sizes are multiples of the hash block, snapshots of the unit; cross groups share their encoder digests."""
    hash_block = config.tokens_per_digest
    if config.block_tokens % hash_block:
        raise ValueError(
            f"hash_block_tokens {hash_block} does not divide block_tokens {config.block_tokens}: "
            "set it to a divisor of every block size"
        )
    for group in config.groups:
        if group.block_tokens is not None and group.block_tokens % hash_block:
            raise ValueError(
                f"group {group.name!r} has blocks of {group.block_tokens} tokens, which are not whole hash blocks of "
                f"{hash_block}: set hash_block_tokens to a divisor of every block size"
            )
    if not any(group.kind in (*BLOCKWISE_KINDS, "recurrent") for group in config.groups):
        raise ValueError(
            "all groups are cross or fixed: at least one has to be full, sliding, chunked or recurrent, "
            "since a sequence grows by its blocks"
        )
    _check_unit(config)
    sizes = block_sizes(config, ("cross",))
    if len(sizes) > 1:
        raise ValueError(f"cross groups have blocks of {sizes} tokens, but share one digest a block: use one size")


def _check_unit(config: Config) -> None:
    unit = config.unit_tokens
    if unit > UNIT_TOKENS_MAX:
        raise ValueError(
            f"hits are multiples of all block sizes, {block_sizes(config, BLOCKWISE_KINDS)} tokens, but their least "
            f"common multiple is above {UNIT_TOKENS_MAX}: choose block sizes that divide each other"
        )
    for group in config.groups:
        if group.snapshot_tokens is not None and group.snapshot_tokens % unit:
            raise ValueError(
                f"group {group.name!r} has snapshot_tokens {group.snapshot_tokens}, "
                f"which is no multiple of the unit of {unit} tokens; choose one, or leave it out"
            )


def check_room_for_one_unit(config: Config) -> None:
    """Sequences grow by whole units, so the longest that is allowed must hold one."""
    longest = config.limits.sequence_tokens_max
    if longest < config.unit_tokens:
        raise ValueError(
            f"sequence_tokens_max is {longest}, less than the unit of {config.unit_tokens} tokens that every sequence "
            "takes at least: no sequence could ever be admitted; raise it, or choose smaller block sizes"
        )


def check_partial_reuse(config: Config) -> None:
    """A hit within a block needs KV entries of single tokens, and the same block in every participating group."""
    if config.partial_reuse == "off":
        return
    for group in config.groups:
        if group.kind == "recurrent":
            raise ValueError(
                f"partial_reuse is {config.partial_reuse!r} and group {group.name!r} recurrent: "
                "a state cannot be cut within a block; turn partial_reuse off"
            )
    sizes = block_sizes(config, BLOCKWISE_KINDS)
    if len(sizes) > 1:
        raise ValueError(
            f"partial_reuse is {config.partial_reuse!r}, with blocks of {sizes} tokens: "
            "it needs blocks of one size; turn it off"
        )


def check_sized(config: Config) -> None:
    """Refuse a configuration whose pools are not sized yet.

    Raises:
        ConfigError: as it is asked for once a configuration is made.
    """
    names = [pool.name for pool in config.pools if pool.blocks == AS_MANY_AS_FIT]
    if names:
        raise ConfigError(f"pools {names} have AS_MANY_AS_FIT blocks; let plan_pools size them from what ranks report")
