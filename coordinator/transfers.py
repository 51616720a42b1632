"""Copies on their way: which transfer carries them, when it may be sent, who has answered, and who has to wait.

A transfer is what one copy request asks of every rank: copies between one pair of pools, or within a pool, that can be
done in any order. Whatever is begun counts at once: who asks from then on what to await is told of it.

The rules of order. Two copies conflict when one writes what the other reads or writes.

- Transfers are numbered so that of two conflicting copies the one begun first is in the transfer of the lower number.
  A copy joins a transfer that is not older than the last flush if that is numbered above all that it conflicts with.
- An engine does what it was sent in the order sent, so a transfer has to be sent after those of its own engine that it
  conflicts with, and no more. Nothing orders two engines: it is held back until those of other engines are finished.
- One that writes into a pool whose own tier actor does not copy it is sent when that actor tells nothing of what was
  there before: see `row_drops`.
- A transfer is finished when every rank has answered, and when those are that wrote what it read: until then nobody
  knows whether it copied anything of use.

What fails on one rank has failed. What was read from the destination of a failed copy has failed too, if that copy was
not finished when it was begun; if it was, whoever began it knew.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from kvtroupe.coordinator.actor_messages import CopyRequest, TierOutput
from kvtroupe.coordinator.errors import InvariantError
from kvtroupe.coordinator.row_drops import RowDrops
from kvtroupe.coordinator.slot_uses import SlotUses
from kvtroupe.coordinator.transfer import Finished, Kind, Part, Transfer, check_slots, kind_of, runs_without_conflict

if TYPE_CHECKING:
    from collections.abc import Container, Iterable, Iterator, Mapping, Sequence

    from numpy.typing import NDArray

    from kvtroupe.coordinator.actor_messages import Copies, CopyReply, Slots
    from kvtroupe.coordinator.tier_messages import DropReply


@dataclass(eq=False)
class Transfers:
    """All copies that are under way.

    Attributes:
        slots: of each pool, the null block included.
        engine_of: number of the pool whose tier actor copies, by source pool and destination pool.
        ranks: each of them copies its shard of every block.
        credits: for each engine, how many blocks may be under way at once.
        deadline_s: how long after they were begun copies fail for those who wait for them.
        epoch: of the coordinator.
        tellers: numbers of the pools whose tier actors tell what they hold: before another one writes there, they are
            asked to forget it.
        content_epoch: of all content that is copied from now on.
        late_answers: how many answers came too late, twice, or from another epoch.
    """

    slots: Sequence[int]
    engine_of: Mapping[tuple[int, int], int]
    ranks: int
    credits: Mapping[int, int]
    deadline_s: float
    epoch: int
    tellers: Container[int] = ()
    content_epoch: int = field(default=0, init=False)
    late_answers: int = field(default=0, init=False)

    def __post_init__(self) -> None:
        for (source, destination), engine in self.engine_of.items():
            if engine not in self.credits:
                raise InvariantError(
                    f"engine {engine} of pools {source} and {destination} has no credits: give it some"
                )
        self._reads = [SlotUses(slots) for slots in self.slots]
        self._writes = [SlotUses(slots) for slots in self.slots]
        self._tier_epochs = [(0,) * self.ranks for _ in self.slots]
        self._under_way = dict.fromkeys(self.credits, 0)  # blocks
        self._lost: dict[int, set[int]] = {engine: set() for engine in self.credits}
        self._overdue: set[int] = set()  # ids of those that are open
        self._open: dict[int, Transfer] = {}
        self._unsent: dict[int, Transfer] = {}
        self._timed: dict[int, Transfer] = {}  # those not overdue; the next deadline first
        self._joinable: dict[Kind, list[Transfer]] = {}  # begun since the last flush
        self._drops = RowDrops(self.tellers, self.epoch)
        self._last_id = 0
        self._now_s = float("-inf")

    # -- what is under way ---------------------------------------------------------------------------------------------

    def room(self, engine: int) -> int:
        """Blocks that may be begun now; none while a rank of the engine is lost, or silent beyond a deadline."""
        self._check_engine(engine)
        if self._lost[engine] or (self._overdue and self._is_silent(engine)):
            return 0
        return self.credits[engine] - self._under_way[engine]

    def _is_silent(self, engine: int) -> bool:
        """Whether it was asked for something that is overdue; what was held back is no fault of it."""
        overdue = [self._open[transfer_id] for transfer_id in self._overdue]
        return any(transfer.engine == engine and transfer.sent for transfer in overdue)

    def busy(self, pool: int) -> bool:
        """Whether an open transfer reads or writes slots of a pool."""
        return bool(self._reads[pool]) or bool(self._writes[pool])

    def get(self, transfer_id: int) -> Transfer | None:
        """An open transfer, to look at; None when it is finished."""
        return self._open.get(transfer_id)

    @property
    def is_open(self) -> bool:
        """Whether there is an open transfer."""
        return bool(self._open)

    def open_transfers(self) -> tuple[Transfer, ...]:
        """All of them in the order of their ids, to look at."""
        return tuple(self._open.values())

    def awaited_before_reading(self, pool: int, slots: Slots) -> tuple[int, ...]:
        """Ids of the open transfers that still write any of these slots, ascending."""
        writers = self._writes[pool].transfers(slots)
        return tuple(sorted(writers)) if writers else ()

    def awaited_before_writing(self, pool: int, slots: Slots) -> tuple[int, ...]:
        """Ids of the open transfers that still read or write any of these slots, ascending."""
        users = self._writes[pool].transfers(slots) | self._reads[pool].transfers(slots)
        return tuple(sorted(users)) if users else ()

    # -- begin ---------------------------------------------------------------------------------------------------------

    def begin(self, copies: Copies, now_s: float, *, urgent: bool = False) -> NDArray[np.int64]:
        """Copy blocks, as if one after the other and after all that was begun before.

        Args:
            copies: what to copy; the arrays are kept and must not be written again.
            now_s: from here on the deadline counts.
            urgent: somebody waits for them, so that they may be sent before others of the same flush.

        Returns:
            for each copy the id of the transfer that carries it.

        Raises:
            InvariantError: they cannot be copied, or are more than there is room for; nothing is begun.
        """
        self._check(copies)
        if not len(copies.sources):
            return np.zeros(0, np.int64)
        self._now_s = max(self._now_s, now_s)
        if self._unordered(copies):
            return self._begin_unordered(copies, urgent=urgent)
        runs = [self._begin_unordered(run, urgent=urgent) for run in runs_without_conflict(copies)]
        return np.concatenate(runs)

    def _unordered(self, copies: Copies) -> bool:
        """Whether none of these copies conflicts with another one of them."""
        destinations = np.sort(copies.destinations)
        if np.count_nonzero(destinations[1:] == destinations[:-1]):
            return False
        if copies.source_pool != copies.destination_pool:
            return True
        return not self._writes[copies.source_pool].common(copies.sources, copies.destinations).any()

    def _begin_unordered(self, copies: Copies, *, urgent: bool) -> NDArray[np.int64]:
        """Begin copies of which none conflicts with another one of them."""
        written = self._writes[copies.source_pool].users(copies.sources)
        conflicts = [
            *written,
            *self._writes[copies.destination_pool].users(copies.destinations),
            *self._reads[copies.destination_pool].users(copies.destinations),
        ]
        count = len(copies.sources)
        if not conflicts:
            kind = kind_of(copies, urgent=urgent, held=False)
            return np.full(count, self._join(kind, 0, Part(copies, None), ()))
        latest, held = self._last_conflicts(conflicts, self._engine(copies), count)
        writers = np.zeros(count, np.int64)
        for transfer_id, mask in written:  # ascending: the last one stays
            writers[mask] = transfer_id
        ids = np.zeros(count, np.int64)
        for is_held in (False, True):
            kind = kind_of(copies, urgent=urgent, held=is_held)
            there = [transfer.transfer_id for transfer in self._joinable.get(kind, ())]
            places = np.searchsorted(there, latest, side="right")
            for place in sorted(set(places.compress(held == is_held).tolist())):
                chosen = (places == place) & (held == is_held)
                before = {transfer_id for transfer_id, mask in conflicts if np.count_nonzero(mask & chosen)}
                ids[chosen] = self._join(kind, place, Part(copies, writers).compress(chosen), before)
        return ids

    def _last_conflicts(
        self, conflicts: list[tuple[int, NDArray[np.bool_]]], engine: int, count: int
    ) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
        """For each copy the last transfer that it conflicts with, or 0, and whether it has to wait for an engine."""
        latest = np.zeros(count, np.int64)
        held = np.zeros(count, np.bool_)
        for transfer_id, mask in conflicts:
            np.maximum(latest, transfer_id, out=latest, where=mask)
            transfer = self._open[transfer_id]
            if transfer.engine != engine or (transfer.held and not transfer.sent):
                held |= mask
        return latest, held

    def _join(self, kind: Kind, place: int, part: Part, before: Iterable[int]) -> int:
        """Let a transfer that can be joined carry copies, or a new one behind the last of these: its id."""
        joinable = self._joinable.setdefault(kind, [])
        if place == len(joinable):
            joinable.append(self._new_transfer(kind))
        transfer = joinable[place]
        transfer.parts.append(part)
        transfer.before.update(other for other in before if self._precedes(self._open[other], transfer))
        for writer in part.writer_ids():
            transfer.unknown.add(writer)
            self._open[writer].readers.add(transfer.transfer_id)
        self._reads[kind.source_pool].add(transfer.transfer_id, part.copies.sources)
        self._writes[kind.destination_pool].add(transfer.transfer_id, part.copies.destinations)
        self._under_way[transfer.engine] += len(part.copies.sources)
        return transfer.transfer_id

    def _new_transfer(self, kind: Kind) -> Transfer:
        self._last_id += 1
        transfer = Transfer(
            self._last_id,
            self.engine_of[kind.source_pool, kind.destination_pool],
            self._now_s + self.deadline_s,
            urgent=kind.urgent,
            held=kind.held,
            content_epoch=self.content_epoch,
            source_epochs=self._tier_epochs[kind.source_pool],
            destination_epochs=self._tier_epochs[kind.destination_pool],
            missing=set(range(self.ranks)),
        )
        for transfers in (self._open, self._unsent, self._timed):
            transfers[transfer.transfer_id] = transfer
        return transfer

    # -- send ----------------------------------------------------------------------------------------------------------

    def flush(self) -> list[TierOutput]:
        """All that may be sent now: again after each begin, and after each answer or loss that finished something."""
        if not self._unsent:
            return []
        self._joinable.clear()
        outputs: list[TierOutput] = []
        for transfer in self._by_urgency():
            transfer.before = {other for other in transfer.before if self._is_waited_for(other, transfer)}
            if not transfer.before:
                outputs += self._drops.ask(transfer, self._lost.get(transfer.copies.destination_pool, ()))
                if not self._drops.awaits(transfer):
                    outputs += self._send(transfer)
        return outputs

    def _by_urgency(self) -> list[Transfer]:
        """What is not sent: first the urgent ones and what has to precede them, each part in the order of ids."""
        urgent: set[int] = set()
        for transfer in reversed(self._unsent.values()):
            if transfer.urgent or transfer.transfer_id in urgent:
                urgent |= {transfer.transfer_id, *transfer.before}
        return sorted(self._unsent.values(), key=lambda transfer: transfer.transfer_id not in urgent)

    def _is_waited_for(self, other: int, transfer: Transfer) -> bool:
        preceding = self._open.get(other)
        return preceding is not None and self._precedes(preceding, transfer)

    @staticmethod
    def _precedes(other: Transfer, transfer: Transfer) -> bool:
        """Whether a conflicting transfer of a lower number still keeps this one from being sent."""
        return other.engine != transfer.engine or not other.sent

    def _send(self, transfer: Transfer) -> Iterator[TierOutput]:
        transfer.sent = True
        del self._unsent[transfer.transfer_id]
        epochs = zip(transfer.source_epochs, transfer.destination_epochs, strict=True)
        for rank, (source_epoch, destination_epoch) in enumerate(epochs):
            request = CopyRequest(
                transfer.transfer_id,
                self.epoch,
                transfer.copies,
                transfer.content_epoch,
                source_epoch,
                destination_epoch,
            )
            yield TierOutput(transfer.engine, rank, request)

    # -- answers -------------------------------------------------------------------------------------------------------

    def answered(self, reply: CopyReply) -> list[Finished]:
        """A rank has answered.

        Args:
            reply: of another epoch, of a finished transfer, or one that was there before, it is counted and no more.

        Returns:
            what is finished by it.

        Raises:
            InvariantError: the reply cannot be an answer to this transfer; nothing has changed.
        """
        transfer = self._open.get(reply.transfer_id) if reply.epoch == self.epoch else None
        if transfer is None:
            self.late_answers += 1
            return []
        self._check_rank(reply.rank)
        transfer.check_reply(reply)
        if reply.rank not in transfer.missing:
            self.late_answers += 1
            return []
        transfer.missing.remove(reply.rank)
        if reply.failed:
            transfer.failures.append(np.array(reply.failed, np.int64))
        return self._finish([transfer.transfer_id])

    def dropped(self, reply: DropReply) -> None:
        """A rank has forgotten what is in slots that are about to be written."""
        self.late_answers += not self._drops.answered(reply)

    def rank_lost(self, engine: int, rank: int) -> list[Finished]:
        """The tier actor of a rank is known to be dead: what it has not answered has failed.

        Nothing is begun on this engine until the rank is back, and what was not sent yet never is.

        Returns:
            what is finished by it.
        """
        self._check_engine(engine)
        self._check_rank(rank)
        self._lost[engine].add(rank)
        self._drops.rank_lost(engine, rank)
        self._joinable = {kind: made for kind, made in self._joinable.items() if self._engine(kind) != engine}
        failed = [t for t in self._open.values() if t.engine == engine and rank in t.missing]
        for transfer in failed:
            transfer.failures.append(np.arange(transfer.blocks))
            transfer.missing.remove(rank)
            if not transfer.sent:
                transfer.missing.clear()
                transfer.unknown.clear()
                del self._unsent[transfer.transfer_id]
        return self._finish([transfer.transfer_id for transfer in failed])

    def lost_ranks(self, engine: int) -> tuple[int, ...]:
        """Ranks of an engine that are lost."""
        return tuple(sorted(self._lost[engine]))

    def begin_content_epoch(self, content_epoch: int) -> None:
        """What was published before is void: copies begun from now on are of other content, and in other transfers."""
        self.content_epoch = content_epoch
        self._joinable.clear()

    def tier_epoch(self, pool: int, rank: int) -> int:
        """The epoch of the tier actor of a pool on one rank."""
        return self._tier_epochs[pool][rank]

    def begin_tier_epoch(self, pool: int, rank: int, tier_epoch: int) -> None:
        """Another tier actor has a pool on one rank: copies begun before are refused there, if they are not done."""
        epochs = self._tier_epochs[pool]
        self._tier_epochs[pool] = (*epochs[:rank], tier_epoch, *epochs[rank + 1 :])
        self._joinable.clear()

    def rank_back(self, engine: int, rank: int) -> None:
        """A new tier actor has taken the place of one that was lost."""
        self._check_engine(engine)
        if rank not in self._lost[engine]:
            raise InvariantError(f"rank {rank} of engine {engine} is back and was not lost: report its loss first")
        self._lost[engine].remove(rank)

    def _finish(self, transfer_ids: list[int]) -> list[Finished]:
        """Those of these transfers that are complete, and all that only waited for them."""
        finished = []
        for transfer_id in transfer_ids:  # grows
            transfer = self._open.get(transfer_id)
            if transfer is None or transfer.missing or transfer.unknown:
                continue
            finished.append(self._close(transfer))
            transfer_ids += sorted(transfer.readers)
        return finished

    def _close(self, transfer: Transfer) -> Finished:
        copies, failed = transfer.copies, transfer.failed()
        del self._open[transfer.transfer_id]
        self._timed.pop(transfer.transfer_id, None)
        self._overdue.discard(transfer.transfer_id)
        self._drops.over(transfer)
        self._under_way[transfer.engine] -= transfer.blocks
        self._reads[copies.source_pool].remove(transfer.transfer_id)
        self._writes[copies.destination_pool].remove(transfer.transfer_id)
        for reader in filter(None, map(self._open.get, transfer.readers)):
            reader.unknown.discard(transfer.transfer_id)
            if failed is not None:
                reader.fail_what_it_read(transfer.transfer_id, copies.destinations.compress(failed))
        return Finished(transfer.transfer_id, copies, failed)

    # -- time ----------------------------------------------------------------------------------------------------------

    def next_deadline_s(self) -> float | None:
        """When to ask again what is overdue; None: not before something is begun."""
        return next((transfer.deadline_s for transfer in self._timed.values()), None)

    def overdue(self, now_s: float) -> list[int]:
        """Ids of open transfers whose deadline has passed, each told once.

        They fail for those who wait for them. Their slots are awaited like those of any open transfer. Engines that
        owe them are asked for nothing more until they answer: whoever tried again would wait as long, on more slots.
        """
        late = []
        for transfer in self._timed.values():
            if transfer.deadline_s > now_s:
                break
            transfer.overdue = True
            self._overdue.add(transfer.transfer_id)
            late.append(transfer.transfer_id)
        for transfer_id in late:
            del self._timed[transfer_id]
        return late

    # -- checks --------------------------------------------------------------------------------------------------------

    def _engine(self, pair: Copies | Kind) -> int:
        return self.engine_of[pair.source_pool, pair.destination_pool]

    def _check(self, copies: Copies) -> None:
        source, destination, count = copies.source_pool, copies.destination_pool, len(copies.sources)
        if (source, destination) not in self.engine_of:
            raise InvariantError(f"no engine copies from pool {source} to pool {destination}")
        for what in (copies.destinations, copies.tokens, copies.groups, copies.digests, copies.parents):
            if what is not None and len(what) != count:
                raise InvariantError(f"{count} slots to be read, and {len(what)} values for them: give one for each")
        check_slots(copies.sources, self.slots[source])
        check_slots(copies.destinations, self.slots[destination])
        if source == destination and np.count_nonzero(copies.sources == copies.destinations):
            raise InvariantError(f"a copy within pool {source} onto its own source: leave it out")
        engine = self._engine(copies)
        if self._lost[engine]:
            raise InvariantError(
                f"engine {engine} has lost ranks {sorted(self._lost[engine])}: begin when they are back"
            )
        if count > self.room(engine):
            raise InvariantError(f"{count} copies to be begun, engine {engine} has room for {self.room(engine)}")

    def _check_engine(self, engine: int) -> None:
        if engine not in self.credits:
            raise InvariantError(f"pool {engine} has no engine; those that have: {sorted(self.credits)}")

    def _check_rank(self, rank: int) -> None:
        if not 0 <= rank < self.ranks:
            raise InvariantError(f"rank {rank} of {self.ranks}: they count from 0")
