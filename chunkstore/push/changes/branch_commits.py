"""Rounds of a commit: what was prepared on a base goes to a branch, wherever that is by then."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from functools import partial
from typing import NamedTuple

from lodefs.chunkstore.errors import Conflict, Diverged, NotADirectory
from lodefs.chunkstore.format.commit import Commit, Large
from lodefs.chunkstore.format.journal import RefName
from lodefs.chunkstore.format.names import CommitId
from lodefs.chunkstore.format.tree import Entry, Kind
from lodefs.chunkstore.journal.existing_commit import save_existing
from lodefs.chunkstore.journal.ref_write import RefWrite
from lodefs.chunkstore.push.attempts import Desk, LostPacks, at_desk, attempt
from lodefs.chunkstore.push.change_counts import Changes, PushTarget, Removals
from lodefs.chunkstore.push.changes.overlay import Item, Overlay
from lodefs.chunkstore.push.changes.overlay_counts import count, count_files
from lodefs.chunkstore.push.changes.overlay_writer import OverlayWriter
from lodefs.chunkstore.push.changes.stored_changes import StoredChanges
from lodefs.chunkstore.push.changes.three_way import Choices, merge
from lodefs.chunkstore.push.changes.unstored_trees import TreeReader
from lodefs.chunkstore.push.committer import Committer, Head, PurgedMeanwhile, read_head
from lodefs.chunkstore.push.pack_writer import TREE_PACK_SIZES_BYTES, Placement
from lodefs.chunkstore.push.push_options import PushOptions
from lodefs.chunkstore.push.quota import Quota
from lodefs.chunkstore.push.scanner import Skipped, SourceNotes
from lodefs.chunkstore.push.trees.tree_packer import TreePacker
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
    new_bytes: int = 0  # chunks that were not in the store, uncompressed, each counted once
    stored_bytes: int = 0  # of the objects that were written
    rebased: int = 0  # how often the branch had moved, and the changes were merged into it
    lost_packs: int = 0
    excluded: int = 0  # files and directories that patterns left out
    skipped: list[Skipped] = field(default_factory=list)
    notes: SourceNotes = field(default_factory=SourceNotes)


@dataclass(frozen=True, slots=True)
class CommitJob:
    """Which branch gets a commit, and how. ``base``: the commit that was asked for, if one was;
    ``merged``: parents besides the branch's head; ``choices``: whose side is taken at a path
    that is in conflict."""

    store: Store
    branch: RefName
    options: PushOptions
    progress: Progress
    base: CommitId | None = None
    merged: tuple[CommitId, ...] = ()
    choices: Choices = field(default_factory=dict)

    @property
    def target(self) -> PushTarget:
        """The branch, for questions and messages."""
        name = f"{self.branch.repo}@{self.branch.name}"
        return PushTarget(name, self.options.allow_removals)


class PreparedCommit(NamedTuple):
    """A base, and what became of it; ``trees`` reads both. ``stored``: the changes, if any."""

    base: CommitBase
    ours: Item
    trees: TreeReader
    stored: StoredChanges | None = None


def run_commits(job: CommitJob, prepare: Callable[[Desk, Head], PreparedCommit]) -> ChangesResult:
    """Commits what ``prepare`` gives, as often as it takes. Raises: Conflict, TooManyRemovals; what
    ``prepare`` and the store raise."""
    sent_before_bytes = job.progress.bytes_sent
    lost = LostPacks()
    result = attempt(job.store, job.options.index_dir, lost, partial(_try, job, prepare))
    if not job.options.dry_run:
        result.stored_bytes = job.progress.bytes_sent - sent_before_bytes  # of all attempts
    result.lost_packs = len(lost)
    return result


def _try(
    job: CommitJob, prepare: Callable[[Desk, Head], PreparedCommit], lost: LostPacks
) -> ChangesResult:
    head = read_head(job.store, job.branch.repo, job.branch.name)
    with ExitStack() as writes:
        write = _write(job, writes)
        with at_desk(job.store, job.options, job.progress, write, lost) as desk:
            prepared = prepare(desk, head)
            job.progress.phase = "committing"
            result = _Commits(job, desk, prepared).run(head, write, writes)
            if (stored := prepared.stored) is not None:
                result.files_read, result.new_bytes = stored.files_read, stored.new_bytes
                result.skipped, result.excluded = stored.skipped, stored.excluded
                result.notes = stored.notes
            return result


def _write(job: CommitJob, writes: ExitStack) -> RefWrite:
    """One more write of the ref, which ``writes`` ends."""
    write = RefWrite(job.store, job.options.clock)
    writes.callback(write.close)
    return write


class CommitBase(NamedTuple):
    """A commit to change; of none (an empty branch) only the totals, which are zero."""

    id: CommitId | None
    totals: Commit

    @property
    def root(self) -> Entry | None:
        return None if self.id is None else self.totals.root


EMPTY = CommitBase(None, Commit(Entry(b"", Kind.DIRECTORY), (), "", 0, "", 0, 0, 0, Large(0, 0)))


class _Commits:
    """From contents that are stored to the ref: a round for each time that the branch moved."""

    def __init__(self, job: CommitJob, desk: Desk, prepared: PreparedCommit) -> None:
        self._job = job
        self._store = job.store
        self._desk = desk
        self._base, self._ours, self._trees, self._stored = prepared

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
            removals = Removals(head.id, counts.changes.removed_files, head.commit.files)
            self._job.target.check(removals)
            if not removals.are_most:
                self._check_places(head.id, target, item)
        totals = counts.applied(target.totals)
        root = self._store_trees(item)
        unchanged = head.root is not None and _is_same(root, head.root)
        commit_id = head.id if unchanged else None
        if not unchanged and self._job.options.dry_run:
            Quota(self._store, self._job.branch.repo, head.size_bytes).check(totals.size_bytes)
        elif not unchanged:
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

    def _check_places(self, head: CommitId, target: CommitBase, item: Item) -> None:
        """Raises: TooManyRemovals if most of a directory would go that is pushed to its place."""
        before, after = (Overlay(self._trees.read_tree, root) for root in (target.root, None))
        after.root = item
        for names in () if self._stored is None else self._stored.places:
            try:
                old, new = before.get(names), after.get(names)
            except NotADirectory:  # a file was in its way, which another change has removed
                continue
            removed = count(self._trees, old, new).changes.removed_files
            if removed:
                files = count_files(self._trees, old, 2 * removed)
                self._job.target.check(Removals(head, removed, files, b"/".join(names)))

    def _target(self, head: Head) -> CommitBase:
        """What the commit will follow. Raises: Conflict if that is gone."""
        if head.id is not None and head.commit is not None:
            return CommitBase(head.id, head.commit)
        if self._job.base is None and self._base.id is not None:
            repo, _, name = self._job.branch
            raise Conflict(f"branch {name} of {repo} was deleted meanwhile: nothing was committed")
        return self._base

    def _merged(self, target: CommitBase) -> Item:
        """The changes on top of what others committed since the base. Raises: Conflict; of a merge,
        which no repetition helps, Diverged."""
        if target.root is None:
            return self._ours
        # what was put here is known; of another branch neither side is
        proof = () if self._stored is None else (self._stored.is_same,)
        found = merge(self._trees, self._base.root, self._ours, target.root, *proof)
        found.decide(self._job.choices)
        if self._job.merged:
            found.check(Diverged, _WAY_OUT)
        found.check(Conflict)
        overlay = Overlay(self._trees.read_tree, target.root)
        found.into(overlay)
        return overlay.root

    def _store_trees(self, item: Item) -> Entry:
        placement = Placement(self._desk.index, self._desk.uploader, TREE_PACK_SIZES_BYTES)
        packer = TreePacker(placement, self._store.settings.chunking)
        root = OverlayWriter(packer, self._store.packs, self._trees).store(item)
        self._desk.uploader.finish()
        return root

    def _commit(self, head: Head, write: RefWrite, target: CommitBase, totals: Commit) -> CommitId:
        options = self._job.options
        commit = replace(
            totals,
            parents=(*(() if target.id is None else (target.id,)), *self._job.merged),
            author=options.author,
            time_s=options.time_s,
            message=options.message,
        )
        committer = Committer(self._store, self._desk.index, write, self._sent)
        committer.check_reused()
        for parent in commit.parents:
            if parent != head.id:  # no ref need lead to it
                save_existing(self._store, write, self._job.branch.repo, parent)
        try:
            return committer.commit(self._job.branch, head, commit)
        except PurgedMeanwhile:
            raise  # another round would know no more
        except Conflict as error:
            raise _Overtaken(str(error)) from error

    def _sent(self, size_bytes: int) -> None:
        self._job.progress.bytes_sent += size_bytes


_WAY_OUT = (
    ". Say for each of them, or for a directory above, which side stays: --ours PATH for the "
    "branch's, --theirs PATH for that of the revision that comes into it"
)


class _Overtaken(Conflict):
    """Another writer moved the branch first."""


def _is_same(a: Entry, b: Entry) -> bool:
    """Whether two roots are one tree, in one place."""
    return (a.digest, a.segments) == (b.digest, b.segments)
