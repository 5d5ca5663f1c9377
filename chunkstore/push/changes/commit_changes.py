"""The primitive that writes: a base commit plus changes gives one commit on a branch.

If the branch moves meanwhile, or is not at the base, the changes are merged into it by trees
(three_way.py), as long as the paths are disjoint.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from functools import partial
from typing import NamedTuple

from lodefs.chunkstore.errors import Conflict
from lodefs.chunkstore.format.commit import Commit, Large
from lodefs.chunkstore.format.journal import RefName
from lodefs.chunkstore.format.names import CommitId, check_ref_name, check_repo
from lodefs.chunkstore.format.tree import Entry, Kind
from lodefs.chunkstore.journal.ref_write import RefWrite
from lodefs.chunkstore.push.attempts import Desk, LostPacks, at_desk, attempt
from lodefs.chunkstore.push.change_counts import Changes, PushTarget, Removals
from lodefs.chunkstore.push.changes.change import Change, PutDirectory
from lodefs.chunkstore.push.changes.overlay import Item, Overlay
from lodefs.chunkstore.push.changes.overlay_counts import count
from lodefs.chunkstore.push.changes.overlay_writer import OverlayWriter
from lodefs.chunkstore.push.changes.stored_changes import ScanOf, StoredChanges, StreamStarts
from lodefs.chunkstore.push.changes.three_way import merge
from lodefs.chunkstore.push.committer import Committer, Head, read_head
from lodefs.chunkstore.push.pack_writer import TREE_PACK_SIZES_BYTES, Placement
from lodefs.chunkstore.push.push_options import PushOptions
from lodefs.chunkstore.push.scanner import Scan, Skipped
from lodefs.chunkstore.push.source_directory import source_root
from lodefs.chunkstore.push.trees.tree_packer import TreePacker
from lodefs.chunkstore.repo.refs import BRANCHES
from lodefs.chunkstore.repo.store import Store
from lodefs.chunkstore.system.progress import Progress

REBASES_MAX = 20  # each time another writer was faster


@dataclass(slots=True)
class ChangesResult:
    """What came of changes. ``commit``: 64 hex characters; that of the head where nothing changed;
    "" of a dry run."""

    commit: str
    unchanged: bool
    created_branch: bool
    changes: Changes  # files and bytes in the branch, from the head that the commit follows
    files: int  # in the commit, symlinks too
    directories: int
    size_bytes: int
    files_read: int = 0
    new_bytes: int = 0  # chunks that were not in the store, uncompressed
    stored_bytes: int = 0  # of the objects that were written
    rebased: int = 0  # how often the branch had moved, and the changes were merged into it
    lost_packs: int = 0
    skipped: list[Skipped] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class _Job:
    store: Store
    branch: RefName
    base: CommitId | None  # None: where the branch is
    changes: Sequence[Change]
    options: PushOptions
    progress: Progress
    scan_of: ScanOf
    starts: StreamStarts

    @property
    def target(self) -> PushTarget:
        """The branch, for questions and messages."""
        name = f"{self.branch.repo}@{self.branch.name}"
        return PushTarget(name, self.options.allow_removals)


def commit_changes(
    store: Store,
    repo: str,
    branch: str,
    changes: Sequence[Change],
    options: PushOptions,
    *,
    base: CommitId | None = None,
    progress: Progress | None = None,
    scan_of: ScanOf | None = None,
) -> ChangesResult:
    """Commits changes to a branch; no commit if nothing changes. A branch that does not exist is
    created, at ``base`` or else empty. Of what did not change nothing is read.

    ``base``: the commit that the changes are meant for; None: where the branch is. ``scan_of``:
    makes the scan of a directory that is put. Disjoint changes of others are kept.

    Raises: Conflict that names paths which others changed too; NotFound, NotADirectory,
    InvalidInput for what cannot be applied; TooManyRemovals; Denied, SourceChanged, Unavailable for
    files; what the store raises. After an error nothing is committed.
    """
    check_repo(repo)
    check_ref_name(branch)
    progress = progress or Progress()
    for change in changes:
        if isinstance(change, PutDirectory):
            source_root(change.source, options.places_apart(store))

    def scan(root: bytes) -> Scan:
        return Scan(root, options.skip_unreadable, options.clock_ns)

    ref = RefName(repo, BRANCHES, branch)
    starts = StreamStarts()
    job = _Job(store, ref, base, changes, options, progress, scan_of or scan, starts)
    sent_before_bytes = progress.bytes_sent
    lost = LostPacks()
    result = attempt(store, options.index_dir, lost, partial(_try, job))
    if not options.dry_run:
        result.stored_bytes = progress.bytes_sent - sent_before_bytes  # of all attempts
    result.lost_packs = len(lost)
    return result


def _try(job: _Job, lost: LostPacks) -> ChangesResult:
    head = read_head(job.store, job.branch.repo, job.branch.name)
    with ExitStack() as writes:
        write = _write(job, writes)
        with at_desk(job.store, job.options, job.progress, write, lost) as desk:
            stored = StoredChanges(desk, job.changes, job.starts)
            stored.store(job.scan_of)
            job.progress.phase = "committing"
            result = _Commits(job, desk, _base_of(job, head), stored).run(head, write, writes)
            result.files_read, result.new_bytes = stored.files_read, stored.new_bytes
            result.skipped = stored.skipped
            return result


def _write(job: _Job, writes: ExitStack) -> RefWrite:
    """One more write of the ref, which ``writes`` ends."""
    write = RefWrite(job.store, job.options.clock)
    writes.callback(write.close)
    return write


class _Base(NamedTuple):
    """A commit to change; of none (an empty branch) only the totals, which are zero."""

    id: CommitId | None
    totals: Commit

    @property
    def root(self) -> Entry | None:
        return None if self.id is None else self.totals.root


_EMPTY = _Base(None, Commit(Entry(b"", Kind.DIRECTORY), (), "", 0, "", 0, 0, 0, Large(0, 0)))


def _base_of(job: _Job, head: Head) -> _Base:
    if job.base is not None:
        return _Base(job.base, job.store.commit(job.branch.repo, job.base))
    return _EMPTY if head.id is None or head.commit is None else _Base(head.id, head.commit)


class _Commits:
    """From contents that are stored to the ref: a round for each time that the branch moved."""

    def __init__(self, job: _Job, desk: Desk, base: _Base, stored: StoredChanges) -> None:
        self._job = job
        self._store = job.store
        self._trees = stored.trees
        self._desk = desk
        self._base = base
        overlay = Overlay(self._trees.read_tree, base.root)
        stored.apply(overlay)
        self._ours = overlay.root

    def run(self, head: Head, write: RefWrite, writes: ExitStack) -> ChangesResult:
        """Commits to the branch at ``head``, or wherever it is then. Raises: Conflict."""
        rebased = 0
        while True:
            try:
                result = self._round(head, write)
            except _Overtaken as error:
                rebased += 1
                if rebased > REBASES_MAX:
                    raise Conflict(str(error)) from error
            else:
                result.rebased = rebased
                return result
            write = _write(self._job, writes)
            write.begin()
            head = read_head(self._store, self._job.branch.repo, self._job.branch.name)

    def _round(self, head: Head, write: RefWrite) -> ChangesResult:
        target = self._target(head)
        item = self._ours if target.id == self._base.id else self._merged(target)
        counts = count(self._trees, target.root, item)
        if head.id is not None and head.commit is not None:
            removed = counts.changes.removed_files
            self._job.target.check(Removals(head.id, removed, head.commit.files))
        totals = counts.applied(target.totals)
        root = self._store_trees(item)
        unchanged = head.root is not None and _is_same(root, head.root)
        commit_id = head.id if unchanged else None
        if not unchanged and not self._job.options.dry_run:
            commit_id = self._commit(head, write, target, replace(totals, root=root))
        return ChangesResult(
            commit="" if commit_id is None else commit_id.hex(),
            unchanged=unchanged,
            created_branch=head.id is None,
            changes=counts.changes,
            files=totals.files,
            directories=totals.directories,
            size_bytes=totals.size_bytes,
            stored_bytes=self._desk.uploader.stored_bytes,
        )

    def _target(self, head: Head) -> _Base:
        """What the commit will follow. Raises: Conflict if that is gone."""
        if head.id is not None and head.commit is not None:
            return _Base(head.id, head.commit)
        if self._job.base is None and self._base.id is not None:
            repo, _, name = self._job.branch
            raise Conflict(f"branch {name} of {repo} was deleted meanwhile: nothing was committed")
        return self._base

    def _merged(self, target: _Base) -> Item:
        """The changes on top of what others committed since the base. Raises: Conflict."""
        if target.root is None:
            return self._ours
        found = merge(self._trees, self._base.root, self._ours, target.root)
        found.check()
        overlay = Overlay(self._trees.read_tree, target.root)
        found.into(overlay)
        return overlay.root

    def _store_trees(self, item: Item) -> Entry:
        placement = Placement(self._desk.index, self._desk.uploader, TREE_PACK_SIZES_BYTES)
        packer = TreePacker(placement, self._store.settings.chunking)
        root = OverlayWriter(packer, self._store.packs, self._trees).store(item)
        self._desk.uploader.finish()
        return root

    def _commit(self, head: Head, write: RefWrite, target: _Base, totals: Commit) -> CommitId:
        options = self._job.options
        commit = replace(
            totals,
            parents=() if target.id is None else (target.id,),
            author=options.author,
            time_s=options.time_s,
            message=options.message,
        )
        committer = Committer(self._store, self._desk.index, write, self._sent)
        committer.check_reused()
        try:
            return committer.commit(self._job.branch, head, commit)
        except Conflict as error:
            raise _Overtaken(str(error)) from error

    def _sent(self, size_bytes: int) -> None:
        self._job.progress.bytes_sent += size_bytes


class _Overtaken(Conflict):
    """Another writer moved the branch first."""


def _is_same(a: Entry, b: Entry) -> bool:
    """Whether two roots are one tree, in one place."""
    return (a.digest, a.segments) == (b.digest, b.segments)
