"""Commits a prepared tree to a branch, and merges it again each time that the branch moves."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from lodefs.chunkstore.errors import Conflict, LodefsError, NotADirectory, NotFound
from lodefs.chunkstore.format.commit import Commit, Large
from lodefs.chunkstore.format.names import CommitId
from lodefs.chunkstore.format.tree import Kind, TreeEntry
from lodefs.chunkstore.journal.existing_commit import save_existing
from lodefs.chunkstore.push.changes.overlay import (
    Item,
    Names,
    Overlay,
    OverlayWriter,
    TreeReader,
    count,
    count_files,
)
from lodefs.chunkstore.push.changes.three_way import Choices, IsProven, believed, merge
from lodefs.chunkstore.push.committer import Committer, Head, PurgedMeanwhile, head_of
from lodefs.chunkstore.push.limits import Changes, Quota, Removals
from lodefs.chunkstore.push.pack_writer import TREE_PACK_SIZES_BYTES
from lodefs.chunkstore.push.session import CommitResult, PushSession
from lodefs.chunkstore.push.trees.tree_writer import TreePacker
from lodefs.chunkstore.repo.refs import BRANCHES
from lodefs.chunkstore.repo.store import Store

REBASES_MAX = 20  # one for each time that another writer was faster


@dataclass(slots=True, kw_only=True)
class ChangesResult(CommitResult):
    """The result of a commit of changes. ``changes`` counts from the head that the commit follows.
    ``files`` includes symlinks. ``rebased`` says how often the branch had moved and the changes
    were merged into it."""

    changes: Changes
    rebased: int = 0


class PreparedCommit(NamedTuple):
    """A base, and the tree that the changes have made of it. ``trees`` reads both. ``is_proven`` is
    that of ``merge``. ``places`` are the paths that local directories replace."""

    base: CommitBase
    ours: Item
    trees: TreeReader
    is_proven: IsProven = believed
    places: Sequence[Names] = ()


@dataclass(frozen=True, slots=True)
class CommitJob:
    """The purpose of a commit, besides its branch. ``base`` is the commit that the caller asked
    for, if any. ``merged`` are parents besides the branch's head. ``choices`` decide paths that are
    in conflict; a conflict that they leave open raises ``refusal``, whose message ends with
    ``way_out``. ``check_all`` also looks for the packs that others have written for this commit.
    ``is_whole``: the tree is the whole content of the branch, so that it is not merged with what
    others commit meanwhile: that raises Conflict."""

    base: CommitId | None = None
    merged: tuple[CommitId, ...] = ()
    choices: Choices = field(default_factory=dict)
    refusal: type[LodefsError] = Conflict
    way_out: str = ""
    check_all: bool = False
    is_whole: bool = False


def run_commits(session: PushSession, job: CommitJob, prepared: PreparedCommit) -> ChangesResult:
    """Commits to the branch wherever it is, in as many rounds as that takes. Raises: Conflict,
    Diverged, TooManyRemovals; what the store raises."""
    session.progress.phase = "committing"
    return _Commits(session, job, prepared).run(head_of(session))


def read_living_head(store: Store, repo: str, branch: str) -> tuple[Head, CommitId, Commit]:
    """Returns where a branch is now, and its commit. Raises: NotFound if there is no such
    branch."""
    ref = store.refs(repo).latest(BRANCHES, branch)
    if ref is None or ref.commit is None:
        store.resolve(repo, branch)  # if nothing has this name, raises and lists what there is
        raise NotFound(f"{repo} has no branch {branch}: that is a tag or a commit")
    commit = store.commit(repo, ref.commit)
    return Head(ref, ref.commit, commit), ref.commit, commit


def store_trees(session: PushSession, item: Item, trees: TreeReader) -> TreeEntry:
    """Stores the directories that have changed. All packs are in the store afterwards."""
    packer = TreePacker(session.placement(TREE_PACK_SIZES_BYTES), session.store.settings.chunking)
    root = OverlayWriter(packer, session.store.packs, trees).store(item)
    session.uploader.finish()
    return root


def target_of(session: PushSession, base: CommitBase, job: CommitJob) -> CommitBase:
    """Returns the commit that a new commit would follow now. Raises: Conflict if it is gone."""
    return _target(session, head_of(session), base, job)


def merged_into(target: CommitBase, prepared: PreparedCommit, job: CommitJob) -> Item:
    """Merges a prepared tree into the commits that others have made since its base. Raises: the
    job's ``refusal``, which names paths."""
    if target.root is None:
        return prepared.ours
    base, ours, trees, is_proven, _ = prepared
    found = merge(trees, base.root, ours, target.root, is_proven)
    found.decide(job.choices)
    found.check(job.refusal, job.way_out)
    overlay = Overlay(trees.read_tree, target.root)
    found.into(overlay)
    return overlay.root


