"""The directory for the logs of a reader's view of an index, which RocksDB writes."""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from itertools import islice
from pathlib import Path
from tempfile import TemporaryDirectory, gettempdir

from lodefs.chunkstore.system.safe_open import PLACE, closing, open_in_mount

RUN_DIRECTORY = "/run/lodefs"  # belongs to root
LEFTOVERS_MAX = 1000  # limit for the names examined
_PREFIX = "lodefs-index-"
_LOG_NAME = re.compile(r"LOG(\.old\.\d+)?")
_OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH


@contextmanager
def directory() -> Iterator[Path]:
    """Makes the directory for a block, and removes those of killed processes. Raises: OSError."""
    parent = find_parent()
    remove_leftovers(parent)
    with TemporaryDirectory(prefix=f"{_PREFIX}{os.getpid()}-", dir=parent) as made:
        yield Path(made)


def find_parent() -> Path:
    """Returns the parent of such directories: a place where nobody else can make names or fill the
    disk, if there is one."""
    for name in (RUN_DIRECTORY, os.environ.get("XDG_RUNTIME_DIR", "")):
        with suppress(OSError):
            found = os.stat(name)
            is_ours = found.st_uid == os.geteuid()
            if is_ours and not found.st_mode & _OTHERS_WRITE and os.access(name, os.W_OK):
                return Path(name)
    return Path(gettempdir())


def remove_leftovers(parent: Path) -> None:
    """Removes the logs of this user's processes that were killed while they had them.

    Anybody may make such names and fill the directories. So it leaves other users' directories
    alone, touches no other file system, and removes only the logs themselves, and nothing below
    them.
    """
    with suppress(OSError), closing(os.open(parent, os.O_RDONLY | os.O_DIRECTORY)) as place:
        names = (name for name in os.listdir(place) if name.startswith(_PREFIX))
        for name in islice(names, LEFTOVERS_MAX):
            pid = name.removeprefix(_PREFIX).partition("-")[0]
            if pid.isdecimal() and not Path("/proc", pid).exists():
                with suppress(OSError):
                    _remove_log(place, name)


def _remove_log(place: int, name: str) -> None:
    with closing(open_in_mount(place, name, PLACE | os.O_NOFOLLOW)) as fd:
        if os.fstat(fd).st_uid != os.geteuid():
            return
        with closing(os.open(".", os.O_RDONLY | os.O_DIRECTORY, dir_fd=fd)) as log_dir:
            for log in filter(_LOG_NAME.fullmatch, os.listdir(log_dir)):
                os.unlink(log, dir_fd=log_dir)
    os.rmdir(name, dir_fd=place)
