"""What `from kvtroupe import ...` gives."""

from kvtroupe.coordinator.check import check, quiescent
from kvtroupe.coordinator.config import Config, GroupConfig, Limits, PoolConfig
from kvtroupe.coordinator.contents import content_of
from kvtroupe.coordinator.counters import Counters
from kvtroupe.coordinator.errors import (
    CapacityError,
    CommitError,
    ConfigError,
    CorruptBlock,
    DigestError,
    FenceError,
    InvariantError,
    KVTroupeError,
    LossError,
    OutOfBlocks,
    Overloaded,
    PinExists,
    RequestError,
    SequenceExists,
    SequenceTooLong,
    TokenError,
    TraceError,
    UnknownPin,
    UnknownSequence,
)
from kvtroupe.coordinator.event_mirror import Mirror
from kvtroupe.coordinator.extras import Extras, LoRA, MultimodalItem, PromptEmbeddings, TokenExtraIds
from kvtroupe.coordinator.identity import DigestChain, PrefixDigests, block_digests, digest_chain
from kvtroupe.coordinator.messages import Admitted, CommitReply, Content, GrowReply, NewSequence
from kvtroupe.coordinator.replica import Replica
from kvtroupe.coordinator.retention import Retention, RetentionRange

__all__ = [
    "Admitted",
    "CapacityError",
    "CommitError",
    "CommitReply",
    "Config",
    "ConfigError",
    "Content",
    "CorruptBlock",
    "Counters",
    "DigestChain",
    "DigestError",
    "Extras",
    "FenceError",
    "GroupConfig",
    "GrowReply",
    "InvariantError",
    "KVTroupeError",
    "Limits",
    "LoRA",
    "LossError",
    "Mirror",
    "MultimodalItem",
    "NewSequence",
    "OutOfBlocks",
    "Overloaded",
    "PinExists",
    "PoolConfig",
    "PrefixDigests",
    "PromptEmbeddings",
    "Replica",
    "RequestError",
    "Retention",
    "RetentionRange",
    "SequenceExists",
    "SequenceTooLong",
    "TokenError",
    "TokenExtraIds",
    "TraceError",
    "UnknownPin",
    "UnknownSequence",
    "block_digests",
    "check",
    "content_of",
    "digest_chain",
    "quiescent",
]
