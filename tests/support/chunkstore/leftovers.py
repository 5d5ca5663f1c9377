"""Directories of test runs that were killed: known by their locks, and removed by the next run.

Whoever makes a directory first locks a file with its name, which the kernel unlocks when the last
process that holds it is gone. So who gets the lock knows that nobody is left.
"""

from __future__ import annotations

import fcntl
import os
import re
import secrets
import shutil
import stat
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

UMOUNT_TIMEOUT_S = 20.0
_NAME = re.compile(r"[a-z]+-[a-z0-9_]+\Z")  # as ``claimed`` makes them


@contextmanager
def claimed(prefix: str) -> Iterator[Path]:
    """A new directory in the one for temporary files. It is known to be in use until the end, when
    it is removed."""
    registry = _registry()
    file = registry / f"{prefix}{secrets.token_hex(4)}"
    path = registry.parent / file.name
    fd = _lock(file)
    try:
        path.mkdir(0o700)
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)
        if not path.exists():  # else the next run tries
            file.unlink()
        os.close(fd)


def clear() -> list[Path]:
    """Removes what runs before this one left, their mounts too; what was removed. What a process
    still uses stays."""
    registry, cleared = _registry(), []
    for file in sorted(registry.iterdir()):
        path = registry.parent / file.name
        if not _NAME.match(file.name):
            continue
        with suppress(BlockingIOError, FileNotFoundError):
            fd = os.open(file, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if not _is_used(path) and _remove(path):
                    file.unlink()
                    cleared.append(path)
            finally:
                os.close(fd)
    return cleared


def _registry() -> Path:
    """The directory of this user's locks."""
    path = Path(tempfile.gettempdir()) / f"lodefs-tests-{os.geteuid()}"
    path.mkdir(0o700, exist_ok=True)
    found = path.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid():
        raise PermissionError(f"{path} is somebody else's")
    return path


def _lock(file: Path) -> int:
    """A lock on a new file. Where ``clear`` came between its two halves, once more."""
    while True:
        fd = os.open(file, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        fcntl.flock(fd, fcntl.LOCK_EX)
        with suppress(FileNotFoundError):
            if os.path.samestat(os.fstat(fd), os.stat(file)):
                return fd
        os.close(fd)


def _remove(path: Path) -> bool:
    """Whether a directory, with what is mounted in it, has gone."""
    with suppress(FileNotFoundError):
        if path.lstat().st_uid != os.geteuid():
            return False
    for place in sorted(_mounts_below(path), key=len, reverse=True):
        with suppress(subprocess.TimeoutExpired):
            words = ["umount", "-l", place]
            subprocess.run(words, capture_output=True, timeout=UMOUNT_TIMEOUT_S, check=False)
    if _mounts_below(path):
        return False
    shutil.rmtree(path, ignore_errors=True)
    return not path.exists()


def _mounts_below(path: Path) -> list[str]:
    fields = [line.split() for line in Path("/proc/self/mountinfo").read_text().splitlines()]
    places = [re.sub(r"\\([0-7]{3})", lambda m: chr(int(m[1], 8)), each[4]) for each in fields]
    return [place for place in places if place == str(path) or place.startswith(f"{path}/")]


def _is_used(path: Path) -> bool:
    """Whether a process works there, was started with its name, or has a file of it open."""
    below = f"{path}/"
    for process in Path("/proc").iterdir():
        if not process.name.isdigit():
            continue
        with suppress(OSError):  # it ended meanwhile
            if below.encode() in (process / "cmdline").read_bytes():
                return True
            links = [
                process / "cwd",
                process / "root",
                process / "exe",
                *(process / "fd").iterdir(),
            ]
            for link in links:
                with suppress(OSError):
                    if f"{os.readlink(link)}/".startswith(below):
                        return True
    return False
