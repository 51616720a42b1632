"""The edge: client requests are checked here, whole, before they touch any state."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from kvtroupe.coordinator.errors import CommitError, DigestError, FenceError, RequestError, SequenceTooLong, TokenError
from kvtroupe.coordinator.identity import block_digests
from kvtroupe.coordinator.messages import NewSequence, Prompt
from kvtroupe.coordinator.retention import Retention
from kvtroupe.coordinator.round import Ask

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from kvtroupe.coordinator.attention import AttentionRule
    from kvtroupe.coordinator.config import Config
    from kvtroupe.coordinator.messages import (
        AdmitRequest,
        CommitRequest,
        GrowRequest,
        PinId,
        PinRequest,
        SequenceId,
    )
    from kvtroupe.coordinator.round import Pool
    from kvtroupe.coordinator.sequences import Sequence as RunningSequence

LATEST_S = 1e15


class Edge:
    """Checks requests against the configuration and turns those that need slots into asks.

    Args:
        config: of the replica.
        pools: of the replica.
        rules: of its groups.
    """

    def __init__(self, config: Config, pools: Sequence[Pool], rules: Sequence[AttentionRule]) -> None:
        self._block_tokens = config.block_tokens
        self._tokens_per_digest = config.tokens_per_digest
        self._digests_per_block = config.digests_per_block
        self._digest_bytes = config.digest_bytes
        self._sequence_tokens_max = config.limits.sequence_tokens_max
        self._pools = pools
        self._rules = rules

    # -- admit, grow, pin ----------------------------------------------------------------------------------------------

    def admission(self, message: AdmitRequest, position: int) -> Ask | SequenceTooLong:
        """The ask for a new sequence, or why it could never be granted.

        Raises:
            TokenError: no tokens, or a negative number of spare blocks.
            DigestError: digests of the wrong width, or more than the prompt has.
            RequestError: something of the wrong type.
        """
        new = message.sequences[position]
        if type(new.tokens) is not int or new.tokens < 1:
            raise TokenError(
                f"sequence {new.sequence_id!r} has {new.tokens!r} tokens; a prompt has a whole number, at least one"
            )
        if type(new.spare_blocks) is not int or new.spare_blocks < 0:
            raise TokenError(
                f"sequence {new.sequence_id!r} asks for {new.spare_blocks!r} spare blocks; ask for 0 or more"
            )
        _check_type(new.retention, Retention, "sequence", new.sequence_id)
        digest_count = self._digest_count(new.digests, "sequence", new.sequence_id)
        if digest_count > new.tokens // self._tokens_per_digest:
            raise DigestError(
                f"sequence {new.sequence_id!r} has {digest_count} digests for {new.tokens} tokens, which complete only "
                f"{new.tokens // self._tokens_per_digest} hash blocks of {self._tokens_per_digest}"
            )
        # The last token is always computed: its logits are needed.
        limit = min((new.tokens - 1) // self._block_tokens, digest_count // self._digests_per_block)
        blocks = -(-new.tokens // self._block_tokens) + new.spare_blocks
        too_long = self._too_long(new, blocks, limit)
        if too_long:
            return too_long
        prompt = Prompt(self.block_digests(new.digests), limit)
        return Ask(new, message.request_id, position, prompt, blocks)

    def _too_long(self, new: NewSequence, blocks: int, limit: int) -> SequenceTooLong | None:
        if blocks * self._block_tokens > self._sequence_tokens_max:
            return SequenceTooLong(
                f"sequence {new.sequence_id!r} needs room for {blocks * self._block_tokens} tokens; "
                f"sequence_tokens_max is {self._sequence_tokens_max}"
            )
        for pool in self._pools:
            usable = pool.ledger.blocks - 1 - pool.reserved_blocks
            if blocks * len(pool.groups) <= usable:
                continue
            # With the longest hit, blocks that a window has left behind take no slot.
            skipped = [self._rules[group].first_block(limit * self._block_tokens) for group in pool.groups]
            needed = blocks * len(pool.groups) - sum(skipped)
            if needed > usable:
                return SequenceTooLong(
                    f"sequence {new.sequence_id!r} needs {needed} slots of pool {pool.name!r} at least, which has "
                    f"{usable} for it; shorten it or enlarge the pool"
                )
        return None

    def check_growth(self, message: GrowRequest) -> None:
        """Refuse growth that makes no sense.

        Raises:
            RequestError: fewer than one block, or a sequence named twice.
        """
        if type(message.blocks) is not int or message.blocks < 1:
            raise RequestError(f"growth by {message.blocks!r} blocks; ask for a whole number, at least one")
        if len(set(message.sequence_ids)) < len(message.sequence_ids):
            raise RequestError(f"growth names sequences twice: {repeated_ids(message.sequence_ids)}; name each once")

    def capacity_tokens_max(self, blocks: int) -> int:
        """The largest room with which a sequence may still have `blocks` more."""
        return self._sequence_tokens_max - blocks * self._block_tokens

    def outgrown(self, sequence: RunningSequence, blocks: int) -> SequenceTooLong | None:
        """Why a sequence can never have `blocks` more, if so."""
        if sequence.capacity_tokens > self.capacity_tokens_max(blocks):
            return SequenceTooLong(
                f"sequence {sequence.sequence_id!r} would get room for "
                f"{sequence.capacity_tokens + blocks * self._block_tokens} tokens; "
                f"sequence_tokens_max is {self._sequence_tokens_max}"
            )
        for pool, table in zip(self._pools, sequence.tables, strict=True):
            # Once all that it has room for is committed, blocks that a window has left behind are given back.
            left = [table.blocks - self._rules[group].first_block(sequence.capacity_tokens) for group in pool.groups]
            needed = sum(left) + blocks * len(pool.groups)
            if needed > pool.ledger.blocks - 1:
                return SequenceTooLong(
                    f"sequence {sequence.sequence_id!r} would hold {needed} slots of pool {pool.name!r} at least, "
                    f"which has {pool.ledger.blocks - 1}; end it or enlarge the pool"
                )
        return None

    def pin(self, message: PinRequest) -> Ask:
        """The ask for a pin.

        Raises:
            DigestError: digests of the wrong width, or none.
        """
        count = self._digest_count(message.digests, "pin", message.pin_id)
        if not count:
            raise DigestError(f"pin {message.pin_id!r} names no digests; there is nothing to pin")
        prompt = Prompt(self.block_digests(message.digests), count // self._digests_per_block)
        return Ask(message, message.request_id, 0, prompt, 0)

    # -- commit --------------------------------------------------------------------------------------------------------

    def check_commit(self, message: CommitRequest, sequence: RunningSequence) -> int:
        """How many digests a commit brings.

        Raises:
            CommitError: the commit goes backwards or beyond the blocks held.
            DigestError: digests of the wrong width, or of hash blocks that are not computed yet.
        """
        if type(message.tokens) is not int or message.tokens < sequence.committed_tokens:
            raise CommitError(
                f"sequence {message.sequence_id!r} has committed {sequence.committed_tokens} tokens already, "
                f"and now {message.tokens!r}; a commit is a whole number and never goes backwards"
            )
        if message.tokens > sequence.capacity_tokens:
            raise CommitError(
                f"sequence {message.sequence_id!r} commits {message.tokens} tokens and has blocks for "
                f"{sequence.capacity_tokens}; extend it first"
            )
        count = self._digest_count(message.digests, "commit of sequence", message.sequence_id)
        complete = message.tokens // self._tokens_per_digest
        if count and sequence.digest_count + count > complete:
            raise DigestError(
                f"commit of sequence {message.sequence_id!r} brings {count} digests on top of {sequence.digest_count}; "
                f"{message.tokens} tokens complete only {complete} hash blocks"
            )
        return count

    # -- digests -------------------------------------------------------------------------------------------------------

    def _digest_count(self, digests: bytes, what: str, name: SequenceId | PinId) -> int:
        _check_type(digests, bytes, what, name)
        count, rest = divmod(len(digests), self._digest_bytes)
        if rest:
            raise DigestError(
                f"{what} {name!r} has {len(digests)} bytes of digests, which is no multiple of the "
                f"{self._digest_bytes} bytes that a digest has in this replica"
            )
        return count

    def block_digests(self, digests: bytes, known: int = 0) -> bytes:
        """Of digests that follow `known` others, those at the ends of blocks."""
        if self._digests_per_block == 1:
            return digests
        begun = bytes(known % self._digests_per_block * self._digest_bytes)  # stands for those of the block begun
        return block_digests(begun + digests, self._digest_bytes, self._digests_per_block)


def check_id(what: str, one: object) -> None:
    """Refuse what cannot name a sequence or a pin.

    Raises:
        RequestError: it is neither text nor a whole number.
    """
    if not isinstance(one, str | int):
        raise RequestError(f"{one!r} cannot name a {what}; use a str or an int")


def repeated_ids(ids: Iterable[SequenceId]) -> str:
    """Those that occur more than once, for a message; the first few of them."""
    repeated = sorted(str(one) for one, count in Counter(ids).items() if count > 1)
    return ", ".join(repeated[:10]) + (" ..." if len(repeated) > 10 else "")


def check_time(now_s: object) -> None:
    """Refuse what is no time: one comparison with it would end the order of all deadlines.

    Raises:
        RequestError: it is no finite number of seconds.
    """
    if type(now_s) not in (int, float) or not -LATEST_S <= now_s <= LATEST_S:  # type: ignore[operator]
        raise RequestError(f"{now_s!r:.60} is no time; now_s is in seconds, -{LATEST_S:.0e} to {LATEST_S:.0e}")


def check_new_sequences(sequences: Iterable[object]) -> None:
    """Refuse what is no sequence to admit.

    Raises:
        RequestError: something else is among them.
    """
    for one in sequences:
        if not isinstance(one, NewSequence):
            raise RequestError(f"{one!r:.60} is no NewSequence; admit a list of NewSequence")


def check_step(what: str, step: object) -> None:
    """Refuse what cannot number a step of the engine.

    Raises:
        FenceError: it is no whole number.
    """
    if type(step) is not int:
        raise FenceError(f"{what} {step!r} is no number of an engine step; steps are whole numbers")


def _check_type(value: object, kind: type, what: str, name: SequenceId | PinId) -> None:
    if not isinstance(value, kind):
        raise RequestError(
            f"{what} {name!r} brings {type(value).__name__} where {kind.__name__} belongs: {value!r:.60}"
        )
