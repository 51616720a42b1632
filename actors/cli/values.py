"""Values of command line options that are more than a number or a name.

What cannot be read is a `ValueError` whose message is fit for users.
"""

from __future__ import annotations

import re

from kvtroupe.coordinator.config import GroupConfig

SIZE_UNITS_BYTES = {
    "": 1,
    "b": 1,
    "kb": 1000,
    "mb": 1000**2,
    "gb": 1000**3,
    "kib": 1024,
    "mib": 1024**2,
    "gib": 1024**3,
}
BLOCK_BYTES_MAX = 64 * 1024**2
WINDOW_TOKENS_MAX = 2**31 - 1


def parse_block_bytes(text: str) -> int:
    """Bytes of a block from a size such as `4KiB`, `2 MB` or `512`.

    Raises:
        ValueError: no whole number with a known unit, or outside 1 byte to 64 MiB.
    """
    found = re.fullmatch(r"([0-9]{1,18}) ?([a-z]*)", text.strip().lower())
    if found is None or found[2] not in SIZE_UNITS_BYTES:
        raise ValueError(f"{text!r} is no size; give a whole number and B, KB, MB, GB, KiB, MiB or GiB: 4KiB")
    block_bytes = int(found[1]) * SIZE_UNITS_BYTES[found[2]]
    if not 1 <= block_bytes <= BLOCK_BYTES_MAX:
        raise ValueError(f"{text!r} is outside 1B to {BLOCK_BYTES_MAX // 1024**2}MiB")
    return block_bytes


def parse_groups(text: str) -> tuple[GroupConfig, ...]:
    """Window groups of a list such as `full,sliding:1024`, each named as it is written.

    Those that occur again get a number: `full,full` gives `full` and `full#2`.

    Raises:
        ValueError: an entry is neither `full` nor `sliding:TOKENS`.
    """
    groups: list[GroupConfig] = []
    for entry in text.split(","):
        spec = entry.strip()
        earlier = sum(group.name.split("#")[0] == spec for group in groups)
        name = f"{spec}#{earlier + 1}" if earlier else spec
        if spec == "full":
            groups.append(GroupConfig(name=name))
        else:
            groups.append(GroupConfig(name=name, kind="sliding", window_tokens=_window_tokens(spec)))
    return tuple(groups)


def _window_tokens(spec: str) -> int:
    found = re.fullmatch(r"sliding:([0-9]{1,18})", spec)
    if found is None:
        raise ValueError(f"{spec!r} is no window group; use full or sliding:TOKENS, separated by commas")
    window_tokens = int(found[1])
    if not 1 <= window_tokens <= WINDOW_TOKENS_MAX:
        raise ValueError(f"{spec!r}: a window has 1 to {WINDOW_TOKENS_MAX} tokens")
    return window_tokens
