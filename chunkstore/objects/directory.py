"""Objects as files below a directory, on any local or shared POSIX file system.

An object is written under a temporary name in ``ROOT/.put/`` and then renamed (or linked, if only
one of many writers may win), so it is visible completely or not at all. Symbolic links are not
followed.
"""

from __future__ import annotations

import errno
import os
import stat
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from itertools import islice

from lodefs.chunkstore.errors import (
    AlreadyExists,
    Changed,
    Denied,
    InvalidInput,
    LodefsError,
    NoSpace,
    NotFound,
    Unavailable,
    Unsupported,
)
from lodefs.chunkstore.objects.direct_io import DIRECT_SIZE_BYTES_MIN, DirectWriter
from lodefs.chunkstore.objects.interface import ObjectInfo, Part, check_key, check_prefix
from lodefs.chunkstore.objects.ranges.order import RangeOrder
from lodefs.chunkstore.system.batched_writes import write_at
from lodefs.chunkstore.types import Buffer

TEMPORARY = ".put"  # no key begins with a dot
TEMPORARY_AGE_S_MAX = 24 * 3600
_KINDS = {stat.S_IFDIR: "a folder", stat.S_IFIFO: "a FIFO"}
_DIRECTORY_FLAGS = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
# non-blocking, since opening a FIFO would wait for a writer
_FILE_FLAGS = os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_NOFOLLOW | os.O_CLOEXEC


