"""A push session: the resources of a push, a commit of changes or a merge, and its attempts.

An attempt that finds that it relied on missing data ends, and the next one avoids that data. It
does not send or read again what the attempt before has sent and read.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from lodefs.chunkstore.errors import Unavailable
from lodefs.chunkstore.format.journal import RefName
from lodefs.chunkstore.format.metadata import Metadata
from lodefs.chunkstore.format.names import CommitId, PackId
from lodefs.chunkstore.journal.heartbeat import Heartbeat
from lodefs.chunkstore.journal.purges import Purges
from lodefs.chunkstore.journal.ref_write import Collected, RefWrite
from lodefs.chunkstore.push.ignore_rules import IgnoreRules
from lodefs.chunkstore.push.in_place import InPlace, SoundPlaces
from lodefs.chunkstore.push.index.push_index import UNLISTED_MAX, IndexBroken, PushIndex
from lodefs.chunkstore.push.index.stat_cache import forget_chunks, forget_files_in, refuse
from lodefs.chunkstore.push.index.tombstoned_rows import CondemnedRows, learn
from lodefs.chunkstore.push.limits import AllowRemovals, Changes, PushTarget, allow_all
from lodefs.chunkstore.push.pack_check import (
    PacksCollected,
    PacksLost,
    Relies,
    all_in_place,
    all_lost_in_place,
    lost_in_place,
)
from lodefs.chunkstore.push.pack_writer import (
    DATA_PACK_SIZES_BYTES,
    DryUploader,
    Placement,
    Uploader,
)
from lodefs.chunkstore.push.scanner import Private, Scan, Skipped, SourceNotes
from lodefs.chunkstore.repo.store import Store
from lodefs.chunkstore.system.progress import Progress
from lodefs.chunkstore.system.rate import Rate

if TYPE_CHECKING:
    from lodefs.chunkstore.push.workers.pool import Workers


@dataclass(frozen=True, slots=True)
class PushOptions:
    """The options of a push, and the fields of the commit."""

    message: str
    author: str
    time_s: int  # Unix time
    index_dir: Path  # where the push index is kept between pushes
    metadata: Metadata = ()  # of the new commit
    skip_unreadable: bool = False  # leave out what cannot be read, and name it
    workers: int | None = None  # processes that read; 0: only this one; None: by the cores
    clock_ns: Callable[[], int] = time.time_ns  # the clock of the files' times
    clock: Callable[[], float] = time.time  # the clock for this push's times in the journal
    check_packs: bool = False  # look for all packs of the commit, and store lost ones again
    # called before more than half of a branch's files are removed; False refuses the push
    allow_removals: AllowRemovals = allow_all
    exclude: tuple[bytes, ...] = ()  # patterns as in gitignore(5), below the source
    private: Private = Private.PUSH  # what to do with files that others may not read
    rate_bytes_s: float | None = None  # limit for reading the source
    dry_run: bool = False  # only report what a push would do
    in_place: InPlace | None = None  # set for an import whose large objects stay where they are
    on_commit: Callable[[CommitId], None] | None = None  # called with a commit before the ref moves

    def scan(self, root: bytes) -> Scan:
        """Returns a scan of a source directory."""
        rules = IgnoreRules(self.exclude)
        return Scan(root, self.skip_unreadable, self.clock_ns, rules, self.private)

    def places_apart(self, store: Store) -> list[tuple[str, str]]:
        """Returns what must not lie in a source directory, since every push would change it."""
        return [(store.url, "the store"), (os.path.abspath(self.index_dir), "the push index")]


@dataclass(slots=True, kw_only=True)
class AttemptResult:
    """The facts about what a session has sent, over all its attempts."""

    # bytes of the objects that were written: packs, including repeated chunks; shard; commit
    stored_bytes: int = 0
    # Packs that the store lacked; this commit's chunks in them were stored again
    lost_packs: int = 0


@dataclass(slots=True, kw_only=True)
class CommitResult(AttemptResult):
    """The result of a push, of changes or of a merge. ``commit`` has 64 hex characters; it is the
    head's if nothing changed, and "" after a dry run."""

    commit: str
    unchanged: bool
    created_branch: bool  # whether this created the branch
    files: int  # files in the commit
    directories: int  # including the root
    size_bytes: int  # bytes of all files
    changes: Changes | None  # None: unknown, since the trees of the head cannot be read
    files_read: int = 0  # files that were read because they may have changed
    new_bytes: int = 0  # uncompressed bytes of chunks new to the store, each counted once
    excluded: int = 0  # files and directories excluded by patterns
    skipped: list[Skipped] = field(default_factory=list)
    notes: SourceNotes = field(default_factory=SourceNotes)


