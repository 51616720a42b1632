"""What tests of transfers share: a set of pools and engines, and copies of single slots among them.

Pools 0, 1 and 2 are the device, the host and the disk, of ten slots each. The host's engine copies between host and
device, the disk's between disk and host; within the device, engine 0 copies. There are two ranks.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvtroupe.coordinator.actor_messages import Copies, CopyReply, CopyRequest
from kvtroupe.coordinator.transfers import Transfers
from tests.coordinator.support import slots

if TYPE_CHECKING:
    from collections.abc import Container

    from kvtroupe.coordinator.actor_messages import TierOutput
    from kvtroupe.coordinator.transfer import Finished

ENGINE_OF = {(0, 0): 0, (0, 1): 1, (1, 0): 1, (1, 2): 2, (2, 1): 2}
EPOCH = 7
DEADLINE_S = 10.0


def make(*, blocks: int = 8, ranks: int = 2, tellers: Container[int] = ()) -> Transfers:
    """Transfers of these pools, with credits for some blocks on every engine."""
    return Transfers((10, 10, 10), ENGINE_OF, ranks, dict.fromkeys(range(3), blocks), DEADLINE_S, EPOCH, tellers)


def copies(source_pool: int, destination_pool: int, *pairs: tuple[int, int]) -> Copies:
    """Copies of one slot to another, in order."""
    return Copies(source_pool, slots(*(a for a, _ in pairs)), destination_pool, slots(*(b for _, b in pairs)))


def begin(
    transfers: Transfers, pair: tuple[int, int], *slots_of: tuple[int, int], now_s: float = 0.0, urgent: bool = False
) -> list[int]:
    """Begin copies between a pair of pools: for each the id of its transfer."""
    ids: list[int] = transfers.begin(copies(*pair, *slots_of), now_s, urgent=urgent).tolist()
    return ids


def asked(output: TierOutput) -> CopyRequest:
    """The copy request that is sent."""
    assert isinstance(output.message, CopyRequest)
    return output.message


def flush(transfers: Transfers) -> list[int]:
    """Ids of the transfers that are sent, in order; each must go to every rank."""
    outputs = transfers.flush()
    sent = [asked(output).transfer_id for output in outputs]
    ranks = [output.rank for output in outputs]
    assert ranks == list(range(transfers.ranks)) * (len(sent) // transfers.ranks)
    return sent[:: transfers.ranks]


def answer(transfers: Transfers, transfer_id: int, rank: int, *failed: int) -> list[Finished]:
    """An answer of the engine whose transfer it is."""
    transfer = transfers.get(transfer_id)
    assert transfer is not None
    return transfers.answered(CopyReply(transfer_id, EPOCH, transfer.engine, rank, failed))


def complete(transfers: Transfers, transfer_id: int, *failed: int) -> list[tuple[int, list[int]]]:
    """Answers of both ranks, the last of which names failed positions: what is finished and has failed by that."""
    assert answer(transfers, transfer_id, 0) == []
    return told(answer(transfers, transfer_id, 1, *failed))


def told(finished: list[Finished]) -> list[tuple[int, list[int]]]:
    """Ids, and the positions that have failed."""
    return [(each.transfer_id, [] if each.failed is None else each.failed.nonzero()[0].tolist()) for each in finished]
