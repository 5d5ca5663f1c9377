"""Checks that a directory can take the changes of a writable mount: its path and file system."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory

from lodefs.chunkstore.errors import InvalidInput
from lodefs.chunkstore.system import libc
from lodefs.chunkstore.system.safe_open import keeps_names
from lodefs.mount.helper import state_files
from lodefs.mount.kernel import mountpoints, namespaces
from lodefs.mount.kernel.overlay import UNFIT

# f_type of file systems that cannot be the upper one of an overlay (linux/magic.h)
_UNFIT = {
    0x794C7630: "an overlay (a container's own disk?)", 0x6969: "NFS", libc.FUSE: "FUSE",
    0xFF534D42: "SMB", 0xFE534D42: "SMB", 0x01021997: "9P", 0x4D44: "FAT", 0x2011BAB0: "exFAT",
    0x0BD00BD0: "Lustre", 0x00C36400: "CephFS", 0x47504653: "GPFS", 0x73717368: "squashfs",
}  # fmt: skip
RECORD = "record.json"


def chosen(upper: str, mountpoint: str) -> Path:
    """Returns the directory that --upper names, as an absolute path without symlinks, which may be
    missing. Raises: InvalidInput if it contains other files, lies in the mountpoint or around it,
    or, for root, if another user may change a part of the path."""
    place = Path(mountpoints.real(upper))
    if overlap(str(place), mountpoint):
        raise InvalidInput(
            f"--upper {upper}: it lies in {mountpoint}, or contains it; name a directory elsewhere"
        )
    is_root = os.geteuid() == 0 and namespaces.in_first_user_namespace()
    there = next(one for one in (place, *place.parents) if one.exists())
    if is_root and not keeps_names(str(there)):
        raise InvalidInput(
            f"--upper {upper}: users other than root may change a part of this path; name a "
            "directory "
            "of root's, such as /var/lib/lodefs/writable/NAME"
        )
    try:
        names = set(os.listdir(place))
    except FileNotFoundError:
        return place
    except OSError as error:
        raise InvalidInput(f"--upper {upper}: {error.strerror}") from error
    if names - {"lock"} and RECORD not in names:
        raise InvalidInput(
            f"--upper {upper} is not empty, and holds no changes of a writable mount: name an "
            "empty directory, or one that does not exist"
        )
    return place


def overlap(one: str, other: str) -> bool:
    """Whether two absolute paths are the same, or one lies below the other."""
    first, second = f"{one.rstrip('/')}/", f"{other.rstrip('/')}/"
    return first.startswith(second) or second.startswith(first)


def check_file_system(place: Path) -> None:
    """Raises InvalidInput if the file system of a directory cannot hold an overlay's changes;
    NoSpace, Denied, Unavailable."""
    try:
        kind = _UNFIT.get(libc.file_system_of(place))
        if kind is not None:
            raise InvalidInput(f"{place} is on {kind}: {UNFIT}")
        with _directory_of(place) as probe:
            lacking = _lacking(probe)
    except OSError as error:
        raise state_files.translated(error, place) from error
    if lacking:
        raise InvalidInput(f"{place}: its file system has no {lacking}: {UNFIT}")


@contextmanager
def _directory_of(place: Path) -> Iterator[Path]:
    with TemporaryDirectory(prefix="try-", dir=place) as path:
        yield Path(path)


def _lacking(probe: Path) -> str:
    """Returns a feature that overlayfs needs and that a directory's file system lacks; "" if it has
    all. Raises: OSError."""
    prefix = "trusted" if namespaces.in_first_user_namespace() and os.geteuid() == 0 else "user"
    try:
        os.setxattr(probe, f"{prefix}.overlay.lodefs", b"y")
    except OSError as error:
        if error.errno not in (errno.EOPNOTSUPP, errno.EPERM, errno.EACCES):
            raise
        return "extended attributes"
    below = probe / "d"
    below.mkdir()
    with os.scandir(probe) as entries:
        entry = next(entries)
        below.rmdir()  # it must be removed before the listing is judged
        with suppress(OSError):
            if entry.is_dir(follow_symlinks=False):
                return ""
    return "types of entries in its listings (d_type; XFS: ftype=1)"
