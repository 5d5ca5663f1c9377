"""One write of a ref that names a commit, safe beside gc runs.

A gc run whose entry in the journal is later than the writer's waits for the writer's end. What an
earlier one tombstones, the writer must save before it names it, or find to be deleted.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterable

from lodefs.chunkstore.errors import Conflict, LodefsError, NotFound
from lodefs.chunkstore.format.journal import DeletionOutcome, End, Intent, JournalEntry, RefName
from lodefs.chunkstore.format.names import CommitId, PackId
from lodefs.chunkstore.journal.journal import StoreJournal
from lodefs.chunkstore.journal.tombstoned import CondemnedIds, NamedChunks, chunks_of, ids_of
from lodefs.chunkstore.repo.refs import RefEntry
from lodefs.chunkstore.repo.store import Store


class Collected(NotFound):
    """A gc run has deleted what a commit would name. ``ids`` are packs and keys of commits;
    ``chunks`` are chunks of existing packs (bits of their numbers)."""

    def __init__(self, message: str, ids: set[bytes], chunks: dict[PackId, int]) -> None:
        super().__init__(message)
        self.ids = ids
        self.chunks = chunks


class RefWrite:
    """Call begin, learn, save, advance, close, in this order. One thread; another one may call
    ``beat``."""

    def __init__(
        self,
        store: Store,
        clock: Callable[[], float] = time.time,
        shared: JournalEntry | None = None,
    ) -> None:
        """``shared`` is the place of a writer that several processes share, which ``close`` does
        not end (push_plans.py)."""
        self.journal = StoreJournal(store.objects, clock)
        self._store = store
        self._clock = clock
        self._entry = shared
        self._is_shared = shared is not None
        self._beats = 0
        self._has_ended = False

    def begin(self) -> JournalEntry:
        """Takes a place in the journal, once, before anything is checked that the commit will rely
        on. Raises: what the store raises."""
        if self._entry is None:
            self._entry = self.journal.append()
        return self._entry

    def beat(self) -> None:
        """Sends a heartbeat; without any, a gc run gives this writer up."""
        self._beats = int(self._clock()) if self._is_shared else self._beats + 1
        self.journal.put_beat(self.begin().number, self._beats)

    def learn(self, tombstoned: CondemnedIds) -> None:
        """Adds the tombstones from before this writer began. Raises: OlderJournal if ``tombstoned``
        has entries that the journal lacks, or others with the same number: the store was restored
        from a backup, and its journal grew again."""
        previous, known = self.begin().previous, tombstoned.newest
        if known is not None and tombstoned.newest_token is not None:
            self.journal.require_entry(known, tombstoned.newest_token)
        is_ahead = known is not None and (previous is None or previous < known)
        if is_ahead and known is not None and self.journal.tombstones(known):
            return  # another writer of this machine began later, and has added more
        if known != previous:
            tombstoned.add([*self.journal.tombstoning(previous, tombstoned.newest)][::-1])

    def save(
        self,
        tombstoned: CondemnedIds,
        ids: Iterable[bytes],
        chunks: NamedChunks | None = None,
    ) -> None:
        """Saves those of the ids and chunks (as in CondemnedIds) that are tombstoned. Raises:
        Collected if some of them are deleted."""
        some, some_chunks = tombstoned.find(set(ids)), tombstoned.find_chunks(chunks or {})
        lost: set[bytes] = set()
        lost_chunks: dict[PackId, int] = {}
        for number in sorted(some.keys() | some_chunks.keys()):
            outcome = self.journal.put_outcome(DeletionOutcome(number, None))
            tombstoned.settle(outcome)
            lost |= some.get(number, set()).intersection(ids_of(outcome.deleted))
            deleted = chunks_of(outcome.deleted)
            for pack, bits in some_chunks.get(number, {}).items():
                if gone := bits & deleted.get(pack, 0):
                    lost_chunks[pack] = lost_chunks.get(pack, 0) | gone
        if lost or lost_chunks:
            count = len(lost) + len(lost_chunks)
            raise Collected(
                f"`lodefs gc` has deleted {count} objects of {self._store.url}, or parts of them, "
                f"that this command needs, such as {min(lost | lost_chunks.keys()).hex()}",
                lost,
                lost_chunks,
            )

    def advance(
        self, ref: RefName, commit_id: CommitId, *, expected_sequence: int | None
    ) -> RefEntry:
        """Moves the ref, as Refs.advance does. The commit, and all that it names, must be saved.
        Raises: Conflict, also if a gc run has given up this writer."""
        sequence = 0 if expected_sequence is None else expected_sequence + 1
        end = End(self.begin().number, Intent(ref, sequence, commit_id))
        if self.journal.put_end(end) != end:
            self._has_ended = True
            raise Conflict(
                f"`lodefs gc` took the writer of {ref.repo}@{ref.name} for dead, since its "
                "heartbeats had stopped: nothing is lost, repeat the command"
            )
        self._has_ended = True
        refs = self._store.refs(ref.repo)
        return refs.advance(ref.kind, ref.name, commit_id, expected_sequence=expected_sequence)

    def close(self) -> None:
        """Ends a writer that has written nothing, so that no gc run waits for it."""
        if self._entry is not None and not self._has_ended and not self._is_shared:
            self._has_ended = True
            with contextlib.suppress(LodefsError):  # then a later gc run ends it
                self.journal.put_end(End(self._entry.number, None))
