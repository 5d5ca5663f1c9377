"""The journal in a store: a log of put-if-absent objects, like a ref.

An entry is put under the number after the newest one, and never removed. So a writer that has a
number has read the entries that lead to it, even if a list lacked some.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import TypeVar

from lodefs.chunkstore.errors import AlreadyExists, Corrupt, NotFound, Unavailable
from lodefs.chunkstore.format import journal as documents
from lodefs.chunkstore.format import keys
from lodefs.chunkstore.format.journal import DeletionOutcome, End, Garbage, JournalEntry, Ledger
from lodefs.chunkstore.objects.interface import ObjectStore, exists, read_whole
from lodefs.chunkstore.repo.gallop import last_of_row
from lodefs.chunkstore.types import Buffer

T = TypeVar("T")

REQUESTS_MAX = 16  # concurrent requests
AHEAD_MIN = 16  # fewer entries are read one by one
# Size of an entry without tombstones; one with tombstones has at least one id of 64 characters
_PLAIN_SIZE_BYTES_MAX = len(documents.encode_entry(JournalEntry(10**12, 10**12, 10**12, "0" * 32)))


class OlderJournal(Corrupt):
    """A journal lacks an entry that it had; for example, the store was restored from a backup."""


class StoreJournal:
    """The journal of one store. Many threads may use it at once. Methods raise what the store
    raises, and Corrupt, UnknownFormat for documents."""

    def __init__(self, objects: ObjectStore, clock: Callable[[], float] = time.time) -> None:
        self._objects = objects
        self._clock = clock

    def append(self, tombstoned: Garbage | None = None) -> JournalEntry:
        """Puts the next entry: a list, a get and a put, unless another writer does so just now."""
        token = os.urandom(16).hex()
        listed = self._listed()
        before = None if listed < 0 else self.entry(listed)
        while True:
            number = 0 if before is None else before.number + 1
            previous = newest_tombstoning(before)
            entry = JournalEntry(number, previous, int(self._clock()), token, tombstoned)
            data = documents.encode_entry(entry)
            try:
                self._objects.put(keys.journal_entry(number), [data], if_absent=True)
            except AlreadyExists:
                before = self.entry(self._newest_after(number))
                continue
            return entry

    def newest(self) -> JournalEntry | None:
        """Returns the newest entry; None in an empty journal."""
        number = self._newest_after(self._listed())
        return None if number < 0 else self.entry(number)

    def entry(self, number: int) -> JournalEntry:
        """Returns one entry. Raises: NotFound."""
        key = keys.journal_entry(number)
        data = read_whole(self._objects, key, documents.SIZE_BYTES_MAX).data
        return documents.decode_entry(data, number, key)

    def require_entry(self, number: int, token: str) -> None:
        """Raises: OlderJournal if the entry with that number does not have that token."""
        try:
            is_same = self.entry(number).token == token
        except NotFound:
            is_same = False
        if not is_same:
            raise OlderJournal(
                f"{keys.journal_entry(number)} is not the expected entry: the store is an older "
                "copy of itself"
            )

    def tombstoning(self, newest: int | None, known: int | None = None) -> Iterator[JournalEntry]:
        """Yields the entries with tombstones, from ``newest`` back to the one after ``known``.
        Raises: OlderJournal if ``known`` is not among them."""
        number = newest
        ahead = self._read_ahead(newest, known)
        while number is not None and (known is None or number > known):
            entry = ahead.pop(number, None) or self.entry(number)
            if entry.tombstoned is None:
                raise Corrupt(f"{keys.journal_entry(number)} has no tombstones")
            yield entry
            number = entry.previous
        if number != known:
            raise OlderJournal(
                f"the journal no longer leads to {keys.journal_entry(known or 0)}: the store is an "
                "older copy of itself"
            )

    def _read_ahead(self, newest: int | None, known: int | None) -> dict[int, JournalEntry]:
        """Reads entries up to ``newest`` that seem to have tombstones by their size in a list. It
        reads several at once, since each takes a round trip. If the list lacks some, it only saves
        less."""
        first = 0 if known is None else known + 1
        if newest is None or newest - first < AHEAD_MIN:
            return {}
        numbers: list[int] = []
        for info in self._objects.list(keys.ENTRIES):
            number = keys.journal_number(info.key)
            if number < first:
                break
            if number <= newest and info.size_bytes > _PLAIN_SIZE_BYTES_MAX:
                numbers.append(number)
        with ThreadPoolExecutor(REQUESTS_MAX, "lodefs-journal") as executor:
            return dict(zip(numbers, executor.map(self.entry, numbers), strict=True))

    def tombstones(self, number: int) -> bool:
        """Whether an entry with that number exists and has tombstones."""
        try:
            return self.entry(number).tombstoned is not None
        except NotFound:
            return False

    def undone(self, newest: int | None) -> list[JournalEntry]:
        """Returns those entries whose outcome was not carried out yet, oldest first. Outcomes are
        carried out in order, so these are the newest entries."""
        found: list[JournalEntry] = []
        for entry in self.tombstoning(newest):
            if self.is_done(entry.number):
                break
            found.append(entry)
        return found[::-1]

    def end(self, number: int) -> End | None:
        """Returns how a writer ended; None if it has not."""
        return self._part("ends", number, documents.decode_end)

    def put_end(self, end: End) -> End:
        """Ends a writer, and returns the end that counts: the first one."""
        if self._put_first("ends", end.number, documents.encode_end(end)):
            return end
        if (first := self.end(end.number)) is None:
            raise _unreadable("ends", end.number)
        return first

    def outcome(self, number: int) -> DeletionOutcome | None:
        """Returns the outcome of an entry's garbage; None if there is none yet."""
        return self._part("fates", number, documents.decode_outcome)

    def put_outcome(self, outcome: DeletionOutcome) -> DeletionOutcome:
        """Decides the outcome of an entry's garbage, and returns the one that counts: the first."""
        if self._put_first("fates", outcome.number, documents.encode_outcome(outcome)):
            return outcome
        if (first := self.outcome(outcome.number)) is None:
            raise _unreadable("fates", outcome.number)
        return first

    def is_done(self, number: int) -> bool:
        """Whether the outcome of an entry's garbage was carried out."""
        return exists(self._objects, keys.journal_part("done", number))

    def put_done(self, number: int) -> None:
        """Marks the outcome as carried out."""
        self._objects.put(keys.journal_part("done", number), [documents.encode_done(number)])

    def beats(self, number: int) -> int:
        """Returns the number of a writer's heartbeats."""
        return self._part("beats", number, documents.decode_beat) or 0

    def put_beat(self, number: int, beats: int) -> None:
        """Puts that number."""
        data = documents.encode_beat(number, beats)
        self._objects.put(keys.journal_part("beats", number), [data])

    def ledger(self) -> Ledger:
        """Returns the ledger of the last gc run; an empty one without any."""
        try:
            part = read_whole(self._objects, keys.LEDGER, documents.LEDGER_SIZE_BYTES_MAX)
        except NotFound:
            return Ledger()
        return documents.decode_ledger(part.data, keys.LEDGER)

    def put_ledger(self, ledger: Ledger, before: Ledger | None = None) -> None:
        """Puts what a gc run knows. It saves work and decides nothing, so it may be lost.

        If it is too large, only the heartbeats are new: the refs, and the mark from which writers
        are checked, stay those of ``before``, which was not too large.
        """
        data = documents.encode_ledger(ledger)
        if len(data) > documents.LEDGER_SIZE_BYTES_MAX and before is not None:
            kept = replace(before, last_heartbeats=ledger.last_heartbeats)
            data = documents.encode_ledger(kept)
        if len(data) <= documents.LEDGER_SIZE_BYTES_MAX:
            self._objects.put(keys.LEDGER, [data])

    def _listed(self) -> int:
        """Returns the newest number of a list (-1: none); there may be newer ones."""
        newest = next(iter(self._objects.list(keys.ENTRIES, limit=1)), None)
        return -1 if newest is None else keys.journal_number(newest.key)

    def _newest_after(self, number: int) -> int:
        """Returns the newest number, counting on from an existing one (-1: none). Numbers have no
        gaps."""
        return last_of_row(lambda n: exists(self._objects, keys.journal_entry(n)), number)

    def _part(self, what: str, number: int, decode: Callable[[Buffer, int, str], T]) -> T | None:
        key = keys.journal_part(what, number)
        try:
            data = read_whole(self._objects, key, documents.SIZE_BYTES_MAX).data
        except NotFound:
            return None
        return decode(data, number, key)

    def _put_first(self, what: str, number: int, data: bytes) -> bool:
        """Puts a document if it is absent. Returns whether it was."""
        try:
            self._objects.put(keys.journal_part(what, number), [data], if_absent=True)
        except AlreadyExists:
            return False
        return True


def _unreadable(what: str, number: int) -> Unavailable:
    """Returns the error for a store that refuses a put because the object exists, and a get because
    it does not. A client that believed either could delete what the other one keeps."""
    key = keys.journal_part(what, number)
    return Unavailable(f"the store says both that {key} exists and that it does not: try again")


def newest_tombstoning(entry: JournalEntry | None) -> int | None:
    """Returns the newest entry with tombstones, up to ``entry``."""
    if entry is None or entry.tombstoned is None:
        return None if entry is None else entry.previous
    return entry.number
