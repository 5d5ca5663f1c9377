"""When a mount is ready: once its root has been read through the kernel."""

from __future__ import annotations

import errno
import os
from pathlib import Path

from lodefs.mount.kernel import mount_table
from lodefs.mount.options import MountOptions

_BDI = Path("/sys/class/bdi")


def timeout_s(options: MountOptions) -> float:
    """How long it may take until a mount is ready: two requests at their limits, and the rest."""
    return 2 * options.read_timeout_s + options.ready_margin_s


def probe(options: MountOptions, mounted: mount_table.Mount | None) -> int:
    """Read the root through the kernel, as an application does: 0, or the errno. Run in a child."""
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
    """Let the kernel read further ahead than the 128 KiB it offers; False where it may not be set.

    Only root of the first user namespace may, with a writable /sys; reading works without it,
    slower.
    """
    try:
        (bdi / "read_ahead_kb").write_text(str(read_ahead_kib))
    except OSError:
        return False
    return True
