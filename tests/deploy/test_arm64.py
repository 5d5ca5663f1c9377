"""The Debian package for arm64, built on another machine, run by qemu. Only where
LODEFS_TEST_PACKAGES=1 asks for it, and where qemu-user-static is installed."""

from __future__ import annotations

import os
import subprocess
from hashlib import sha256
from pathlib import Path

import pytest

from tests.deploy.conftest import DEPLOY, EPOCH, Report, build
from tests.support.chunkstore.child_process import run

pytestmark = [pytest.mark.slow, pytest.mark.timeout(3600)]

ARM64 = "arm64"
BUILD_TIMEOUT_S = 1800.0
QEMU = "/usr/lib/binfmt.d/qemu-aarch64.conf"
# A namespace of users has a binfmt_misc of its own (Linux 6.7): the machine's stays as it is.
WITHIN = f"""
read started
mount -t binfmt_misc none /proc/sys/fs/binfmt_misc
cat {QEMU} >/proc/sys/fs/binfmt_misc/register
mount --rbind /dev "$1/dev"
exec chroot "$@"
"""


@pytest.fixture(scope="module")
def root(workshop: Path) -> Path:
    """A root file system of Debian's Python for arm64, with the package unpacked in it."""
    wheels, place = workshop / "arm64-wheels", workshop / "arm64"
    build(DEPLOY / "debian/foreign-wheels.sh", "--architecture", ARM64, wheels)
    script = DEPLOY / "debian/build.sh"
    command: list[str | Path] = [script, "--architecture", ARM64, "--out", workshop]
    environment = {"PIP_FIND_LINKS": str(wheels), "SOURCE_DATE_EPOCH": str(EPOCH)}
    package = run(command, env=environment, timeout_s=BUILD_TIMEOUT_S).split()[-1]
    assert run(["dpkg-deb", "-f", package, "Architecture"]).strip() == ARM64
    build(DEPLOY / "debian/python-root.sh", "--architecture", ARM64, place)
    run(["dpkg-deb", "-x", package, place])
    return place


def lodefs(root: Path, *words: str) -> str:
    """What lodefs prints when qemu runs it. Raises: AssertionError."""
    command = ["unshare", "--user", "--mount", "sh", "-ec", WITHIN, "sh", str(root)]
    with subprocess.Popen(
        [*command, "/usr/bin/lodefs", *words], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT, text=True, env={"HOME": "/root", "LODEFS_CONFIG": os.devnull},
    ) as process:  # fmt: skip
        own = os.readlink("/proc/self/ns/user")
        while os.readlink(f"/proc/{process.pid}/ns/user") == own and process.poll() is None:
            os.sched_yield()
        for kind in ("uid_map", "gid_map"):
            Path(f"/proc/{process.pid}/{kind}").write_text("0 0 65536")
        printed, _ = process.communicate("started\n", timeout=300)
    assert process.returncode == 0, printed
    return printed


def test_it_runs(root: Path, report: Report) -> None:
    """The package for arm64 says its version, and pushes and pulls with its compiled modules."""
    data = os.urandom(1 << 20)
    (root / "source").mkdir()
    (root / "source/data.bin").write_bytes(data)
    assert lodefs(root, "--version").startswith("lodefs")
    lodefs(root, "init", "/store")
    lodefs(root, "--store", "/store", "push", "/source", "try")
    lodefs(root, "--store", "/store", "pull", "try", "/out")
    assert sha256((root / "out/data.bin").read_bytes()).digest() == sha256(data).digest()
    report("Debian package for arm64", "pushed and pulled under qemu")
