"""How many bytes one block of a window group has on one rank."""

from __future__ import annotations

from dataclasses import dataclass, fields

from kvtroupe.coordinator.errors import ConfigError


@dataclass(frozen=True, slots=True)
class KVLayers:
    """Layers of one rank whose KV entries have the same shape.

    Attributes:
        layers: how many of them the rank holds.
        kv_heads: heads of keys that the rank holds in each.
        head_dim: elements of a head.
        dtype_bits: of an element.
        planes: 2: keys and values; 1: keys only, or one latent entry for both (MLA).
        more_token_bytes: of each layer and token beside that: scales of quantised entries, index keys of sparse
            attention.

    Raises:
        ConfigError: one of them is no whole number, or is too small.
    """

    layers: int
    kv_heads: int
    head_dim: int
    dtype_bits: int = 16
    planes: int = 2
    more_token_bytes: int = 0

    def __post_init__(self) -> None:
        for field in fields(self):
            value, least = getattr(self, field.name), 0 if field.name == "more_token_bytes" else 1
            if type(value) is not int or value < least:
                raise ConfigError(f"KV layers with {field.name} {value!r}; give a whole number, {least} or more")
        if self.planes > 2:
            raise ConfigError(f"KV layers with {self.planes} planes; give 2 for keys and values, or 1 for keys only")

    def bytes_of(self, tokens: int) -> int:
        """Bytes of so many tokens.

        Raises:
            ConfigError: they do not fill their last byte.
        """
        bits = self.layers * self.planes * self.kv_heads * self.head_dim * self.dtype_bits * tokens
        if bits % 8:
            raise ConfigError(
                f"{tokens} tokens of {self} have {bits} bits, which are no whole bytes; choose another block size"
            )
        return bits // 8 + self.layers * self.more_token_bytes * tokens


@dataclass(frozen=True, slots=True)
class GroupBytes:
    """What one rank holds in each block of a window group.

    Attributes:
        kv: its layers with KV entries; none if the rank holds none of the group's layers.
        raw_bytes: bytes of a block that do not depend on its tokens: those of a recurrent state, of all layers.

    Raises:
        ConfigError: raw bytes that are no whole number from 0 on.
    """

    kv: tuple[KVLayers, ...] = ()
    raw_bytes: int = 0

    def __post_init__(self) -> None:
        if type(self.raw_bytes) is not int or self.raw_bytes < 0:
            raise ConfigError(f"a group with raw_bytes {self.raw_bytes!r}; give a whole number, 0 or more")

    def of_block(self, block_tokens: int) -> int:
        """Bytes of one block.

        Args:
            block_tokens: tokens of the block.
        """
        return self.raw_bytes + sum([layers.bytes_of(block_tokens) for layers in self.kv])
