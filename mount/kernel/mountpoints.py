"""Directories to mount on, as the mount table names them: absolute, and without symlinks.

A user may change each part of a path below a directory of theirs while root works on it. Root of
the machine therefore follows no symlink that another user can have put there, and mounts and
unmounts by descriptors opened without following any (chunkstore/system/safe_open.py).
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

from lodefs.chunkstore.errors import InvalidInput
from lodefs.chunkstore.system.safe_open import PLACE, closing, make_within, open_plain, rooted
from lodefs.mount.kernel import namespaces


def real(path: str) -> str:
    """Returns an absolute path without symlinks; missing names are kept. Raises: InvalidInput for
    root of the machine, if a user could lead the path elsewhere."""
    if os.geteuid() != 0 or not namespaces.in_first_user_namespace():
        return os.path.realpath(path)
    try:
        return rooted(os.path.abspath(path))
    except OSError as error:
        raise InvalidInput(
            f"{path}: {error.filename}: {error.strerror}; name the directory itself"
            if error.strerror and error.filename
            else f"{path}: {error}"
        ) from error


def plain(mountpoint: str) -> str:
    """Returns the path as the mount table has it: absolute and without symlinks. The last name is
    not touched, since a mount there may be stuck. Raises: InvalidInput, as ``real`` does."""
    folder, name = os.path.split(os.path.abspath(mountpoint))
    return os.path.join(real(folder), name)


def make(mountpoint: str) -> None:
    """Creates a directory and its missing parents, by a path from ``real``. Raises: OSError."""
    with closing(os.open("/", PLACE)) as root_fd:
        os.close(make_within(root_fd, mountpoint, 0o777))


@contextmanager
def opened(mountpoint: str) -> Iterator[str]:
    """Yields a name for what is at a path from ``real``, which stays valid whatever happens to the
    path. Raises: OSError, with ELOOP if a symlink has replaced a part of it."""
    with closing(open_plain(mountpoint, PLACE)) as fd:
        yield f"/proc/self/fd/{fd}"
