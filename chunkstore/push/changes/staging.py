"""A staging area: contents and names that are to become a commit on top of another one.

Contents become chunks and packs as they come; names go into an overlay. The push session's place in
the journal and its heartbeat keep the packs until the commit.
"""

from __future__ import annotations

import io
import os
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from itertools import count as numbers_from
from threading import RLock
from typing import BinaryIO

from lodefs.chunkstore.errors import Conflict, InvalidInput, NotFound
from lodefs.chunkstore.format.names import CommitId, Spec
from lodefs.chunkstore.format.tree import TreeEntry, symlink
from lodefs.chunkstore.push.changes.branch_commits import (
    ChangesResult,
    CommitBase,
    CommitJob,
    PreparedCommit,
    merged_into,
    run_commits,
    store_trees,
    target_of,
)
from lodefs.chunkstore.push.changes.change import shown
from lodefs.chunkstore.push.changes.contents import (
    BLOCK_SIZE_BYTES,
    Contents,
    ContentWriter,
    is_staged,
    local_file,
)
from lodefs.chunkstore.push.changes.overlay import (
    ChangedDirectory,
    Item,
    Names,
    Overlay,
    RecentTrees,
    UnstoredTrees,
    children_of,
    count,
    duplicate,
    is_directory,
    is_equal,
)
from lodefs.chunkstore.push.changes.staged_file import StagedFile
from lodefs.chunkstore.push.changes.three_way import merge
from lodefs.chunkstore.push.limits import EARLY_SIZE_BYTES, Quota
from lodefs.chunkstore.push.session import PushSession
from lodefs.chunkstore.push.trees.tree_writer import has_same_chunks
from lodefs.chunkstore.repo.history import find
from lodefs.chunkstore.system.after_fork import pause_at_fork

LEARN_SIZE_BYTES_MIN = 8 << 20  # a lookup in the whole store is not worth it for less
Count = Callable[[int, int], None]


class _Gate:
    """Lets one thread through at a time, until it is closed."""

    __slots__ = ("is_over", "lock")

    def __init__(self) -> None:
        self.lock = RLock()
        self.is_over = False

    def __enter__(self) -> None:
        self.lock.acquire()
        if self.is_over:
            self.lock.release()
            raise InvalidInput("the transaction is over: begin another one")

    def __exit__(self, *_: object) -> None:
        self.lock.release()


