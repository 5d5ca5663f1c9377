"""Checks that a mount is ready: its root has been read through the kernel."""

from __future__ import annotations

import errno
import os
from pathlib import Path

from lodefs.mount.kernel import mount_table
from lodefs.mount.options import MountOptions

_BDI = Path("/sys/class/bdi")


def timeout_s(options: MountOptions) -> float:
    """Returns the time that a mount may take to be ready: two requests at their limits, and the
    rest."""
    return 2 * options.read_timeout_s + options.ready_margin_s


def probe(options: MountOptions, mounted: mount_table.Mount | None) -> int:
    """Reads the root through the kernel, as an application does, in a child. Returns 0 or errno."""
    try:
        os.statvfs(options.mountpoint)
        with os.scandir(options.mountpoint) as entries:
            for entry in entries:
                entry.stat(follow_symlinks=False)
                break
    except OSError as error:
        return error.errno or errno.EIO
    if mounted is not None:
        raise_read_ahead(_BDI / mounted.device, options.read_ahead_kib)
    return 0


def raise_read_ahead(bdi: Path, read_ahead_kib: int) -> bool:
    """Lets the kernel read ahead further than the 128 KiB that it offers; False if that fails.

    Only root of the first user namespace may do this, with a writable /sys. Reading works without
    it, but slower.
    """
    try:
        (bdi / "read_ahead_kb").write_text(str(read_ahead_kib))
    except OSError:
        return False
    return True
