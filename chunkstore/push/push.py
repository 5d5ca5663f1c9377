"""Push: a commit from a directory.

Objects are written in an order that a crash cannot spoil: packs, index shard, commit, ref. The ref
is the commit point; what a dead push leaves behind is garbage, and its repetition uses it.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from itertools import chain
from pathlib import Path
from typing import TypeVar

from lodefs.chunkstore.errors import Conflict, InvalidInput, LodefsError
from lodefs.chunkstore.format import keys
from lodefs.chunkstore.format.commit import Commit, Large, commit_id_of, encode_commit
from lodefs.chunkstore.format.index_shard import encode_shard
from lodefs.chunkstore.format.journal import RefName
from lodefs.chunkstore.format.names import (
    PULL_STATE_DIR,
    CommitId,
    PackId,
    check_ref_name,
    check_repo,
)
from lodefs.chunkstore.format.tree import Entry
from lodefs.chunkstore.journal.condemned import commit_key
from lodefs.chunkstore.journal.heartbeat import Heartbeat
from lodefs.chunkstore.journal.journal import OlderJournal
from lodefs.chunkstore.journal.named_packs import named_packs
from lodefs.chunkstore.journal.ref_write import Collected, RefWrite
from lodefs.chunkstore.push.changes import (
    AllowRemovals,
    Changes,
    PushTarget,
    allow_all,
    changes_between,
    check_changes,
    check_names,
)
from lodefs.chunkstore.push.condemned_rows import CondemnedRows
from lodefs.chunkstore.push.deduplicator import Deduplicator
from lodefs.chunkstore.push.directories import HashedDirectory, PushTree
from lodefs.chunkstore.push.forgetting import forget_chunks, forget_packs
from lodefs.chunkstore.push.pack_check import (
    PacksCollected,
    PacksLost,
    missing_below,
    missing_packs,
)
from lodefs.chunkstore.push.pack_writer import TREE_PACK_SIZES_BYTES, Placement, Uploader
from lodefs.chunkstore.push.proof import has_same_chunks
from lodefs.chunkstore.push.push_index import IndexBroken, PushIndex, TreePlace
from lodefs.chunkstore.push.scanner import Scan, Skipped, open_root, read_link
from lodefs.chunkstore.push.tree_writer import TreeWriter
from lodefs.chunkstore.push.workers.source_files import SourceFile, show_path
from lodefs.chunkstore.repo.refs import BRANCHES, RefEntry
from lodefs.chunkstore.repo.store import Store, require_there
from lodefs.chunkstore.system.progress import Progress

T = TypeVar("T")

_REPEATED = (
    "But a push commits the whole directory as it is: repeated, it undoes what the other push "
    "changed, unless you bring that into the directory first (lodefs diff, lodefs pull)"
)

# Less than this is read in this process: starting others would take longer
INLINE_FILES_MAX = 200
INLINE_SIZE_BYTES_MAX = 8 << 20


@dataclass(frozen=True, slots=True)
class PushOptions:
    """How to push, and what the commit says."""

    message: str
    author: str
    time_s: int  # Unix
    index_dir: Path  # where the push index is kept between pushes
    skip_unreadable: bool = False  # leave out what cannot be read, and name it
    workers: int | None = None  # processes that read; 0: none but this one; None: by the cores
    clock_ns: Callable[[], int] = time.time_ns  # the clock of the files' times
    clock: Callable[[], float] = time.time  # what the journal says of this push
    check_packs: bool = False  # look for all packs that the commit names, and store lost ones again
    # asked before more than half of a branch's files are removed; False refuses the push
    allow_removals: AllowRemovals = allow_all


@dataclass(slots=True)
class PushResult:
    """What a push did. ``commit``: 64 hex characters; that of the head where it is unchanged."""

    commit: str
    unchanged: bool
    files: int  # regular ones
    directories: int  # the root too
    symlinks: int
    size_bytes: int  # of all files
    files_read: int  # opened, because they may have changed
    new_bytes: int  # chunks that were not in the store, uncompressed
    stored_bytes: int  # of the objects that were written: packs, index shard, commit
    created_branch: bool  # it did not exist before
    lost_packs: int  # that the store lacked: what this commit needs of them was stored again
    changes: Changes | None  # None: unknown, since the trees of the head cannot be read
    skipped: list[Skipped] = field(default_factory=list)
    seconds: dict[str, float] = field(default_factory=dict)  # by phase


@dataclass(frozen=True, slots=True)
class _Head:
    """The branch as it was when the push began."""

    ref: RefEntry | None
    id: CommitId | None
    commit: Commit | None

    @property
    def root(self) -> Entry | None:
        """Its root directory."""
        return None if self.commit is None else self.commit.root


@dataclass(frozen=True, slots=True)
class _PushJob:
    """What is pushed, and where to."""

    store: Store
    root: bytes
    repo: str
    branch: str
    head: _Head
    options: PushOptions
    progress: Progress
    write: RefWrite

    @property
    def target(self) -> PushTarget:
        """The branch, for questions and messages."""
        return PushTarget(f"{self.repo}@{self.branch}", self.options.allow_removals)


def push(
    store: Store,
    source: Path,
    repo: str,
    branch: str,
    options: PushOptions,
    progress: Progress | None = None,
) -> PushResult:
    """Commits the directory ``source`` to a branch; no commit if nothing changed.

    Raises: NotFound, NotADirectory, InvalidInput for the source; InvalidInput for a new branch that
    has the name of a tag or commit; Denied, SourceChanged, Unavailable for files (named), unless
    they are skipped; TooManyRemovals if ``allow_removals`` says no; Conflict when the branch moved
    meanwhile; Unsupported for a store without conditional writes; what the store raises. After an
    error nothing is committed, and the push can be repeated.
    """
    check_repo(repo)
    check_ref_name(branch)
    root = os.path.realpath(os.fsencode(source))
    os.close(open_root(root))
    _check_filled(root)
    _check_apart(root, store.url, "the store")
    _check_apart(root, os.path.abspath(options.index_dir), "the push index")
    head = _read_head(store, repo, branch)
    write = RefWrite(store, options.clock)
    job = _PushJob(store, root, repo, branch, head, options, progress or Progress(), write)
    sent_before_bytes = job.progress.bytes_sent
    lost = _Lost()
    is_broken = False
    try:
        while True:
            try:
                result = _try(job, lost)
            except IndexBroken as error:
                if is_broken:
                    raise
                is_broken = True
                PushIndex.set_aside(options.index_dir, store.settings.store_id, error)
            except PacksLost as error:
                if not lost.add(error):
                    raise
            else:
                result.stored_bytes = job.progress.bytes_sent - sent_before_bytes  # of all tries
                result.lost_packs = len(lost.packs | lost.chunks.keys())
                return result
    finally:
        job.write.close()


@dataclass(slots=True)
class _Lost:
    """Packs that earlier tries found to be lost, and chunks of others (bits of their numbers);
    ``dead`` are ids that no new pack may have."""

    packs: set[PackId] = field(default_factory=set)
    dead: set[PackId] = field(default_factory=set)
    chunks: dict[PackId, int] = field(default_factory=dict)

    def add(self, error: PacksLost) -> bool:
        """Whether a try found anything new."""
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


def _try(job: _PushJob, lost: _Lost) -> PushResult:
    store, head = job.store, job.head
    index = PushIndex(job.options.index_dir, store.settings.store_id)
    root_fd = open_root(job.root)
    heartbeat = Heartbeat(job.write.beat)

    def prepare() -> None:
        store.ensure_writable()
        if head.commit is not None and head.id is not None:
            names = map(os.fsencode, os.listdir(root_fd))
            check_names(store.packs, job.target, head.id, head.commit, names)
        job.write.begin()
        heartbeat.start()

    uploader = Uploader(store.objects, job.progress, prepare, lost=lost.packs, dead=lost.dead)
    try:
        if lost.packs or lost.chunks:
            index.load_shards(store.objects)  # of a new index too: shards still list what is lost
            forget_packs(index, lost.packs)
            forget_chunks(index, lost.chunks)
        run = _Push(job, root_fd, index, uploader)
        try:
            return run.run()
        except BaseException:
            run.abandon()
            raise
    finally:
        heartbeat.stop()
        uploader.close()
        index.close()
        os.close(root_fd)


class _Push:
    """One push, from the scan to the ref."""

    def __init__(self, job: _PushJob, root_fd: int, index: PushIndex, uploader: Uploader) -> None:
        self._job = job
        self._store = job.store
        self._head = job.head
        self._options = options = job.options
        self._progress = job.progress
        self._index = index
        self._uploader = uploader
        self._scan = Scan(job.root, options.skip_unreadable, options.clock_ns)
        placement = Placement(index, uploader)
        self._tree = PushTree(
            memory=index.source(job.root),
            placement=placement,
            read_link=lambda path: read_link(root_fd, path),
            skip_unreadable=options.skip_unreadable,
            skipped=self._scan.skipped,
        )
        self._deduplicator = Deduplicator(placement, self._tree, job.progress)
        self._changes: Changes | None = Changes()
        self._seconds: dict[str, float] = {}
        self._other_bytes = 0  # of shard and commit
        self._has_learned = False

    def run(self) -> PushResult:
        """Data, trees, shard, commit, ref."""
        self._phase("reading files", self._read_files)
        root = self._tree.root
        assert root is not None
        head = self._head
        if self._is_at(root):
            self._phase("reading files", self._uploader.finish)
            self._phase("remembering", self._tree.remember)
            assert head.root is not None
            entry, unchanged = head.root, True
        else:
            self._phase("comparing", lambda: self._compare(root))
            entry = self._phase("storing trees", lambda: self._store_trees(root))
            unchanged = self._phase("storing trees", lambda: self._leads_alike(entry))
            entry = head.root if unchanged and head.root is not None else entry
        self._check_packs(entry)
        if unchanged:
            return self._result(head.id, unchanged=True)
        commit_id = self._phase("committing", lambda: self._commit(entry))
        return self._result(commit_id, unchanged=False)

    def abandon(self) -> None:
        """After an error: remembers what is in the store already."""
        with contextlib.suppress(LodefsError):  # the first error is the one to report
            self._uploader.stop()
            self._tree.remember()

    def _read_files(self) -> None:
        """Scans the source, reads what changed, and stores what is new of it."""
        files = self._counted(self._tree.files(iter(self._scan)))
        first: list[SourceFile] = []
        size_bytes = 0
        for file in files:
            first.append(file)
            size_bytes += file.size_bytes
            if len(first) > INLINE_FILES_MAX or size_bytes > INLINE_SIZE_BYTES_MAX:
                break
        else:
            if first:
                self._run_workers(first, is_small=True)
            return
        self._run_workers(chain(first, files), is_small=False)

    def _counted(self, files: Iterable[SourceFile]) -> Iterator[SourceFile]:
        progress = self._progress
        for file in files:
            progress.files_total += 1
            progress.bytes_total += file.size_bytes
            yield file

    def _run_workers(self, files: Iterable[SourceFile], *, is_small: bool) -> None:
        from lodefs.chunkstore.push.workers import pool

        params, workers = self._store.settings.chunking, self._options.workers
        self._learn()
        running: pool.Workers
        if is_small or workers == 0:
            running = pool.InlineWorkers(params)
        else:
            count = None if workers is None else min(workers, pool.WORKERS_MAX)
            running = pool.WorkerPool(params, workers=count)
        with running:
            running.run(self._job.root, files, self._deduplicator, self._tree.work)
        self._deduplicator.seal()
        self._tree.finish()

    def _learn(self) -> None:
        """Brings the index up to date before it is relied on: what others pushed, and that the
        store is not an older one, restored from a backup."""
        if not self._has_learned:
            self._index.load_shards(self._store.objects)
            self._has_learned = True

    def _store_trees(self, root: HashedDirectory) -> Entry:
        """Stores the trees that the store does not have. All packs are in the store then."""
        self._learn()
        placement = Placement(self._index, self._uploader, TREE_PACK_SIZES_BYTES)
        writer = TreeWriter(placement, self._store.settings.chunking, self._tree.memory)
        entry = writer.store(root)
        self._tree.remember()  # what it can, while the last packs are under way
        self._uploader.finish()
        self._tree.remember()
        self._index.add_trees(writer.new_places())
        return entry

    def _compare(self, root: HashedDirectory) -> None:
        """Finds what this push changes. Raises: TooManyRemovals."""
        head, totals = self._head, self._tree.totals
        packs, memory = self._store.packs, self._tree.memory
        self._changes = changes_between(packs, head.commit, root, totals, memory)
        if head.commit is not None:
            assert head.id is not None
            check_changes(self._job.target, head.id, head.commit, self._changes, totals)

    def _is_at(self, root: HashedDirectory) -> bool:
        """Whether the head is the directory that was scanned, with a tree that this machine has
        stored or compared. An equal digest alone is a mere claim."""
        head = self._head.root
        if head is None or head.digest != root.digest:
            return False
        return self._index.find_trees([root.digest]).get(root.digest) == _place_of(head)

    def _leads_alike(self, entry: Entry) -> bool:
        """Whether the head has the same content, in the very chunks that this push has found or
        stored. It may lie elsewhere, as another machine stored it; then that is remembered."""
        head = self._head.root
        if head is None or not has_same_chunks(self._store.packs, entry, head):
            return False
        self._index.add_trees([(head.digest, _place_of(head))])
        return True

    def _check_packs(self, root: Entry) -> None:
        """Raises: PacksLost if the store lacks packs of the commit that this push did not write: of
        those whose chunks it has just decided to use again, or of all that are named."""
        index, objects = self._index, self._store.objects
        if self._options.check_packs:
            lost = self._phase(
                "checking packs", lambda: missing_below(objects, root, index.added())
            )
        elif reused := index.reused():
            lost = self._phase("committing", lambda: missing_packs(objects, reused))
        else:
            return
        if lost:
            require_there(objects)
            raise PacksLost(
                f"the store lacks {len(lost)} packs that the commit would name, such as "
                f"{keys.pack(min(lost))}, also after they were stored again",
                lost,
            )

    def _save(self, root: Entry, condemned: CondemnedRows) -> None:
        """Saves what the commit will name and a collection has condemned, but for what the head
        names too. Raises: PacksCollected, PacksLost."""
        try:
            self._job.write.learn(condemned)
        except OlderJournal as error:
            raise IndexBroken(
                f"the push index {self._index.path} is of a newer store: {error}"
            ) from error
        if condemned.newest is None:
            return
        packs, unreadable = named_packs(self._store.packs, root, self._head.root)
        try:
            self._job.write.save(condemned, packs, packs)
        except Collected as error:
            lost = {PackId(one) for one in error.ids}
            raise PacksCollected(str(error), lost, error.chunks) from error
        if unreadable:
            require_there(self._store.objects)
            raise PacksLost("packs of trees that the commit would name are lost", unreadable)

    def _commit(self, root: Entry) -> CommitId:
        """Shard, commit, ref."""
        self._store.ensure_writable()  # a commit of trees that are all there already
        condemned = CondemnedRows(self._index)
        self._save(root, condemned)
        self._publish(condemned)
        commit = self._unused(self._commit_of(root), condemned)
        head, repo = self._head, self._job.repo
        commit_id = self._store.put_commit(repo, commit)
        self._sent(len(encode_commit(commit)))
        sequence = None if head.ref is None else head.ref.sequence
        ref = RefName(repo, BRANCHES, self._job.branch)
        try:
            self._job.write.advance(ref, commit_id, expected_sequence=sequence)
        except Conflict as error:
            raise Conflict(f"{error}. {_REPEATED}") from None
        return commit_id

    def _publish(self, condemned: CondemnedRows) -> None:
        """Puts the shard of the packs that no shard lists yet, but for what is left of dead pushes
        and may be deleted."""
        packs = self._index.unpublished()
        doubtful = set().union(*condemned.find([pack.pack_id for pack in packs]).values())
        packs = [pack for pack in packs if pack.pack_id not in doubtful]
        if packs:
            shard_id = f"{time.time_ns():016x}-{os.urandom(4).hex()}"
            shard = encode_shard(packs)
            self._store.objects.put(keys.shard(shard_id), [shard], if_absent=True)
            self._sent(len(shard))
            self._index.published(shard_id, packs)

    def _commit_of(self, root: Entry) -> Commit:
        totals, options, head = self._tree.totals, self._options, self._head
        return Commit(
            root=root,
            parents=() if head.id is None else (head.id,),
            author=options.author,
            time_s=options.time_s,
            message=options.message,
            files=totals.files + totals.symlinks,
            directories=totals.directories,
            size_bytes=totals.size_bytes,
            large=Large(totals.large_files, totals.large_size_bytes),
        )

    def _unused(self, commit: Commit, condemned: CondemnedRows) -> Commit:
        """The commit, of a time at which no collection has deleted one of the same id."""
        while True:
            key = commit_key(self._job.repo, commit_id_of(encode_commit(commit)))
            try:
                self._job.write.save(condemned, [key])
            except Collected:
                commit = replace(commit, time_s=commit.time_s + 1)
                continue
            return commit

    def _sent(self, size_bytes: int) -> None:
        self._other_bytes += size_bytes
        self._progress.bytes_sent += size_bytes

    def _result(self, commit_id: CommitId | None, *, unchanged: bool) -> PushResult:
        assert commit_id is not None
        totals, stored_bytes = self._tree.totals, self._uploader.stored_bytes + self._other_bytes
        return PushResult(
            commit=commit_id.hex(),
            unchanged=unchanged,
            files=totals.files,
            directories=totals.directories,
            symlinks=totals.symlinks,
            size_bytes=totals.size_bytes,
            files_read=self._deduplicator.files_read,
            new_bytes=self._deduplicator.new_bytes,
            stored_bytes=stored_bytes,
            created_branch=self._head.id is None,
            lost_packs=0,
            changes=self._changes,
            skipped=self._scan.skipped,
            seconds=self._seconds,
        )

    def _phase(self, name: str, work: Callable[[], T]) -> T:
        self._progress.phase = name
        began_s = time.perf_counter()
        try:
            return work()
        finally:
            spent_s = time.perf_counter() - began_s
            self._seconds[name] = self._seconds.get(name, 0.0) + spent_s


def _place_of(entry: Entry) -> TreePlace:
    return TreePlace(entry.size_bytes, entry.segments)


def _read_head(store: Store, repo: str, branch: str) -> _Head:
    ref = store.refs(repo).latest(BRANCHES, branch)
    if ref is None or ref.commit is None:
        store.check_new_ref(repo, BRANCHES, branch)
        return _Head(ref, None, None)
    return _Head(ref, ref.commit, store.commit(repo, ref.commit))


def _check_filled(root: bytes) -> None:
    """Raises: InvalidInput if the source is a directory that a pull has not filled to the end."""
    if os.path.lexists(os.path.join(root, os.fsencode(PULL_STATE_DIR))):
        from lodefs.chunkstore.pull.target import command_to_end

        raise InvalidInput(
            f"a pull into {show_path(root)} has not ended, so it is not complete: first repeat "
            f"`{command_to_end(root)}`; or delete {PULL_STATE_DIR} in it"
        )


def _check_apart(root: bytes, place: str, what: str) -> None:
    """Raises: InvalidInput if ``place`` (a path, or the URL of something else) is in the source."""
    place = place.removeprefix("file://")
    if not place.startswith("/"):
        return
    path = os.path.realpath(os.fsencode(place))
    if path == root or path.startswith(root.rstrip(b"/") + b"/"):
        raise InvalidInput(
            f"{what} ({show_path(path)}) lies in the directory that is pushed "
            f"({show_path(root)}), so every push would change it: keep it elsewhere"
        )
