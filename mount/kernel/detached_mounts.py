"""Mounts as descriptors: one process hands a mount out, another one puts it onto a directory.

open_tree(2), mount_setattr(2) and move_mount(2), from Linux 5.12 on. Who puts the mount in its
place needs rights over its own mount namespace alone, and the one who hands it out never touches a
path of theirs.
"""

from __future__ import annotations

import errno
import os
import struct

from lodefs.chunkstore.errors import InvalidInput, LodefsError, Unavailable, Unsupported
from lodefs.chunkstore.system import libc

_OPEN_TREE, _MOVE_MOUNT, _MOUNT_SETATTR = 428, 429, 442  # on every architecture but Alpha
_OPEN_TREE_CLONE, _AT_FDCWD, _AT_EMPTY_PATH, _MOVE_FROM_EMPTY_PATH = 1, -100, 0x1000, 4
_RDONLY, _NOSUID, _NODEV, _MS_PRIVATE = 1, 2, 4, 1 << 18  # linux/mount.h
_MISSING = (errno.ENOSYS, errno.EOPNOTSUPP)


def copied(place: str) -> int:
    """A descriptor of a copy of the mount on ``place``, which is nowhere yet: read-only, and
    private, so that nothing that is mounted in it comes back here.

    Unsupported (an older kernel), Unavailable (nothing is mounted there).
    """
    try:
        fd = libc.call(
            "syscall", _OPEN_TREE, _AT_FDCWD, os.fsencode(place), _OPEN_TREE_CLONE | os.O_CLOEXEC
        )
    except OSError as error:
        raise _translated(error, place) from error
    try:
        # Attributes to set and to clear, propagation, user namespace: struct mount_attr.
        wanted = struct.pack("=QQQQ", _RDONLY | _NOSUID | _NODEV, 0, _MS_PRIVATE, 0)
        libc.call("syscall", _MOUNT_SETATTR, fd, b"", _AT_EMPTY_PATH, wanted, len(wanted))
        if os.fstat(fd).st_dev == os.stat(os.path.dirname(place)).st_dev:
            raise Unavailable(f"{place}: nothing is mounted there just now; try again")
    except OSError as error:
        os.close(fd)
        raise _translated(error, place) from error
    except LodefsError:
        os.close(fd)
        raise
    return fd


def put(fd: int, directory: str) -> None:
    """Mount what a descriptor holds on a directory, an absolute path without symlinks, in this
    process's mount namespace. Needs CAP_SYS_ADMIN there. InvalidInput, Unsupported."""
    try:
        libc.call(
            "syscall", _MOVE_MOUNT, fd, b"", _AT_FDCWD, os.fsencode(directory),
            _MOVE_FROM_EMPTY_PATH,
        )  # fmt: skip
    except OSError as error:
        if error.errno in (errno.ENOENT, errno.ENOTDIR, errno.ELOOP):
            raise InvalidInput(f"{directory}: {error.strerror}") from error
        raise Unsupported(
            f"{directory}: move_mount(2) says {error.strerror}; is it forbidden here, as in some "
            "containers? LODEFS_ATTACH_SOCKET=none mounts without it"
        ) from error


def _translated(error: OSError, place: str) -> LodefsError:
    if error.errno in _MISSING:
        return Unsupported("mounts are handed out from Linux 5.12 on; this one is older")
    return Unavailable(f"{place}: {error.strerror}")
