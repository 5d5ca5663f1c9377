"""Mounts as descriptors: one process hands a mount out, and another one puts it onto a directory.

open_tree(2), mount_setattr(2) and move_mount(2), from Linux 5.12 on. The process that puts the
mount onto a directory needs rights only in its own mount namespace. The one that hands it out never
touches the other's paths.
"""

from __future__ import annotations

import errno
import os
import struct

from lodefs.chunkstore.errors import InvalidInput, LodefsError, Unavailable, Unsupported
from lodefs.chunkstore.system import libc
from lodefs.chunkstore.system.safe_open import PLACE, closing, open_plain
from lodefs.mount.kernel.mount_table import mount_id_of

_OPEN_TREE, _MOVE_MOUNT, _MOUNT_SETATTR = 428, 429, 442  # on every architecture but Alpha
_OPEN_TREE_CLONE, _AT_EMPTY_PATH, _FROM_EMPTY_PATH, _TO_EMPTY_PATH = 1, 0x1000, 4, 0x40
_BENEATH = 0x200
_RDONLY, _NOSUID, _NODEV, _MS_PRIVATE = 1, 2, 4, 1 << 18  # linux/mount.h
_MNT_DETACH = 2
_MISSING = (errno.ENOSYS, errno.EOPNOTSUPP)


def copied(place: str) -> int:
    """Returns a descriptor of a copy of the mount on ``place``, an absolute path without symlinks,
    like ``copied_from``. Raises: Unsupported (older kernel), Unavailable (nothing is mounted
    there)."""
    folder = os.path.dirname(place)
    try:
        with closing(open_plain(place, PLACE)) as root_fd, closing(open_plain(folder, PLACE)) as fd:
            if mount_id_of(root_fd) == mount_id_of(fd):
                raise Unavailable(f"{place}: nothing is mounted there now; try again")
            return copied_from(root_fd, place)
    except OSError as error:
        raise _translated(error, place) from error


def copied_from(root_fd: int, place: str, *, read_only: bool = True) -> int:
    """Returns a descriptor of a copy of a mount; ``root_fd`` is the mount's root. The copy is not
    mounted yet: it is read-only unless the caller says otherwise, without setuid programs and
    devices, and private, so that mounts in it do not come back here. ``place``: for errors. Raises:
    Unsupported, Unavailable."""
    try:
        fd = libc.call(
            "syscall", _OPEN_TREE, root_fd, b"", _OPEN_TREE_CLONE | _AT_EMPTY_PATH | os.O_CLOEXEC
        )
        try:
            # struct mount_attr: attributes to set and to clear, propagation, user namespace.
            flags = _NOSUID | _NODEV | (_RDONLY if read_only else 0)
            wanted = struct.pack("=QQQQ", flags, 0, _MS_PRIVATE, 0)
            libc.call("syscall", _MOUNT_SETATTR, fd, b"", _AT_EMPTY_PATH, wanted, len(wanted))
        except OSError:
            os.close(fd)
            raise
    except OSError as error:
        raise _translated(error, place) from error
    return fd


def put(fd: int, directory_fd: int, directory: str, *, beneath: bool = False) -> None:
    """Mounts what a descriptor holds on the directory of another descriptor, in this process's
    mount namespace; ``beneath`` an existing mount, from Linux 6.5 on. Needs CAP_SYS_ADMIN there.
    ``directory``: for errors. Raises: InvalidInput (it was removed), Unsupported."""
    how = _FROM_EMPTY_PATH | _TO_EMPTY_PATH | (_BENEATH if beneath else 0)
    try:
        libc.call("syscall", _MOVE_MOUNT, fd, b"", directory_fd, b"", how)
    except OSError as error:
        if error.errno == errno.ENOENT:
            raise InvalidInput(f"{directory}: {error.strerror}") from error
        raise Unsupported(
            f"{directory}: move_mount(2) fails ({error.strerror}); perhaps it is forbidden here, "
            "as in some containers; LODEFS_ATTACH_SOCKET=none mounts without it"
        ) from error


def take_off(root_fd: int) -> None:
    """Unmounts the mount with the root of a descriptor, wherever it is now; open files stay
    readable. Raises: OSError, with EINVAL if it is not mounted any more."""
    libc.call("umount2", f"/proc/self/fd/{root_fd}".encode(), _MNT_DETACH)


def _translated(error: OSError, place: str) -> LodefsError:
    if error.errno in _MISSING:
        return Unsupported("handing out mounts needs Linux 5.12 or newer")
    return Unavailable(f"{place}: {error.strerror}")
