"""Writing through fsspec's file system. ``with fs.transaction`` makes one commit for each branch
that is written to; the option ``autocommit`` makes one for each call."""

from __future__ import annotations

import errno
import io
import os
from collections import deque
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, Any

from fsspec.callbacks import DEFAULT_CALLBACK
from fsspec.spec import AbstractFileSystem
from fsspec.transaction import Transaction as FsspecTransaction
from fsspec.utils import isfilelike

from lodefs.chunkstore.format.names import Spec
from lodefs.chunkstore.push.changes.change import names_of
from lodefs.chunkstore.types import Buffer
from lodefs.fs.os_errors import raising_os_errors, read_only
from lodefs.reading.urls import encoded_path, parse_url

if TYPE_CHECKING:  # a program that only reads does not need them
    from lodefs.api.transactions import Transaction
    from lodefs.chunkstore.push.changes.overlay import Names
    from lodefs.chunkstore.push.changes.staged_file import StagedFile
    from lodefs.chunkstore.push.changes.staging import Staging
    from lodefs.fs.staged_snapshot import StagedSnapshot

_MODES = ("wb", "xb")


class Writes(FsspecTransaction):  # type: ignore[misc]  # fsspec has no types
    """``fs.transaction``. ``message``: of its commits. ``branches``: by REPO@BRANCH, the
    transaction of each branch that was written to; after a failed commit it keeps its changes."""

    def __init__(self, fs: WritingFileSystem, message: str = "") -> None:
        super().__init__(fs)
        self.fs: Any = fs  # None after the end
        self.message = message
        self.branches: dict[str, Transaction] = {}
        self._staged: dict[str, StagedSnapshot] = {}
        self._lock = Lock()

    def start(self) -> None:
        """Called by fsspec. It keeps no files: they are in the transactions."""
        super().start()
        self.files: deque[object] = deque(maxlen=0)

    def branch(self, head: str) -> Transaction:
        """Returns the transaction of REPO@BRANCH, which begins with the first write."""
        from lodefs.fs.staged_snapshot import StagedSnapshot

        with self._lock:
            found = self.branches.get(head)
            if found is None:
                found = self.fs._begin(head, self.message)
                found.__enter__()
                self._staged[head] = StagedSnapshot(found)
                self.branches[head] = found
            return found

    def snapshot(self, head: str) -> StagedSnapshot | None:
        """Returns the staged state of REPO@BRANCH; None if nothing was written there."""
        return self._staged.get(head)

    @raising_os_errors
    def complete(self, commit: bool = True) -> None:  # noqa: FBT002
        """Commits all branches, one after the other. After an error, or with ``commit`` False, it
        discards the rest."""
        fs, self.fs = self.fs, None
        fs._intrans, fs._transaction = False, None
        with ExitStack() as left:
            for one in self.branches.values():
                left.callback(_discard, one)
            for head, one in self.branches.items() if commit else ():
                one.__exit__(None, None, None)
                fs._committed(head, one)


def _discard(one: Transaction) -> None:
    if one.is_open:
        one.discard()


class WrittenFile(io.BufferedIOBase):
    """A file that is written through fsspec; errors are OSErrors. ``after``: called at the end."""

    def __init__(self, file: StagedFile, after: ExitStack) -> None:
        self._file = file
        self._after = after
        self.name = file.name

    def writable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._file.tell()

    @raising_os_errors
    def write(self, data: Buffer) -> int:  # type: ignore[override]  # its type is private
        return self._file.write(data)

    @raising_os_errors
    def close(self) -> None:
        """Stages the file; with ``autocommit``, commits it."""
        if not self.closed:
            super().close()
            with self._after:
                self._file.close()

    def commit(self) -> None:
        """Called by fsspec; does nothing, since the transaction commits."""

    @raising_os_errors
    def discard(self) -> None:
        """Discards the file: the path stays as it was."""
        if not self.closed:
            super().close()
            self._file.discard()
            self._after.close()

    def __exit__(self, kind: object, *_: object) -> None:
        if kind is None:
            self.close()
        else:
            self.discard()

    def __del__(self) -> None:
        """Does not stage a file that nobody closed."""


