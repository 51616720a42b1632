"""The checker of invariants: a healthy replica passes, and every way of breaking one is noticed."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import pytest

from kvtroupe.coordinator.check import check, quiescent
from kvtroupe.coordinator.errors import InvariantError
from kvtroupe.coordinator.ledger import Holder, Ledger
from kvtroupe.coordinator.messages import LOCAL_SESSION
from kvtroupe.coordinator.prefix_index import PrefixIndex, Run
from kvtroupe.coordinator.records import Pin
from kvtroupe.coordinator.replica import Replica
from tests.coordinator.support import admit, cache, chain, free_order, make_replica, new, only_pool, slots

Break: TypeAlias = Callable[[Replica], None]


def healthy_replica() -> Replica:
    """A running sequence that slid, cached chains that branch, a pin, slots behind a fence; 1 to 40 in use or free."""
    replica = make_replica("full", "sliding:5", blocks=41)
    cache(replica, "xyz")
    cache(replica, "xyuv")
    admit(replica, new("run", "xyzw", spare_blocks=1))
    replica.commit("run", 17)
    admit(replica, new("gone", "q"))
    replica.release("gone", fence=3)
    replica.pin("pin", chain("xyu"))
    return replica


def ledger(replica: Replica) -> Ledger:
    """Of the only pool."""
    return only_pool(replica).ledger


def index(replica: Replica) -> PrefixIndex:
    """Of the group with full attention."""
    return replica.groups[0].index


def run_of(replica: Replica, digests: bytes) -> Run:
    """The run of the full group that begins with a digest."""
    (run,) = [run for run in index(replica).runs if run is not None and run.digests.startswith(digests)]
    return run


def held_slot(replica: Replica) -> int:
    """A slot of the running sequence that is not published: its last one."""
    return int(replica.tables("run")[0][-1])


def published_slot(replica: Replica) -> int:
    """The slot of the first block of the full group."""
    return replica.published("full0")[chain("x")][0]


def use_a_slot_once_more(replica: Replica) -> None:
    """A leak."""
    ledger(replica).uses[held_slot(replica)] += 1


def free_the_null_block(replica: Replica) -> None:
    """It would be handed out."""
    ledger(replica).uses[0] = 0


def count_a_use_of_a_pin(replica: Replica) -> None:
    """The total of a kind of holder."""
    ledger(replica).uses_by_holder[Holder.PIN] += 1


def forget_a_pin(replica: Replica) -> None:
    """Its slots would never be free again."""
    replica.state.records.pins.clear()


def hold_a_slot_twice(replica: Replica) -> None:
    """One slot at two places of a table: two writers."""
    rows = replica.sequence("run").tables[0].rows
    rows[0, -1] = rows[0, -2]


def hold_the_null_block(replica: Replica) -> None:
    """As a pin."""
    replica.state.records.pins["null"] = Pin(LOCAL_SESSION, 0, (slots(0),))
    ledger(replica).uses[0] += 1
    ledger(replica).uses_by_holder[Holder.PIN] += 1


def list_a_free_slot_twice(replica: Replica) -> None:
    """It would be handed out to two."""
    ledger(replica).free_order.push_front(slots(free_order(replica)[0]))


def lose_a_free_slot(replica: Replica) -> None:
    """Nobody uses it and nobody can have it."""
    ledger(replica).free_order.take(1)


def count_a_free_slot_too_many(replica: Replica) -> None:
    """A round would take more than there is."""
    ledger(replica).free_order.count += 1


def list_a_worthless_slot_behind(replica: Replica) -> None:
    """It would be kept longer than content that can be reused."""
    taken, _ = ledger(replica).free_order.take(1)
    ledger(replica).free_order.push_back(taken)


def mix_priorities_up(replica: Replica) -> None:
    """The first one to be evicted gets a priority above those behind it."""
    order = free_order(replica)
    published = [slot for slot in order if ledger(replica).published[slot]]
    ledger(replica).free_order.priority[published[0]] = 90


def unpublish_behind_the_back_of_the_group(replica: Replica) -> None:
    """The index still names the slot."""
    ledger(replica).published[published_slot(replica)] = False


def publish_behind_the_back_of_the_group(replica: Replica) -> None:
    """No index names the slot."""
    ledger(replica).published[held_slot(replica)] = True


def publish_the_null_block(replica: Replica) -> None:
    """No index names it either."""
    ledger(replica).published[0] = True


def pass_a_generation(replica: Replica) -> None:
    """As if the slot had been taken."""
    ledger(replica).generation[published_slot(replica)] += 1


def swap_digests(replica: Replica) -> None:
    """A hit would serve the wrong block."""
    digest = ledger(replica).digest
    digest[published_slot(replica)] = digest[replica.published("full0")[chain("xy")[8:]][0]]


def change_an_owner(replica: Replica) -> None:
    """An eviction would be told to the wrong group."""
    ledger(replica).published[published_slot(replica)] = 2


def count_a_live_block_too_many(replica: Replica) -> None:
    """The run would never be taken out."""
    index(replica).live[run_of(replica, chain("x")).number] += 1


def count_a_block_of_the_index_too_many(replica: Replica) -> None:
    """Its size."""
    index(replica).size += 1


def name_another_run(replica: Replica) -> None:
    """An eviction would be counted at the wrong run."""
    index(replica).run_of[published_slot(replica)] = run_of(replica, chain("xyu")[16:]).number


def shift_a_branch(replica: Replica) -> None:
    """A chain would be followed to the wrong place."""
    run_of(replica, chain("xyu")[16:]).offset += 1


def rename_a_branch(replica: Replica) -> None:
    """It would be found under a digest that it does not begin with."""
    (heads,) = run_of(replica, chain("x")).branches.values()
    heads[bytes(8)] = heads.pop(chain("xyu")[16:])


def leave_an_empty_branch(replica: Replica) -> None:
    """Its run could never be cut before it."""
    run_of(replica, chain("x")).branches[1] = {}


def cut_a_branch_off(replica: Replica) -> None:
    """Nothing leads to its run any more."""
    run_of(replica, chain("x")).branches.clear()


def give_a_run_another_parent(replica: Replica) -> None:
    """Taking it out would look for it in the wrong place."""
    run_of(replica, chain("xyu")[16:]).parent = index(replica).root


def lengthen_the_digests_of_a_run(replica: Replica) -> None:
    """They would not fit together with its slots."""
    run_of(replica, chain("xyu")[16:]).digests += bytes(8)


def shorten_the_slots_of_a_run(replica: Replica) -> None:
    """They would not fit together with its generations."""
    run = run_of(replica, chain("xyu")[16:])
    run.slots = run.slots[:0]


def forget_a_dead_run(replica: Replica) -> None:
    """Nobody would ever take it out."""
    slot = held_slot(replica)
    index(replica).insert(chain("dead"), 3, slots(slot), slots(99))
    index(replica).evict(slots(slot))
    index(replica).dead.clear()


def commit_more_than_there_is(replica: Replica) -> None:
    """More tokens computed than appended."""
    replica.sequence("run").committed_tokens += 1


def append_more_than_fits(replica: Replica) -> None:
    """More tokens than room for them."""
    replica.sequence("run").tokens = replica.sequence("run").capacity_tokens + 1


def claim_more_room(replica: Replica) -> None:
    """More than the tables have blocks for."""
    replica.sequence("run").capacity_tokens += 4


def keep_too_little_of_a_window(replica: Replica) -> None:
    """Null blocks where the next token reads."""
    replica.sequence("run").cached_tokens = replica.sequence("run").committed_tokens = 9


BREAKS: list[tuple[Break, str]] = [
    (use_a_slot_once_more, "uses differ from the holders that exist"),
    (free_the_null_block, "uses differ from the holders that exist"),
    (count_a_use_of_a_pin, "uses by kind of holder: pin"),
    (forget_a_pin, "uses differ from the holders that exist"),
    (hold_a_slot_twice, "a holder holds a slot twice: sequence, run"),
    (hold_the_null_block, "a holder holds the null block: pin, null"),
    (list_a_free_slot_twice, "a slot is in the free order twice"),
    (lose_a_free_slot, "the free order does not hold what is free"),
    (count_a_free_slot_too_many, "the free order is not as long as it says"),
    (list_a_worthless_slot_behind, "an unpublished slot is behind a published one"),
    (mix_priorities_up, "free slots are not in order of priority"),
    (unpublish_behind_the_back_of_the_group, "an index names a slot that is not published"),
    (publish_behind_the_back_of_the_group, "the indexes do not name exactly what is published"),
    (publish_the_null_block, "the indexes do not name exactly what is published"),
    (pass_a_generation, "an index names a generation that has passed"),
    (swap_digests, "ledger and index disagree on a digest"),
    (change_an_owner, "an index names a slot of another"),
    (count_a_live_block_too_many, "a run counts its blocks wrong"),
    (count_a_block_of_the_index_too_many, "the index does not hold as many blocks as it says"),
    (name_another_run, "a slot names another run"),
    (shift_a_branch, "a branch hangs at the wrong place"),
    (rename_a_branch, "a branch has another first digest"),
    (leave_an_empty_branch, "an empty branch"),
    (cut_a_branch_off, "runs that nothing leads to"),
    (give_a_run_another_parent, "a branch has another parent"),
    (lengthen_the_digests_of_a_run, "a run's parts differ in length"),
    (shorten_the_slots_of_a_run, "a run's parts differ in length"),
    (forget_a_dead_run, "a dead run that nobody will take out"),
    (commit_more_than_there_is, "lengths of a sequence are out of order"),
    (append_more_than_fits, "lengths of a sequence are out of order"),
    (claim_more_room, "a table of another length"),
    (keep_too_little_of_a_window, "null blocks where the window is"),
]


@pytest.mark.parametrize(("how", "message"), BREAKS, ids=[how.__name__ for how, _ in BREAKS])
def test_what_is_broken_is_noticed(how: Break, message: str) -> None:
    """The error says which invariant it is, with the values."""
    replica = healthy_replica()
    check(replica)

    how(replica)

    with pytest.raises(InvariantError, match=message):
        check(replica)


def test_a_replica_is_quiescent_when_nothing_is_held() -> None:
    """Neither by sequences nor behind fences nor by pins; a new one is."""
    replica = healthy_replica()
    assert not quiescent(replica)
    replica.release("run")
    replica.steps_done(3)
    assert not quiescent(replica)
    replica.unpin("pin")

    assert quiescent(replica)
    assert quiescent(make_replica("full@a", "full@b", blocks={"a": 5, "b": 9}))


def test_every_pool_counts_for_quiescence() -> None:
    """A block held in the last of them is one too many."""
    replica = make_replica("full@a", "full@b", blocks={"a": 5, "b": 9})
    replica.pool("b").ledger.take(1, Holder.SEQUENCE)

    assert not quiescent(replica)
