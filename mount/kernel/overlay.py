"""Overlays of the kernel: a snapshot below, and a directory above it that receives changes.

overlayfs (Documentation/filesystems/overlayfs.rst) through fsopen(2) and its family, from Linux
5.11 on, so that directories are given as descriptors, and the overlay is complete before it is
seen.
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
    "overlayfs cannot keep changes here (it needs extended attributes and whiteouts): give a "
    "directory of ext4, XFS, btrfs or tmpfs by --upper"
)
# On every architecture but Alpha; linux/mount.h
_FSOPEN, _FSCONFIG, _FSMOUNT = 430, 431, 432
_SET_FLAG, _SET_STRING, _CREATE, _CLOEXEC = 0, 1, 6, 1
_NOSUID, _NODEV = 2, 4  # the same in mount attributes and in mount(2)
_MS_RDONLY, _MS_REMOUNT = 1, 32
_MAY_NOT = (
    "overlays need root (CAP_SYS_ADMIN), or a user namespace: `unshare --user "
    "--map-root-user --mount`, and mount there; lodefs does not use fuse-overlayfs"
)


def create(lower: Path, upper: Path, work: Path, source: bytes) -> int:
    """Returns a descriptor of a new overlay, which is not mounted yet. The directories are absolute
    paths without symlinks. ``work`` lies in the same file system as ``upper``, which keeps the
    changes. ``source``: the source in the mount table.

    Root of the machine may rename directories of ``lower``, which is recorded. In a user namespace
    renaming them fails with EXDEV, which mv(1) expects, and the records in ``upper`` are extended
    attributes user.overlay.* instead of trusted.overlay.*.
    Raises: Denied, Unsupported; InvalidInput, if the kernel accepts ``upper`` only for reading.
    """
    options = [b"index=off", b"metacopy=off"]  # ``upper`` has all bytes of each of its files
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
    """Whether an overlay uses the work directory ``work``: in any mount namespace, or unmounted but
    with a file that a process has open. ``lower``, ``upper``: empty directories for the test. With
    an index the kernel refuses directories in use, but not if the file system has no file handles.
    Nothing is mounted. Raises: OSError."""
    try:
        os.close(_created(lower, upper, work, [b"index=on"]))
    except OSError as error:
        if error.errno == errno.EBUSY:
            return True
        if (
            error.errno != errno.ESTALE
        ):  # ESTALE comes from the index of an earlier test, and only if it is unused
            raise
    with suppress(OSError):
        (work / "index").rmdir()
    return False


def _created(lower: Path, upper: Path, work: Path, options: list[bytes]) -> int:
    """Returns a descriptor of a new superblock. Raises: OSError."""
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
    """Makes an overlay, wherever else it is mounted, refuse changes, or accept them again.

    Raises: BlockingIOError while a file in it is open for writing, or removed and still open;
    Denied, Unavailable.
    """
    mountpoint = mounted.mountpoint
    flags = _MS_REMOUNT | _NOSUID | _NODEV | (_MS_RDONLY if read_only else 0)
    try:
        with closing(open_plain(mountpoint, PLACE)) as fd:
            if mount_id_of(fd) != mounted.mount_id:
                raise Unavailable(f"{mountpoint}: another file system is mounted there now")
            libc.call("mount", None, f"/proc/self/fd/{fd}".encode(), None, flags, None)
    except OSError as error:
        if error.errno == errno.EBUSY:
            raise BlockingIOError(error.errno, error.strerror, mountpoint) from error
        kind = Denied if error.errno in (errno.EPERM, errno.EACCES) else Unavailable
        raise kind(f"{mountpoint}: remounting fails: {error.strerror}") from error


def _translated(error: OSError, upper: Path) -> LodefsError:
    if error.errno in (errno.EPERM, errno.EACCES):
        return Denied(f"mounting an overlay fails ({error.strerror}): {_MAY_NOT}")
    if error.errno in (errno.ENODEV, errno.ENOSYS):
        return Unsupported(
            f"this kernel has no overlayfs ({error.strerror}): writable mounts need Linux 5.11 or "
            "newer, with the module `overlay`"
        )
    return InvalidInput(f"{upper}: mounting an overlay fails ({error.strerror}); {UNFIT}")
