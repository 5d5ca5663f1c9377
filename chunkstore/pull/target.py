"""The directory that a pull fills: its state file, its part files, and safe access to it.

While a pull runs, ``.lodefs-pull`` inside the target has ``state.json`` (what is pulled, and the
lock) and one part file for every incomplete file. A complete file is renamed to its place. So every
file with a name of the dataset is complete, and an interrupted pull can continue.

No symlink inside the target is ever followed: every directory is opened by its name from its
parent's descriptor with O_NOFOLLOW.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import shlex
import stat
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from itertools import count, groupby
from pathlib import Path

from blake3 import blake3

from lodefs.chunkstore.errors import InUse, InvalidInput, LodefsError, NoSpace
from lodefs.chunkstore.format.decoding import from_json
from lodefs.chunkstore.format.names import PULL_STATE_DIR, Spec, digest_of
from lodefs.chunkstore.format.tree import TreeEntry
from lodefs.chunkstore.system import libc
from lodefs.chunkstore.system.batched_writes import write_at
from lodefs.chunkstore.system.os_errors import kind_of
from lodefs.chunkstore.system.safe_open import PLACE, closing, open_regular
from lodefs.chunkstore.types import Buffer

STATE_DIR = PULL_STATE_DIR
_STATE = "state.json"
STATE_SIZE_BYTES_MAX = 64 * 1024
KEPT_SUFFIX = b".lodefs-kept"  # of a file that a pull found in the place of another
KEPT_NAME_SIZE_BYTES_MAX = 230  # for the part before the suffix
HANDLES_MAX = 64  # directories that one thread keeps open
READ_SIZE_BYTES = 1 << 20
_ZEROS = bytes(1 << 20)  # larger than any chunk of the default settings
_DIRECTORY = os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


class PullTarget:
    """The target of one pull, which has locked it. Any thread may call its methods."""

    def __init__(self, path: Path, fd: int, state_fd: int, *, resumed: bool) -> None:
        self.path = path
        self.fd = fd
        self.resumed = resumed  # whether an earlier pull of the same commit left something
        self._state_fd = state_fd

    def sync(self) -> None:
        """Returns when all files of the target's file system are on disk."""
        libc.call("syncfs", self.fd)

    def finish(self) -> None:
        """Removes the state, so that the target is a directory like any other."""
        for name in os.listdir(self._state_fd):
            if name != _STATE:
                os.unlink(name, dir_fd=self._state_fd)
        os.unlink(_STATE, dir_fd=self._state_fd)
        os.rmdir(STATE_DIR, dir_fd=self.fd)

    def write(self, path: bytes, entry: TreeEntry, offset: int, buffers: Sequence[Buffer]) -> None:
        """Writes joined buffers at an offset of the part file of ``path``. Zeros become a hole,
        unless the file may have bytes there already."""
        fd = self._open_part(path, os.O_WRONLY | os.O_CREAT, executable=entry.executable)
        try:
            if self.resumed or not any(map(_ZEROS.startswith, buffers)):
                write_at(fd, offset, buffers)
                return
            os.ftruncate(fd, entry.size_bytes)
            for is_hole, group in groupby(buffers, _ZEROS.startswith):
                pieces = list(group)
                if not is_hole:
                    write_at(fd, offset, pieces)
                offset += sum(map(len, pieces))
        finally:
            os.close(fd)

    def complete(self, path: bytes, entry: TreeEntry, handles: DirectoryHandles) -> None:
        """Renames the part file of ``path``, which is complete now, to its place."""
        if self.resumed or not entry.size_bytes:
            fd = self._open_part(path, os.O_WRONLY | os.O_CREAT, executable=entry.executable)
            try:
                os.ftruncate(fd, entry.size_bytes)
            finally:
                os.close(fd)
        parent, _, name = path.rpartition(b"/")
        os.rename(
            part_name(path), name, src_dir_fd=self._state_fd, dst_dir_fd=handles.directory(parent)
        )

    def drop(self, path: bytes, handles: DirectoryHandles, *, is_update: bool) -> None:
        """Removes the part file of ``path``, which will not be completed; in an update also the
        older version at its place."""
        with suppress(FileNotFoundError):
            os.unlink(part_name(path), dir_fd=self._state_fd)
        if is_update:
            parent, _, name = path.rpartition(b"/")
            with suppress(FileNotFoundError):
                os.unlink(name, dir_fd=handles.directory(parent))

    def set_aside(self, path: bytes, handles: DirectoryHandles) -> bytes | None:
        """Renames a file that took the place of ``path`` since a pull was interrupted. Returns the
        new path; None if there is nothing, a directory, or an empty file, which a crash of the
        machine may leave."""
        parent, _, name = path.rpartition(b"/")
        directory = handles.directory(parent)
        try:
            found = os.stat(name, dir_fd=directory, follow_symlinks=False)
        except FileNotFoundError:
            return None
        if stat.S_ISDIR(found.st_mode) or (stat.S_ISREG(found.st_mode) and not found.st_size):
            return None
        for number in count(1):
            aside = _beginning(name) + KEPT_SUFFIX
            aside += b"" if number == 1 else b"-%d" % number
            with suppress(FileExistsError):
                _move(name, aside, directory)
                break
        return parent + b"/" + aside if parent else aside

    def part(self, path: bytes) -> int | None:
        """Opens the part file of ``path`` for reading. Returns a descriptor; None if there is
        none."""
        try:
            return self._open_part(path, os.O_RDONLY, executable=False)
        except FileNotFoundError:
            return None

    def make_directory(self, path: bytes, handles: DirectoryHandles) -> None:
        """Makes one directory in an existing parent."""
        parent, _, name = path.rpartition(b"/")
        with suppress(FileExistsError):  # opening things in it fails if it is something else
            os.mkdir(name, dir_fd=handles.directory(parent))

    def make_symlink(self, path: bytes, target: bytes, handles: DirectoryHandles) -> None:
        """Makes one symlink in an existing parent. Its target is not examined."""
        parent, _, name = path.rpartition(b"/")
        directory = handles.directory(parent)
        try:
            os.symlink(target, name, dir_fd=directory)
        except FileExistsError:
            if not self.resumed or os.readlink(name, dir_fd=directory) != target:
                raise

    def _open_part(self, path: bytes, flags: int, *, executable: bool) -> int:
        mode = 0o777 if executable else 0o666  # minus the umask, as for any new file
        # A FIFO there must not block the pull
        flags |= os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        return os.open(part_name(path), flags, mode, dir_fd=self._state_fd)


