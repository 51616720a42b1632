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
    │   └── TraceError          a trace that cannot be read
    ├── CapacityError           expected under load: the same request may succeed later
    │   ├── OutOfBlocks         not enough free blocks now
    │   └── Overloaded          a limit of the configuration is reached
    ├── LossError               something died or broke
    │   └── CorruptBlock        bytes that are not what the block's digest says
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


class InvariantError(KVTroupeError):
    """A bug of kvtroupe itself: a rule that must always hold does not."""
