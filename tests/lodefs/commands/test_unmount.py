"""`lodefs unmount`, of what nobody serves."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from lodefs.mount.kernel import mount_syscalls, mount_table
from tests.support.chunkstore import leftovers

SOURCE = mount_table.source_of("cats", "0123456789abcdef" * 4, b"")
TIMEOUT_S = 30.0


@pytest.mark.fuse
def test_a_mount_that_never_answers_is_taken_away() -> None:
    """Nobody asks it whether it is there."""
    if os.geteuid() != 0:
        pytest.skip("needs root, to mount")
    with leftovers.claimed("unmount-") as folder:
        place = os.path.realpath(folder / "m")
        os.mkdir(place)
        device_fd = mount_syscalls.attach(place, SOURCE, allow_other=True)
        try:
            ran = subprocess.run(
                [sys.executable, "-m", "lodefs.main", "unmount", place],
                capture_output=True,
                text=True,
                timeout=TIMEOUT_S,
                check=False,
            )
            assert ran.returncode == 0, ran.stderr
            assert mount_table.on_top(place) is None
        finally:
            if mount_table.on_top(place) is not None:
                mount_syscalls.detach(place, lazy=True)
            os.close(device_fd)