class DirectoryHandles:
    """The most recently used open directories of a target. For one thread, which must close it."""

    def __init__(self, root_fd: int) -> None:
        self._root_fd = root_fd
        self._open: OrderedDict[bytes, int] = OrderedDict()

    def __enter__(self) -> DirectoryHandles:
        return self

    def __exit__(self, *exception: object) -> None:
        for fd in self._open.values():
            os.close(fd)
        self._open.clear()

    def directory(self, path: bytes) -> int:
        """Returns a descriptor of the directory ``path``, valid until the next call. Raises:
        OSError (ELOOP, ENOTDIR) if any part of the path is a symlink or a file."""
        if not path:
            return self._root_fd
        fd = self._open.get(path)
        if fd is not None:
            self._open.move_to_end(path)
            return fd
        fd = self._descend(path)
        if len(self._open) >= HANDLES_MAX:
            os.close(self._open.popitem(last=False)[1])
        self._open[path] = fd
        return fd

    def _descend(self, path: bytes) -> int:
        """Opens ``path`` name by name, from the nearest open directory above it."""
        above, names = path, []
        fd = None
        while fd is None:
            above, _, name = above.rpartition(b"/")
            names.append(name)
            fd = self._open.get(above) if above else self._root_fd
        own = False
        for name in reversed(names):
            try:
                below = os.open(name, os.O_RDONLY | _DIRECTORY, dir_fd=fd)
            finally:
                if own:
                    os.close(fd)
            fd, own = below, True
        return fd