Result = TypeVar("Result", bound=AttemptResult)
_REPEAT = "begin the transaction anew"


@dataclass(slots=True)
class LostPacks:
    """The packs that earlier attempts found to be lost, and lost chunks of other packs (bits of
    their numbers). ``dead`` are ids that no new pack may have."""

    packs: set[PackId] = field(default_factory=set)
    dead: set[PackId] = field(default_factory=set)
    chunks: dict[PackId, int] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.packs | self.chunks.keys())

    def add(self, error: PacksLost) -> bool:
        """Adds what an attempt found. Returns whether anything was new."""
        known = self.dead if isinstance(error, PacksCollected) else self.packs
        is_new = not error.packs <= known
        known |= error.packs
        self.packs |= error.packs
        for pack, bits in error.chunks.items() if isinstance(error, PacksCollected) else ():
            before = self.chunks.get(pack, 0)
            self.chunks[pack] = before | bits
            self.dead.add(pack)
            is_new = is_new or before | bits != before
        return is_new

    def forget_in(self, index: PushIndex, store: Store) -> None:
        """Makes a push index forget them. The index, even a new one, reads the store's shards
        first, since those still list what is lost."""
        if self.packs or self.chunks:
            index.load_shards(store.objects)
            forget_chunks(index, self.chunks)
        if self.packs:
            index.forget_packs(self.packs)
            forget_files_in(index, self.packs)


