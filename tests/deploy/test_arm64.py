"""The Debian package and the bundle for arm64, built on another machine, run by qemu. Only where
LODEFS_TEST_PACKAGES=1 asks for it, and where qemu-user-static is installed."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable
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
root=$1
shift
[ "$root" != / ] || exec "$@"
mount --rbind /dev "$root/dev"
exec chroot "$root" "$@"
"""


@pytest.fixture(scope="module")
def make(workshop: Path) -> Callable[[str], Path]:
    """Runs a script of deploy for arm64, and returns the path of what it has made."""
    wheels = workshop / "arm64-wheels"
    build(DEPLOY / "debian/foreign-wheels.sh", "--architecture", ARM64, wheels)
    environment = {"PIP_FIND_LINKS": str(wheels), "SOURCE_DATE_EPOCH": str(EPOCH)}

    def made(script: str) -> Path:
        command: list[str | Path] = [DEPLOY / script, "--architecture", ARM64, "--out", workshop]
        return Path(run(command, env=environment, timeout_s=BUILD_TIMEOUT_S).split()[-1])

    return made


@pytest.fixture
def root(workshop: Path, make: Callable[[str], Path]) -> Path:
    """A root file system of Debian's Python for arm64, with the package unpacked in it."""
    package, place = make("debian/build.sh"), workshop / "arm64"
    assert run(["dpkg-deb", "-f", package, "Architecture"]).strip() == ARM64
    build(DEPLOY / "debian/python-root.sh", "--architecture", ARM64, place)
    run(["dpkg-deb", "-x", package, place])
    return place


def emulated(root: Path, home: Path, *words: str | Path) -> str:
    """What a program prints when qemu runs it, ``root`` being its /. Raises: AssertionError."""
    command: list[str | Path] = ["unshare", "--user", "--mount", "sh", "-ec", WITHIN, "sh", root]
    with subprocess.Popen(
        [*command, *words], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT, text=True, env={"HOME": str(home), "LODEFS_CONFIG": os.devnull},
    ) as process:  # fmt: skip
        own = os.readlink("/proc/self/ns/user")
        while os.readlink(f"/proc/{process.pid}/ns/user") == own and process.poll() is None:
            os.sched_yield()
        for kind in ("uid_map", "gid_map"):
            Path(f"/proc/{process.pid}/{kind}").write_text("0 0 65536")
        printed, _ = process.communicate("started\n", timeout=300)
    assert process.returncode == 0, printed
    return printed


def check_work(root: Path, lodefs: str | Path, place: Path) -> None:
    """lodefs says its version, and pushes and pulls with its compiled modules. ``place``: an empty
    directory, as it is called within ``root``."""
    outside = root / place.relative_to("/")
    data = os.urandom(1 << 20)
    (outside / "source").mkdir(parents=True)
    (outside / "source/data.bin").write_bytes(data)

    def call(*words: str | Path) -> str:
        return emulated(root, place, lodefs, *words)

    assert call("--version").startswith("lodefs")
    store = place / "store"
    call("init", store)
    call("--store", store, "push", place / "source", "try")
    call("--store", store, "pull", "try", place / "out")
    assert sha256((outside / "out/data.bin").read_bytes()).digest() == sha256(data).digest()


def test_the_package_runs(root: Path, report: Report) -> None:
    """The Debian package for arm64 does its main job."""
    check_work(root, "/usr/bin/lodefs", Path("/try"))
    report("Debian package for arm64", "pushed and pulled under qemu")


def test_the_bundle_runs(make: Callable[[str], Path], tmp_path: Path, report: Report) -> None:
    """The bundle for arm64 does its main job, with its own loader and libraries."""
    bundle = make("bundle/build.sh")
    run(["tar", "-C", tmp_path, "-xJf", bundle], timeout_s=BUILD_TIMEOUT_S)
    (lodefs,) = tmp_path.glob("lodefs-*/bin/lodefs")
    check_work(Path("/"), lodefs, tmp_path / "work")
    report("bundle for arm64", "pushed and pulled under qemu")