def has_content(path: bytes, entry: TreeEntry, handles: DirectoryHandles) -> bool:
    """Whether a file exists at its place with exactly these bytes. It reads all of them."""
    parent, _, name = path.rpartition(b"/")
    try:
        directory = handles.directory(parent)
    except FileNotFoundError:
        return False
    try:
        flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        fd = os.open(name, flags, dir_fd=directory)
    except OSError as error:
        if error.errno in (errno.ENOENT, errno.ELOOP, errno.ENXIO):  # nothing, a symlink, a socket
            return False
        raise
    try:
        found = os.fstat(fd)
        return (
            stat.S_ISREG(found.st_mode)
            and found.st_size == entry.size_bytes
            and bool(found.st_mode & stat.S_IXUSR) == entry.executable
            and _digest_of_file(fd) == entry.digest
        )
    finally:
        os.close(fd)


def _beginning(name: bytes) -> bytes:
    """Returns as much of a name as fits before KEPT_SUFFIX, in whole characters of UTF-8."""
    ends = range(KEPT_NAME_SIZE_BYTES_MAX, KEPT_NAME_SIZE_BYTES_MAX - 4, -1)
    is_inside = [name[end : end + 1] >= b"\x80" and name[end] < 0xC0 for end in ends]
    return name[: ends[0] if all(is_inside) else ends[is_inside.index(False)]]


def _move(name: bytes, to: bytes, directory: int) -> None:
    """Renames without replacing. Raises: FileExistsError, even on a file system without hard
    links."""
    try:
        os.link(name, to, src_dir_fd=directory, dst_dir_fd=directory, follow_symlinks=False)
    except OSError as error:
        if error.errno not in (errno.EPERM, errno.ENOTSUP, errno.ENOSYS):
            raise
        with suppress(FileNotFoundError):
            os.stat(to, dir_fd=directory, follow_symlinks=False)
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), to) from error
        os.rename(name, to, src_dir_fd=directory, dst_dir_fd=directory)
    else:
        os.unlink(name, dir_fd=directory)


def check_is_not_state(path: bytes) -> None:
    """Raises: InvalidInput for a path of a dataset at the place of pull's own state."""
    if path.partition(b"/")[0] == STATE_DIR.encode():
        raise InvalidInput(
            f"the dataset has an entry {STATE_DIR} at its top, where pull keeps its state: pull "
            "the other entries one by one"
        )


def part_name(path: bytes) -> str:
    """Returns the name of the part file of a path, which is short enough for any path."""
    return digest_of(path).hex()[:40]


@contextmanager
def open_target(
    path: Path, identity: dict[str, str], *, is_update: bool = False
) -> Iterator[PullTarget]:
    """Opens the target for a pull of what ``identity`` names.

    It must be missing, empty (unless it is an update), or left by an interrupted pull of the same
    commit. Raises: InvalidInput, InUse, Denied, NoSpace.
    """
    with translated(path):
        if os.path.lexists(path) and not path.is_dir():
            raise InvalidInput(f"{path} is not a directory, which pull needs even for one file")
        _make(path)
        fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    opened = [fd]
    try:
        with translated(path):
            target = _claim(path, fd, identity, opened, is_update=is_update)
        yield target
    finally:
        for each in reversed(opened):
            os.close(each)


def _make(path: Path) -> None:
    """Makes the directory. Raises: InvalidInput if that is impossible; OSError."""
    try:
        os.makedirs(path, exist_ok=True)
    except OSError as error:
        if error.errno not in (errno.ENOENT, errno.ENOTDIR, errno.EEXIST, errno.ELOOP):
            raise
        raise InvalidInput(
            f"{path}: a directory cannot be made there ({error.strerror}): choose another place"
        ) from error