class PushSession:
    """The state that all parts of one push to ``branch`` share. ``index`` and ``uploader`` belong
    to the current attempt; ``write`` is the write of the ref. For one thread."""

    index: PushIndex
    uploader: Uploader
    # takes a place in the journal, before others write for this session
    begin: Callable[[], None]

    def __init__(
        self,
        store: Store,
        branch: RefName,
        options: PushOptions,
        progress: Progress | None = None,
        write: RefWrite | None = None,
    ) -> None:
        """``write`` is one that has begun already, by default a new one."""
        self.store = store
        self.branch = branch
        self.options = options
        self.progress = progress or Progress()
        self.rate = Rate(options.rate_bytes_s)
        self.write = write or RefWrite(store, options.clock)
        self._lost = LostPacks()
        self._readers: Workers | None = None
        self._has_learned = False

    @property
    def target(self) -> PushTarget:
        """The branch, for prompts and messages."""
        name = f"{self.branch.repo}@{self.branch.name}"
        return PushTarget(name, self.options.allow_removals)

    def run(
        self, attempt: Callable[[], Result], check: Callable[[], None] = lambda: None
    ) -> Result:
        """Returns the result of ``attempt``. It calls it again after an error that the next attempt
        can avoid: a broken index (put aside, once), or packs that the store has lost. It calls
        ``check`` before the first pack of an attempt is put."""
        sent_before_bytes = self.progress.bytes_sent
        is_broken = False
        try:
            while True:
                try:
                    with self._opened(check):
                        result = attempt()
                        result.stored_bytes = self.uploader.stored_bytes
                    break
                except IndexBroken as error:
                    if is_broken:
                        raise
                    is_broken = True
                    store_id = self.store.settings.store_id
                    PushIndex.set_aside(self.options.index_dir, store_id, error)
                except PacksLost as error:
                    if not self._lost.add(error):
                        raise
        finally:
            self.write.close()
        if not self.options.dry_run:
            result.stored_bytes = self.progress.bytes_sent - sent_before_bytes  # over all attempts
        result.lost_packs = len(self._lost)
        return result

    @contextmanager
    def once(self) -> Iterator[None]:
        """Runs an attempt that the session cannot repeat, since a program supplies its data.
        Raises: Unavailable if ``run`` would start again; running the program again avoids that
        error."""
        try:
            with self._opened(lambda: None):
                yield
        except IndexBroken as error:
            PushIndex.set_aside(self.options.index_dir, self.store.settings.store_id, error)
            raise Unavailable(f"{error}. Nothing was committed: {_REPEAT}") from error
        except PacksLost as error:
            self._lost.add(error)
            with closing(self._open_index()) as index:
                self._lost.forget_in(index, self.store)
            raise Unavailable(
                "the store has lost data that this transaction relied on. The push index has "
                f"noted it; nothing was committed: {_REPEAT}"
            ) from error
        finally:
            self.write.close()

    def write_again(self) -> None:
        """Begins another write of the ref after another writer has overtaken this one."""
        ended, self.write = self.write, RefWrite(self.store, self.options.clock)
        self.write.begin()
        ended.close()

    @property
    def relies(self) -> Relies:
        """How far this session relies on chunks that lie in objects of a source: what is pushed is
        stored, so only an import does, on objects that are what they were."""
        return lost_in_place if self.options.in_place is not None else all_in_place

    def sound_places(self) -> SoundPlaces | None:
        """Returns the places of chunks in the index that an import may use; None: all of them."""
        if self.options.in_place is None:
            return None
        objects = self.store.objects
        return SoundPlaces(self.index, lambda pack_id: all_lost_in_place(objects, pack_id))

    def learn(self, *, again: bool = False) -> None:
        """Updates the index before it is relied on: with the pushes of others, and whether the
        store is an older one that was restored from a backup. It does so once, or ``again``: of
        many pushes of others meanwhile it may learn later."""
        if again or not self._has_learned:
            unlisted_max = UNLISTED_MAX if self._has_learned else None
            self.index.load_shards(self.store.objects, unlisted_max=unlisted_max)
            self._learn_purges()
            self._has_learned = True

    def readers(self, files: int, size_bytes: int) -> Workers:
        """Returns workers that suit this many files and bytes; later calls return the same. They
        may be processes; then the first call forks them, so it must come before threads are
        started."""
        if self._readers is None:
            from lodefs.chunkstore.push.workers.pool import workers_for

            params = self.store.settings.chunking
            self._readers = workers_for(params, self.options.workers, files, size_bytes)
        return self._readers

    def placement(self, sizes_bytes: tuple[int, ...] = DATA_PACK_SIZES_BYTES) -> Placement:
        """Returns a placement for new packs of one kind."""
        return Placement(self.index, self.uploader, sizes_bytes)

    def _open_index(self) -> PushIndex:
        return PushIndex(self.options.index_dir, self.store.settings.store_id)

    def _learn_purges(self) -> None:
        """Makes the index refuse purged chunks. Each attempt does so, since its commit is refused
        if it has missed a purge. This takes one request, and one more for each new purge."""
        refuse(self.index, Purges(self.store.objects).after(self.index.purges_seen))

    @contextmanager
    def _opened(self, check: Callable[[], None]) -> Iterator[None]:
        """Opens an attempt. Before its first pack is put, it calls ``check``, and the write takes
        its place in the journal."""
        self.index = self._open_index()
        self._has_learned = False
        heartbeat = Heartbeat(lambda: self.write.beat())  # noqa: PLW0108 - of the write at that time

        @cache
        def prepare() -> None:
            self.store.ensure_writable()
            check()
            self.write.begin()
            heartbeat.start()

        self.begin = prepare
        is_dry = self.options.dry_run
        kind = DryUploader if is_dry else Uploader
        dead = self._lost.dead if is_dry else _DeadPacks(self, self._lost, prepare)
        self.uploader = kind(
            self.store.objects,
            self.progress,
            prepare,
            lost=self._lost.packs,
            dead=dead,
            relies=self.relies,
        )
        try:
            self._lost.forget_in(self.index, self.store)
            self._learn_purges()
            yield
        finally:
            if self._readers is not None:
                self._readers.close()
                self._readers = None
            heartbeat.stop()
            self.uploader.close()
            self.index.close()


class _DeadPacks:
    """Ids that no new pack may have. A machine that does not know that gc has deleted a pack may
    store it again under its old id, so others use another one. For one thread."""

    def __init__(self, session: PushSession, lost: LostPacks, prepare: Callable[[], None]) -> None:
        self._session = session
        self._lost = lost
        self._prepare = prepare
        self._tombstoned: CondemnedRows | None = None

    def __contains__(self, pack_id: object) -> bool:
        assert isinstance(pack_id, bytes)
        session = self._session
        if self._tombstoned is None:
            self._prepare()
            self._tombstoned = CondemnedRows(session.index)
            learn(session.write, self._tombstoned, session.index)
        if pack_id in self._lost.dead:
            return True
        if self._tombstoned.newest is None:
            return False
        try:
            session.write.save(self._tombstoned, [pack_id])
        except Collected:
            return True
        return False
