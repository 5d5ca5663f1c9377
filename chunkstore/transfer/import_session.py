"""Imports packs, shards, commits and refs into a store, and keeps their ids.

It uses the order of a push, and is safe beside gc runs in the same way (docs/decisions/0036): a
writer of a ref takes a place in the journal before it checks what the commit will rely on, and
saves what is tombstoned. A push stores chunks of a dead pack again under another id. An import
keeps ids, so a commit that needs a pack with a dead id cannot be imported (docs/decisions/0041).
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Collection, Iterable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from threading import Lock

from lodefs.chunkstore.errors import Conflict, Corrupt, LodefsError
from lodefs.chunkstore.format import keys
from lodefs.chunkstore.format.commit import Commit
from lodefs.chunkstore.format.index_shard import PackChunks, encode_shard
from lodefs.chunkstore.format.journal import JournalEntry, RefName
from lodefs.chunkstore.format.names import ChunkId, CommitId, PackId
from lodefs.chunkstore.format.pack import DROPPED, PackIndex
from lodefs.chunkstore.journal.existing_commit import save_existing
from lodefs.chunkstore.journal.heartbeat import Heartbeat
from lodefs.chunkstore.journal.purges import Purges
from lodefs.chunkstore.journal.ref_write import Collected, RefWrite
from lodefs.chunkstore.journal.tombstoned import MemoryCondemned, NamedChunks, commit_key
from lodefs.chunkstore.maintenance.writers import WriterCheck, newest_of
from lodefs.chunkstore.push.pack_check import REQUESTS_MAX, missing_packs, packs_lacking
from lodefs.chunkstore.repo.pack_reader import index_or_none
from lodefs.chunkstore.repo.refs import RefEntry
from lodefs.chunkstore.repo.store import Store

_ALL_CHUNKS = (1 << 0x10000) - 1  # bits of chunk numbers: no pack has more
_SHARD_PACKS = 1024  # their indexes stay in memory until their shard is put


class ImportSession:
    """Imports commits into a store, and moves refs to them, one after the other. Any thread may
    call ``landed``; one thread calls the other methods."""

    def __init__(self, store: Store, clock: Callable[[], float] = time.time) -> None:
        self.store = store
        self._clock = clock
        self._tombstoned = MemoryCondemned()
        self._named: set[bytes] = set()  # ids, as in CondemnedIds, that refs will rely on
        self._named_chunks: dict[PackId, int] = {}  # bits of their numbers
        self._write: RefWrite | None = None
        self._heartbeat: Heartbeat | None = None
        self._unpublished: list[PackChunks] = []
        self._listed: set[PackId] = set()  # in a shard that this session puts
        self._dropped: dict[PackId, int] = {}  # chunks that imported packs lack
        self.purged: frozenset[ChunkId] = frozenset()  # chunks that must not come back
        self._newest_purge = -1  # of the purges before this session's place in the journal
        self._is_first = False  # whether it is the first writer that has not ended
        self._lock = Lock()  # guards the list, and lets one thread check the writers

    def begin(self) -> JournalEntry:
        """Takes a place in the journal, before anything is checked for the next ref. Raises:
        Unsupported, Denied; Collected."""
        if self._write is not None:
            return self._write.begin()
        self.store.ensure_writable()
        self._newest_purge = Purges(self.store.objects).newest()
        self._write = RefWrite(self.store, self._clock)
        entry = self._write.begin()
        self._heartbeat = Heartbeat(self._write.beat)
        self._heartbeat.start()
        self._write.learn(self._tombstoned)
        self.purged = Purges(self.store.objects).chunks()
        self._save(self._named, self._named_chunks)
        return entry

    def keep(self, repo: str, commit_id: CommitId) -> None:
        """Saves an existing commit and its ancestors for the next ref, which will lead to it.
        Raises: Collected; NotFound if some of it is gone."""
        assert self._write is not None, "begin comes first"
        save_existing(self.store, self._write, repo, commit_id)

    def claim(self, repo: str, commits: Iterable[CommitId]) -> None:
        """Saves the ids of commits that will be put into a repository. Raises: Collected."""
        ids = {commit_key(repo, at) for at in commits}
        self._save(ids, {})
        self._named |= ids

    def lacking(
        self, named: NamedChunks, offered: Callable[[PackId], PackIndex] | None = None
    ) -> set[PackId]:
        """Returns the packs of a commit that are missing, or lack chunks that it names. ``offered``
        returns the index of a pack in the commit's source. Raises: Conflict, as ``require_first``
        does; Collected, also if a gc run has deleted other chunks of a pack that lacks some: it may
        be about to rewrite the pack without the chunks that are added."""
        before = self._named_chunks
        new = {
            pack: bits for pack, bits in named.items() if pack not in before or bits & ~before[pack]
        }
        self._save(new.keys(), new)
        self._named |= new.keys()
        for pack, bits in new.items():
            before[pack] = before.get(pack, 0) | bits
        return self._lacking(new, offered)

    def _lacking(
        self, named: NamedChunks, offered: Callable[[PackId], PackIndex] | None
    ) -> set[PackId]:
        lacking = packs_lacking(self.store.objects, named, self.purged, offered)
        incomplete = lacking - missing_packs(self.store.objects, lacking)
        if incomplete:
            self.require_first()
        self._save((), dict.fromkeys(incomplete, _ALL_CHUNKS))
        self._list(named.keys() - lacking)
        return lacking

    def _list(self, packs: Collection[PackId]) -> None:
        """Lists existing packs in an index shard, since a copy that was killed may have put packs
        without a shard. Packs in another shard are listed twice until shards are merged."""
        new = set(packs) - self._listed
        with ThreadPoolExecutor(REQUESTS_MAX, "lodefs-list") as executor:
            for index in executor.map(partial(index_or_none, self.store.objects), new):
                if index is not None:
                    self.landed(index)
                if len(self._unpublished) >= _SHARD_PACKS:
                    self.publish()

    def require_first(self) -> None:
        """Checks that this is the first writer, before an existing pack is replaced by one with
        more chunks. A put has no condition, so of two writers that do this at once, one would
        remove what the other has added. Raises: Conflict while a writer that began earlier has not
        ended. For any thread."""
        assert self._write is not None, "begin comes first"
        with self._lock:
            if self._is_first:
                return
            number, journal = self._write.begin().number, self._write.journal
            with ThreadPoolExecutor(REQUESTS_MAX, "lodefs-writers") as executor:
                check = WriterCheck(self.store, journal, executor)
                tombstoning = newest_of(journal)[1]
                found = check.look(journal.ledger(), number - 1, tombstoning)
            if not found.have_ended_before(number):
                raise Conflict(
                    f"a push, copy or purge of {self.store.url} that began earlier is still "
                    "running, and may rewrite the same packs: repeat this when it has ended. A "
                    "killed one ends when `lodefs gc` takes it for dead"
                )
            self._is_first = True

    def has(self, pack: PackIndex) -> bool:
        """Whether the store has a pack with all chunks of this one, or must not add any: then
        ``lacking`` says whether the commits need them. Raises: Collected."""
        self._save({pack.pack_id}, {})
        self._named.add(pack.pack_id)
        every = (1 << len(pack)) - 1
        chunks = every & ~pack.lacks(every)
        try:
            return pack.pack_id not in self._lacking({pack.pack_id: chunks}, lambda _: pack)
        except (Collected, Conflict):
            return True

    def landed(self, pack: PackIndex) -> None:
        """Takes the index of a pack that was put. An incomplete pack goes into no index shard,
        since nobody may build on it without knowing what it lacks."""
        dropped = pack.lacks((1 << len(pack)) - 1, bytes((DROPPED,)))
        with self._lock:
            self._listed.add(pack.pack_id)
            if not pack.has_gone:
                self._unpublished.append(pack)
            self._dropped.pop(pack.pack_id, None)
            if dropped:
                self._dropped[pack.pack_id] = dropped

    def publish(self) -> None:
        """Puts an index shard of the packs that were imported since the last one."""
        with self._lock:
            packs, self._unpublished = self._unpublished, []
        if packs:
            shard_id = f"{time.time_ns():016x}-{os.urandom(4).hex()}"
            self.store.objects.put(keys.shard(shard_id), [encode_shard(packs)], if_absent=True)

    def advance(
        self,
        ref: RefName,
        before: RefEntry | None,
        commit_id: CommitId,
        commits: Iterable[tuple[CommitId, Commit]],
    ) -> RefEntry:
        """Puts commits, whose packs all exist, parents first, and moves a ref to the last one.
        Raises: Corrupt if an imported pack lacks chunks that they name; Conflict, Collected; for a
        new ref AlreadyExists, InvalidInput."""
        assert self._write is not None, "begin comes first"
        write = self._write
        self._check_landed()
        self._check_purges()
        self.publish()
        for at, commit in commits:
            self.claim(ref.repo, [at])
            if self.store.put_commit(ref.repo, commit) != at:
                raise Corrupt(
                    f"commit {at.hex()} of {ref.repo} does not have the standard encoding"
                )
        if before is None or before.commit is None:  # perhaps deleted meanwhile with its repository
            self.store.check_new_ref(*ref)
        sequence = None if before is None else before.sequence
        entry = write.advance(ref, commit_id, expected_sequence=sequence)
        self._end()
        return entry

    def _check_landed(self) -> None:
        for pack, dropped in self._dropped.items():
            if lacking := dropped & self._named_chunks.get(pack, 0):
                raise Corrupt(
                    f"{keys.pack(pack)} came without {lacking.bit_count()} chunks that versions "
                    "need: its source is damaged; run `lodefs verify` and `lodefs repair` there"
                )

    def _check_purges(self) -> None:
        """Raises: Conflict if packs may have gained chunks while a purge rewrote them from what it
        had read before. A purge that begins later reads the new packs. An earlier one has ended:
        the session has waited for it."""
        purges = Purges(self.store.objects)
        if self._is_first and purges.newest(self._newest_purge) != self._newest_purge:
            raise Conflict(
                f"a purge of {self.store.url} began meanwhile, and may have rewritten the same "
                "packs: repeat this when it has ended"
            )

    def close(self) -> None:
        """Ends the session, even after an error, so that no gc run waits. Imported packs can be
        found again."""
        with contextlib.suppress(LodefsError):  # the first error is the one to report
            self.publish()
        self._end()

    def _end(self) -> None:
        if self._heartbeat is not None:
            self._heartbeat.stop()
        if self._write is not None:
            self._write.close()
        self._heartbeat = self._write = None
        self._is_first = False

    def _save(self, ids: Collection[bytes], chunks: NamedChunks) -> None:
        assert self._write is not None, "begin comes first"
        try:
            self._write.save(self._tombstoned, ids, chunks)
        except Collected as error:
            error.add_note(
                "a copy keeps the ids of packs and commits, and a deleted commit, pack or chunk "
                "never returns to the same store under its id: copy to a new store (lodefs init), "
                "or make new commits of the files (lodefs pull, then lodefs push)"
            )
            raise