def _claim(
    path: Path, fd: int, identity: dict[str, str], opened: list[int], *, is_update: bool
) -> PullTarget:
    names = os.listdir(fd)
    resumed = STATE_DIR in names
    if names and not resumed and not is_update:
        raise InvalidInput(
            f"{path} is not empty: pull into a directory that is empty or does not exist"
        )
    if not resumed:
        os.mkdir(STATE_DIR, 0o700, dir_fd=fd)
    state_fd = os.open(STATE_DIR, os.O_RDONLY | _DIRECTORY, dir_fd=fd)
    opened.append(state_fd)
    flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
    lock_fd = os.open(_STATE, flags, 0o600, dir_fd=state_fd)
    opened.append(lock_fd)
    try:
        fcntl.flock(lock_fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise InUse(f"another pull is filling {path}: wait until it has ended") from None
    encoded = json.dumps(identity, sort_keys=True).encode()
    found = os.pread(lock_fd, STATE_SIZE_BYTES_MAX, 0)
    if not found and (
        is_update or names in ([], [STATE_DIR])
    ):  # new, or killed before this was written
        os.pwrite(lock_fd, encoded, 0)
    elif found != encoded:
        raise InvalidInput(
            f"{path} has an interrupted pull of {_describe(found)}: repeat that one, or delete "
            "the directory"
        )
    return PullTarget(path, fd, state_fd, resumed=resumed)


def updated_from(path: Path) -> str | None:
    """Returns the first commit (hex) of an interrupted update in a directory; None without one."""
    with suppress(OSError, InvalidInput, ValueError):
        return _state_in(path).get("from")
    return None


def _state_in(path: Path | str) -> dict[str, str]:
    """Returns the state of an interrupted pull in a directory, in which other users may have put a
    FIFO or a symlink at its name. Raises: OSError, InvalidInput."""
    with (
        closing(os.open(path, PLACE | os.O_CLOEXEC)) as fd,
        closing(open_regular(fd, f"{STATE_DIR}/{_STATE}")) as state_fd,
    ):
        return from_json(os.read(state_fd, STATE_SIZE_BYTES_MAX), dict[str, str])


def _describe(state: bytes) -> str:
    try:
        identity = from_json(state, dict[str, str])
        return f"{identity['repo']}, commit {identity['commit'][:12]}"
    except (InvalidInput, KeyError):
        return "something else"


def command_to_end(root: bytes) -> str:
    """Returns the command that completes the pull whose state is in the directory ``root``."""
    directory, what = os.fsdecode(root), "REPO@COMMIT"
    with suppress(OSError, InvalidInput, KeyError, ValueError):
        identity = _state_in(directory)
        path = bytes.fromhex(identity["path"])
        what = str(Spec(identity["repo"], identity["commit"], path))
    return f"lodefs pull {shlex.quote(what)} {shlex.quote(directory)}"


@contextmanager
def translated(path: Path) -> Iterator[None]:
    """Translates errors of the target's file system."""
    try:
        yield
    except OSError as error:
        raise _error_of(error, path) from error


def _error_of(error: OSError, path: Path) -> LodefsError:
    place = f"{path}: {error.strerror}"
    kind = kind_of(error)
    if kind is NoSpace:
        return NoSpace(f"{place}; make room and repeat the pull: it continues where it stopped")
    if error.errno in (errno.EEXIST, errno.ELOOP, errno.ENOTDIR, errno.EISDIR, errno.ENOTEMPTY):
        return InvalidInput(f"{place}: something else changed the directory while it was filled")
    if error.errno in (errno.ENAMETOOLONG, errno.EINVAL, errno.EILSEQ):
        return InvalidInput(f"{place}: the file system does not accept a name of this dataset")
    return kind(place)


def _digest_of_file(fd: int) -> bytes:
    hashed = blake3()
    buffer = bytearray(READ_SIZE_BYTES)
    view = memoryview(buffer)
    while size_bytes := os.readv(fd, [buffer]):
        hashed.update(view[:size_bytes])
    return hashed.digest()
