"""Every error that users of kvtroupe can see, sorted by who can do something about it.

    KVTroupeError
    ├── RequestError            the caller's: the request was refused whole, nothing changed
    │   ├── ConfigError         a configuration that cannot work
    │   ├── TokenError          token ids that are no int32 numbers, or none at all
    │   ├── DigestError         digests of the wrong width, or more or fewer of them than the tokens have
    │   ├── SequenceExists      this sequence id is running already
    │   ├── UnknownSequence     no sequence of this id is running: never admitted, or released already
    │   ├── SequenceTooLong     could not fit even into an empty pool, or would pass the limit on length
    │   ├── CommitError         a commit backwards, or beyond what was allocated
    │   ├── FenceError          an engine step number that goes backwards
    │   ├── PinExists           this pin id is in use
    │   ├── UnknownPin          no pin of this id: never made, or given back already
    │   ├── SequenceCancelled   cancelled by its own client before it was admitted
    │   ├── SessionExists       this session, or this connection, is attached already
    │   ├── UnknownSession      no session of this token or id: never there, ended, or of another epoch
    │   └── TraceError          a trace that cannot be read
    ├── CapacityError           expected under load: the same request may succeed later
    │   ├── OutOfBlocks         not enough free blocks now
    │   └── Overloaded          a limit of the configuration is reached
    ├── LossError               something died or broke
    │   ├── CorruptBlock        bytes that are not what the block's digest says
    │   ├── ActorLost           an actor died, or its channel was closed
    │   ├── CoordinatorLost     the coordinator has restarted; what ran under the old one is gone
    │   ├── TierLost            the memory that held a sequence's blocks is lost
    │   ├── PrefixLost          a prefix was shared before it was computed, and never was
    │   ├── SessionLost         a client stayed away for longer than its session waits
    │   └── TransferFailed      blocks that a sequence was to read could not be brought; it was undone
    └── InvariantError          a bug of kvtroupe itself

The arguments of an error are its fields, so that every error survives pickling.
"""

from __future__ import annotations


class KVTroupeError(Exception):
    """Base of all errors of kvtroupe."""


class RequestError(KVTroupeError):
    """The request is wrong. It was refused whole and changed nothing."""


class ConfigError(RequestError):
    """The configuration cannot work."""


class TokenError(RequestError):
    """Token ids that are no int32 numbers, or none at all."""


class DigestError(RequestError):
    """Digests of the wrong width, or more or fewer of them than the tokens have."""


class SequenceExists(RequestError):
    """This sequence id is running already."""


class UnknownSequence(RequestError):
    """No sequence of this id is running: it was never admitted, or it was released already."""


class SequenceTooLong(RequestError):
    """The sequence could not fit even into an empty pool, or would pass the limit on the length of a sequence."""


class CommitError(RequestError):
    """A commit that goes backwards, or beyond what was allocated."""


class FenceError(RequestError):
    """An engine step number that goes backwards."""


class PinExists(RequestError):
    """This pin id is in use."""


class UnknownPin(RequestError):
    """No pin of this id: it was never made, or it was given back already."""


class SequenceCancelled(RequestError):
    """The sequence was cancelled by its own client before it was admitted; it holds nothing.

    Attributes:
        sequence_id: of the sequence.
    """

    def __init__(self, sequence_id: str | int) -> None:
        super().__init__(sequence_id)
        self.sequence_id = sequence_id

    def __str__(self) -> str:
        return f"sequence {self.sequence_id!r} was cancelled before it was admitted; admit it again if it is wanted"


class SessionExists(RequestError):
    """This session is attached over another connection, or this connection has a session."""


class UnknownSession(RequestError):
    """No session of this token or id: it was never there, it has ended, or it was one of an earlier epoch."""


class TraceError(RequestError):
    """A trace that cannot be read. The message names the file and the line."""


class CapacityError(KVTroupeError):
    """Expected under load: the same request may succeed later."""


