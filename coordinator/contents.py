"""Tokens and extras of blocks as clients send them, where blocks are matched in part: made, checked, cut to size."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvtroupe.coordinator.errors import ConfigError, RequestError, TokenError
from kvtroupe.coordinator.extra_keys import tagged_extras, uniform_extras
from kvtroupe.coordinator.messages import Content

if TYPE_CHECKING:
    from kvtroupe.coordinator.config import Config
    from kvtroupe.coordinator.identity import PrefixDigests
    from kvtroupe.coordinator.messages import CommitRequest, NewSequence
    from kvtroupe.coordinator.sequences import Sequence

TOKEN_BYTES = 4
NO_EXTRAS = bytes(2)  # what `tagged_extras` writes where there are none


def content_of(prefix: PrefixDigests, block_tokens: int, start_token: int = 0, end_token: int | None = None) -> Content:
    """What a replica has to know of a sequence to match its blocks in part.

    Args:
        prefix: tokens and extras of the sequence.
        block_tokens: tokens of a block of the replica.
        start_token: the first token that the replica does not know yet.
        end_token: the one after the last that it is to know; None: all of them.

    Raises:
        ConfigError: the extras have a lookahead: the layers of draft models need the tokens after the common ones, too.
    """
    extras = prefix.extras
    if extras.lookahead_tokens:
        raise ConfigError(
            f"blocks with a lookahead of {extras.lookahead_tokens} tokens cannot be matched in part, as what draft "
            "models keep of a token depends on the next ones; send no content"
        )
    tokens = prefix.tokens[:end_token]
    first_token = start_token // block_tokens * block_tokens
    blocks = -(-(len(tokens) - first_token) // block_tokens)
    found = [_written(uniform_extras(extras, b""))] * blocks
    for block in extras.varying_blocks(first_token, blocks, block_tokens):
        start = first_token + block * block_tokens
        found[block] = _written(tagged_extras(extras, start, start + block_tokens, b""))
    token_ids = tokens[start_token:].astype("<i4", copy=False).tobytes()
    return Content(token_ids, block_tokens, tuple(found) if any(found) else ())


def _written(extras: bytes) -> bytes:
    return b"" if extras == NO_EXTRAS else extras


class Contents:
    """Checks what clients send, for a replica that matches blocks in part.

    Args:
        config: of the replica.
    """

    def __init__(self, config: Config) -> None:
        self._block_tokens = config.unit_tokens

    def of_prompt(self, new: NewSequence) -> Content | None:
        """The content of a prompt; None: it brings none.

        Raises:
            TokenError: not as many token ids, or extras, as the prompt has tokens and blocks.
            RequestError: something of the wrong type, or of other blocks.
        """
        if new.content is None:
            return None
        what = f"sequence {new.sequence_id!r}"
        given = self._checked(new.content, what)
        if given != new.tokens:
            raise TokenError(
                f"{what} has {new.tokens} tokens and brings the ids of {given}; bring those of all, or no content"
            )
        self._check_extras(new.content, 0, given, what)
        return new.content

    def to_be_hit(self, content: Content) -> Content:
        """The part of a prompt that may be hit: the last token is always computed."""
        return Content(content.token_ids[:-TOKEN_BYTES], self._block_tokens, content.extras)

    def after_commit(self, message: CommitRequest, sequence: Sequence) -> Content | None:
        """The content of a sequence with what a commit brings; None: nothing is known.

        Raises:
            TokenError: not the ids of all tokens that are not known, or not as many extras as there are blocks.
            RequestError: something of the wrong type, or of other blocks.
        """
        if message.content is None:
            return sequence.content
        what = f"commit of sequence {message.sequence_id!r}"
        given = self._checked(message.content, what)
        before = sequence.content or Content(b"", self._block_tokens)
        known = len(before.token_ids) // TOKEN_BYTES
        if known + given != message.tokens:
            raise TokenError(
                f"{what} brings the ids of {given} tokens on top of {known}, and commits {message.tokens}; bring those "
                "of all tokens that are committed and were not sent before, or no content"
            )
        self._check_extras(message.content, known, known + given, what)
        return Content(
            before.token_ids + message.content.token_ids,
            self._block_tokens,
            self._joined_extras(before, message.content),
        )

    def _joined_extras(self, before: Content, after: Content) -> tuple[bytes, ...]:
        if not before.extras and not after.extras:
            return ()
        known = len(before.token_ids) // TOKEN_BYTES
        whole = known // self._block_tokens
        blocks = -(-(known + len(after.token_ids) // TOKEN_BYTES) // self._block_tokens)
        earlier = before.extras or (b"",) * -(-known // self._block_tokens)
        if after.extras:
            return earlier[:whole] + after.extras
        return earlier + (b"",) * (blocks - len(earlier))

    def _checked(self, content: object, what: str) -> int:
        """How many token ids a content brings."""
        if not isinstance(content, Content):
            raise RequestError(f"{what} brings {content!r:.60} where Content belongs; see content_of")
        token_ids: object = content.token_ids
        extras: object = content.extras
        if not isinstance(token_ids, bytes) or not isinstance(extras, tuple):
            raise RequestError(f"{what} brings content that is no bytes and a tuple: {content!r:.60}; see content_of")
        if not all(isinstance(one, bytes) for one in extras):
            raise RequestError(f"{what} brings extras of blocks that are no bytes: {extras!r:.60}; see content_of")
        if content.block_tokens != self._block_tokens:
            raise RequestError(
                f"{what} brings content in blocks of {content.block_tokens!r:.60} tokens; those of this replica have "
                f"{self._block_tokens}"
            )
        count, rest = divmod(len(token_ids), TOKEN_BYTES)
        if rest:
            raise TokenError(f"{what} brings {len(token_ids)} bytes of token ids, which are no whole number of int32")
        return count

    def _check_extras(self, content: Content, start_token: int, end_token: int, what: str) -> None:
        blocks = -(-end_token // self._block_tokens) - start_token // self._block_tokens
        if content.extras and len(content.extras) != blocks:
            raise TokenError(
                f"{what} brings extras of {len(content.extras)} blocks for the tokens from {start_token} to "
                f"{end_token}, which lie in {blocks}; give one for each, or none if no block has any"
            )


def of_blocks(content: Content, start_block: int, end_block: int) -> Content | None:
    """What is known of some blocks, from the first of them on as far as they are complete; None: nothing."""
    block_bytes = content.block_tokens * TOKEN_BYTES
    end_block = min(end_block, len(content.token_ids) // block_bytes)
    if end_block <= start_block:
        return None
    token_ids = content.token_ids[start_block * block_bytes : end_block * block_bytes]
    return Content(token_ids, content.block_tokens, content.extras[start_block:end_block])
