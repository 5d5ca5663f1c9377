"""What arrives in a store from elsewhere, with its ids kept: packs, shards, commits, refs.

In the order of a push, and safe beside gc runs in the same way (docs/decisions/0036): whoever
will write a ref has a place in the journal before it looks at what the commit will rely on, and
saves what is tombstoned. A push stores chunks of a dead pack again under another id. Here ids are
to be kept, so a commit that needs a pack whose id is dead cannot land (docs/decisions/0041).
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

_ALL_CHUNKS = (1 << 0x10000) - 1  # by the bits of their numbers: no pack has more
_SHARD_PACKS = 1024  # their indexes are in memory until a shard of them is put


class ImportSession:
    """Brings commits to a store, and moves refs to them, one after the other. ``landed`` may be
    called by many threads, all else by one."""

    def __init__(self, store: Store, clock: Callable[[], float] = time.time) -> None:
        self.store = store
        self._clock = clock
        self._tombstoned = MemoryCondemned()
        self._named: set[bytes] = set()  # ids, as of CondemnedIds, that refs will rely on
        self._named_chunks: dict[PackId, int] = {}  # bits of their numbers
        self._write: RefWrite | None = None
        self._heartbeat: Heartbeat | None = None
        self._unpublished: list[PackChunks] = []
        self._listed: set[PackId] = set()  # in a shard that this put, or will put
        self._dropped: dict[PackId, int] = {}  # chunks that packs came without
        self.purged: frozenset[ChunkId] = frozenset()  # that are not to come back
        self._newest_purge = -1  # of those before this has a place in the journal
        self._is_first = False  # of the writers that have not ended
        self._lock = Lock()  # guards the list, and that one thread looks at the writers

    def begin(self) -> JournalEntry:
        """Before anything is looked at for the next ref: takes a place in the journal. Raises:
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
        """Saves a commit that is there, and all before it, for the next ref, which will come to
        lead to it. Raises: Collected; NotFound if some of it is gone."""
        assert self._write is not None, "begin comes first"
        save_existing(self.store, self._write, repo, commit_id)

    def claim(self, repo: str, commits: Iterable[CommitId]) -> None:
        """Saves the ids of commits that are to be put into a repository. Raises: Collected."""
        ids = {commit_key(repo, at) for at in commits}
        self._save(ids, {})
        self._named |= ids

    def lacking(
        self, named: NamedChunks, offered: Callable[[PackId], PackIndex] | None = None
    ) -> set[PackId]:
        """Those of the packs of a commit that are not there, or lack chunks that it names;
        ``offered``: gives the index of a pack where the commit comes from. Raises:
        Conflict, as ``require_first``; Collected, also where a gc run has deleted other chunks
        of one that lacks some: it may be about to write the pack again, as it was before some are
        added."""
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
        """Has packs that are there in an index shard: a copy that was killed put packs, and no
        shard of them. What another shard lists already is listed twice, until shards are merged."""
        new = set(packs) - self._listed
        with ThreadPoolExecutor(REQUESTS_MAX, "lodefs-list") as executor:
            for index in executor.map(partial(index_or_none, self.store.objects), new):
                if index is not None:
                    self.landed(index)
                if len(self._unpublished) >= _SHARD_PACKS:
                    self.publish()

    def require_first(self) -> None:
        """Before a look at a pack that is there, and may be written over by what is there and more:
        a put has no condition, so of two who do this at once one would take away what the other
        has added. Raises: Conflict while a writer that began before has not ended. For any
        thread."""
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
                    f"a push, copy or purge of {self.store.url} that began before is under way, "
                    "and may write the same packs again: repeat this when it has ended. One that "
                    "was killed ends when `lodefs gc` takes it for dead"
                )
            self._is_first = True

    def has(self, pack: PackIndex) -> bool:
        """Whether a pack is there with all chunks that this one has, or none may be added to it:
        then ``lacking`` says whether the commits need them. Raises: Collected."""
        self._save({pack.pack_id}, {})
        self._named.add(pack.pack_id)
        every = (1 << len(pack)) - 1
        chunks = every & ~pack.lacks(every)
        try:
            return pack.pack_id not in self._lacking({pack.pack_id: chunks}, lambda _: pack)
        except (Collected, Conflict):
            return True

    def landed(self, pack: PackIndex) -> None:
        """A pack was put, and this is there now. One that is not whole is in no index shard: nobody
        who does not know what it lacks may build on it."""
        dropped = pack.lacks((1 << len(pack)) - 1, bytes((DROPPED,)))
        with self._lock:
            self._listed.add(pack.pack_id)
            if not pack.has_gone:
                self._unpublished.append(pack)
            self._dropped.pop(pack.pack_id, None)
            if dropped:
                self._dropped[pack.pack_id] = dropped

    def publish(self) -> None:
        """Puts an index shard of the packs that landed since the last one."""
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
        """Puts commits, whose packs are all there, parents first, and moves a ref to the last of
        them. Raises: Corrupt if a pack came without chunks that they name; Conflict, Collected; for
        a new one AlreadyExists, InvalidInput."""
        assert self._write is not None, "begin comes first"
        write = self._write
        self._check_landed()
        self._check_purges()
        self.publish()
        for at, commit in commits:
            self.claim(ref.repo, [at])
            if self.store.put_commit(ref.repo, commit) != at:
                raise Corrupt(f"commit {at.hex()} of {ref.repo} is not written as others are")
        if before is None or before.commit is None:  # deleted meanwhile, with its repository, say
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
                    "need: where it came from is damaged; see `lodefs verify` and `repair` there"
                )

    def _check_purges(self) -> None:
        """Raises: Conflict if packs may have gained chunks while a purge wrote them again, as it
        had read them before. One that begins later reads what is there; one that had a place in
        the journal before was waited for."""
        purges = Purges(self.store.objects)
        if self._is_first and purges.newest(self._newest_purge) != self._newest_purge:
            raise Conflict(
                f"a purge of {self.store.url} began meanwhile, and may have written the same packs "
                "again: repeat this when it has ended"
            )

    def close(self) -> None:
        """After an error too: what landed can be found again, and no gc run waits."""
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
                "ids of packs and commits are kept here, and one that was deleted, or a part of a "
                "pack, is never used again in the same store: bring it to a new store (lodefs "
                "init), or its files here as new commits (lodefs pull, then lodefs push)"
            )
            raise
