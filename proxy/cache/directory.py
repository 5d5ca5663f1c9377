"""A cache directory: its format version, and the lock that makes one proxy its owner."""

from __future__ import annotations

import errno
import fcntl
import os
import time
from contextlib import suppress
from pathlib import Path

from lodefs.chunkstore.errors import (
    Denied,
    InUse,
    InvalidInput,
    LodefsError,
    NoSpace,
    UnknownFormat,
)
from lodefs.chunkstore.nodecache import layout as layout
from lodefs.chunkstore.system.os_errors import kind_of
from lodefs.chunkstore.system.safe_open import PLACE

LEFT_S_MAX = 5.0  # how long a killed proxy's data processes may take to end
_LOOK_S = 0.02


class CacheDir:
    """A cache directory that this process owns until ``close``.

    Created if it is missing. ``held`` is a path that stays this directory's when somebody moves it,
    or puts another cache in its place: what is made or removed here belongs to no other cache.

    Raises: Denied, NoSpace, InUse, UnknownFormat, InvalidInput.
    """

    def __init__(self, path: Path, *, left_s_max: float = LEFT_S_MAX) -> None:
        """``left_s_max`` is how long to wait for a killed proxy's data processes."""
        self.path = path
        try:
            path.mkdir(parents=True, exist_ok=True)
            self._held_fd = os.open(path, PLACE | os.O_CLOEXEC)
        except OSError as error:
            raise error_of(error, path) from error
        self.held = Path(f"/proc/self/fd/{self._held_fd}")
        try:
            self._lock_fd = _lock(path)
        except BaseException as error:
            os.close(self._held_fd)
            if isinstance(error, OSError):
                raise error_of(error, path) from error
            raise
        self.writers_fd = -1  # data processes inherit it, and so its lock
        try:
            self.writers_fd = _lock_writers(path, left_s_max)
            _check_version(path)
            for part in (layout.SLABS_DIR, layout.FLAT_DIR):
                (path / part).mkdir(exist_ok=True)
        except OSError as error:
            self.close()
            raise error_of(error, path) from error
        except BaseException:
            self.close()
            raise

    def index(self) -> tuple[int, int]:
        """Returns the device and the inode number of its index, as CacheExtent has them."""
        found = (self.held / layout.INDEX_DIR).stat()
        return found.st_dev, found.st_ino

    def is_there(self) -> bool:
        """Whether the directory still exists with its lock and its index. If not, it was removed or
        replaced."""
        try:
            found = (self.path / layout.LOCK_FILE).stat()
            (self.path / layout.INDEX_DIR).stat()
        except OSError as error:
            return error.errno not in (errno.ENOENT, errno.ENOTDIR)
        return os.path.samestat(found, os.fstat(self._lock_fd))

    def is_lost(self) -> bool:
        """Whether the directory is gone and a new cache can be opened: it was removed completely,
        or there is another cache."""
        index, version = self.path / layout.INDEX_DIR, self.path / layout.VERSION_FILE
        return not self.is_there() and (version.exists() or not index.exists())

    def close(self) -> None:
        """Releases the directory. A data process that does not end keeps it locked."""
        if self.writers_fd >= 0:
            os.close(self.writers_fd)
        os.close(self._lock_fd)
        os.close(self._held_fd)


def error_of(error: OSError, path: Path) -> LodefsError:
    """Returns the error of lodefs for an error of the cache's file system."""
    kind = kind_of(error)
    if kind is Denied:
        return Denied(
            f"the cache directory {path} cannot be written ({error.strerror}): give the "
            "proxy the right to write there, or another cache directory"
        )
    if kind is NoSpace:
        return NoSpace(f"no space for the cache directory {path}: {error.strerror}")
    if error.errno in (errno.ENOTDIR, errno.EEXIST):
        return InvalidInput(f"the cache directory {path} is not a directory")
    return kind(f"the cache directory {path} failed: {error.strerror}")


def _open_lock(path: Path) -> int:
    return os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)


def _lock(path: Path) -> int:
    fd = _open_lock(path / layout.LOCK_FILE)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.ftruncate(fd, 0)
        os.pwrite(fd, b"%d\n" % os.getpid(), 0)
    except BlockingIOError:
        owner = os.pread(fd, 32, 0).decode("ascii", "replace").strip() or "unknown"
        os.close(fd)
        raise InUse(
            f"the cache directory {path} belongs to the running process {owner}: stop it, or "
            "give this one another cache directory"
        ) from None
    except BaseException:
        with suppress(OSError):
            os.close(fd)
        raise
    return fd


def _lock_writers(path: Path, wait_s_max: float) -> int:
    """Takes the lock that data processes also hold. They end with a killed proxy, but not at once,
    and not while their disk does not answer."""
    fd = _open_lock(path / layout.WRITERS_FILE)
    ends_s = time.monotonic() + wait_s_max
    try:
        while True:
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return fd
            except BlockingIOError:
                if time.monotonic() > ends_s:
                    raise InUse(
                        f"a data process of a killed proxy still writes to the cache directory "
                        f"{path} (`lodefs-data` in ps): it ends when its disk answers; repair "
                        "that, or give this proxy another cache directory"
                    ) from None
            time.sleep(_LOOK_S)
    except BaseException:
        os.close(fd)
        raise


def _check_version(path: Path) -> None:
    file = path / layout.VERSION_FILE
    try:
        found = file.read_text(encoding="ascii", errors="replace")
    except FileNotFoundError:
        found = ""
    if found:
        layout.check_version(file, found)
    elif (path / layout.INDEX_DIR).exists():
        raise UnknownFormat(f"{file} is missing or empty: remove the cache directory")
    else:
        _write_whole(file, layout.VERSION_TEXT)


def _write_whole(file: Path, text: str) -> None:
    beside = file.with_suffix(".new")
    beside.write_text(text, encoding="ascii")
    with beside.open("rb") as written:
        os.fsync(written.fileno())
    beside.replace(file)