class Staging:
    """The changes staged on ``base`` in one attempt of a session. Any thread of the process that
    made it may use it, one at a time.

    ``count`` is called with the number of a content and how many more bytes it has, before they are
    sent; it may raise. ``root`` is a tree that is staged already, whose contents are in the store.
    """

    def __init__(
        self,
        session: PushSession,
        base: CommitBase,
        count: Count | None = None,
        root: Item | None = None,
    ) -> None:
        self._session = session
        self._is_dry = session.uploader.is_dry
        self.base = base
        self.unstored = UnstoredTrees(session.store.packs)  # trees that a dry run would store
        self.trees = RecentTrees(self.unstored if self._is_dry else session.store.packs)
        self.overlay = Overlay(self.trees.read_tree, base.root if root is None else root)
        self.contents = Contents(session, count or self._count)
        self._numbers = numbers_from()
        self._open: dict[Names, StagedFile] = {}  # files that are being written
        self._quota = Quota(session.store, session.branch.repo, base.totals.size_bytes)
        self._put_bytes = self._asked_bytes = 0
        self._gate = _Gate()
        self._pid = os.getpid()
        pause_at_fork(self)

    # Changes: each raises what the method of Overlay raises, and what the store raises

    def create(self, names: Names, *, executable: bool = False) -> StagedFile:
        """Returns a file to write. Closing it stages it. Raises: InvalidInput if it is open
        already."""
        with self.in_use():
            self._check_free(names)
            writer = ContentWriter(self.contents, next(self._numbers))
            file = self._open[names] = StagedFile(self, names, writer, executable=executable)
            return file

    def end_file(self, file: StagedFile, *, is_kept: bool) -> None:
        """Takes a StagedFile that is complete (``is_kept``) or discarded."""
        with self.in_use():
            self._open.pop(file.names, None)
            if is_kept:
                self._put(file.names, file.content.number, executable=file.executable)

    def put(
        self,
        names: Names,
        content: bytes | os.PathLike[str] | BinaryIO,
        *,
        executable: bool | None = None,
    ) -> None:
        """Puts a file with this content, as the change Put does. Raises: SourceChanged for a local
        file that changes meanwhile."""
        with self.in_use():
            self._check_free(names)
            number = next(self._numbers)
            if isinstance(content, os.PathLike):
                local = local_file(content)
                self.contents.read_files([(number, local)])
                executable = local.executable if executable is None else executable
            elif isinstance(content, bytes) and len(content) <= BLOCK_SIZE_BYTES:
                ContentWriter(self.contents, number).add(content, final=True)
            else:
                stream = io.BytesIO(content) if isinstance(content, bytes) else content
                self.contents.read_stream(number, stream)
            self._put(names, number, executable=bool(executable))

    def put_link(self, names: Names, target: bytes) -> None:
        """Puts a symlink."""
        with self.in_use():
            self.overlay.put_file(names, symlink(names[-1], target))

    def make_directory(self, names: Names) -> None:
        """Makes a directory unless there is one."""
        with self.in_use():
            self.overlay.make_directory(names)

    def remove(self, names: Names) -> None:
        """Removes whatever is at the path. Something must be there."""
        with self.in_use():
            self.overlay.remove(names)

    def rename(self, names: Names, to: Names) -> None:
        """Moves a file or directory to another path."""
        with self.in_use():
            self.overlay.rename(names, to)

    def copy(self, names: Names, to: Names) -> None:
        """Copies the item at a path to another path, in place of whatever is there."""
        with self.in_use():
            item = self.item(names)
            if to[: len(names)] == names:
                raise InvalidInput(f"{shown(names)} cannot be copied into itself: {shown(to)}")
            self.overlay.put(to, duplicate(item))

    def copy_from(self, source: Spec, to: Names) -> None:
        """Copies from any commit, as the change CopyFrom does."""
        with self.in_use():
            self.overlay.put(to, find(self._session.store, source))

    # Reads

    def item(self, names: Names) -> Item:
        """Returns the item at a path. Raises: NotFound, NotADirectory."""
        with self.in_use():
            found = self.overlay.get(names)
        if found is None:
            raise NotFound(f"{shown(names)} does not exist")
        return found

    def children(self, names: Names) -> dict[bytes, Item]:
        """Returns the items of a directory. Raises: NotFound, NotADirectory."""
        with self.in_use():
            return dict(self.overlay.children(self.item(names), names))

    def read(self, entry: TreeEntry, first: int, end: int) -> bytes:
        """Reads bytes of a file from the store. Seals the pack of a staged file first. Raises:
        Corrupt."""
        with self.in_use():
            if is_staged(entry):
                self.contents.seal()
                self._session.uploader.finish()
                entry = self.contents.settled(entry)
            return self._session.store.packs.read_range(entry, first, end)

    # The whole tree

    @property
    def is_changed(self) -> bool:
        """Whether there may be something to commit."""
        root = self.overlay.root
        if self.base.root is None:
            return not isinstance(root, ChangedDirectory) or bool(root.children)
        return root is not self.base.root

    def is_same(self, entry: TreeEntry, there: TreeEntry) -> bool:
        """Whether an entry of another writer leads to the same chunks as our own. Its digest alone
        is only a claim."""
        if not is_equal(entry, there):
            return False
        if self._is_dry:  # new contents cannot be read from the store
            return True
        return has_same_chunks(self._session.store.packs, entry, there)

    def settled(self) -> Item:
        """Returns the root. All contents are in the store, and no entry is staged any more. A file
        that equals the base's is taken from the base. Raises: InvalidInput if a file is open."""
        with self.in_use():
            if self._open:
                names = min(self._open)
                raise InvalidInput(f"{shown(names)} is still open for writing: close it first")
            self.contents.seal()
            self._session.uploader.finish()
            stack = [self.overlay.root]
            while stack:
                item = stack.pop()
                if isinstance(item, ChangedDirectory):
                    below = item.children.values()
                    stack += [one for one in below if not isinstance(one, TreeEntry)]
                    self._settle(item)
            return self.overlay.root

    def commit(self, job: CommitJob, places: Sequence[Names] = ()) -> ChangesResult:
        """Commits what is staged, which stays staged. ``places`` is that of PreparedCommit. Raises
        what run_commits raises."""
        with self.in_use():
            prepared = PreparedCommit(self.base, self.settled(), self.trees, self.is_same, places)
            result = run_commits(self._session, job, prepared)
            result.files_read = self.contents.files_read
            result.new_bytes = self.contents.new_bytes
            return result

    def go_on(self, commit_id: CommitId) -> None:
        """Begins a new write of the branch after a commit: the next changes are staged on it."""
        with self.in_use():
            self._session.write_again()
            at = self._session.store.commit(self._session.branch.repo, commit_id)
            self.base = CommitBase(commit_id, at)
            self.overlay = Overlay(self.trees.read_tree, at.root)

    def rebase(self, job: CommitJob) -> None:
        """Stages the same changes on the branch's head. Raises: Conflict, which names paths; then
        nothing has changed."""
        with self.in_use():
            settled, target = self.settled(), target_of(self._session, self.base, job)
            if target.id != self.base.id:
                prepared = PreparedCommit(self.base, settled, self.trees, self.is_same)
                root = merged_into(target, prepared, job)
                self.base, self.overlay = target, Overlay(self.trees.read_tree, root)

    def store_root(self) -> TreeEntry | None:
        """Stores what is staged as a directory and returns its entry; None if nothing is staged."""
        with self.in_use():
            root = self.settled()
            if isinstance(root, ChangedDirectory):
                if root.base is None and not root.children:
                    return None
                root = self.overlay.root = store_trees(self._session, root, self.trees)
            return root

    def take(self, before: TreeEntry | None, after: TreeEntry, job: CommitJob) -> None:
        """Stages what another writer, which began after this one, has changed in ``before``.
        Raises: Conflict, which names the paths that were changed here too; then nothing is
        staged."""
        with self.in_use():
            found = merge(self.trees, before, after, self.overlay.root)
            found.decide(job.choices)
            found.check(Conflict, job.way_out)
            found.into(self.overlay)

    # Ownership

    def in_use(self) -> AbstractContextManager[object]:
        """Keeps other threads away for a block. Raises: InvalidInput in another process, and after
        the end."""
        if not self.is_own:
            raise InvalidInput(
                "this process was forked, and the transaction belongs to its parent: write with "
                "the part that its fork() returns"
            )
        return self._gate

    @property
    def is_own(self) -> bool:
        """Whether this process made the staging area."""
        return os.getpid() == self._pid

    def end(self) -> None:
        """Ends the staging area: every later call raises."""
        with self._gate.lock:
            self._gate.is_over = True

    def pause(self) -> None:
        """Implements Pausable."""
        self._gate.lock.acquire()
        if self.is_own and not self._gate.is_over:
            self._session.index.pause()

    def resume(self) -> None:
        """Implements Pausable."""
        self._gate.lock.release()

    def _check_free(self, names: Names) -> None:
        """Raises: InvalidInput if no file can be put at the path now."""
        if names in self._open:
            raise InvalidInput(f"{shown(names)} is open for writing already: close it first")
        if is_directory(self.overlay.get(names)):
            raise InvalidInput(f"{shown(names)} is a directory: remove it first")

    def _put(self, names: Names, number: int, *, executable: bool) -> None:
        entry = self.contents.staged(number, names[-1], executable=executable)
        self.overlay.put_file(names, entry)

    def _settle(self, directory: ChangedDirectory) -> None:
        files = (one for one in directory.children.values() if isinstance(one, TreeEntry))
        staged = [one for one in files if is_staged(one)]
        before = children_of(self.trees, directory.base) if staged else {}
        for one in staged:
            entry, there = self.contents.settled(one), before.get(one.name)
            is_there = isinstance(there, TreeEntry) and self.is_same(entry, there)
            directory.children[one.name] = there if is_there and there is not None else entry

    def _count(self, _number: int, more_bytes: int) -> None:
        """Once there are more than a few bytes, updates the index from the store and checks the
        quota."""
        self._put_bytes += more_bytes
        if self._put_bytes > LEARN_SIZE_BYTES_MIN:
            self._session.learn()
        if self._put_bytes - self._asked_bytes > EARLY_SIZE_BYTES:
            self._asked_bytes = put_bytes = self._put_bytes
            self._quota.check_put(put_bytes, lambda: self._size_bytes + more_bytes - put_bytes)

    @property
    def _size_bytes(self) -> int:
        """The bytes of all files that are staged or open."""
        more = count(self.trees, self.base.root, self.overlay.root).size_bytes
        being_written = sum(file.content.size_bytes for file in self._open.values())
        return self.base.totals.size_bytes + more + being_written
