"""Overlays of the kernel: a snapshot below, and a directory that takes what is changed above it.

overlayfs (Documentation/filesystems/overlayfs.rst) through fsopen(2) and its like, from Linux 5.11
on, so that directories are given as descriptors, and the overlay is whole before it is seen.
"""

from __future__ import annotations

import errno
import os
from contextlib import suppress
from pathlib import Path

from lodefs.chunkstore.errors import Denied, InvalidInput, LodefsError, Unavailable, Unsupported
from lodefs.chunkstore.system import libc
from lodefs.chunkstore.system.safe_open import PLACE, closing, open_plain
from lodefs.mount.kernel import mountpoints, namespaces
from lodefs.mount.kernel.mount_table import OVERLAY, Mount, mount_id_of

UNFIT = (
    "changes cannot be written here as overlayfs needs it (extended attributes, whiteouts): give a "
    "directory of ext4, XFS, btrfs or tmpfs by --upper"
)
# On every architecture but Alpha; linux/mount.h
_FSOPEN, _FSCONFIG, _FSMOUNT = 430, 431, 432
_SET_FLAG, _SET_STRING, _CREATE, _CLOEXEC = 0, 1, 6, 1
_NOSUID, _NODEV = 2, 4  # as of mount attributes and of mount(2)
_MS_RDONLY, _MS_REMOUNT = 1, 32
_MAY_NOT = (
    "overlays are for root (CAP_SYS_ADMIN), or in a user namespace: `unshare --user "
    "--map-root-user --mount`, and mount there; lodefs does not use fuse-overlayfs"
)


def create(lower: Path, upper: Path, work: Path, source: bytes) -> int:
    """A descriptor of a new overlay, which is mounted nowhere yet. The directories are absolute
    paths without symlinks; ``work`` lies in the same file system as ``upper``, which keeps what
    becomes different. ``source``: what the table of mounts shows.

    Renamed directories of ``lower`` are recorded as such by root of the machine. In a user
    namespace renaming them fails with EXDEV, which mv(1) expects, and the records in ``upper`` are
    extended attributes user.overlay.* instead of trusted.overlay.*.
    Denied, Unsupported; InvalidInput, where the kernel takes ``upper`` for reading alone.
    """
    options = [b"index=off", b"metacopy=off"]  # all bytes of a file of ``upper`` lie there
    options += [b"redirect_dir=on"] if namespaces.in_first_user_namespace() else []
    try:
        with closing(_created(lower, upper, work, [b"source=" + source, *options])) as fd:
            made = libc.call("syscall", _FSMOUNT, fd, _CLOEXEC, _NOSUID | _NODEV)
    except OSError as error:
        raise _translated(error, upper) from error
    if os.fstatvfs(made).f_flag & os.ST_RDONLY:
        os.close(made)
        raise InvalidInput(f"{upper}: {UNFIT}")
    return made


def is_in_use(work: Path, lower: Path, upper: Path) -> bool:
    """Whether an overlay has the work directory ``work``: one of any mount namespace, or one that
    is mounted nowhere any more while a process has a file of it open. ``lower``, ``upper``: empty
    directories, to try it with. With an index the kernel refuses what is in use, and says nothing
    where the file system has no file handles; nothing is mounted. Raises: OSError."""
    try:
        os.close(_created(lower, upper, work, [b"index=on"]))
    except OSError as error:
        if error.errno == errno.EBUSY:
            return True
        if error.errno != errno.ESTALE:  # the index of an earlier try: it comes to that when unused
            raise
    with suppress(OSError):
        (work / "index").rmdir()
    return False


def _created(lower: Path, upper: Path, work: Path, options: list[bytes]) -> int:
    """A descriptor of a new superblock. Raises: OSError."""
    fd = libc.call("syscall", _FSOPEN, OVERLAY.encode(), _CLOEXEC)
    try:
        with (
            mountpoints.opened(str(lower)) as below,
            mountpoints.opened(str(upper)) as above,
            mountpoints.opened(str(work)) as beside,
        ):
            places = [f"lowerdir={below}", f"upperdir={above}", f"workdir={beside}"]
            for option in (*map(str.encode, places), *options):
                name, _, value = option.partition(b"=")
                libc.call("syscall", _FSCONFIG, fd, _SET_STRING, name, value, 0)
            if not namespaces.in_first_user_namespace():
                libc.call("syscall", _FSCONFIG, fd, _SET_FLAG, b"userxattr", None, 0)
            libc.call("syscall", _FSCONFIG, fd, _CREATE, None, None, 0)
    except BaseException:
        os.close(fd)
        raise
    return fd


def set_read_only(mounted: Mount, *, read_only: bool) -> None:
    """Have an overlay, wherever else it is mounted, take no changes any more, or take them again.

    BlockingIOError while something in it is open for writing, or removed and still open; Denied,
    Unavailable.
    """
    mountpoint = mounted.mountpoint
    flags = _MS_REMOUNT | _NOSUID | _NODEV | (_MS_RDONLY if read_only else 0)
    try:
        with closing(open_plain(mountpoint, PLACE)) as fd:
            if mount_id_of(fd) != mounted.mount_id:
                raise Unavailable(f"{mountpoint}: something else is mounted there now")
            libc.call("mount", None, f"/proc/self/fd/{fd}".encode(), None, flags, None)
    except OSError as error:
        if error.errno == errno.EBUSY:
            raise BlockingIOError(error.errno, error.strerror, mountpoint) from error
        kind = Denied if error.errno in (errno.EPERM, errno.EACCES) else Unavailable
        raise kind(f"{mountpoint}: remounting it says {error.strerror}") from error


def _translated(error: OSError, upper: Path) -> LodefsError:
    if error.errno in (errno.EPERM, errno.EACCES):
        return Denied(f"mounting an overlay says {error.strerror}: {_MAY_NOT}")
    if error.errno in (errno.ENODEV, errno.ENOSYS):
        return Unsupported(
            f"this kernel has no overlayfs ({error.strerror}): writable mounts need Linux 5.11 or "
            "newer, with the module `overlay`"
        )
    return InvalidInput(f"{upper}: mounting an overlay says {error.strerror}; {UNFIT}")