class OutOfBlocks(CapacityError):
    """Not enough free blocks in a pool now. The request left no trace.

    Attributes:
        pool: name of the pool that was short.
        needed: slots the request needs from the pool, hits that must leave the free order included.
        free: slots that were free when the request was judged.
        coming: uses of slots given back already, which end with the engine steps that may still touch them; as many
            slots become free at most, fewer where somebody else uses them too.
        reserved: free slots that requests of this kind must leave alone.
    """

    def __init__(self, pool: str, needed: int, free: int, coming: int, reserved: int) -> None:
        super().__init__(pool, needed, free, coming, reserved)
        self.pool = pool
        self.needed = needed
        self.free = free
        self.coming = coming
        self.reserved = reserved

    def __str__(self) -> str:
        return (
            f"pool {self.pool!r} is short of blocks: {self.needed} needed, {self.free} free, {self.coming} coming, "
            f"{self.reserved} reserved; release sequences, or try again when some have ended"
        )


class Overloaded(CapacityError):
    """A limit of the configuration is reached. The request changed nothing."""


class LossError(KVTroupeError):
    """Something died or broke."""


class CorruptBlock(LossError):
    """The bytes of a block are not what its digest says. The message names the block."""


class TransferFailed(LossError):
    """Blocks that a sequence was to read could not be brought. It was undone; admit it again, for a shorter hit.

    Attributes:
        sequence_id: of the sequence.
        pool: name of the pool that the blocks were to be copied from.
        blocks: how many of them failed.
    """

    def __init__(self, sequence_id: str | int, pool: str, blocks: int) -> None:
        super().__init__(sequence_id, pool, blocks)
        self.sequence_id = sequence_id
        self.pool = pool
        self.blocks = blocks

    def __str__(self) -> str:
        return (
            f"{self.blocks} blocks that sequence {self.sequence_id!r} was to read could not be copied from pool "
            f"{self.pool!r}; the sequence was undone: admit it again, what is lost will be computed"
        )


class ActorLost(LossError):
    """An actor died, or its channel was closed: whether what it was asked last has happened is not known.

    Attributes:
        actor: its name.
    """

    def __init__(self, actor: str) -> None:
        super().__init__(actor)
        self.actor = actor

    def __str__(self) -> str:
        return f"{self.actor} is lost: it died or its channel was closed; ask again when it is back"


class CoordinatorLost(LossError):
    """The coordinator has restarted. The sequences, pins and sessions of the old one are gone.

    Attributes:
        epoch: of the coordinator that is gone.
    """

    def __init__(self, epoch: int) -> None:
        super().__init__(epoch)
        self.epoch = epoch

    def __str__(self) -> str:
        return (
            f"the coordinator of epoch {self.epoch} is gone, with its sequences and pins; stop using their slots, say "
            "so, attach to the new one and admit again"
        )


class TierLost(LossError):
    """The memory that held blocks of a sequence is lost. The sequence was undone.

    Attributes:
        sequence_id: of the sequence.
        pool: name of the pool that is lost.
    """

    def __init__(self, sequence_id: str | int, pool: str) -> None:
        super().__init__(sequence_id, pool)
        self.sequence_id = sequence_id
        self.pool = pool

    def __str__(self) -> str:
        return (
            f"pool {self.pool!r} is lost with blocks of sequence {self.sequence_id!r}, which was undone: "
            "admit it again when the pool is back"
        )


class PrefixLost(LossError):
    """A sequence shared a prefix that another one was to compute, and that one ended before. The sequence was undone.

    Attributes:
        sequence_id: of the sequence.
    """

    def __init__(self, sequence_id: str | int) -> None:
        super().__init__(sequence_id)
        self.sequence_id = sequence_id

    def __str__(self) -> str:
        return (
            f"sequence {self.sequence_id!r} shared a prefix whose writer ended before it was computed; it was undone: "
            "admit it again"
        )


class SessionLost(LossError):
    """A client stayed away for longer than its session waits. Its sequences and pins are gone.

    Attributes:
        session_id: of the session.
        grace_s: how long it has waited.
    """

    def __init__(self, session_id: int, grace_s: float) -> None:
        super().__init__(session_id, grace_s)
        self.session_id = session_id
        self.grace_s = grace_s

    def __str__(self) -> str:
        return (
            f"session {self.session_id} is gone, with its sequences and pins: its client was away for more than "
            f"{self.grace_s} s; stop using their slots, say so, attach anew and admit again"
        )


class InvariantError(KVTroupeError):
    """A bug of kvtroupe itself: a rule that must always hold does not."""
