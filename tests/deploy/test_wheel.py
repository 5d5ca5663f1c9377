"""The wheel: what it puts beside other people's packages."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import zipfile
from hashlib import sha256
from pathlib import Path

import pytest

from tests.deploy.conftest import Report
from tests.deploy.node_processes import NodeProcesses, check_reads, write_files
from tests.support.chunkstore.child_process import run

pytestmark = pytest.mark.slow

SCRIPT = """
import sys
sys.path.insert(0, sys.argv[1])
import proxy, lodefs, lodefs.proxy, lodefs.chunkstore.format.names
print(proxy.__file__, lodefs.proxy.__file__, hasattr(proxy, "Proxy"))
"""


def pip(*words: str | Path) -> None:
    subprocess.run([sys.executable, "-m", "pip", "-q", *words], check=True, timeout=300)


@pytest.mark.fuse
def test_it_works_in_an_environment_of_its_own(
    wheels: Path, workshop: Path, report: Report
) -> None:
    """Installed into a fresh environment it pushes, and mounts through the proxy that it starts:
    data processes fetch, and the kernel reads by itself."""
    place = workshop / "wheel"
    digests = write_files(place / "source", {"one.bin": 8 << 20, "two.bin": 8 << 20})
    run([sys.executable, "-m", "venv", place / "venv"], timeout_s=120)
    (own,) = wheels.glob("lodefs-*.whl")
    install = ["install", "-q", "--no-index", "--no-compile", "--find-links", str(wheels)]
    run([place / "venv/bin/pip", *install, own], timeout_s=240)
    environment = {"HOME": str(place), "PATH": os.environ["PATH"], "LODEFS_CONFIG": os.devnull}
    store, target = place / "store", place / "mount"
    target.mkdir()

    def lodefs(*words: str | Path) -> None:
        command = [place / "venv/bin/lodefs", "--store", store, *words]
        run([str(word) for word in command], env=environment, cwd=place, timeout_s=120)

    lodefs("init", store)
    lodefs("push", place / "source", "try")
    lodefs("mount", "try", target)
    (proxy,) = place.glob(".cache/lodefs/*/pid")
    pid = int(proxy.read_text())
    try:
        node = NodeProcesses(pid, str(proxy.with_name("sock")))
        report("wheel", check_reads(node, digests, lambda name: digest_of(target / name)))
    finally:
        lodefs("unmount", target)
        os.kill(pid, signal.SIGTERM)


def digest_of(file: Path) -> str:
    return sha256(file.read_bytes()).hexdigest()


def test_the_wheel_has_one_name_at_the_top(wheels: Path) -> None:
    """Nothing but lodefs is put into site-packages."""
    (own,) = wheels.glob("lodefs-*.whl")
    names = {name.partition("/")[0] for name in zipfile.ZipFile(own).namelist()}
    assert {name for name in names if not name.endswith(".dist-info")} == {"lodefs"}


def test_it_lives_beside_a_package_that_owns_a_folder_name(wheels: Path, tmp_path: Path) -> None:
    """PyPI's proxy.py has a package `proxy`: both are whole when both are installed."""
    (own,) = wheels.glob("lodefs-*.whl")
    place = tmp_path / "site"
    pip("install", "--no-deps", "--target", place, "proxy.py==2.4.10", own)
    command = [sys.executable, "-I", "-c", SCRIPT, str(place)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    theirs, ours, is_whole = done.stdout.split()
    assert Path(theirs) == place / "proxy" / "__init__.py"
    assert Path(ours) == place / "lodefs" / "proxy" / "__init__.py"
    assert is_whole == "True"
