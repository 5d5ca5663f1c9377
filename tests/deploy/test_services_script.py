"""services.sh, which runs as root when lodefs is removed or upgraded."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from loadtests.services.machine import ROOT
from lodefs.chunkstore.system import libc

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="mounts")


@pytest.mark.fuse
@pytest.mark.parametrize("name", ["a%q", "b%300000000s", "c%n", "d e\n\\", "%"])
def test_names_of_mount_points_are_no_formats(tmp_path: Path, name: str) -> None:
    """Any user may mount a file system of this type on a directory with any name: it keeps nobody
    from removing lodefs, and takes no memory."""
    place = tmp_path / name
    place.mkdir()
    fd = os.open("/dev/fuse", os.O_RDWR)
    data = f"fd={fd},rootmode=40000,user_id=61234,group_id=0"
    libc.call("mount", b"x@y", os.fsencode(place), b"fuse.lodefs", 6, data.encode())
    try:
        command = ["prlimit", "--as=200000000", "sh", str(ROOT / "deploy/services.sh"), "in-use"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
        assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    finally:
        libc.call("umount2", os.fsencode(place), 2)
        os.close(fd)
