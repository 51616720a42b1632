"""The edge: client requests are checked here, whole, before they touch any state."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import TYPE_CHECKING

from kvtroupe.coordinator.bands import Shape
from kvtroupe.coordinator.claims import NO_SHAPE, NO_WAIT, Ask
from kvtroupe.coordinator.contents import Contents
from kvtroupe.coordinator.errors import CommitError, DigestError, FenceError, RequestError, SequenceTooLong, TokenError
from kvtroupe.coordinator.identity import block_digests
from kvtroupe.coordinator.messages import LOCAL_SESSION, AdmitRequest, NewSequence, PinRequest, Prompt
from kvtroupe.coordinator.retention import Retention

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from kvtroupe.coordinator.bands import Layout
    from kvtroupe.coordinator.claims import Pool
    from kvtroupe.coordinator.config import Config
    from kvtroupe.coordinator.messages import (
        CommitRequest,
        EstimateRequest,
        GrowRequest,
        LookupRequest,
        MoveRequest,
        PinId,
        SequenceId,
    )
    from kvtroupe.coordinator.sequences import Sequence as RunningSequence

LATEST_S = 1e15


class Edge:
    """Checks requests against the configuration and turns those that need slots into asks.

    Args:
        config: of the replica.
        pools: of the replica.
        layout: of its tables.

    Attributes:
        contents: checks the content that clients send; None where blocks are not reused in part.
    """

    def __init__(self, config: Config, pools: Sequence[Pool], layout: Layout) -> None:
        self.contents = Contents(config) if config.partial_reuse == "copy" else None
        self._unit_tokens = config.unit_tokens
        self._tokens_per_digest = config.tokens_per_digest
        self._digests_per_block = [size // config.tokens_per_digest for size in layout.scales]
        self._blocks_per_unit = [layout.unit_tokens // size for size in layout.scales]
        # One size of blocks, each with one digest: then a chain is what the client has sent.
        self._is_simple = self._digests_per_block == self._blocks_per_unit == [1]
        self._digest_bytes = config.digest_bytes
        self._limits = config.limits
        self._pools = pools
        self._usable = [pool.ledger.blocks - 1 - pool.reserved_blocks for pool in pools]
        self._layout = layout
        cross = [
            rule.block_tokens
            for rule, scale in zip(layout.rules, layout.scale_of, strict=True)
            if scale == len(layout.scales) and layout.has_cross
        ]
        self._encoder_block_tokens = cross[0] if cross else None

    # -- admit, grow, pin ----------------------------------------------------------------------------------------------

    def admission(self, message: AdmitRequest | EstimateRequest, position: int) -> Ask | SequenceTooLong:
        """The ask for a new sequence, or why it could never be granted.

        Raises:
            TokenError: no tokens, a negative number of spare blocks, or content that does not fit the tokens.
            DigestError: digests of the wrong width, or more than the prompt has.
            RequestError: something of the wrong type, content of other blocks, too many beams, or encoder input that no
                group would hold.
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
        self._check_beams(new)
        digest_count = self._digest_count(new.digests, "sequence", new.sequence_id)
        if digest_count > new.tokens // self._tokens_per_digest:
            raise DigestError(
                f"sequence {new.sequence_id!r} has {digest_count} digests for {new.tokens} tokens, which complete only "
                f"{new.tokens // self._tokens_per_digest} hash blocks of {self._tokens_per_digest}"
            )
        # The last token is always computed: its logits are needed.
        limit = min(new.tokens - 1, digest_count * self._tokens_per_digest) // self._unit_tokens
        units = -(-new.tokens // self._unit_tokens) + new.spare_blocks
        shape = Shape(new.tokens, new.encoder_tokens, new.beams)
        prompts = self._prompts(new.digests, limit)
        if self.contents is not None and (content := self.contents.of_prompt(new)) is not None:
            prompts = (replace(prompts[0], content=self.contents.to_be_hit(content)),)
        if self._encoder_block_tokens:
            prompts += (self._encoder_prompt(new),)
        elif new.encoder_tokens or new.encoder_digests:
            raise RequestError(
                f"sequence {new.sequence_id!r} brings {new.encoder_tokens} tokens of encoder input, which no group of "
                "this replica holds; configure a group of kind 'cross'"
            )
        session = message.session if isinstance(message, AdmitRequest) else LOCAL_SESSION
        ask = Ask(new, message.request_id, position, prompts, limit, units, shape, session)
        return self._too_long(new, ask) or ask

    def waits_until_s(self, message: AdmitRequest, now_s: float) -> float:
        """When the sequences of a message are refused if there is no room for them before.

        Raises:
            RequestError: no time, or longer than a request may wait; or several sequences: the first would hold their
                blocks idle until the last one has its own.
        """
        wait_s, limit_s = message.wait_s, self._limits.waiting_deadline_s
        if wait_s and len(message.sequences) > 1:
            raise RequestError(
                f"a request waits for room for {len(message.sequences)} sequences together; ask "
                "for each in a request of its own"
            )
        if type(wait_s) not in (int, float) or not 0 <= wait_s <= limit_s:
            raise RequestError(
                f"a request waits for room for {wait_s!r} s; choose 0 to waiting_deadline_s, which is {limit_s}"
            )
        return now_s + wait_s if wait_s else NO_WAIT

    def _check_beams(self, new: NewSequence) -> None:
        if type(new.beams) is not int or not 1 <= new.beams <= self._limits.beams_max:
            raise RequestError(
                f"sequence {new.sequence_id!r} has {new.beams!r} beams; choose 1 to beams_max, which is "
                f"{self._limits.beams_max}"
            )

    def _prompts(self, digests: bytes, limit_units: int) -> tuple[Prompt, ...]:
        """A chain in the blocks of every scale."""
        if self._is_simple:
            return (Prompt(digests, limit_units),)
        return tuple(
            [
                Prompt(self.block_digests(digests, scale), limit_units * blocks)
                for scale, blocks in enumerate(self._blocks_per_unit)
            ]
        )

    def _encoder_prompt(self, new: NewSequence) -> Prompt:
        """The blocks of the encoder input, all of which are wanted if they have digests."""
        if type(new.encoder_tokens) is not int or new.encoder_tokens < 0:
            raise TokenError(
                f"sequence {new.sequence_id!r} has {new.encoder_tokens!r} tokens of encoder input; give a whole number"
            )
        assert self._encoder_block_tokens, "only replicas with cross groups get here"
        blocks = -(-new.encoder_tokens // self._encoder_block_tokens)
        count = self._digest_count(new.encoder_digests, "encoder input of sequence", new.sequence_id)
        if count not in (0, blocks):
            raise DigestError(
                f"sequence {new.sequence_id!r} brings {count} digests for {blocks} blocks of encoder input; "
                "give one for each, the last one included, or none if they are not to be shared"
            )
        return Prompt(new.encoder_digests, count)

    def _too_long(self, new: NewSequence, ask: Ask) -> SequenceTooLong | None:
        capacity_tokens = ask.units * self._unit_tokens
        if capacity_tokens > self._limits.sequence_tokens_max:
            return SequenceTooLong(
                f"sequence {new.sequence_id!r} needs room for {capacity_tokens} tokens; "
                f"sequence_tokens_max is {self._limits.sequence_tokens_max}"
            )
        for number, room in enumerate(self._usable):
            if self._layout.slots_at_admission(number, 0, capacity_tokens, ask.shape, cross_hit=False) > room:
                break
        else:
            return None
        for number, room in enumerate(self._usable):
            needed = self._fewest_slots(number, ask, capacity_tokens)
            if needed > room:
                return SequenceTooLong(
                    f"sequence {new.sequence_id!r} needs {needed} slots of pool {self._pools[number].name!r} at least, "
                    f"which has {room} for it; shorten it or enlarge the pool"
                )
        return None

    def _fewest_slots(self, pool: int, ask: Ask, capacity_tokens: int) -> int:
        """What a sequence takes with the longest hit: blocks that a window has left behind take no slot.

        Any shorter hit but none at all takes as many or more.
        """
        layout = self._layout
        hit_tokens = ask.limit_units * self._unit_tokens
        needed = layout.slots_at_admission(pool, hit_tokens, capacity_tokens, ask.shape, cross_hit=False)
        if ask.limit_units:
            for group in self._pools[pool].groups:
                if layout.strides[group]:
                    needed += ask.limit_units * layout.strides[group] - layout.rules[group].first_block(hit_tokens)
        return needed

    def check_growth(self, message: GrowRequest, sequences: Iterable[RunningSequence]) -> None:
        """Refuse growth that makes no sense.

        Raises:
            RequestError: fewer than one block, a sequence named twice, or sequences that differ in their beams.
        """
        if type(message.blocks) is not int or message.blocks < 1:
            raise RequestError(f"growth by {message.blocks!r} blocks; ask for a whole number, at least one")
        if len(set(message.sequence_ids)) < len(message.sequence_ids):
            raise RequestError(f"growth names sequences twice: {repeated_ids(message.sequence_ids)}; name each once")
        beams = {sequence.shape.beams for sequence in sequences}
        if len(beams) > 1:
            raise RequestError(
                f"growth names sequences of {sorted(beams)} beams; grow those of equal beams in one request"
            )

    def capacity_tokens_max(self, blocks: int) -> int:
        """The largest room with which a sequence may still have `blocks` more."""
        return self._limits.sequence_tokens_max - blocks * self._unit_tokens

    def outgrown(self, sequence: RunningSequence, blocks: int) -> SequenceTooLong | None:
        """Why a sequence can never have `blocks` more, if so."""
        if sequence.capacity_tokens > self.capacity_tokens_max(blocks):
            return SequenceTooLong(
                f"sequence {sequence.sequence_id!r} would get room for "
                f"{sequence.capacity_tokens + blocks * self._unit_tokens} tokens; "
                f"sequence_tokens_max is {self._limits.sequence_tokens_max}"
            )
        for number, pool in enumerate(self._pools):
            needed = self._once_committed(number, sequence)
            needed += self._layout.slots_to_grow(number, sequence.capacity_tokens, blocks, sequence.shape)
            if needed > pool.ledger.blocks - 1:
                return SequenceTooLong(
                    f"sequence {sequence.sequence_id!r} would hold {needed} slots of pool {pool.name!r} at least, "
                    f"which has {pool.ledger.blocks - 1}; end it or enlarge the pool"
                )
        return None

    def _once_committed(self, pool: int, sequence: RunningSequence) -> int:
        """What a sequence holds once all that it has room for is committed: what a window leaves is given back."""
        held = 0
        for number in self._layout.bands_of[pool]:
            band = self._layout.bands[number]
            if not band.grows:
                held += len(sequence.tables[number].held())
                continue
            end = sequence.capacity_tokens // band.rule.block_tokens
            for group in band.groups:
                first = self._layout.rules[group].first_block(sequence.capacity_tokens)
                held += band.slots(first, end, sequence.shape) // len(band.groups)
        return held

    def pin(self, message: PinRequest) -> Ask:
        """The ask for a pin.

        Raises:
            DigestError: digests of the wrong width, or none.
        """
        count = self._digest_count(message.digests, "pin", message.pin_id)
        if not count:
            raise DigestError(f"pin {message.pin_id!r} names no digests; there is nothing to pin")
        return self._ask_about(message, message.digests, count * self._tokens_per_digest)

    def lookup(self, message: LookupRequest) -> Ask:
        """The ask for a lookup.

        Raises:
            DigestError: digests of the wrong width.
            TokenError: a prompt without tokens.
            SequenceTooLong: a prompt longer than any sequence may be.
        """
        told = self._digest_count(message.digests, "lookup", message.request_id) * self._tokens_per_digest
        tokens = message.tokens
        if tokens is None:
            return self._ask_about(message, message.digests, told, Shape(told))
        if type(tokens) is not int or tokens < 1:
            raise TokenError(f"lookup of {tokens!r} tokens; a prompt has a whole number, at least one")
        if tokens > self._limits.sequence_tokens_max:
            raise SequenceTooLong(
                f"lookup of {tokens} tokens; no sequence may have more than sequence_tokens_max, "
                f"{self._limits.sequence_tokens_max}"
            )
        # The last token is always computed.
        return self._ask_about(message, message.digests, min(told, tokens - 1), Shape(tokens))

    def move(self, message: MoveRequest, levels: int) -> Ask:
        """The ask for a move.

        Raises:
            DigestError: digests of the wrong width.
            RequestError: no level of the replica.
        """
        if type(message.level) is not int or not 0 <= message.level < levels:
            raise RequestError(f"a move to level {message.level!r}; this replica has the levels 0 to {levels - 1}")
        count = self._digest_count(message.digests, "move", message.request_id)
        return self._ask_about(message, message.digests, count * self._tokens_per_digest)

    def _ask_about(
        self, message: PinRequest | LookupRequest | MoveRequest, digests: bytes, tokens: int, shape: Shape = NO_SHAPE
    ) -> Ask:
        limit = tokens // self._unit_tokens
        prompts = self._prompts(digests, limit)
        if self._encoder_block_tokens:
            prompts += (Prompt(b"", 0),)
        session = message.session if isinstance(message, PinRequest) else LOCAL_SESSION
        return Ask(message, message.request_id, 0, prompts, limit, 0, shape, session=session)

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

    def block_digests(self, digests: bytes, scale: int, known: int = 0) -> bytes:
        """Of digests that follow `known` others, those at the ends of the blocks of a scale."""
        per_block = self._digests_per_block[scale]
        if per_block == 1:
            return digests
        begun = bytes(known % per_block * self._digest_bytes)  # stands for those of the block begun
        return block_digests(begun + digests, self._digest_bytes, per_block)


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
