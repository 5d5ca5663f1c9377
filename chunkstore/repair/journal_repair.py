"""Repairs lost or damaged documents of the journal: the rest of the journal implies what they said,
or a harmless document replaces them."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from functools import partial
from typing import TypeVar

from lodefs.chunkstore.errors import Corrupt, NotFound
from lodefs.chunkstore.format import journal as documents
from lodefs.chunkstore.format import keys
from lodefs.chunkstore.format.journal import (
    End,
    Garbage,
    Intent,
    JournalEntry,
    Ledger,
    RefName,
)
from lodefs.chunkstore.format.names import CommitId, PackId
from lodefs.chunkstore.journal.journal import StoreJournal, newest_tombstoning
from lodefs.chunkstore.maintenance.decisions import outcome_of
from lodefs.chunkstore.objects.interface import ObjectStore, exists
from lodefs.chunkstore.system.parallel_map import map_ahead

T = TypeVar("T")
WRITING_S_MAX = 3600  # a writer that began this long ago has put its documents
REQUESTS_MAX = 16  # concurrent requests
_PARTS = ("ends", "beats", "fates", "done")


class JournalRepair:
    """Examines all documents, then repairs them. ``problems`` says what is wrong, by key."""

    def __init__(
        self, objects: ObjectStore, *, dry_run: bool, clock: Callable[[], float] = time.time
    ) -> None:
        self._objects = objects
        self._dry_run = dry_run
        self._clock = clock
        self._journal = StoreJournal(objects, clock)
        self._entries: dict[int, JournalEntry | None] = {}  # None: lost or damaged
        self._parts: dict[str, set[int]] = {what: set() for what in _PARTS}
        self.intents: list[Intent] = []  # of writers that began an hour or more ago
        self.refs: Mapping[RefName, int] = {}  # refs that gc runs have seen, each with a sequence
        self.deleted: set[tuple[str, CommitId]] = set()  # commits that outcomes deleted
        self.problems: dict[str, str] = {}

    def look(self) -> None:
        """Reads all of the journal. Raises: UnknownFormat for a document of a newer lodefs, which
        knows how to replace it."""
        for info in self._objects.list("journal/"):
            for what in _PARTS:
                number = keys.number_in(f"journal/{what}/", info.key)
                if number >= 0:
                    self._parts[what].add(number)
        numbers = {keys.journal_number(info.key) for info in self._objects.list(keys.ENTRIES)}
        last = max((-1, *numbers, *(n for part in self._parts.values() for n in part)))
        with ThreadPoolExecutor(REQUESTS_MAX, "lodefs-journal") as executor:
            entries = self._read_all(
                executor, range(last + 1), keys.journal_entry, self._journal.entry
            )
            self._entries.update(entries)
            self._read_ends(executor)
            for _ in self._read_part(executor, "beats", self._journal.beats):
                pass
            for _, outcome in self._read_part(executor, "fates", self._journal.outcome):
                if outcome is not None and outcome.deleted is not None:
                    self.deleted.update(outcome.deleted.commits)
        for number in sorted(self._parts["done"]):
            if self._entries.get(number) is not None and number not in self._parts["fates"]:
                self.problems[keys.journal_part("fates", number)] = "lost"
        ledger = self._read(keys.LEDGER, self._journal.ledger)
        self.refs = {} if ledger is None else ledger.refs
        for key in self._lost_parts(ledger or Ledger()):
            if not exists(self._objects, key):  # the list may have missed it
                self.problems[key] = "lost"

    def _read_ends(self, executor: Executor) -> None:
        for number, end in self._read_part(executor, "ends", self._journal.end):
            entry = self._entries.get(number)
            is_old = entry is None or entry.time_s + WRITING_S_MAX < self._clock()
            if end is not None and end.intent is not None and is_old:
                self.intents.append(end.intent)

    def _lost_parts(self, ledger: Ledger) -> Iterator[str]:
        """Yields the keys that others refer to and no list shows. Gc runs have seen all writers
        below the ledger's mark end. Gc runs that left a ledger have carried out the outcomes in
        order."""
        last_done = max(self._parts["done"], default=-1)
        for number, entry in self._entries.items():
            if entry is None:
                continue
            if entry.tombstoned is None and number < ledger.before:
                yield from self._not_listed("ends", number)
            elif entry.tombstoned is not None and number < last_done:
                yield from self._not_listed("done", number)
        for number, last_heartbeat in ledger.last_heartbeats.items():
            if last_heartbeat.beats:
                yield from self._not_listed("beats", number)
        if self._parts["done"]:
            yield keys.LEDGER

    def _not_listed(self, what: str, number: int) -> Iterator[str]:
        if number not in self._parts[what]:
            yield keys.journal_part(what, number)

    def repair(
        self,
        chunks: Mapping[PackId, int] | None,
        commits: Container[tuple[str, CommitId]],
        refs: Mapping[RefName, int],
    ) -> None:
        """Repairs what it can. ``chunks`` (bits of their numbers, by pack) and ``commits`` are all
        that refs lead to; None: that is unknown, so no outcome can be decided. ``refs`` are all
        refs, each with a sequence."""
        if self._dry_run:
            return
        for number, entry in sorted(self._entries.items()):
            if entry is None:
                self._repair_entry(number)
        for key in sorted(self.problems):
            if (number := keys.number_in("journal/ends/", key)) >= 0:
                self._put("ends", number, documents.encode_end(End(number, None)))
            elif (number := keys.number_in("journal/beats/", key)) >= 0:
                self._put("beats", number, documents.encode_beat(number, 0))
            elif (number := keys.number_in("journal/done/", key)) >= 0:
                self._journal.put_done(number)
        for number, entry in sorted(self._entries.items()):
            is_bad = keys.journal_part("fates", number) in self.problems
            if entry is not None and is_bad and chunks is not None:
                self._repair_outcome(entry, chunks, commits)
        if keys.LEDGER in self.problems:
            self._objects.delete(keys.LEDGER)
        if self.problems:  # a lost end may have been the only one that named a ref
            ledger = self._journal.ledger()
            known = {**refs, **{ref: max(n, refs.get(ref, -1)) for ref, n in ledger.refs.items()}}
            self._journal.put_ledger(Ledger(ledger.before, known, ledger.last_heartbeats))

    def _repair_entry(self, number: int) -> None:
        """Replaces an entry of a writer, or one with tombstones, by its outcome. Without an outcome
        nobody has deleted anything of it, nor ever will."""
        before = self._entries.get(number - 1)
        tombstoned: Garbage | None = None
        if self._has_tombstoned(number):
            outcome = self._journal.outcome(number)
            tombstoned = (outcome.deleted if outcome is not None else None) or Garbage()
        entry = JournalEntry(
            number, newest_tombstoning(before), int(self._clock()), os.urandom(16).hex(), tombstoned
        )
        self._entries[number] = entry
        self._objects.put(keys.journal_entry(number), [documents.encode_entry(entry)])

    def _has_tombstoned(self, number: int) -> bool:
        if number in self._parts["fates"] or number in self._parts["done"]:
            return True
        return any(entry and entry.previous == number for entry in self._entries.values())

    def _repair_outcome(
        self,
        entry: JournalEntry,
        chunks: Mapping[PackId, int],
        commits: Container[tuple[str, CommitId]],
    ) -> None:
        """Counts everything unused as deleted. So no writer relies on it, even if a gc run is still
        deleting it."""
        outcome = outcome_of(entry, chunks, commits, chunks)
        self._put("fates", entry.number, documents.encode_outcome(outcome))

    def _put(self, what: str, number: int, data: bytes) -> None:
        self._objects.put(keys.journal_part(what, number), [data])

    def _read_part(
        self, executor: Executor, what: str, read: Callable[[int], T]
    ) -> Iterator[tuple[int, T | None]]:
        key_of = partial(keys.journal_part, what)
        return self._read_all(executor, sorted(self._parts[what]), key_of, read)

    def _read_all(
        self,
        executor: Executor,
        numbers: Sequence[int],
        key_of: Callable[[int], str],
        read: Callable[[int], T],
    ) -> Iterator[tuple[int, T | None]]:
        """Yields documents by number. It reads several at once, since each takes a round trip."""
        found = map_ahead(executor, lambda n: self._read(key_of(n), lambda: read(n)), numbers)
        return zip(numbers, found, strict=True)

    def _read(self, key: str, read: Callable[[], T]) -> T | None:
        try:
            return read()
        except NotFound:
            self.problems[key] = "lost"
        except Corrupt as error:
            self.problems[key] = f"damaged: {error}"
        return None
