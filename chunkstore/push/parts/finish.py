"""Ends a planned push: joins the directories of all parts to one tree, and commits it.

A part has a run of the source's sorted files, so two parts share only the directories above the
place where one ends and the next begins. Only these are read and written again, one after the
other: the work follows the number of parts, not that of files, and few trees are in memory.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from dataclasses import replace
from itertools import chain, islice
from typing import NamedTuple

from lodefs.chunkstore.errors import Conflict, SourceChanged
from lodefs.chunkstore.format.commit import Commit, Large
from lodefs.chunkstore.format.journal import RefName
from lodefs.chunkstore.format.names import CommitId
from lodefs.chunkstore.format.push_plan import PartResult, PushPlan
from lodefs.chunkstore.format.tree import TreeEntry
from lodefs.chunkstore.journal.push_plans import commit_of, join_plan, writer_of
from lodefs.chunkstore.push.changes.branch_commits import store_trees
from lodefs.chunkstore.push.changes.overlay import (
    ChangedDirectory,
    Item,
    changes_between,
    is_directory,
)
from lodefs.chunkstore.push.committer import Committer, Head, head_of
from lodefs.chunkstore.push.limits import Changes, check_changes
from lodefs.chunkstore.push.parts.file_pieces import SplitFile, split_files
from lodefs.chunkstore.push.parts.plan import OpenPlan, open_plan, options_of
from lodefs.chunkstore.push.parts.plan_status import read_status
from lodefs.chunkstore.push.push import PushResult
from lodefs.chunkstore.push.scanner import Skipped
from lodefs.chunkstore.push.session import PushOptions, PushSession
from lodefs.chunkstore.push.trees.directories import Totals
from lodefs.chunkstore.push.trees.tree_writer import has_same_chunks
from lodefs.chunkstore.push.workers.source_files import show_path
from lodefs.chunkstore.repo.pack_reader import PackReader
from lodefs.chunkstore.repo.refs import BRANCHES
from lodefs.chunkstore.repo.store import Store
from lodefs.chunkstore.system.parallel_map import map_ahead
from lodefs.chunkstore.system.progress import Progress

REQUESTS_MAX = 16  # concurrent requests
TREES_AHEAD = 16  # in memory, each with up to 50,000 files


def finish_plan(
    store: Store,
    name: str,
    options: PushOptions,
    progress: Progress | None = None,
    *,
    onto: CommitId | None = None,
) -> PushResult:
    """Commits what the parts of a plan have stored. A plan that is finished already gives the same
    commit again. ``onto`` is the head to follow instead of the one from when the plan was made.

    Raises: InvalidInput, which names the parts that are not done; Conflict if the branch has moved
    since the plan was made; TooManyRemovals, OverQuota; what the store raises. After an error
    nothing is committed, and the plan stays.
    """
    opened = open_plan(store, name)
    options = options_of(opened.plan, options)
    try:
        return _finished(store, opened, options, progress, onto)
    except Conflict:
        if commit_of(store, writer_of(store, opened.documents)) is None:
            raise
        return _finished(store, opened, options, progress, onto)  # others have done so meanwhile


def _finished(
    store: Store,
    opened: OpenPlan,
    options: PushOptions,
    progress: Progress | None,
    onto: CommitId | None,
) -> PushResult:
    plan, documents = opened
    writer = writer_of(store, documents)
    if commit_of(store, writer) is None:
        write = join_plan(store, documents, writer, options.clock)
        writer = replace(writer, entry=write.begin().number, end=None)
    status = read_status(store, opened, writer)
    if status.commit is not None:
        return _repeated(store, plan, [*status.done.values()], status.commit)
    status.require_done()
    results = [status.done[number] for number in range(plan.parts)]
    branch = RefName(plan.repo, BRANCHES, plan.branch)
    session = PushSession(store, branch, options, progress, write)
    head = head_of(session)
    _check_head(plan, head, plan.head if onto is None else onto)
    result = session.run(lambda: _Finish(session, plan, head, results).run())
    result.stored_bytes += sum(one.stored_bytes for one in results)
    return result


def _repeated(
    store: Store, plan: PushPlan, results: Sequence[PartResult], commit_id: CommitId
) -> PushResult:
    """Returns the result of a plan that became a commit before."""
    commit = store.commit(plan.repo, commit_id)
    parent = store.commit(plan.repo, commit.parents[0]) if commit.parents else None
    changes = changes_between(store.packs, parent, commit.root, _totals(plan, results))
    return _result(plan, results, commit_id, commit, changes, created=parent is None)


def joined(
    packs: PackReader,
    roots: Sequence[TreeEntry],
    split: Mapping[bytes, SplitFile],
    executor: Executor,
) -> Item:
    """Returns the directory that has what the roots have together. ``split`` are the files
    whose pieces are in several roots. Only the directory that is being stored is in memory. Raises:
    what ``SharedDirectory.read_children`` raises."""
    if len(roots) == 1:
        return roots[0]
    trees = map_ahead(executor, packs.read_tree, roots, TREES_AHEAD)
    return SharedDirectory(_Joining(packs, split, executor), b"", len(roots), trees)


class _Joining(NamedTuple):
    """What all directories of one finish share."""

    packs: PackReader
    split: Mapping[bytes, SplitFile]
    executor: Executor


class SharedDirectory(ChangedDirectory):
    """A directory that several parts share."""

    __slots__ = ("_joining", "_parts", "_path", "_trees")

    def __init__(
        self, joining: _Joining, path: bytes, parts: int, trees: Iterator[list[TreeEntry]]
    ) -> None:
        """``trees`` are those of ``parts`` parts, and then of the directories after this one, which
        are read ahead: there may be two for each part."""
        super().__init__(None, {})
        self._joining = joining
        self._path = path
        self._parts = parts
        self._trees = trees

    def read_children(self) -> dict[bytes, TreeEntry | ChangedDirectory]:
        """Returns what all parts have. Call it once, and in the order of the directories. Raises:
        SourceChanged if two parts have the same file; Corrupt for pieces of a file that do not
        meet; what read_tree raises."""
        packs, split, executor = self._joining
        by_name: dict[bytes, list[TreeEntry]] = {}
        for entry in chain.from_iterable(islice(self._trees, self._parts)):
            by_name.setdefault(entry.name, []).append(entry)
        children: dict[bytes, TreeEntry | ChangedDirectory] = {}
        shared: list[tuple[bytes, bytes, list[TreeEntry]]] = []
        for name, found in by_name.items():
            path = self._path + b"/" + name if self._path else name
            if (file := split.get(path)) is not None:
                if not file.is_left_out:
                    children[name] = file.entry(found, packs.index)
            elif len(found) == 1:
                children[name] = found[0]
            elif all(map(is_directory, found)):
                shared.append((name, path, found))
            else:
                raise SourceChanged(f"{show_path(path)} is in two parts: make another plan")
        parts = [part for _, _, found in shared for part in found]
        trees = map_ahead(executor, packs.read_tree, parts, TREES_AHEAD)
        for name, path, found in shared:
            children[name] = SharedDirectory(self._joining, path, len(found), trees)
        return children


class _Finish:
    """One attempt, on the head from when it began."""

    def __init__(
        self, session: PushSession, plan: PushPlan, head: Head, results: Sequence[PartResult]
    ) -> None:
        self._session = session
        self._plan = plan
        self._head = head
        self._results = results

    def run(self) -> PushResult:
        session, head, results = self._session, self._head, self._results
        session.begin()
        session.progress.phase = "joining trees"
        packs, roots = session.store.packs, [result.root for result in results]
        split = split_files(results)
        with ThreadPoolExecutor(REQUESTS_MAX, "lodefs-finish") as executor:
            root = store_trees(session, joined(packs, roots, split, executor), packs)
        session.progress.phase = "comparing"
        totals = _totals(self._plan, results)
        changes = changes_between(packs, head.commit, root, totals)
        if head.commit is not None and head.id is not None:
            check_changes(session.target, head.id, head.commit, changes, totals)
            if has_same_chunks(packs, root, head.commit.root):
                return _result(self._plan, results, head.id, head.commit, changes, unchanged=True)
        session.progress.phase = "committing"
        commit = self._commit(root, totals)
        committer = Committer(session)
        committer.check_reused()
        commit_id = committer.commit(head, commit, session.index.reused())
        return _result(self._plan, results, commit_id, commit, changes, created=head.id is None)

    def _commit(self, root: TreeEntry, totals: Totals) -> Commit:
        plan, head = self._plan, self._head
        return Commit(
            root=root,
            parents=() if head.id is None else (head.id,),
            author=plan.author,
            time_s=int(time.time()),
            message=plan.message,
            files=totals.files + totals.symlinks,
            directories=totals.directories,
            size_bytes=totals.size_bytes,
            large=Large(totals.large_files, totals.large_size_bytes),
            metadata=plan.metadata,
        )


def _check_head(plan: PushPlan, head: Head, expected: CommitId | None) -> None:
    if head.id != expected:
        was, now = ("empty" if at is None else at.hex()[:12] for at in (expected, head.id))
        raise Conflict(
            f"{plan.repo}@{plan.branch} has moved since the plan {plan.name} was made (it was "
            f"{was}, and is {now}). A push commits the whole source, so it would undo what others "
            f"have changed: if that is right, finish with --onto {now}"
        )


def _totals(plan: PushPlan, results: Sequence[PartResult]) -> Totals:
    totals = Totals(directories=plan.directories)
    split = split_files(results)
    for one in results:
        if one.piece is not None and split[one.piece.path].is_left_out:
            continue
        totals.files += one.files
        totals.symlinks += one.symlinks
        totals.size_bytes += one.size_bytes
        totals.large_files += one.large.files
        totals.large_size_bytes += one.large.size_bytes
    return totals


def _result(
    plan: PushPlan,
    results: Sequence[PartResult],
    commit_id: CommitId,
    commit: Commit,
    changes: Changes | None,
    *,
    unchanged: bool = False,
    created: bool = False,
) -> PushResult:
    totals = _totals(plan, results)
    skipped = {path: Skipped(path, why) for one in results for path, why in one.skipped}
    return PushResult(
        commit=commit_id.hex(),
        unchanged=unchanged,
        created_branch=created,
        files=totals.files,
        directories=commit.directories,
        symlinks=totals.symlinks,
        size_bytes=commit.size_bytes,
        changes=changes,
        files_read=sum(one.files_read for one in results),
        new_bytes=sum(one.new_bytes for one in results),
        stored_bytes=sum(one.stored_bytes for one in results),
        skipped=[*skipped.values()],  # a file in pieces once
    )
