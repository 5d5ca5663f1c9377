"""The journal: numbers in one order, whatever a list lacks."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from lodefs.chunkstore.errors import Corrupt, InvalidInput, NotFound
from lodefs.chunkstore.format import keys
from lodefs.chunkstore.format.journal import (
    IDS_MAX,
    DeletionOutcome,
    End,
    Garbage,
    LastHeartbeat,
    Ledger,
    RefName,
)
from lodefs.chunkstore.format.names import PackId, digest_of
from lodefs.chunkstore.journal.journal import OlderJournal, StoreJournal
from lodefs.chunkstore.journal.ref_write import RefWrite
from lodefs.chunkstore.journal.tombstoned import MemoryCondemned
from lodefs.chunkstore.objects.interface import ObjectInfo
from lodefs.chunkstore.repo.gallop import last_of_row
from lodefs.chunkstore.repo.store import create_store
from tests.support.chunkstore.faulty_store import FaultyObjects
from tests.support.chunkstore.memory_objects import MemoryObjects

GARBAGE = Garbage((PackId(digest_of(b"pack")),))


class Forgetful(MemoryObjects):
    """Lists nothing at all."""

    def list(
        self, prefix: str, *, after: str = "", limit: int | None = None
    ) -> Iterator[ObjectInfo]:
        return iter(())


def test_entries_are_numbered() -> None:
    """Each entry has the next number and names the newest one that tombstones before it."""
    journal = StoreJournal(MemoryObjects(), clock=lambda: 5.5)
    assert journal.newest() is None
    made = [journal.append(), journal.append(GARBAGE), journal.append(), journal.append()]
    assert [(one.number, one.previous, one.time_s) for one in made] == [
        (0, None, 5),
        (1, None, 5),
        (2, 1, 5),
        (3, 1, 5),
    ]
    assert journal.newest() == made[3]
    assert journal.entry(1).tombstoned == GARBAGE
    with pytest.raises(NotFound):
        journal.entry(4)


def test_no_number_is_given_twice_without_lists() -> None:
    """Where lists show nothing, entries still follow each other, and the newest one is found."""
    objects = Forgetful()
    made = [StoreJournal(objects).append() for _ in range(20)]
    assert [one.number for one in made] == list(range(20))
    assert StoreJournal(objects).newest() == made[-1]


def test_many_at_once() -> None:
    """Writers that begin at one moment get numbers of their own."""
    journal = StoreJournal(MemoryObjects())
    with ThreadPoolExecutor(8) as executor:
        numbers = list(executor.map(lambda _: journal.append().number, range(100)))
    assert sorted(numbers) == list(range(100))


def test_what_comes_first_counts() -> None:
    """Of two ends or outcomes of one entry the first stays, and both callers are told it."""
    journal = StoreJournal(MemoryObjects())
    assert journal.end(3) is journal.outcome(3) is None
    assert journal.put_outcome(DeletionOutcome(3, GARBAGE)) == DeletionOutcome(3, GARBAGE)
    assert (
        journal.put_outcome(DeletionOutcome(3, None))
        == DeletionOutcome(3, GARBAGE)
        == journal.outcome(3)
    )
    assert journal.put_end(End(3, None)) == End(3, None) == journal.end(3)


def test_what_tombstones_is_found_back_to_what_is_known() -> None:
    """The entries that tombstone are followed from the newest on; a journal that lacks what is
    known is told, since it is an older copy."""
    journal = StoreJournal(MemoryObjects())
    for n in range(6):
        journal.append(GARBAGE if n % 2 else None)
    assert [one.number for one in journal.tombstoning(5)] == [5, 3, 1]
    assert [one.number for one in journal.tombstoning(5, known=1)] == [5, 3]
    assert [*journal.tombstoning(None)] == [*journal.tombstoning(3, known=3)] == []
    for known in (2, 7):
        with pytest.raises(OlderJournal):
            list(journal.tombstoning(5, known=known))
    with pytest.raises(Corrupt):
        list(journal.tombstoning(4))


def test_many_are_read_ahead() -> None:
    """What tombstones is read several at once, by a list that may lack some; the chain is the
    same, and few other entries are read."""
    objects = FaultyObjects(MemoryObjects())
    journal = StoreJournal(objects)
    for n in range(60):
        journal.append(GARBAGE if n % 3 == 0 else None)
    wanted = [*range(57, -1, -3)]
    objects.forget()
    assert [one.number for one in journal.tombstoning(57)] == wanted
    assert objects.count("get") == len(wanted)
    assert [one.number for one in journal.tombstoning(57, known=9)] == wanted[:-4]
    objects.add(lambda perform: [*perform()][::2], "list")
    assert [one.number for one in journal.tombstoning(57)] == wanted


def test_a_journal_that_grew_again_is_told() -> None:
    """A store that was restored from a backup, and has come to as many entries as before, is known
    by the token of the newest one that was read."""
    store = create_store(MemoryObjects())
    journal, other = StoreJournal(store.objects), MemoryCondemned()
    for _ in range(3):
        journal.append(GARBAGE)
    RefWrite(store).learn(other)
    assert other.newest == 2
    RefWrite(store).learn(other)  # nothing new
    for entry in (2, 3, 4):  # back to two entries; then it grows
        store.objects.delete(keys.journal_entry(entry))
    journal.append(GARBAGE)
    with pytest.raises(OlderJournal, match="is not the expected entry"):
        RefWrite(store).learn(other)


def test_undone_are_the_newest() -> None:
    """What was not carried out yet is given oldest first, and nothing older is looked at."""
    journal = StoreJournal(MemoryObjects())
    for _ in range(4):
        journal.append(GARBAGE)
    journal.put_done(1)
    assert [one.number for one in journal.undone(3)] == [2, 3]
    assert journal.is_done(1)


def test_beats_and_ledger() -> None:
    """Beats count up; the ledger is what was put last, or empty."""
    journal = StoreJournal(MemoryObjects())
    assert journal.beats(2) == 0
    journal.put_beat(2, 7)
    assert journal.beats(2) == 7
    assert journal.ledger() == Ledger()
    ledger = Ledger(3, {RefName("r", "tags", "v1"): 0}, {2: LastHeartbeat(7, 1)})
    journal.put_ledger(ledger)
    assert journal.ledger() == ledger


def test_an_entry_has_a_bound() -> None:
    """No entry tombstones more ids than readers take."""
    packs = tuple(PackId(digest_of(b"%d" % n)) for n in range(IDS_MAX + 1))
    journal = StoreJournal(MemoryObjects())
    with pytest.raises(InvalidInput):
        journal.append(Garbage(packs))
    assert journal.append(Garbage(packs[1:])).number == 0


@pytest.mark.parametrize("known", [-1, 0, 3])
def test_the_end_of_a_row(known: int) -> None:
    """The last number of a row is found from any of it, with few questions."""
    for last in range(max(known, -1), 40):
        asked: list[int] = []

        def has(n: int, last: int = last, asked: list[int] = asked) -> bool:
            asked.append(n)
            return n <= last

        assert last_of_row(has, known) == last
        assert len(asked) <= 2 * (last - known).bit_length() + 1
