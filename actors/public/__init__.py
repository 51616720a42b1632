"""What `from kvtroupe import ...` gives."""

from kvtroupe.coordinator.bands import Shape
from kvtroupe.coordinator.block_bytes import GroupBytes, KVLayers
from kvtroupe.coordinator.check import check, quiescent
from kvtroupe.coordinator.config import Config, GroupConfig, Limits, PoolConfig
from kvtroupe.coordinator.config_checks import AS_MANY_AS_FIT
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
from kvtroupe.coordinator.gauges import Gauges, PoolGauges
from kvtroupe.coordinator.identity import DigestChain, PrefixDigests, block_digests, digest_chain
from kvtroupe.coordinator.messages import (
    Admitted,
    CommitReply,
    Content,
    Estimate,
    GrowReply,
    LookupReply,
    MoveReply,
    NewSequence,
    Pace,
)
from kvtroupe.coordinator.rank_reports import RankReport
from kvtroupe.coordinator.replica import Replica
from kvtroupe.coordinator.retention import Retention, RetentionRange
from kvtroupe.coordinator.sizing import concurrency, largest_batch, plan_pools

__all__ = [
    "AS_MANY_AS_FIT",
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
    "Estimate",
    "Extras",
    "FenceError",
    "Gauges",
    "GroupBytes",
    "GroupConfig",
    "GrowReply",
    "InvariantError",
    "KVLayers",
    "KVTroupeError",
    "Limits",
    "LoRA",
    "LookupReply",
    "LossError",
    "Mirror",
    "MoveReply",
    "MultimodalItem",
    "NewSequence",
    "OutOfBlocks",
    "Overloaded",
    "Pace",
    "PinExists",
    "PoolConfig",
    "PoolGauges",
    "PrefixDigests",
    "PromptEmbeddings",
    "RankReport",
    "Replica",
    "RequestError",
    "Retention",
    "RetentionRange",
    "SequenceExists",
    "SequenceTooLong",
    "Shape",
    "TokenError",
    "TokenExtraIds",
    "TraceError",
    "UnknownPin",
    "UnknownSequence",
    "block_digests",
    "check",
    "concurrency",
    "content_of",
    "digest_chain",
    "largest_batch",
    "plan_pools",
    "quiescent",
]
