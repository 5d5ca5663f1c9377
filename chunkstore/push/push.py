"""Push: a commit from a directory.

It scans, cuts, deduplicates and packs (source_directory.py), stores trees, then writes shard,
commit and ref (committer.py). It starts again if the store has lost something that the attempt
relied on (session.py). The ref is the commit point; whatever a dead push leaves behind is garbage,
and repeating the push reuses it.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from lodefs.chunkstore.errors import Conflict
from lodefs.chunkstore.format.commit import Commit, Large
from lodefs.chunkstore.format.journal import RefName
from lodefs.chunkstore.format.names import CommitId, check_ref_name, check_repo
from lodefs.chunkstore.format.tree import Kind, TreeEntry
from lodefs.chunkstore.push.changes.overlay import UnstoredTrees, changes_between
from lodefs.chunkstore.push.committer import Committer, Head, head_of
from lodefs.chunkstore.push.index.push_index import TreePlace
from lodefs.chunkstore.push.limits import (
    Changes,
    Quota,
    check_changes,
    check_names,
)
from lodefs.chunkstore.push.session import CommitResult, PushOptions, PushSession
from lodefs.chunkstore.push.source_directory import SourceDirectory, source_root
from lodefs.chunkstore.push.trees.directories import HashedDirectory
from lodefs.chunkstore.push.trees.tree_writer import has_same_chunks
from lodefs.chunkstore.repo.refs import BRANCHES
from lodefs.chunkstore.repo.store import Store
from lodefs.chunkstore.system.progress import Progress

__all__ = ["PushOptions", "PushResult", "push"]

_REPEATED = (
    "But a push commits the whole directory as it is. Repeating it would undo what the other push "
    "changed, unless you first apply that to the directory (lodefs diff, lodefs pull)"
)


@dataclass(slots=True, kw_only=True)
class PushResult(CommitResult):
    """The result of a push. ``files`` counts regular files."""

    symlinks: int


def push(
    store: Store,
    source: Path | str,
    repo: str,
    branch: str,
    options: PushOptions,
    progress: Progress | None = None,
) -> PushResult:
    """Commits the directory ``source``, or the files below a URL, to a branch, unless nothing
    changed.

    Raises: NotFound, NotADirectory, InvalidInput for the source; InvalidInput for a new branch that
    has the name of a tag or commit; Denied, SourceChanged, Unavailable for files (named), unless
    they are skipped; TooManyRemovals if ``allow_removals`` refuses; Conflict if the branch moved
    meanwhile; Unsupported for a store without conditional writes; what the store raises. After an
    error nothing is committed, and the push can be repeated.
    """
    check_repo(repo)
    check_ref_name(branch)
    root = source_root(source, options.places_apart(store))
    session = PushSession(store, RefName(repo, BRANCHES, branch), options, progress)
    head = head_of(session)

    attempts: list[_Push] = []

    def attempt() -> PushResult:
        attempts.append(_Push(session, head))
        return attempts[-1].run(root)

    def check() -> None:
        if head.commit is not None and head.id is not None:
            names = attempts[-1].top_names()
            check_names(store.packs, session.target, head.id, head.commit, names)

    return session.run(attempt, check)


class _Push:
    """One attempt of a push, on the head from when the push began."""

    def __init__(self, session: PushSession, head: Head) -> None:
        self._session = session
        self._store = session.store
        self._head = head
        self._committer = Committer(session)
        self._quota = Quota(session.store, session.branch.repo, head.size_bytes)
        self._counted_bytes = 0
        self._changes: Changes | None = Changes()
        self._source: SourceDirectory | None = None

    def top_names(self) -> list[bytes]:
        """Returns the names in the source, which has been opened."""
        assert self._source is not None
        return self._source.top_names()

    def run(self, directory: bytes) -> PushResult:
        """Runs the attempt from the scan to the ref."""
        session = self._session
        with SourceDirectory(directory, session, self._count) as source:
            session.progress.phase = "reading files"
            self._source = source
            root = source.read()
            if self._is_at(root):
                session.uploader.finish()
                session.progress.phase = "remembering"
                source.tree.remember()
                assert self._head.root is not None
                entry, unchanged = self._head.root, True
            else:
                self._compare(source, root)
                session.progress.phase = "storing trees"
                entry = source.store_trees(root)
                if session.options.dry_run:
                    return self._dry_result(source, root)
                unchanged = self._leads_alike(entry)
            self._check_packs(self._head.root if unchanged and self._head.root else entry)
            if unchanged:
                return self._result(source, self._head.id, unchanged=True)
            session.progress.phase = "committing"
            return self._result(source, self._commit(source, entry), unchanged=False)

    def _dry_result(self, source: SourceDirectory, root: HashedDirectory) -> PushResult:
        """Returns the result of a dry run. It trusts digests, which a push would check."""
        head = self._head
        unchanged = head.root is not None and head.root.digest == root.digest
        if not unchanged:
            self._quota.check(source.tree.totals.size_bytes)
        return self._result(source, head.id if unchanged else None, unchanged=unchanged)

    def _compare(self, source: SourceDirectory, root: HashedDirectory) -> None:
        """Finds what this push changes. Raises: TooManyRemovals."""
        self._session.progress.phase = "comparing"
        head, totals = self._head, source.tree.totals
        trees = UnstoredTrees(self._store.packs)
        trees.add(root, source.tree.memory)
        pushed = TreeEntry(b"", Kind.DIRECTORY, digest=root.digest)
        self._changes = changes_between(trees, head.commit, pushed, totals)
        if head.commit is not None:
            assert head.id is not None
            check_changes(self._session.target, head.id, head.commit, self._changes, totals)

    def _is_at(self, root: HashedDirectory) -> bool:
        """Whether the head is the scanned directory, with a tree that this machine has stored or
        compared. An equal digest alone is only a claim."""
        head = self._head.root
        if head is None or head.digest != root.digest:
            return False
        return self._session.index.find_trees([root.digest]).get(root.digest) == _place_of(head)

    def _leads_alike(self, entry: TreeEntry) -> bool:
        """Whether the head has the same content, in the same chunks that this push has found or
        stored. If another machine stored them elsewhere, that place is remembered."""
        head = self._head.root
        if head is None or not has_same_chunks(self._store.packs, entry, head):
            return False
        self._session.index.add_trees([(head.digest, _place_of(head))])
        return True

    def _check_packs(self, root: TreeEntry) -> None:
        """Raises: PacksLost if the store lacks packs of the commit that this push did not write. It
        checks those that the head does not name, or all."""
        if self._session.options.check_packs:
            self._session.progress.phase = "checking packs"
            self._committer.check_all(root)
        else:
            self._session.progress.phase = "committing"
            self._committer.check_new(root, self._head.root)

    def _commit(self, source: SourceDirectory, root: TreeEntry) -> CommitId:
        totals, options, head = source.tree.totals, self._session.options, self._head
        commit = Commit(
            root=root,
            parents=() if head.id is None else (head.id,),
            author=options.author,
            time_s=options.time_s,
            message=options.message,
            files=totals.files + totals.symlinks,
            directories=totals.directories,
            size_bytes=totals.size_bytes,
            large=Large(totals.large_files, totals.large_size_bytes),
            metadata=options.metadata,
        )
        try:
            return self._committer.commit(head, commit)
        except Conflict as error:
            raise Conflict(f"{error}. {_REPEATED}") from None

    def _count(self, more_bytes: int) -> None:
        self._counted_bytes += more_bytes
        self._quota.check_early(self._counted_bytes)

    def _result(
        self, source: SourceDirectory, commit_id: CommitId | None, *, unchanged: bool
    ) -> PushResult:
        totals = source.tree.totals
        return PushResult(
            commit="" if commit_id is None else commit_id.hex(),
            unchanged=unchanged,
            created_branch=self._head.id is None,
            files=totals.files,
            directories=totals.directories,
            symlinks=totals.symlinks,
            size_bytes=totals.size_bytes,
            changes=self._changes,
            files_read=source.deduplicator.files_read,
            new_bytes=source.deduplicator.new_bytes,
            excluded=source.scan.ignore.excluded,
            skipped=source.scan.skipped,
            notes=source.scan.notes,
        )


def _place_of(entry: TreeEntry) -> TreePlace:
    return TreePlace(entry.size_bytes, entry.segments)
