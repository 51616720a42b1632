"""The prefix index of a group: what it answers about chains, and that its structure stays small."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from kvtroupe.coordinator import prefix_index
from kvtroupe.coordinator.prefix_index import PrefixIndex
from tests.coordinator.support import DIGEST_BYTES, chain, slots, split

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kvtroupe.coordinator.messages import Evidence


class Library:
    """An index, and the generations of its slots: each insert has one."""

    def __init__(self, blocks: int = 500) -> None:
        self.index = PrefixIndex((blocks,), DIGEST_BYTES)
        self.generation = 0

    def insert(self, digests: bytes, first_slot: int, start_block: int = 0) -> list[bool]:
        """Publish the blocks of a chain from one on, in slots of consecutive numbers: which of them entered."""
        count = len(digests) // DIGEST_BYTES - start_block
        self.generation += 1
        offered = slots(*range(first_slot, first_slot + count))
        entered = self.index.insert(digests, start_block, offered, slots(*[self.generation] * count))
        return [True] * count if entered is None else entered.tolist()

    def find(self, digests: bytes, limit_blocks: int | None = None) -> list[int | None]:
        """The slots of a chain as far as the index follows it, None where a block is not there."""
        blocks = len(digests) // DIGEST_BYTES
        return found_slots(self.index.match(digests, blocks if limit_blocks is None else limit_blocks))

    def evict(self, *taken: int) -> None:
        """Slots have changed hands."""
        self.index.evict(slots(*taken))

    def runs(self) -> list[int]:
        """Lengths of the runs."""
        return [len(run.slots) for run in self.index.runs[1:] if run is not None]


def found_slots(evidence: Evidence) -> list[int | None]:
    """Evidence as the slots of blocks, None where a block is not there."""
    assert len(evidence.slots) == len(evidence.generations) == evidence.path_blocks
    assert evidence.present.bit_length() <= evidence.path_blocks
    return [slot if evidence.present >> block & 1 else None for block, slot in enumerate(evidence.slots.tolist())]


def inside(library: Library) -> dict[bytes, int]:
    """Digest -> slot of every published block; the index counts them right."""
    entries = list(library.index.entries())
    assert len(entries) == library.index.size
    return {digest: slot for digest, slot, _ in entries}


# -- match -------------------------------------------------------------------------------------------------------------


def test_an_empty_index_knows_nothing() -> None:
    """Neither of a chain nor of an empty one."""
    library = Library()

    assert library.find(chain("abc")) == []
    assert library.find(b"") == []
    assert inside(library) == {}


def test_a_chain_is_one_run_and_is_found_whole() -> None:
    """Slots and generations are those of the insert."""
    library = Library()

    assert library.insert(chain("abcdef"), first_slot=10) == [True] * 6

    evidence = library.index.match(chain("abcdef"), 6)
    assert (evidence.present, evidence.path_blocks) == (0b111111, 6)
    assert evidence.slots.tolist() == [10, 11, 12, 13, 14, 15]
    assert evidence.generations.tolist() == [1] * 6
    assert library.runs() == [6]


@pytest.mark.parametrize("limit_blocks", range(7))
def test_a_match_ends_at_its_limit(limit_blocks: int) -> None:
    """What the chain has beyond is not told."""
    library = Library()
    library.insert(chain("abcdef"), first_slot=10)

    assert library.find(chain("abcdef"), limit_blocks) == list(range(10, 10 + limit_blocks))


@pytest.mark.parametrize("shared", range(7))
def test_a_chain_that_leaves_a_run_is_followed_up_to_there(shared: int) -> None:
    """Wherever it leaves, the blocks before are found, and none after."""
    library = Library()
    library.insert(chain("abcdef"), first_slot=10)

    assert library.find(chain("abcdef"[:shared] + "xyz")) == list(range(10, 10 + shared))


def test_a_longer_chain_is_followed_as_far_as_it_is_known() -> None:
    """The end of the known part is the end of the path."""
    library = Library()
    library.insert(chain("abc"), first_slot=10)

    assert library.find(chain("abcdef")) == [10, 11, 12]


# -- insert ------------------------------------------------------------------------------------------------------------


def test_a_chain_that_grows_stays_one_run() -> None:
    """Commits of a running sequence append in place."""
    library = Library()
    library.insert(chain("ab"), first_slot=10)
    library.insert(chain("abcde"), first_slot=30, start_block=2)

    assert library.find(chain("abcde")) == [10, 11, 30, 31, 32]
    assert library.runs() == [5]


def test_a_run_is_never_split_by_a_branch() -> None:
    """Prompts that leave a hot prefix at every block are branches of one whole run."""
    library = Library()
    library.insert(chain("abcdef"), first_slot=10)
    for shared in range(1, 6):
        prompt = chain("abcdef"[:shared] + "xy")
        assert library.insert(prompt, first_slot=20 + 2 * shared, start_block=shared) == [True, True]

    assert library.find(chain("abcdef")) == [10, 11, 12, 13, 14, 15]
    for shared in range(1, 6):
        expected = [*range(10, 10 + shared), 20 + 2 * shared, 21 + 2 * shared]
        assert library.find(chain("abcdef"[:shared] + "xy")) == expected
    assert sorted(library.runs()) == [2, 2, 2, 2, 2, 6]


def test_a_chain_that_ends_within_a_run_adds_nothing() -> None:
    """All its blocks are there already, so none of them enters."""
    library = Library()
    library.insert(chain("abcdef"), first_slot=10)

    assert library.insert(chain("abc"), first_slot=30) == [False] * 3
    assert library.find(chain("abcdef")) == [10, 11, 12, 13, 14, 15]


def test_blocks_that_are_there_already_stay_out() -> None:
    """Two prompts computed side by side: the first one's blocks stay, the second's enter from where they differ."""
    library = Library()
    library.insert(chain("abcd"), first_slot=10)

    assert library.insert(chain("abxyz"), first_slot=30) == [False, False, True, True, True]
    assert library.find(chain("abxyz")) == [10, 11, 32, 33, 34]
    assert sorted(inside(library).values()) == [10, 11, 12, 13, 32, 33, 34]


def test_a_chain_inserted_beyond_what_is_known_has_holes_before_it() -> None:
    """The index learns the digests of blocks that nobody published, and says that they are not there."""
    library = Library()
    library.insert(chain("ab"), first_slot=10)

    assert library.insert(chain("abcdef"), first_slot=30, start_block=4) == [True, True]
    assert library.insert(chain("uvwx"), first_slot=40, start_block=3) == [True]

    assert library.find(chain("abcdef")) == [10, 11, None, None, 30, 31]
    assert library.find(chain("abcdxx")) == [10, 11, None, None]
    assert library.find(chain("uvwx")) == [None, None, None, 40]
    assert sorted(inside(library).values()) == [10, 11, 30, 31, 40]


def test_holes_are_filled_by_a_later_insert() -> None:
    """Only the blocks that are missing enter; the others stay where they are."""
    library = Library()
    library.insert(chain("abcdef"), first_slot=10, start_block=4)
    library.insert(chain("abcd"), first_slot=20, start_block=3)

    assert library.insert(chain("abcdefgh"), first_slot=30, start_block=1) == [
        True,
        True,
        False,
        False,
        False,
        True,
        True,
    ]
    assert library.find(chain("abcdefgh")) == [None, 30, 31, 20, 10, 11, 35, 36]
    assert library.runs() == [8]


# -- evict -------------------------------------------------------------------------------------------------------------


def test_an_evicted_block_is_a_hole() -> None:
    """The blocks behind it are still there, for windows that do not need it."""
    library = Library()
    library.insert(chain("abcdef"), first_slot=10)

    library.evict(12, 13)

    assert library.find(chain("abcdef")) == [10, 11, None, None, 14, 15]
    assert sorted(inside(library).values()) == [10, 11, 14, 15]


def test_one_eviction_may_hit_many_runs() -> None:
    """Its slots come in the order of the free list, those of several runs mixed."""
    library = Library()
    library.insert(chain("abc"), first_slot=10)
    library.insert(chain("xyz"), first_slot=20)
    library.insert(chain("abuv"), first_slot=30, start_block=2)

    library.evict(12, 21, 31, 11, 20, 22)

    assert library.find(chain("abc")) == [10, None, None]
    assert library.find(chain("abuv"))[:3] == [10, None, 30]
    assert sorted(inside(library).values()) == [10, 30]


def test_an_evicted_block_can_be_published_again_elsewhere() -> None:
    """It enters in its new slot, and the old one may hold something else."""
    library = Library()
    library.insert(chain("abc"), first_slot=10)
    library.evict(11)

    assert library.insert(chain("x"), first_slot=11) == [True]
    assert library.insert(chain("abc"), first_slot=20) == [False, True, False]

    assert library.find(chain("abc")) == [10, 21, 12]
    assert library.find(chain("x")) == [11]


def test_a_slot_that_holds_something_else_now_is_not_found_under_its_old_digest() -> None:
    """A run still names it, under a generation that has passed."""
    library = Library()
    library.insert(chain("abc"), first_slot=10)
    library.evict(10, 11, 12)
    library.insert(chain("xyz"), first_slot=10)

    assert [slot for slot in library.find(chain("abc")) if slot is not None] == []
    assert library.find(chain("xyz")) == [10, 11, 12]


def test_stale_places_are_dropped_and_what_the_slots_hold_since_stays() -> None:
    """A place is named by its generation."""
    library = Library()
    library.insert(chain("abc"), first_slot=10)
    library.insert(chain("xyz"), first_slot=20)

    library.index.drop(slots(10, 12, 21), slots(1, 7, 1))

    assert library.find(chain("abc")) == [None, 11, 12]
    assert library.find(chain("xyz")) == [20, 21, 22]
    library.index.drop(slots(10, 12), slots(1, 7))
    assert len(inside(library)) == 5


# -- structure ---------------------------------------------------------------------------------------------------------


def test_a_tail_of_holes_is_cut_off_when_it_is_passed() -> None:
    """The path of the first match still shows it, that of the second ends with the last block that is there."""
    library = Library()
    library.insert(chain("abcdef"), first_slot=10)
    library.evict(14, 15, 12)

    assert library.find(chain("abcdef")) == [10, 11, None, 13, None, None]
    assert library.find(chain("abcdef")) == [10, 11, None, 13]
    assert library.runs() == [4]


def test_a_tail_of_holes_that_leads_to_a_branch_stays_up_to_there() -> None:
    """The branch would be lost otherwise."""
    library = Library()
    library.insert(chain("abcdef"), first_slot=10)
    library.insert(chain("abcdxy"), first_slot=20, start_block=4)
    library.evict(11, 12, 13, 14, 15)

    for _ in range(3):
        assert library.find(chain("abcdxy")) == [10, None, None, None, 20, 21]
    assert sorted(library.runs()) == [2, 4]


def test_dead_runs_are_taken_out_and_their_numbers_used_again() -> None:
    """Hundreds of chains that come and go leave a handful of runs behind."""
    library = Library()
    for number in range(300):
        library.insert(chain([number]), first_slot=10)
        library.evict(10)

    assert len(library.index.runs) < 10
    library.insert(chain(["last"]), first_slot=10)
    assert inside(library) == {chain(["last"]): 10}


def test_many_chains_may_live_at_once() -> None:
    """More runs than the index has room for at first."""
    library = Library()
    for number in range(200):
        library.insert(chain([number, "x"]), first_slot=1 + 2 * number)
    library.evict(*range(2, 400, 4))  # the second block of every other chain

    for number in range(200):
        assert library.find(chain([number, "x"]))[:2] == [1 + 2 * number, None if number % 2 == 0 else 2 + 2 * number]
    library.evict(*inside(library).values())
    library.index.reap(200)
    assert library.runs() == []


def test_a_dead_run_stays_while_it_leads_somewhere() -> None:
    """Chains that pass it are found until they, too, are gone; then all of the path goes."""
    library = Library()
    library.insert(chain("abc"), first_slot=10)
    library.insert(chain("abcde"), first_slot=20, start_block=3)  # appended: one run
    library.insert(chain("abxy"), first_slot=30, start_block=2)
    library.evict(10, 11, 12, 20, 21)
    for number in range(10):
        library.insert(chain([number]), first_slot=40 + number)

    assert library.find(chain("abxy")) == [None, None, 30, 31]
    assert library.find(chain("abcde")) == [None, None]
    library.evict(30, 31)
    for number in range(10, 20):
        library.insert(chain([number]), first_slot=40 + number)

    assert library.find(chain("abxy")) == []
    assert library.runs() == [1] * 20


def test_a_dead_run_comes_back_to_life_when_it_is_filled() -> None:
    """A run that waits to be taken out is not, if its blocks are published again before."""
    library = Library()
    library.insert(chain("abc"), first_slot=10)
    library.evict(10, 11, 12)
    library.insert(chain("abc"), first_slot=20)
    for number in range(10):
        library.insert(chain([number]), first_slot=40 + number)

    assert library.find(chain("abc")) == [20, 21, 22]


def test_runs_grow_in_place_up_to_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    """What an append copies is bounded: a chain of ten blocks, one at a time, is runs of three."""
    monkeypatch.setattr(prefix_index, "APPENDED_RUN_MAX", 3)
    library = Library()
    for blocks in range(1, 11):
        library.insert(chain("abcdefghij"[:blocks]), first_slot=10 + blocks, start_block=blocks - 1)

    assert library.find(chain("abcdefghij")) == list(range(11, 21))
    assert sorted(library.runs()) == [1, 3, 3, 3]


def test_a_long_chain_inserted_at_once_is_one_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """The limit is on what is appended."""
    monkeypatch.setattr(prefix_index, "APPENDED_RUN_MAX", 3)
    library = Library()

    library.insert(chain("abcdefghij"), first_slot=10)

    assert library.runs() == [10]


# -- evidence ----------------------------------------------------------------------------------------------------------


def test_evidence_given_out_earlier_never_changes() -> None:
    """Whatever happens to the index afterwards: a round may still be reading it."""
    library = Library()
    library.insert(chain("abcdef"), first_slot=10)
    library.insert(chain("abcxyz"), first_slot=20, start_block=3)
    library.evict(12)
    prompts = [chain("abcdef"), chain("ab"), chain("abcxyz"), chain("abcdefg")]
    given = [library.index.match(prompt, len(prompt) // DIGEST_BYTES) for prompt in prompts]
    noted = [(one.present, one.slots.tolist(), one.generations.tolist(), one.path_blocks) for one in given]

    library.insert(chain("abcdefgh"), first_slot=30)
    library.evict(10, 15, 22)
    library.find(chain("abcdef"))
    library.evict(*sorted(inside(library).values()))
    for number in range(20):
        library.insert(chain([number]), first_slot=10 + number)

    assert [(one.present, one.slots.tolist(), one.generations.tolist(), one.path_blocks) for one in given] == noted


def made_up(words: str, changed: Sequence[int]) -> bytes:
    """A chain in which some digests are others, although those after them are not: no hash gives that."""
    digests = split(chain(words))
    for block in changed:
        digests[block] = bytes(DIGEST_BYTES)
    return b"".join(digests)


@pytest.mark.parametrize("changed", [[1], [2], [0], [1, 3], [4], [5], [1, 2, 3, 4], [0, 5]])
def test_digests_that_agree_late_but_differ_early_never_find_a_block(changed: list[int]) -> None:
    """A client that makes digests up cannot get at blocks behind the first one that is not its own."""
    library = Library()
    library.insert(chain("abcdef"), first_slot=10)

    assert library.find(made_up("abcdef", changed)) == list(range(10, 10 + changed[0]))


def test_made_up_digests_may_be_published_and_found_as_they_are() -> None:
    """They are a chain of their own, and nobody else's is disturbed."""
    library = Library()
    library.insert(chain("abcdef"), first_slot=10)
    odd = made_up("abcdef", [2])

    assert library.insert(odd, first_slot=30) == [False, False, True, True, True, True]

    assert library.find(odd) == [10, 11, 32, 33, 34, 35]
    assert library.find(chain("abcdef")) == [10, 11, 12, 13, 14, 15]
