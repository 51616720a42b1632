"""What the end of a copy, or of a publication, means for those who waited for it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from kvtroupe.coordinator.errors import TransferFailed
from kvtroupe.coordinator.messages import CommitReply, SequenceFailedEvent, TransfersDoneEvent

if TYPE_CHECKING:
    from collections.abc import Iterable

    from kvtroupe.coordinator.errors import LossError
    from kvtroupe.coordinator.grants import Tables
    from kvtroupe.coordinator.messages import Output
    from kvtroupe.coordinator.parts import Parts
    from kvtroupe.coordinator.publications import Publication
    from kvtroupe.coordinator.records import Records
    from kvtroupe.coordinator.sequences import Sequence
    from kvtroupe.coordinator.tiers import Tiers
    from kvtroupe.coordinator.transfer import Finished


@dataclass(frozen=True)
class Outcomes:
    """See the module.

    Attributes:
        parts: of the state.
        records: of who holds slots.
        tables: of sequences.
        tiers: that copy.
    """

    parts: Parts
    records: Records
    tables: Tables
    tiers: Tiers

    def finished(self, over: list[Finished], now_s: float) -> list[Output]:
        """Transfers are over: their blocks land, and who waited goes on, or fails."""
        outputs: list[Output] = []
        done: dict[int, list[int]] = {}
        for transfer in over:
            outputs += self.tiers.landings.finished(transfer, now_s)
            outputs += self._fail_readers(transfer)
            self.records.release_kept(transfer.transfer_id)
            for session in self.records.waits.done(transfer.transfer_id):
                done.setdefault(session, []).append(transfer.transfer_id)
        return outputs + [TransfersDoneEvent(tuple(ids), session) for session, ids in done.items()]

    def _fail_readers(self, transfer: Finished) -> list[Output]:
        """Undo the sequences that waited to read what a transfer has failed to bring."""
        if transfer.failed is None:
            return []
        copies = transfer.copies
        failed = copies.destinations.compress(transfer.failed)
        outputs: list[Output] = []
        for wait in self.records.waits.waiting_for(transfer.transfer_id):
            held = self.tables.held(wait.sequence)[copies.destination_pool]
            count = int(np.count_nonzero(np.isin(failed, held)))
            if count and transfer.transfer_id in wait.reads_after:
                error = TransferFailed(wait.sequence.sequence_id, self._tier(copies.source_pool), count)
                outputs.append(self.undo(wait.sequence, error))
        return outputs

    def overdue(self, now_s: float) -> list[Output]:
        """Copies whose deadline has passed fail for all who wait for them; their slots stay in use until they end."""
        transfers = self.tiers.traffic.transfers
        outputs: list[Output] = []
        for transfer_id in transfers.overdue(now_s):
            transfer = transfers.get(transfer_id)
            assert transfer is not None, "what is overdue is open"
            copies = transfer.copies
            arriving = self.tiers.traffic.arriving[copies.destination_pool]
            if arriving is not None and self.tiers.traffic.is_up(copies.source_pool, copies.destination_pool):
                arriving.void(copies.destinations.compress(arriving.brought_by(transfer_id, copies.destinations)))
            touched = {copies.source_pool: copies.sources}
            touched[copies.destination_pool] = np.concatenate(
                [copies.destinations, touched.get(copies.destination_pool, copies.sources[:0])]
            )
            for pool, slots in touched.items():  # whoever got one of these now would wait for longer than anybody may
                self.records.keep(transfer_id, pool, np.unique(slots))
            for wait in self.records.waits.waiting_for(transfer_id):
                error = TransferFailed(wait.sequence.sequence_id, self._tier(copies.source_pool), len(copies.sources))
                outputs.append(self.undo(wait.sequence, error))
        return outputs

    def published(self, publications: Iterable[Publication]) -> list[Output]:
        """Groups have answered, or never will: what follows for the publications that are complete with it."""
        replies: list[Output] = []
        for publication in publications:
            if publication.offers:
                continue
            if not publication.sequence.publishing:
                self.records.returns.published(publication.sequence)
            if publication.request_id is not None:
                replies.append(CommitReply(publication.request_id, tuple(publication.published_blocks)))
        return replies

    def undo(self, sequence: Sequence, error: LossError) -> SequenceFailedEvent:
        """A sequence fails. One that still waits for what it reads was never computed: it ends here."""
        has_begun = not self.records.waits.reads(sequence.sequence_id)
        if has_begun:
            self.records.fail(sequence, error)
        else:
            self.records.end(sequence, None)
        self.parts.counters.sequences_failed += 1
        return SequenceFailedEvent(sequence.sequence_id, error, has_begun, sequence.session)

    def _tier(self, pool: int) -> str:
        return self.parts.pools[pool].name
