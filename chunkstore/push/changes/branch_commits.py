"""Rounds of a commit: what was prepared on a base goes to a branch, wherever that is by then."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from lodefs.chunkstore.errors import Conflict, Diverged, NotADirectory, NotFound
from lodefs.chunkstore.format.commit import Commit, Large
from lodefs.chunkstore.format.names import CommitId
from lodefs.chunkstore.format.tree import Kind, TreeEntry
from lodefs.chunkstore.journal.existing_commit import save_existing
from lodefs.chunkstore.push.changes.overlay import (
    Item,
    Overlay,
    OverlayWriter,
    TreeReader,
    count,
    count_files,
)
from lodefs.chunkstore.push.changes.stored_changes import StoredChanges
from lodefs.chunkstore.push.changes.three_way import Choices, merge
from lodefs.chunkstore.push.committer import Committer, Head, PurgedMeanwhile, read_head
from lodefs.chunkstore.push.limits import Changes, Quota, Removals
from lodefs.chunkstore.push.pack_writer import TREE_PACK_SIZES_BYTES
from lodefs.chunkstore.push.session import CommitResult, PushSession
from lodefs.chunkstore.push.trees.tree_writer import TreePacker
from lodefs.chunkstore.repo.refs import BRANCHES
from lodefs.chunkstore.repo.store import Store

REBASES_MAX = 20  # each time another writer was faster


@dataclass(slots=True, kw_only=True)
class ChangesResult(CommitResult):
    """What came of changes. ``changes``: from the head that the commit follows; ``files``: symlinks
    too; ``rebased``: how often the branch had moved, and the changes were merged into it."""

    changes: Changes
    rebased: int = 0


class PreparedCommit(NamedTuple):
    """A base, and what became of it; ``trees`` reads both. ``stored``: the changes, if any."""

    base: CommitBase
    ours: Item
    trees: TreeReader
    stored: StoredChanges | None = None


@dataclass(frozen=True, slots=True)
class CommitJob:
    """What a commit is for besides its branch. ``base``: the commit that was asked for, if one was;
    ``merged``: parents besides the branch's head; ``choices``: whose side is taken at a path that
    is in conflict; ``way_out``: what to do about conflicts, which no repetition helps."""

    base: CommitId | None = None
    merged: tuple[CommitId, ...] = ()
    way_out: str = ""
    choices: Choices = field(default_factory=dict)


def run_commits(
    session: PushSession, job: CommitJob, prepare: Callable[[Head], PreparedCommit]
) -> ChangesResult:
    """Commits what ``prepare`` gives, as often as it takes. Raises: Conflict, TooManyRemovals; what
    ``prepare`` and the store raise."""

    def attempt() -> ChangesResult:
        head = _head_of(session)
        prepared = prepare(head)
        session.progress.phase = "committing"
        result = _Commits(session, job, prepared).run(head)
        if (stored := prepared.stored) is not None:
            result.files_read, result.new_bytes = stored.files_read, stored.new_bytes
            result.skipped, result.excluded = stored.skipped, stored.excluded
            result.notes = stored.notes
        return result

    return session.run(attempt)


def read_living_head(store: Store, repo: str, branch: str) -> tuple[Head, CommitId, Commit]:
    """Where a branch is now, and the commit. Raises: NotFound if there is no such branch."""
    ref = store.refs(repo).latest(BRANCHES, branch)
    if ref is None or ref.commit is None:
        store.resolve(repo, branch)  # raises with a list of what there is, if it is nothing at all
        raise NotFound(f"{repo} has no branch {branch}: that is a tag or a commit")
    commit = store.commit(repo, ref.commit)
    return Head(ref, ref.commit, commit), ref.commit, commit


def _head_of(session: PushSession) -> Head:
    return read_head(session.store, session.branch.repo, session.branch.name)


class CommitBase(NamedTuple):
    """A commit to change; of none (an empty branch) only the totals, which are zero."""

    id: CommitId | None
    totals: Commit

    @property
    def root(self) -> TreeEntry | None:
        return None if self.id is None else self.totals.root


EMPTY = CommitBase(
    None, Commit(TreeEntry(b"", Kind.DIRECTORY), (), "", 0, "", 0, 0, 0, Large(0, 0))
)


class _Commits:
    """From contents that are stored to the ref: a round for each time that the branch moved."""

    def __init__(self, session: PushSession, job: CommitJob, prepared: PreparedCommit) -> None:
        self._session = session
        self._job = job
        self._store = session.store
        self._base, self._ours, self._trees, self._stored = prepared

    def run(self, head: Head) -> ChangesResult:
        """Commits to the branch at ``head``, or wherever it is then. Raises: Conflict."""
        rebased = 0
        while True:
            try:
                result = self._round(head)
            except _Overtaken as error:
                rebased += 1
                if rebased > REBASES_MAX:
                    raise Conflict(str(error)) from error
            else:
                result.rebased = rebased
                return result
            self._session.write_again()
            head = _head_of(self._session)

    def _round(self, head: Head) -> ChangesResult:
        target = self._target(head)
        item = self._ours if target.id == self._base.id else self._merged(target)
        counts = count(self._trees, target.root, item)
        if head.id is not None and head.commit is not None:
            removals = Removals(head.id, counts.changes.removed_files, head.commit.files)
            self._session.target.check(removals)
            if not removals.are_most:
                self._check_places(head.id, target, item)
        totals = counts.applied(target.totals)
        root = self._store_trees(item)
        unchanged = head.root is not None and _is_same(root, head.root)
        commit_id = head.id if unchanged else None
        if not unchanged and self._session.options.dry_run:
            Quota(self._store, self._session.branch.repo, head.size_bytes).check(totals.size_bytes)
        elif not unchanged:
            commit_id = self._commit(head, target, replace(totals, root=root))
        return ChangesResult(
            commit="" if commit_id is None else commit_id.hex(),
            unchanged=unchanged,
            created_branch=head.id is None,
            changes=counts.changes,
            files=totals.files,
            directories=totals.directories,
            size_bytes=totals.size_bytes,
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
                self._session.target.check(Removals(head, removed, files, b"/".join(names)))

    def _target(self, head: Head) -> CommitBase:
        """What the commit will follow. Raises: Conflict if that is gone."""
        if head.id is not None and head.commit is not None:
            return CommitBase(head.id, head.commit)
        if self._job.base is None and self._base.id is not None:
            repo, _, name = self._session.branch
            raise Conflict(f"branch {name} of {repo} was deleted meanwhile: nothing was committed")
        return self._base

    def _merged(self, target: CommitBase) -> Item:
        """The changes on top of what others committed since the base. Raises: Conflict; Diverged,
        if no repetition helps."""
        if target.root is None:
            return self._ours
        # what was put here is known; of another branch neither side is
        proof = () if self._stored is None else (self._stored.is_same,)
        found = merge(self._trees, self._base.root, self._ours, target.root, *proof)
        found.decide(self._job.choices)
        found.check(Diverged if self._job.way_out else Conflict, self._job.way_out)
        overlay = Overlay(self._trees.read_tree, target.root)
        found.into(overlay)
        return overlay.root

    def _store_trees(self, item: Item) -> TreeEntry:
        placement = self._session.placement(TREE_PACK_SIZES_BYTES)
        packer = TreePacker(placement, self._store.settings.chunking)
        root = OverlayWriter(packer, self._store.packs, self._trees).store(item)
        self._session.uploader.finish()
        return root

    def _commit(self, head: Head, target: CommitBase, totals: Commit) -> CommitId:
        options = self._session.options
        commit = replace(
            totals,
            parents=(*(() if target.id is None else (target.id,)), *self._job.merged),
            author=options.author,
            time_s=options.time_s,
            message=options.message,
            metadata=options.metadata,
        )
        committer = Committer(self._session)
        committer.check_reused()
        for parent in commit.parents:
            if parent != head.id:  # no ref need lead to it
                save_existing(self._store, self._session.write, self._session.branch.repo, parent)
        try:
            return committer.commit(head, commit)
        except PurgedMeanwhile:
            raise  # another round would know no more
        except Conflict as error:
            raise _Overtaken(str(error)) from error


class _Overtaken(Conflict):
    """Another writer moved the branch first."""


def _is_same(a: TreeEntry, b: TreeEntry) -> bool:
    """Whether two roots are one tree, in one place."""
    return (a.digest, a.segments) == (b.digest, b.segments)
