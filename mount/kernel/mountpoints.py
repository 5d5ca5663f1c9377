"""Directories to mount on, as the table of mounts names them: absolute, and without symlinks.

A user may change each part of a path below a directory of theirs, while root works on it. For root
of the machine no symlink counts that somebody else can have put there, and what is mounted or
unmounted is a descriptor that was opened without following any (chunkstore/system/safe_open.py).
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

from lodefs.chunkstore.errors import InvalidInput
from lodefs.chunkstore.system.safe_open import PLACE, closing, make_within, open_plain, rooted
from lodefs.mount.kernel import namespaces


def real(path: str) -> str:
    """An absolute path without symlinks; names that are missing are kept. InvalidInput for root of
    the machine, where a user may lead the path elsewhere."""
    if os.geteuid() != 0 or not namespaces.in_first_user_namespace():
        return os.path.realpath(path)
    try:
        return rooted(os.path.abspath(path))
    except OSError as error:
        raise InvalidInput(
            f"{path}: {error.filename} is {error.strerror}: name the directory itself"
            if error.strerror and error.filename
            else f"{path}: {error}"
        ) from error


def plain(mountpoint: str) -> str:
    """As the table has it: absolute and without symlinks, but for the last name, which is not
    touched: what is mounted there may be stuck. InvalidInput as of ``real``."""
    folder, name = os.path.split(os.path.abspath(mountpoint))
    return os.path.join(real(folder), name)


def make(mountpoint: str) -> None:
    """Make a directory and its parents where they are missing, by a path of ``real``.
    Raises: OSError."""
    with closing(os.open("/", PLACE)) as root_fd:
        os.close(make_within(root_fd, mountpoint, 0o777))


@contextmanager
def opened(mountpoint: str) -> Iterator[str]:
    """A name for what is at a path of ``real``, which leads there whatever becomes of the path.
    Raises: OSError, with ELOOP where a symlink has taken a part of it."""
    with closing(open_plain(mountpoint, PLACE)) as fd:
        yield f"/proc/self/fd/{fd}"
