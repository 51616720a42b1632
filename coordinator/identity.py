"""Digests of prefixes: what makes two blocks the same block.

A digest names a prefix that ends at a hash-block boundary, with all that decides its contents. It is chained: that of
block i covers that of block i - 1. Two chains exist, both SHA-256, and the same in every process:

`sha256`, the default. All numbers are little-endian, and the extras are those of `extra_keys.py`:

    digest_0 = SHA-256(namespace as UTF-8)
    digest_i = SHA-256(digest_{i-1} | number of tokens u32 | their ids, int32 each | number of extras u16 | extras)

Every part has a fixed place or brings its own length, so what is hashed can be read back in one way only: two prefixes
that differ in anything hash different bytes.

`sha256_cbor` gives the digests that vLLM gives under its hash function of this name, so that both can share events:

    digest_0 = SHA-256(canonical CBOR of a seed)
    digest_i = SHA-256(canonical CBOR of (digest_{i-1}, token ids, extra keys))

With a lookahead the last part is (extra keys, ids of the lookahead tokens ...). The namespace is no part of this chain.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from hashlib import sha256
from struct import pack
from typing import TYPE_CHECKING, ClassVar

import cbor2
import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from kvtroupe.coordinator.errors import ConfigError, DigestError
from kvtroupe.coordinator.extra_keys import cbor_extra_keys, tagged_extras, uniform_extras
from kvtroupe.coordinator.extras import NO_EXTRAS, Extras, check_count, check_text
from kvtroupe.coordinator.tokens import TokenInput, token_array

if TYPE_CHECKING:
    from numpy.typing import NDArray

MAX_HASH_BLOCK_TOKENS = 65_536
DEFAULT_CBOR_SEED = "vllm-none-hash"


class DigestChain(ABC):
    """A way to make digests, for hash blocks of one size.

    Attributes:
        root: the parent digest of the first block.
        digest_bytes: width of a digest.
        hash_block_tokens: tokens of a hash block.

    Raises:
        ConfigError: `hash_block_tokens` is no integer from 1 to `MAX_HASH_BLOCK_TOKENS`.
    """

    digest_bytes: ClassVar[int] = sha256().digest_size

    def __init__(self, root: bytes, hash_block_tokens: int) -> None:
        check_count("hash_block_tokens", hash_block_tokens, 1, MAX_HASH_BLOCK_TOKENS)
        self.root = root
        self.hash_block_tokens = hash_block_tokens

    @abstractmethod
    def check_extras(self, extras: Extras) -> None:
        """Refuse extras that this chain cannot tell apart.

        Raises:
            ConfigError: they have something that the chain has no place for.
        """

    @abstractmethod
    def extend(self, parent: bytes, tokens: NDArray[np.int32], first_token: int, extras: Extras) -> bytes:
        """Digests of consecutive blocks, one after the other.

        Args:
            parent: digest of the block before them, `root` before the first.
            tokens: int32 [blocks * hash_block_tokens + lookahead_tokens]: theirs, and those that the last looks at.
            first_token: position of tokens[0] in its sequence.
            extras: those of the whole sequence, accepted by `check_extras`.
        """

    def blocks_in(self, tokens: int, extras: Extras) -> int:
        """Number of blocks that have a digest once there are so many tokens."""
        return max(0, tokens - extras.lookahead_tokens) // self.hash_block_tokens


class Sha256Chain(DigestChain):
    """The default chain, `sha256`.

    Raises:
        ConfigError: an empty namespace, or one that is no text; or as `DigestChain` does.
    """

    def __init__(self, namespace: str, hash_block_tokens: int) -> None:
        check_text("the namespace of the sha256 chain", namespace, least_bytes=1)
        super().__init__(sha256(namespace.encode()).digest(), hash_block_tokens)

    def check_extras(self, extras: Extras) -> None:
        """Accept all: every extra has its tag."""

    def extend(self, parent: bytes, tokens: NDArray[np.int32], first_token: int, extras: Extras) -> bytes:
        """Digests of consecutive blocks, as `DigestChain.extend` says."""
        # Copying a fresh state is cheaper than making one, and this loop is nearly all of the cost of hashing.
        fresh = sha256().copy
        digests = []
        for block_bytes in self._block_bytes(tokens, first_token, extras):
            state = fresh()
            state.update(parent)
            state.update(block_bytes)
            parent = state.digest()
            digests.append(parent)
        return b"".join(digests)

    def _block_bytes(self, tokens: NDArray[np.int32], first_token: int, extras: Extras) -> list[bytes]:
        """What is hashed of each block, after its parent."""
        size = self.hash_block_tokens
        tokens_end = 4 + 4 * size
        found = self._uniform_bytes(tokens, extras)
        for block in extras.varying_blocks(first_token, len(found), size):
            following = found[block][len(found[block]) - 4 * extras.lookahead_tokens :]
            start = first_token + block * size
            end = start + size + extras.lookahead_tokens
            found[block] = found[block][:tokens_end] + tagged_extras(extras, start, end, following)
        return found

    def _uniform_bytes(self, tokens: NDArray[np.int32], extras: Extras) -> list[bytes]:
        """The same, as if the blocks saw nothing but the adapter and the lookahead: alike but for their tokens."""
        size = self.hash_block_tokens
        lookahead = extras.lookahead_tokens
        blocks = self.blocks_in(len(tokens), extras)
        ids = tokens.astype("<i4", copy=False)
        tail = uniform_extras(extras, bytes(4 * lookahead))
        rows = np.empty((blocks, 4 + 4 * size + len(tail)), np.uint8)
        rows[:, :4] = np.frombuffer(pack("<I", size), np.uint8)
        rows[:, 4 : 4 + 4 * size] = ids[: blocks * size].reshape(blocks, size).view(np.uint8)
        rows[:, 4 + 4 * size :] = np.frombuffer(tail, np.uint8)
        if lookahead:
            following = sliding_window_view(ids[size:], lookahead)[::size]
            rows[:, -4 * lookahead :] = np.ascontiguousarray(following).view(np.uint8)
        # A void is the one type of fixed width whose values become bytes with nothing stripped.
        whole_rows: list[bytes] = rows.view(f"V{rows.shape[1]}").ravel().tolist()
        return whole_rows


class Sha256CborChain(DigestChain):
    """The chain of vLLM's hash function `sha256_cbor`.

    The seed decides the root. It must be the one that the peers use whose digests are to be equal.

    Raises:
        ConfigError: a seed that is no text; or as `DigestChain` does.
    """

    def __init__(self, hash_block_tokens: int, seed: str = DEFAULT_CBOR_SEED) -> None:
        check_text("the seed of the sha256_cbor chain", seed)
        super().__init__(_cbor_hash(seed), hash_block_tokens)

    def check_extras(self, extras: Extras) -> None:
        """Accept all but extra ids of tokens.

        Raises:
            ConfigError: there are extra ids of tokens.
        """
        if extras.token_extra_ids:
            raise ConfigError("the sha256_cbor chain has no place for token extra ids; use the sha256 chain")

    def extend(self, parent: bytes, tokens: NDArray[np.int32], first_token: int, extras: Extras) -> bytes:
        """Digests of consecutive blocks, as `DigestChain.extend` says."""
        size = self.hash_block_tokens
        lookahead = extras.lookahead_tokens
        ids = tokens.tolist()
        digests = []
        for at in range(0, self.blocks_in(len(ids), extras) * size, size):
            start = first_token + at
            extra: object = cbor_extra_keys(extras, start, start + size + lookahead)
            if lookahead:
                extra = (extra, *ids[at + size : at + size + lookahead])
            parent = _cbor_hash((parent, ids[at : at + size], extra))
            digests.append(parent)
        return b"".join(digests)


def digest_chain(
    name: str, hash_block_tokens: int, namespace: str, cbor_seed: str = DEFAULT_CBOR_SEED
) -> Sha256Chain | Sha256CborChain:
    """The chain of this name: `sha256`, which hashes the namespace, or `sha256_cbor`, which hashes the seed instead.

    Raises:
        ConfigError: no such chain, or as the chain itself does.
    """
    if name == "sha256":
        return Sha256Chain(namespace, hash_block_tokens)
    if name == "sha256_cbor":
        return Sha256CborChain(hash_block_tokens, cbor_seed)
    raise ConfigError(f"no digest chain {name!r}; use 'sha256' or 'sha256_cbor'")


class PrefixDigests:
    """Tokens of one sequence and the digests of its full blocks, each token hashed once.

    A block has a digest as soon as it is full and the lookahead tokens after it exist. How the tokens are cut into
    appends makes no difference, and an append costs in proportion to what it brings.

    Attributes:
        chain: how the digests are made.
        extras: what else decides them; fixed from the first token on.

    Raises:
        ConfigError: the chain cannot tell such extras apart.
    """

    __slots__ = ("_buffer", "_digests", "_length", "_parent", "_pieces", "chain", "extras")

    def __init__(self, chain: DigestChain, extras: Extras = NO_EXTRAS) -> None:
        chain.check_extras(extras)
        self.chain = chain
        self.extras = extras
        self._buffer: NDArray[np.int32] = np.empty(0, np.int32)
        self._length = 0
        self._digests = 0
        self._parent = chain.root
        # What each append completed; joined when asked for.
        self._pieces: list[bytes] = []

    @property
    def tokens(self) -> NDArray[np.int32]:
        """All tokens so far, int32 [tokens], read-only; later appends do not show in it."""
        view = self._buffer[: self._length]
        view.flags.writeable = False
        return view

    @property
    def digests(self) -> bytes:
        """Digests of all blocks that have one, first block first."""
        if len(self._pieces) > 1:
            self._pieces = [b"".join(self._pieces)]
        return self._pieces[0] if self._pieces else b""

    def append(self, tokens: TokenInput) -> bytes:
        """Add tokens behind the last one; the digests that this completes, maybe none.

        Raises:
            TokenError: as `token_array` does; nothing has been added then.
        """
        self._store(token_array(tokens))
        start = self._digests * self.chain.hash_block_tokens
        complete = self.chain.blocks_in(self._length, self.extras)
        if complete == self._digests:
            return b""
        end = complete * self.chain.hash_block_tokens + self.extras.lookahead_tokens
        found = self.chain.extend(self._parent, self._buffer[start:end], start, self.extras)
        self._digests = complete
        self._parent = found[-self.chain.digest_bytes :]
        self._pieces.append(found)
        return found

    def _store(self, new: NDArray[np.int32]) -> None:
        length = self._length + len(new)
        if length > len(self._buffer):
            # Doubling: single appends cost the same on average, however long the sequence.
            grown = np.empty(max(length, 2 * len(self._buffer)), np.int32)
            grown[: self._length] = self._buffer[: self._length]
            self._buffer = grown
        self._buffer[self._length : length] = new
        self._length = length


def block_digests(digests: bytes, digest_bytes: int, hash_blocks_per_block: int) -> bytes:
    """Digests of the full blocks of a group, each of them several hash blocks: that of its last hash block.

    Raises:
        DigestError: the digests are no whole number of digests.
        ConfigError: a block has no hash block.
    """
    if len(digests) % digest_bytes:
        raise DigestError(f"{len(digests)} bytes are no whole number of digests of {digest_bytes} bytes")
    if hash_blocks_per_block < 1:
        raise ConfigError(f"a block holds {hash_blocks_per_block} hash blocks; it must hold at least one")
    fine = np.frombuffer(digests, f"V{digest_bytes}")
    return fine[hash_blocks_per_block - 1 :: hash_blocks_per_block].tobytes()


def _cbor_hash(value: object) -> bytes:
    return sha256(cbor2.dumps(value, canonical=True)).digest()
