"""A cache directory as a whole: its format version, and the lock that makes one proxy its owner."""

from __future__ import annotations

import errno
import fcntl
import os
from contextlib import suppress
from pathlib import Path

from chunkstore import cachelayout as layout
from chunkstore.errors import (
    Denied,
    InUse,
    InvalidInput,
    LodefsError,
    NoSpace,
    UnknownFormat,
)
from chunkstore.oserrors import kind_of


class CacheDir:
    """A cache directory that this process owns until ``close``.

    Made where it is missing. Denied, NoSpace, InUse, UnknownFormat, InvalidInput.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            for part in (layout.SLABS_DIR, layout.FLAT_DIR):
                (path / part).mkdir(parents=True, exist_ok=True)
            self._lock_fd = _lock(path)
        except OSError as error:
            raise error_of(error, path) from error
        try:
            _check_version(path)
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Gives the directory up."""
        os.close(self._lock_fd)


def error_of(error: OSError, path: Path) -> LodefsError:
    """What an error of the cache's file system means."""
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


def _lock(path: Path) -> int:
    fd = os.open(path / layout.LOCK_FILE, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
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


def _check_version(path: Path) -> None:
    file = path / layout.VERSION_FILE
    try:
        found = file.read_text(encoding="ascii", errors="replace")
    except FileNotFoundError:
        found = ""
    except OSError as error:
        raise error_of(error, path) from error
    if found:
        layout.check_version(file, found)
        return
    if (path / layout.INDEX_DIR).exists():
        raise UnknownFormat(f"{file} is missing or empty: remove the cache directory")
    try:
        _write_whole(file, layout.VERSION_TEXT)
    except OSError as error:
        raise error_of(error, path) from error


def _write_whole(file: Path, text: str) -> None:
    beside = file.with_suffix(".new")
    beside.write_text(text, encoding="ascii")
    with beside.open("rb") as written:
        os.fsync(written.fileno())
    beside.replace(file)