class WritingFileSystem(AbstractFileSystem):  # type: ignore[misc]  # fsspec has no types
    """The methods that write. Outside of a transaction each raises OSError with EROFS."""

    transaction_type = Writes
    _autocommit = False

    def _begin(self, head: str, message: str) -> Transaction:
        raise NotImplementedError

    def _committed(self, head: str, done: Transaction) -> None:
        raise NotImplementedError

    @contextmanager
    def _staged(self, path: Any) -> Iterator[tuple[Staging, Names]]:
        """Yields the staging area that contains a path, and the path in it."""
        head, inner = split_head(self._strip_protocol(path))
        parse_url(head)
        names = names_of(encoded_path(inner), is_root_fine=True)
        if self._intrans:
            yield self.transaction.branch(head).staging, names
        elif self._autocommit:
            with self._begin(head, "") as one:
                yield one.staging, names
            self._committed(head, one)
        else:
            read_only(path)

    def _create(self, path: str, mode: str) -> WrittenFile:
        if mode not in _MODES:
            raise OSError(
                errno.EINVAL,
                f"mode {mode!r}: files can only be written as a whole, with 'wb'",
                path,
            )
        if mode == "xb":
            self._refuse_existing(path)
        with ExitStack() as stack:
            staging, names = stack.enter_context(self._staged(path))
            return WrittenFile(staging.create(names), stack.pop_all())

    @raising_os_errors
    def pipe_file(self, path: str, value: bytes, mode: str = "overwrite", **_: Any) -> None:
        """Writes a file with these bytes."""
        if mode == "create":
            self._refuse_existing(path)
        with self._staged(path) as (staging, names):
            staging.put(names, bytes(value))

    @raising_os_errors
    def put_file(
        self,
        lpath: Any,
        rpath: str,
        callback: Any = DEFAULT_CALLBACK,
        mode: str = "overwrite",
        **_: Any,
    ) -> None:
        """Copies a local file; for a local directory, makes a directory."""
        if mode == "create":
            self._refuse_existing(rpath)
        if isfilelike(lpath):
            with self._staged(rpath) as (staging, names):
                staging.put(names, lpath)
            return
        if os.path.isdir(lpath):
            self.makedirs(rpath, exist_ok=True)
            return
        size_bytes = os.path.getsize(lpath)
        callback.set_size(size_bytes)
        with self._staged(rpath) as (staging, names):
            staging.put(names, Path(lpath))
        callback.relative_update(size_bytes)

    @raising_os_errors
    def cp_file(self, path1: str, path2: str, **_: Any) -> None:
        """Copies a file of any snapshot without its bytes; for a directory, makes a directory."""
        if self.isdir(path1):
            self.makedirs(path2, exist_ok=True)
            return
        head, inner = split_head(self._strip_protocol(path1))
        if split_head(self._strip_protocol(path2))[0] == head:
            with self._staged(path2) as (staging, to):
                staging.copy(names_of(encoded_path(inner)), to)
            return
        source = self._snapshot(head)
        spec = Spec(source.repo, source.commit, encoded_path(inner))
        with self._staged(path2) as (staging, to):
            staging.copy_from(spec, to)

    @raising_os_errors
    def mkdir(self, path: str, create_parents: bool = True, **_: Any) -> None:  # noqa: FBT002
        """Makes an empty directory. Raises: FileExistsError."""
        self._refuse_existing(path)
        if not create_parents and not self.isdir(self._parent(path)):
            raise FileNotFoundError(errno.ENOENT, "the directory above does not exist", path)
        with self._staged(path) as (staging, names):
            staging.make_directory(names)

    @raising_os_errors
    def makedirs(self, path: str, exist_ok: bool = False) -> None:  # noqa: FBT002
        """Like ``mkdir``; ``exist_ok``: the directory may exist."""
        if not exist_ok:
            self._refuse_existing(path)
        with self._staged(path) as (staging, names):
            if names:
                staging.make_directory(names)

    @raising_os_errors
    def rm_file(self, path: str) -> None:
        """Removes a file, or an empty directory."""
        with self._staged(path) as (staging, names):
            if self.isdir(path) and staging.children(names):
                raise OSError(errno.ENOTEMPTY, "the directory is not empty", path)
            staging.remove(names)

    _rm = rmdir = rm_file

    @raising_os_errors
    def rm(self, path: Any, recursive: bool = False, maxdepth: int | None = None) -> None:  # noqa: FBT002
        """Removes files; ``recursive``: also directories with everything in them."""
        if not recursive or maxdepth is not None:
            super().rm(path, recursive=recursive, maxdepth=maxdepth)
            return
        for one in self.expand_path(path):
            with self._staged(one) as (staging, names):
                staging.remove(names)

    def _refuse_existing(self, path: str) -> None:
        if self.exists(path):
            raise FileExistsError(errno.EEXIST, "the path exists", path)


def split_head(path: str) -> tuple[str, str]:
    """Splits a path into ``REPO@REV`` and the path in it."""
    slash = path.find("/", path.find("@") + 1 or len(path))
    return (path, "") if slash < 0 else (path[:slash], path[slash + 1 :])
