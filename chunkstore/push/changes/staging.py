"""A staging area: contents and names that are to be a commit, on top of another one.

Contents become chunks and packs while they come; names go into an overlay. What the push session
has begun, its place in the journal and its heartbeat, is what keeps the packs until the commit.
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

LEARN_SIZE_BYTES_MIN = 8 << 20  # less is not worth to be looked for in the whole store
Count = Callable[[int, int], None]


class _Gate:
    """Lets one thread through at a time, until it is over."""

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
    """What is staged on ``base``, in one attempt of a session. Any thread of the process that made
    it; one at a time.

    ``count`` is told of more bytes of a content, by its number, before they are sent; it may raise.
    ``root``: what is staged already, whose contents are in the store.
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
        self.unstored = UnstoredTrees(session.store.packs)  # what a dry run would have stored
        self.trees = RecentTrees(self.unstored if self._is_dry else session.store.packs)
        self.overlay = Overlay(self.trees.read_tree, base.root if root is None else root)
        self.contents = Contents(session, count or self._count)
        self._numbers = numbers_from()
        self._open: dict[Names, StagedFile] = {}  # that are being written
        self._quota = Quota(session.store, session.branch.repo, base.totals.size_bytes)
        self._put_bytes = self._asked_bytes = 0
        self._gate = _Gate()
        self._pid = os.getpid()
        pause_at_fork(self)

    # changes: each raises what the method of Overlay does, and what the store does

    def create(self, names: Names, *, executable: bool = False) -> StagedFile:
        """A file to write, which is staged when it is closed. Raises: InvalidInput if it is open
        already."""
        with self.in_use():
            self._check_free(names)
            writer = ContentWriter(self.contents, next(self._numbers))
            file = self._open[names] = StagedFile(self, names, writer, executable=executable)
            return file

    def end_file(self, file: StagedFile, *, is_kept: bool) -> None:
        """Of StagedFile: it has been written, or is given up."""
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
        """A file with this content, as of the change Put. A local file that changes meanwhile
        raises SourceChanged."""
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
        """A symlink."""
        with self.in_use():
            self.overlay.put_file(names, symlink(names[-1], target))

    def make_directory(self, names: Names) -> None:
        """A directory, unless there is one."""
        with self.in_use():
            self.overlay.make_directory(names)

    def remove(self, names: Names) -> None:
        """Whatever is there, which must be something."""
        with self.in_use():
            self.overlay.remove(names)

    def rename(self, names: Names, to: Names) -> None:
        """A file or directory gets another path."""
        with self.in_use():
            self.overlay.rename(names, to)

    def copy(self, names: Names, to: Names) -> None:
        """What is at a path also gets another one, in place of whatever is there."""
        with self.in_use():
            item = self.item(names)
            if to[: len(names)] == names:
                raise InvalidInput(f"{shown(names)} cannot be copied into itself: {shown(to)}")
            self.overlay.put(to, duplicate(item))

    def copy_from(self, source: Spec, to: Names) -> None:
        """As of the change CopyFrom."""
        with self.in_use():
            self.overlay.put(to, find(self._session.store, source))

    # what is there

    def item(self, names: Names) -> Item:
        """What is at a path. Raises: NotFound, NotADirectory."""
        with self.in_use():
            found = self.overlay.get(names)
        if found is None:
            raise NotFound(f"{shown(names)} does not exist")
        return found

    def children(self, names: Names) -> dict[bytes, Item]:
        """What is in a directory. Raises: NotFound, NotADirectory."""
        with self.in_use():
            return dict(self.overlay.children(self.item(names), names))

    def read(self, entry: TreeEntry, first: int, end: int) -> bytes:
        """Bytes of a file, from the store. The pack of a staged one is ended for that. Raises:
        Corrupt."""
        with self.in_use():
            if is_staged(entry):
                self.contents.seal()
                self._session.uploader.finish()
                entry = self.contents.settled(entry)
            return self._session.store.packs.read_range(entry, first, end)

    # the whole

    @property
    def is_changed(self) -> bool:
        """Whether there is something to commit, perhaps."""
        root = self.overlay.root
        if self.base.root is None:
            return not isinstance(root, ChangedDirectory) or bool(root.children)
        return root is not self.base.root

    def is_same(self, entry: TreeEntry, there: TreeEntry) -> bool:
        """Whether an entry of another writer leads to the same chunks as an own one: a digest alone
        is a claim."""
        if not is_equal(entry, there):
            return False
        if self._is_dry:  # nothing new can be read from the store
            return True
        return has_same_chunks(self._session.store.packs, entry, there)

    def settled(self) -> Item:
        """The root. All contents are in the store, and no entry is staged any more. A file that is
        what the base has in its place is the base's. Raises: InvalidInput if a file is open."""
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
        """Commits what is staged. ``places``: as of PreparedCommit. Raises what run_commits
        does; what is staged stays."""
        with self.in_use():
            prepared = PreparedCommit(self.base, self.settled(), self.trees, self.is_same, places)
            result = run_commits(self._session, job, prepared)
            result.files_read = self.contents.files_read
            result.new_bytes = self.contents.new_bytes
            return result

    def go_on(self, commit_id: CommitId) -> None:
        """After a commit: the next changes are staged on it, by another write of the branch."""
        with self.in_use():
            self._session.write_again()
            at = self._session.store.commit(self._session.branch.repo, commit_id)
            self.base = CommitBase(commit_id, at)
            self.overlay = Overlay(self.trees.read_tree, at.root)

    def rebase(self, job: CommitJob) -> None:
        """Stages the same changes on the commit where the branch is now. Raises: Conflict that
        names paths, and nothing has changed then."""
        with self.in_use():
            settled, target = self.settled(), target_of(self._session, self.base, job)
            if target.id != self.base.id:
                prepared = PreparedCommit(self.base, settled, self.trees, self.is_same)
                root = merged_into(target, prepared, job)
                self.base, self.overlay = target, Overlay(self.trees.read_tree, root)

    def store_root(self) -> TreeEntry | None:
        """What is staged, as a directory in the store; None if that is nothing."""
        with self.in_use():
            root = self.settled()
            if isinstance(root, ChangedDirectory):
                if root.base is None and not root.children:
                    return None
                root = self.overlay.root = store_trees(self._session, root, self.trees)
            return root

    def take(self, before: TreeEntry | None, after: TreeEntry, job: CommitJob) -> None:
        """Stages what another writer, which began after this one, made of ``before``. Raises:
        Conflict that names paths which were changed here too; nothing of it is staged then."""
        with self.in_use():
            found = merge(self.trees, before, after, self.overlay.root)
            found.decide(job.choices)
            found.check(Conflict, job.way_out)
            found.into(self.overlay)

    # who uses it

    def in_use(self) -> AbstractContextManager[object]:
        """Keeps other threads away, for a block. Raises: InvalidInput in another process, and when
        it is over."""
        if not self.is_own:
            raise InvalidInput(
                "this process was forked, and the transaction is its parent's: write with what "
                "its fork() gives"
            )
        return self._gate

    @property
    def is_own(self) -> bool:
        """Whether this process made it."""
        return os.getpid() == self._pid

    def end(self) -> None:
        """Nothing can be done with it any more."""
        with self._gate.lock:
            self._gate.is_over = True

    def pause(self) -> None:
        """Of Pausable."""
        self._gate.lock.acquire()
        if self.is_own and not self._gate.is_over:
            self._session.index.pause()

    def resume(self) -> None:
        """Of Pausable."""
        self._gate.lock.release()

    def _check_free(self, names: Names) -> None:
        """Raises: InvalidInput if no file can be put there now."""
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
        """Learns what the store has, and asks for the quota, when there is more than a little."""
        self._put_bytes += more_bytes
        if self._put_bytes > LEARN_SIZE_BYTES_MIN:
            self._session.learn()
        if self._put_bytes - self._asked_bytes > EARLY_SIZE_BYTES:
            self._asked_bytes = put_bytes = self._put_bytes
            self._quota.check_put(put_bytes, lambda: self._size_bytes + more_bytes - put_bytes)

    @property
    def _size_bytes(self) -> int:
        """Of all files that are staged or open."""
        more = count(self.trees, self.base.root, self.overlay.root).size_bytes
        being_written = sum(file.content.size_bytes for file in self._open.values())
        return self.base.totals.size_bytes + more + being_written