def _target(session: PushSession, head: Head, base: CommitBase, job: CommitJob) -> CommitBase:
    if head.id is not None and head.commit is not None:
        return CommitBase(head.id, head.commit)
    if job.base is None and base.id is not None:
        repo, _, name = session.branch
        raise Conflict(f"branch {name} of {repo} was deleted meanwhile: nothing was committed")
    return base


class CommitBase(NamedTuple):
    """A commit that is to be changed. An empty branch has none: its totals are zero."""

    id: CommitId | None
    totals: Commit

    @property
    def root(self) -> TreeEntry | None:
        return None if self.id is None else self.totals.root


EMPTY = CommitBase(
    None, Commit(TreeEntry(b"", Kind.DIRECTORY), (), "", 0, "", 0, 0, 0, Large(0, 0))
)


class _Commits:
    """Goes from stored contents to the ref, in one round for each time that the branch moved."""

    def __init__(self, session: PushSession, job: CommitJob, prepared: PreparedCommit) -> None:
        self._session = session
        self._job = job
        self._store = session.store
        self._prepared = prepared
        self._base, self._trees = prepared.base, prepared.trees

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
            head = head_of(self._session)

    def _round(self, head: Head) -> ChangesResult:
        target = _target(self._session, head, self._base, self._job)
        is_at_base = target.id == self._base.id
        if not is_at_base and self._job.is_whole:
            repo, _, name = self._session.branch
            raise Conflict(f"another writer moved {repo}@{name} meanwhile: repeat the command")
        prepared = self._prepared
        item = prepared.ours if is_at_base else merged_into(target, prepared, self._job)
        counts = count(self._trees, target.root, item)
        if head.id is not None and head.commit is not None:
            removals = Removals(head.id, counts.changes.removed_files, head.commit.files)
            self._session.target.check(removals)
            if not removals.are_most:
                self._check_places(head.id, target, item)
        totals = counts.applied(target.totals)
        root = store_trees(self._session, item, self._trees)
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
        """Raises: TooManyRemovals if most of a directory that a local one replaces would go."""
        before, after = (Overlay(self._trees.read_tree, root) for root in (target.root, None))
        after.root = item
        for names in self._prepared.places:
            try:
                old, new = before.get(names), after.get(names)
            except NotADirectory:  # a file was in its way, and another change has removed it
                continue
            removed = count(self._trees, old, new).changes.removed_files
            if removed:
                files = count_files(self._trees, old, 2 * removed)
                self._session.target.check(Removals(head, removed, files, b"/".join(names)))

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
        if self._job.check_all:
            committer.check_named(commit.root, target.root)
        else:
            committer.check_reused()
        for parent in commit.parents:
            if parent != head.id:  # perhaps no ref leads to it
                save_existing(self._store, self._session.write, self._session.branch.repo, parent)
        try:
            return committer.commit(head, commit)
        except PurgedMeanwhile:
            raise  # another round would learn nothing new
        except Conflict as error:
            raise _Overtaken(str(error)) from error


class _Overtaken(Conflict):
    """Another writer moved the branch first."""


def _is_same(a: TreeEntry, b: TreeEntry) -> bool:
    """Returns whether two roots are the same tree at the same location."""
    return (a.digest, a.segments) == (b.digest, b.segments)
