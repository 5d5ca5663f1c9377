"""The bundle, in a root file system of an older Debian that has a shell, and neither Python nor a C
library that would do. Only where LODEFS_TEST_PACKAGES=1 asks for it: it takes minutes to build."""

from __future__ import annotations

import subprocess
import tarfile
from hashlib import sha256
from pathlib import Path

import pytest

from tests.deploy.conftest import DEPLOY, Report, build
from tests.support.chunkstore.child_process import run

pytestmark = [pytest.mark.fuse, pytest.mark.slow, pytest.mark.timeout(1800)]

SUITE = "bullseye"  # C library 2.31: RHEL 9 has 2.34, Ubuntu 22.04 has 2.35
OLD = ["dash", "coreutils"]
LIVE = """
set -e
export HOME=/root LODEFS_CONFIG=/dev/null PATH=/usr/bin:/bin
ln -s /opt/*/bin/lodefs /usr/bin/lodefs
mkdir /mnt/try
lodefs version
lodefs init /store
lodefs --store /store push /source try
lodefs --store /store pull try /out
lodefs --store /store mount try /mnt/try
sha256sum /out/data.bin /mnt/try/data.bin
lodefs --store /store unmount /mnt/try
kill $(cat /root/.cache/lodefs/*/pid)
"""
MODULES = "ssl, sqlite3, ctypes, aiohttp, blake3, fastcdc.fastcdc_cy, msgspec, rocksdict, uvloop"
MAPPED = f"""
import sys
sys.path.insert(0, sys.argv[1])
import {MODULES}, zstandard
print(open("/proc/self/maps").read())
"""


@pytest.fixture(scope="module")
def bundle(workshop: Path) -> Path:
    """The unpacked bundle of this checkout."""
    packed = Path(build(DEPLOY / "bundle/build.sh", "--out", workshop / "bundle").split()[-1])
    with tarfile.open(packed) as tar:
        tar.extractall(workshop / "unpacked", filter="tar")
    (unpacked,) = (workshop / "unpacked").iterdir()
    return unpacked


@pytest.fixture(scope="module")
def old(workshop: Path, bundle: Path) -> Path:
    """The root of a machine with the bundle below /opt, and a directory to push."""
    root = workshop / SUITE
    sources = "\n".join(
        line.replace("bookworm", SUITE)
        for line in run(["apt-get", "indextargets", "--format", "deb $(REPO_URI) $(RELEASE) main",
                         "Created-By: Packages", "Origin: Debian"]).splitlines()
        if line.split()[2] == "bookworm"
    )  # fmt: skip
    list_file = workshop / f"{SUITE}.list"
    list_file.write_text(sources + "\n")
    words: list[str | Path] = ["--mirror", list_file, "--suite", SUITE, "extract", root, *OLD]
    build(DEPLOY / "debian/root.sh", *words)
    for name in ("proc", "dev", "source"):
        (root / name).mkdir(exist_ok=True)
    (root / "opt").mkdir(exist_ok=True)
    run(["cp", "-a", bundle, root / "opt"])
    (root / "source/data.bin").write_bytes(bytes(range(256)) * 12_000)
    return root


def shell(root: Path, script: str) -> str:
    """What a shell script prints that runs in a root file system, with mounts of its own. What it
    leaves running ends with it."""
    within = (
        f"mount --rbind /dev {root}/dev && mount -t proc proc {root}/proc"
        f" && exec chroot {root} /bin/sh -c '{script}'"
    )
    return run(["unshare", "--mount", "--pid", "--fork", "sh", "-c", within], timeout_s=300)


def test_it_runs_where_nothing_is(old: Path, report: Report) -> None:
    """It pushes, pulls and mounts on a machine with no Python and an older C library."""
    assert not list(old.glob("usr/bin/python*"))
    printed = shell(old, LIVE)
    digest = sha256((old / "source/data.bin").read_bytes()).hexdigest()
    assert printed.count(f"{digest}  /") == 2, printed
    (unpacked,) = (old / "opt").iterdir()
    used_mb = int(run(["du", "-sm", unpacked]).split()[0])
    report("bundle", f"{used_mb} MB unpacked; pushed, pulled and mounted in Debian {SUITE}")


def test_it_uses_no_library_of_the_machine(bundle: Path) -> None:
    """All libraries of a process come from the bundle, though this machine has them, too."""
    ours = bundle / "tree/usr/lib/lodefs"
    mapped = run([ours / "python/bin/python3", "-IS", "-c", MAPPED, ours])
    libraries = {line.split()[-1] for line in mapped.splitlines() if ".so" in line}
    assert len(libraries) > 20
    assert {one for one in libraries if not one.startswith(f"{bundle}/")} == set()
    certificates = "import os; print(os.environ['SSL_CERT_FILE'])"
    assert Path(run([ours / "python/bin/python3", "-IS", "-c", certificates]).strip()).is_file()


def test_it_installs_itself(bundle: Path, tmp_path: Path) -> None:
    """install.sh of a bundle needs neither Python nor pip, and what it has installed runs; another
    prefix is refused."""
    root = tmp_path / "root"
    script = bundle / "install.sh"
    words: list[str | Path] = [script, "--destdir", root, "--python", "/bin/false", "--yes"]
    run(words, timeout_s=600)
    assert run([root / "usr/bin/lodefs", "version"]).startswith("lodefs ")
    assert (root / "usr/lib/systemd/system/lodefs-proxy.service").is_file()
    manifest = (root / "usr/lib/lodefs/manifest").read_text().split()
    assert "/usr/lib/lodefs/python/bin/python3" in manifest
    refused = subprocess.run(
        [*words, "--prefix", "/usr/local"], capture_output=True, text=True, check=False
    )
    assert refused.returncode == 1
    assert "are not for a bundle" in refused.stderr
    run([root / "usr/lib/lodefs/uninstall.sh", "--destdir", root, "--yes", "--purge"])
    assert not (root / "usr/lib/lodefs").exists()
