"""The mount namespace of a process that runs tests."""

from __future__ import annotations

import os
import subprocess
from contextlib import suppress

from lodefs.chunkstore.system import libc
from lodefs.mount.kernel import mount_table

CLONE_NEWNS = 0x20000  # unshare(2)
MNT_DETACH = 2  # umount2(2)


def enter() -> None:
    """Gives this process (as root) a mount namespace of its own, and does so before it has threads.

    Who makes a mount namespace (a booted machine, a network, a container) gets a copy of each mount
    of the process that it comes from, and a mount ends when its last copy does. So tests of other
    processes, and other runs on this machine, do not hold the mounts that are made here. The
    machine's own mounts of lodefs are not in it, since tests look at all there are.
    """
    if os.geteuid() != 0:
        return
    with suppress(PermissionError):  # root of a container that may not
        libc.call("unshare", CLONE_NEWNS)
        subprocess.run(["mount", "--make-rprivate", "/"], check=True)
        for mount in reversed(mount_table.read_table()):
            if mount.is_lodefs:
                libc.call("umount2", os.fsencode(mount.mountpoint), MNT_DETACH)
