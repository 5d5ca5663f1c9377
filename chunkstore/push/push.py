"""Push: a commit from a directory.

The ref is the commit point (committer.py); what a dead push leaves behind is garbage, and its
repetition uses it.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TypeVar

from lodefs.chunkstore.errors import Conflict
from lodefs.chunkstore.format.commit import Commit, Large
from lodefs.chunkstore.format.journal import RefName
from lodefs.chunkstore.format.names import (
    CommitId,
    check_ref_name,
    check_repo,
)
from lodefs.chunkstore.format.tree import Entry
from lodefs.chunkstore.journal.ref_write import RefWrite
from lodefs.chunkstore.push.attempts import Desk, LostPacks, at_desk, attempt
from lodefs.chunkstore.push.change_counts import (
    Changes,
    PushTarget,
    changes_between,
    check_changes,
    check_names,
)
from lodefs.chunkstore.push.committer import Committer, Head, read_head
from lodefs.chunkstore.push.index.push_index import TreePlace
from lodefs.chunkstore.push.push_options import PushOptions, PushResult
from lodefs.chunkstore.push.quota import Quota
from lodefs.chunkstore.push.source_directory import SourceDirectory, source_root
from lodefs.chunkstore.push.trees.directories import HashedDirectory
from lodefs.chunkstore.push.trees.proof import has_same_chunks
from lodefs.chunkstore.repo.refs import BRANCHES
from lodefs.chunkstore.repo.store import Store
from lodefs.chunkstore.system.progress import Progress

__all__ = ["PushOptions", "PushResult", "push"]

T = TypeVar("T")

_REPEATED = (
    "But a push commits the whole directory as it is: repeated, it undoes what the other push "
    "changed, unless you bring that into the directory first (lodefs diff, lodefs pull)"
)


@dataclass(frozen=True, slots=True)
class _PushJob:
    """What is pushed, and where to."""

    store: Store
    root: bytes
    repo: str
    branch: str
    head: Head
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
    root = source_root(source, options.places_apart(store))
    head = read_head(store, repo, branch)
    write = RefWrite(store, options.clock)
    job = _PushJob(store, root, repo, branch, head, options, progress or Progress(), write)
    sent_before_bytes = job.progress.bytes_sent
    lost = LostPacks()
    try:
        result = attempt(store, options.index_dir, lost, partial(_try, job))
        if not options.dry_run:
            result.stored_bytes = job.progress.bytes_sent - sent_before_bytes  # of all attempts
        result.lost_packs = len(lost)
        return result
    finally:
        job.write.close()


def _try(job: _PushJob, lost: LostPacks) -> PushResult:
    head, options = job.head, job.options

    def prepare() -> None:
        if head.commit is not None and head.id is not None:
            names = map(os.fsencode, os.listdir(job.root))
            check_names(job.store.packs, job.target, head.id, head.commit, names)

    with at_desk(job.store, options, job.progress, job.write, lost, prepare) as desk:
        source = SourceDirectory(job.root, desk, options.scan(job.root))
        try:
            return _Push(job, desk, source).run()
        except BaseException:
            source.abandon()
            raise
        finally:
            source.close()


class _Push:
    """One push, from the scan to the ref."""

    def __init__(self, job: _PushJob, desk: Desk, source: SourceDirectory) -> None:
        self._job = job
        self._store = job.store
        self._head = job.head
        self._options = job.options
        self._progress = job.progress
        self._index = desk.index
        self._uploader = desk.uploader
        self._source = source
        self._tree = source.tree
        self._committer = Committer(job.store, desk.index, job.write, self._sent)
        self._quota = Quota(job.store, job.repo, job.head.size_bytes)
        self._counted_bytes = 0
        source.count = self._count
        self._changes: Changes | None = Changes()
        self._seconds: dict[str, float] = {}
        self._other_bytes = 0  # of shard and commit

    def run(self) -> PushResult:
        """Data, trees, shard, commit, ref."""
        root = self._phase("reading files", self._source.read)
        head = self._head
        if self._is_at(root):
            self._phase("reading files", self._uploader.finish)
            self._phase("remembering", self._tree.remember)
            assert head.root is not None
            entry, unchanged = head.root, True
        else:
            self._phase("comparing", lambda: self._compare(root))
            entry = self._phase("storing trees", lambda: self._source.store_trees(root))
            if self._options.dry_run:
                return self._dry_result(root)
            unchanged = self._phase("storing trees", lambda: self._leads_alike(entry))
            entry = head.root if unchanged and head.root is not None else entry
        self._check_packs(entry)
        if unchanged:
            return self._result(head.id, unchanged=True)
        commit_id = self._phase("committing", lambda: self._commit(entry))
        return self._result(commit_id, unchanged=False)

    def _dry_result(self, root: HashedDirectory) -> PushResult:
        """Of a dry run. Digests are believed: what they claim is compared by a push."""
        head = self._head
        unchanged = head.root is not None and head.root.digest == root.digest
        if not unchanged:
            self._quota.check(self._tree.totals.size_bytes)
        return self._result(head.id if unchanged else None, unchanged=unchanged)

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
        those that the head does not name, or of all."""
        if self._options.check_packs:
            self._phase("checking packs", lambda: self._committer.check_all(root))
        else:
            base = self._head.root
            self._phase("committing", lambda: self._committer.check_new(root, base))

    def _commit(self, root: Entry) -> CommitId:
        ref = RefName(self._job.repo, BRANCHES, self._job.branch)
        try:
            return self._committer.commit(ref, self._head, self._commit_of(root))
        except Conflict as error:
            raise Conflict(f"{error}. {_REPEATED}") from None

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

    def _count(self, more_bytes: int) -> None:
        self._counted_bytes += more_bytes
        self._quota.check_early(self._counted_bytes)

    def _sent(self, size_bytes: int) -> None:
        self._other_bytes += size_bytes
        self._progress.bytes_sent += size_bytes

    def _result(self, commit_id: CommitId | None, *, unchanged: bool) -> PushResult:
        totals, stored_bytes = self._tree.totals, self._uploader.stored_bytes + self._other_bytes
        return PushResult(
            commit="" if commit_id is None else commit_id.hex(),
            unchanged=unchanged,
            files=totals.files,
            directories=totals.directories,
            symlinks=totals.symlinks,
            size_bytes=totals.size_bytes,
            files_read=self._source.deduplicator.files_read,
            new_bytes=self._source.deduplicator.new_bytes,
            stored_bytes=stored_bytes,
            created_branch=self._head.id is None,
            lost_packs=0,
            changes=self._changes,
            excluded=self._source.scan.ignore.excluded,
            skipped=self._source.scan.skipped,
            notes=self._source.scan.notes,
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
