"""A FUSE connection that another program has mounted, and passes on as mount point ``/dev/fd/N``.

libfuse 3.3 and newer, and ``apptainer --fusemount``, use this convention: the runtime opens
/dev/fuse, mounts it, and starts the file system's program with the descriptor.
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
    """Returns the descriptor that a mount point names; None if it names a directory."""
    named = _NAME.fullmatch(mountpoint)
    return int(named[1]) if named else None


def take(fd: int) -> int:
    """Returns the descriptor, which is not inherited by programs that this process starts. Raises:
    InvalidInput if it is not an open /dev/fuse."""
    try:
        found = os.fstat(fd)
        if not stat.S_ISCHR(found.st_mode) or found.st_rdev != _DEVICE:
            raise InvalidInput(f"/dev/fd/{fd} is not a mounted /dev/fuse")
        fcntl.fcntl(fd, fcntl.F_SETFD, fcntl.FD_CLOEXEC)
    except OSError as error:
        raise InvalidInput(
            f"/dev/fd/{fd} is not open: a program that passes a mount on must open it"
        ) from error
    return fd
