"""What the slow, obvious model of a replica finds of a chain, and what it publishes of one. See `reference.py`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvtroupe.coordinator.reference_parts import Hit, chain_of, digest_count, split

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kvtroupe.coordinator.config import Config
    from kvtroupe.coordinator.reference_groups import Place, ReferenceGroup, Rows
    from kvtroupe.coordinator.reference_parts import ReferenceSequence


def look_up(config: Config, parts: Sequence[ReferenceGroup], digests: bytes, tokens: int) -> Hit:
    """What a chain hits within its first `tokens` tokens: the longest prefix that every group can serve."""
    tokens = min(tokens, digest_count(config, digests) * config.tokens_per_digest)
    unit_tokens = config.unit_tokens
    chains = {part.block_tokens: chain_of(config, digests, part.block_tokens) for part in parts if part.takes_part}
    served = []
    for part in parts:
        if part.takes_part:
            chain = chains[part.block_tokens][: tokens // unit_tokens * unit_tokens // part.block_tokens]
            lengths = part.lengths(chain)
            served.append(
                {
                    blocks * part.block_tokens // unit_tokens
                    for blocks in lengths
                    if blocks * part.block_tokens % unit_tokens == 0
                }
            )
    units = max(set.intersection(*served))
    agreed = units * unit_tokens
    rows = [
        part.row(chains[part.block_tokens][: agreed // part.block_tokens]) if part.takes_part else [] for part in parts
    ]
    return Hit(agreed, max(served[0]) * unit_tokens - agreed, rows)


def look_up_encoder(config: Config, groups: Sequence[ReferenceGroup], digests: bytes, hit: Hit) -> None:
    """Add the blocks of the encoder input to what is hit, if all of them are there in every cross group."""
    chain = split(config, digests)
    numbers = [number for number, group in enumerate(groups) if group.kind == "cross"]
    if chain and numbers and all(digest in groups[number].slot_of for number in numbers for digest in chain):
        hit.encoder_cached = True
        for number in numbers:
            hit.rows[number] = groups[number].row(chain)


def places_of(parts: Sequence[ReferenceGroup], rows: Rows) -> list[Place]:
    """All that rows hold, one for each part."""
    return [(part.pool, slot) for part, row in zip(parts, rows, strict=True) for slot in row if slot]


def to_publish(config: Config, sequence: ReferenceSequence, group: ReferenceGroup) -> list[bytes]:
    """The digests of the blocks of a group that are computed: of several beams, only those of the prompt."""
    if group.kind == "cross":
        return split(config, sequence.new.encoder_digests)
    tokens = sequence.committed_tokens
    if sequence.new.beams > 1:
        tokens = min(tokens, sequence.prompt_tokens)
    return chain_of(config, sequence.digests, group.block_tokens)[: tokens // group.block_tokens]


def publishing_order(group: ReferenceGroup) -> tuple[object, ...]:
    """Groups with blocks of one size are asked one after the other, and the encoder's at last."""
    return group.kind == "cross", group.block_tokens, group.pool, group.band, group.group