class DirectoryObjects:
    """Objects below ``root``, which the first put makes if it is missing."""

    def __init__(self, root: str | os.PathLike[str]) -> None:
        self._root = os.path.abspath(os.fspath(root))
        self.url = self._root
        self._writer = DirectWriter()
        self._prepare_lock = threading.Lock()  # guards making ROOT/.put and sweeping it
        self._prepared = False

    def get(self, key: str, *, offset: int = 0, size: int, if_match: str | None = None) -> Part:
        with self._reading(key) as fd:
            status = os.fstat(fd)
            etag = _etag(status)
            if if_match is not None and if_match != etag:
                raise Changed(f"{key} has the ETag {etag}, not {if_match}")
            first = max(0, status.st_size + offset) if offset < 0 else offset
            end = min(status.st_size, first + size)
            return Part(_pread(fd, first, end - first), status.st_size, etag)

    @contextmanager
    def range_order(
        self,
        key: str,
        offset: int,
        size_bytes: int,  # noqa: ARG002 - the index says how far to read
        if_match: str,
    ) -> Iterator[RangeOrder | None]:
        """Implements OrderSource with the open file."""
        with self._reading(key) as fd:
            etag = _etag(os.fstat(fd))
            if if_match != etag:
                raise Changed(f"{key} has the ETag {etag}, not {if_match}")
            yield RangeOrder(None, fd, offset)

    def head(self, key: str) -> ObjectInfo:
        with self._reading(key) as fd:
            return _info(key, os.fstat(fd))

    def put(self, key: str, data: Sequence[Buffer], *, if_absent: bool = False) -> str:
        folders, name = _split(key)
        with _translated("write", key, self._root):
            self._prepare()
            target = self._open_folder(folders, create=True)
            try:
                if if_absent and _exists(name, target):
                    raise FileExistsError(errno.EEXIST, "exists already")
                return self._put(target, name, data, if_absent=if_absent)
            finally:
                os.close(target)

    def list(
        self, prefix: str, *, after: str = "", limit: int | None = None
    ) -> Iterator[ObjectInfo]:
        check_prefix(prefix)
        return islice(self._walk(prefix.rpartition("/")[0], prefix, after), limit)

    def delete(self, key: str) -> None:
        folders, name = _split(key)
        with suppress(NotFound), _translated("delete", key, self._root):
            folder = self._open_folder(folders, create=False)
            try:
                os.unlink(name, dir_fd=folder)
                os.fsync(folder)
            finally:
                os.close(folder)

    def close(self) -> None:
        """Does nothing: no file is open between calls."""

    def _put(self, target: int, name: str, data: Sequence[Buffer], *, if_absent: bool) -> str:
        """Writes the temporary file and gives it its name. It is on disk on return."""
        temporary = f"{os.getpid()}-{os.urandom(8).hex()}"
        folder = os.open(os.path.join(self._root, TEMPORARY), _DIRECTORY_FLAGS)
        try:
            etag = self._write(folder, temporary, data)
            try:
                if if_absent:
                    os.link(temporary, name, src_dir_fd=folder, dst_dir_fd=target)
                else:
                    os.rename(temporary, name, src_dir_fd=folder, dst_dir_fd=target)
            finally:
                with suppress(FileNotFoundError):
                    os.unlink(temporary, dir_fd=folder)
        finally:
            os.close(folder)
        os.fsync(target)
        return etag

    def _write(self, folder: int, name: str, data: Sequence[Buffer]) -> str:
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
        fd = os.open(name, flags, 0o666, dir_fd=folder)
        try:
            if sum(len(memoryview(buffer).cast("B")) for buffer in data) >= DIRECT_SIZE_BYTES_MIN:
                self._writer.write(fd, data)
            else:
                write_at(fd, 0, data)
            # the kernel's own time stamps may stay equal for milliseconds, and inodes are reused
            os.utime(fd, ns=(time.time_ns(), time.time_ns()))
            os.fsync(fd)
            return _etag(os.fstat(fd))
        except BaseException:
            with suppress(OSError):
                os.unlink(name, dir_fd=folder)
            raise
        finally:
            os.close(fd)

    def _open_folder(self, folders: Sequence[str], *, create: bool) -> int:
        """Opens the folder name by name without following links. Returns a descriptor."""
        fd = os.open(self._root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        for name in folders:
            try:
                below = _open_below(name, fd, create=create)
            finally:
                os.close(fd)
            fd = below
        return fd

    @contextmanager
    def _reading(self, key: str) -> Iterator[int]:
        folders, name = _split(key)
        with _translated("read", key, self._root):
            folder = self._open_folder(folders, create=False)
            try:
                fd = os.open(name, _FILE_FLAGS, dir_fd=folder)
            finally:
                os.close(folder)
            try:
                mode = os.fstat(fd).st_mode
                if not stat.S_ISREG(mode):
                    kind = _KINDS.get(stat.S_IFMT(mode), "a device")
                    raise NotFound(f"{key} is not an object of {self._root}, but {kind}")
                yield fd
            finally:
                os.close(fd)

    def _prepare(self) -> None:
        with self._prepare_lock:
            if not self._prepared:
                temporary = os.path.join(self._root, TEMPORARY)
                os.makedirs(temporary, exist_ok=True)
                folder = os.open(temporary, _DIRECTORY_FLAGS)
                try:
                    _sweep(folder)
                finally:
                    os.close(folder)
                self._prepared = True

    def _walk(self, folder: str, prefix: str, after: str) -> Iterator[ObjectInfo]:
        """Yields objects below ``folder`` in the order of their keys. It reads no folder in
        vain."""
        base = f"{folder}/" if folder else ""
        for name in self._names(folder):
            key = base + name
            if name.endswith("/"):
                may_hold = key.startswith(prefix) or prefix.startswith(key)
                if may_hold and (key > after or after.startswith(key)):
                    yield from self._walk(key[:-1], prefix, after)
            elif key.startswith(prefix) and key > after:
                # Deleted meanwhile, or a file that is not an object
                with suppress(NotFound, InvalidInput):
                    yield self.head(key)

    def _names(self, folder: str) -> Sequence[str]:
        """Returns the names of a folder's objects, and of its folders with a ``/`` at the end, in
        the order of the keys that begin with them."""
        found = []
        with suppress(NotFound), _translated("list", folder, self._root):
            fd = self._open_folder(folder.split("/") if folder else [], create=False)
            try:
                with os.scandir(fd) as entries:
                    for entry in entries:
                        if entry.name.startswith("."):
                            continue
                        if entry.is_dir(follow_symlinks=False):
                            found.append(f"{entry.name}/")
                        elif entry.is_file(follow_symlinks=False):
                            found.append(entry.name)
            finally:
                os.close(fd)
        return sorted(found)


def _split(key: str) -> tuple[list[str], str]:
    *folders, name = check_key(key).split("/")
    return folders, name


def _open_below(name: str, folder: int, *, create: bool) -> int:
    try:
        return os.open(name, _DIRECTORY_FLAGS, dir_fd=folder)
    except FileNotFoundError:
        if not create:
            raise
    with suppress(FileExistsError):  # another process has made it
        os.mkdir(name, dir_fd=folder)
    os.fsync(folder)
    return os.open(name, _DIRECTORY_FLAGS, dir_fd=folder)


def _exists(name: str, folder: int) -> bool:
    try:
        os.stat(name, dir_fd=folder, follow_symlinks=False)
    except FileNotFoundError:
        return False
    return True


def _pread(fd: int, offset: int, size_bytes: int) -> Buffer:
    """Reads ``size_bytes`` from ``offset``: one call, except for huge or interrupted reads."""
    if size_bytes <= 0:
        return b""
    data = os.pread(fd, size_bytes, offset)
    if len(data) == size_bytes:
        return data
    pieces = [data]
    while size_bytes > (received := sum(map(len, pieces))):
        piece = os.pread(fd, size_bytes - received, offset + received)
        if not piece:
            raise Unavailable("an object's file was shortened while it was read")
        pieces.append(piece)
    return b"".join(pieces)


def _info(key: str, status: os.stat_result) -> ObjectInfo:
    return ObjectInfo(key, status.st_size, _etag(status))


def _etag(status: os.stat_result) -> str:
    """Returns an ETag. Only new files replace objects, so another inode or time means other
    bytes."""
    return f'"{status.st_ino:x}-{status.st_mtime_ns:x}-{status.st_size:x}"'


def _sweep(folder: int) -> None:
    """Removes temporary files of writers that died long ago. A user who may write to the store can
    replace this directory by a symlink, but not the open descriptor."""
    oldest_s = time.time() - TEMPORARY_AGE_S_MAX
    with os.scandir(folder) as entries:
        for entry in entries:
            with suppress(OSError):  # another process sweeps, too, or we may not remove it
                if entry.stat(follow_symlinks=False).st_mtime < oldest_s:
                    os.unlink(entry.name, dir_fd=folder)


_BY_ERRNO: dict[int, type[LodefsError]] = {
    errno.ENOENT: NotFound,
    errno.EEXIST: AlreadyExists,
    errno.ENOSPC: NoSpace,
    errno.EDQUOT: NoSpace,
    errno.EFBIG: NoSpace,
    errno.EACCES: Denied,
    errno.EPERM: Denied,
    errno.EROFS: Denied,
    errno.ENAMETOOLONG: InvalidInput,
    errno.EISDIR: InvalidInput,
    errno.EXDEV: Unsupported,
    errno.EOPNOTSUPP: Unsupported,
}


@contextmanager
def _translated(verb: str, key: str, root: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise _error_of(error, f"cannot {verb} {key} in {root}", writing=verb == "write") from error


def _error_of(error: OSError, what: str, *, writing: bool) -> LodefsError:
    why = f"{what}: {error.strerror}"
    if error.errno in (errno.ENOTDIR, errno.ELOOP):
        kind = InvalidInput if writing else NotFound
        return kind(f"{why}: a file or a symbolic link stands where a folder or an object should")
    if error.errno in (errno.ENXIO, errno.ENODEV):
        return NotFound(f"{why}: a socket or a device stands where an object should")
    if error.errno in (errno.EXDEV, errno.EOPNOTSUPP):
        return Unsupported(f"{why}: a store needs one file system with hard links")
    kind_of = _BY_ERRNO.get(error.errno or 0, Unavailable)
    return kind_of(why)
