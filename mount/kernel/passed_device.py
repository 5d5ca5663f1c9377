"""A FUSE connection that somebody else has mounted, passed on as ``/dev/fd/N`` for a mount point.

The convention of libfuse 3.3 and newer, and of ``apptainer --fusemount``: the runtime opens
/dev/fuse, mounts it where it wants, and starts the file system's program with the descriptor.
"""

from __future__ import annotations

import fcntl
import os
import re
import stat

from lodefs.chunkstore.errors import InvalidInput

_NAME = re.compile(r"/dev/fd/([0-9]{1,9})")
_DEVICE = os.makedev(10, 229)  # /dev/fuse, in Linux' admin-guide/devices.txt


def passed(mountpoint: str) -> int | None:
    """The descriptor that a mount point names; None where it names a directory."""
    named = _NAME.fullmatch(mountpoint)
    return int(named[1]) if named else None


def take(fd: int) -> int:
    """The descriptor, which programs that this process starts do not get. InvalidInput where it is
    no open /dev/fuse."""
    try:
        found = os.fstat(fd)
        if not stat.S_ISCHR(found.st_mode) or found.st_rdev != _DEVICE:
            raise InvalidInput(f"/dev/fd/{fd} is not /dev/fuse, mounted and passed on")
        fcntl.fcntl(fd, fcntl.F_SETFD, fcntl.FD_CLOEXEC)
    except OSError as error:
        raise InvalidInput(f"/dev/fd/{fd} is not open: it is for who passes a mount on") from error
    return fd
