"""The mounts that services.sh finds in use, by their directories' names."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from lodefs.mount.kernel import mount_syscalls, mount_table
from tests.support.chunkstore import leftovers

SCRIPT = Path(__file__).parents[2] / "deploy/services.sh"
SOURCE = mount_table.source_of("cats", "0123456789abcdef" * 4, b"")
TIMEOUT_S = 60.0


@pytest.mark.fuse
@pytest.mark.parametrize("name", ["plain", "a 1", "a\\040b\\c", "\t7 %q[a]*"])
def test_a_mount_in_another_namespace_is_named(name: str) -> None:
    """Whatever stands in its directory's name, such as a digit behind a space."""
    if os.geteuid() != 0:
        pytest.skip("needs root, to mount")
    with leftovers.claimed("in-use-") as folder:
        place = os.path.realpath(folder / name)
        os.mkdir(place)
        device_fd = mount_syscalls.attach(place, SOURCE, allow_other=True)
        holder = ["unshare", "--mount", "--propagation", "private", "sh", "-c", "echo; read -r _"]
        try:
            with subprocess.Popen(holder, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
                assert process.stdout is not None
                process.stdout.readline()
                ran = subprocess.run(
                    ["sh", SCRIPT, "in-use"], capture_output=True, timeout=TIMEOUT_S, check=False
                )
                process.communicate(b"\n", timeout=TIMEOUT_S)
            assert f"{place} is used by process {process.pid}\n" in os.fsdecode(ran.stdout)
            assert ran.returncode == 1
        finally:
            mount_syscalls.detach(place, lazy=True)
            os.close(device_fd)
