"""What is built once for all tests of packages: wheel, Debian package, Debian to install it in."""

from __future__ import annotations

import fcntl
import os
import re
import shutil
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import pytest

from loadtests.services.machine import Machine, booted, see_one_boot_id
from tests.support.chunkstore.child_process import private_directory, run

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
EPOCH = 1_700_000_000
BUILD_TIMEOUT_S = 240.0
PYTHON_VERSION = "3.11"
EXTRAS = "gcs,azure"  # of stage.sh
Report = Callable[[str, str], None]
if os.environ.get("LODEFS_TEST_PACKAGES") != "1":
    # Not a part of this run.
    collect_ignore = ["test_arm64.py", "test_bundle.py", "test_image.py"]


def build(*words: str | Path, epoch: int = EPOCH, wheels: Path | None = None) -> str:
    """The output of one of deploy's scripts, standard error included; ChildError. ``wheels``: where
    pip finds all that it installs, which takes a third of the time that a registry does."""
    environment = {"SOURCE_DATE_EPOCH": str(epoch)}
    if wheels is not None:
        environment |= {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(wheels)}
    return run([str(word) for word in words], env=environment, timeout_s=BUILD_TIMEOUT_S)


@pytest.fixture
def report(record_property: Callable[[str, object], None]) -> Report:
    """Says at the end of the run what was seen of an artefact."""
    return lambda artefact, seen: record_property("artefact", f"{artefact}: {seen}")


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """What tests reported of artefacts."""
    for one in terminalreporter.stats.get("passed", []):
        for name, value in one.user_properties:
            if name == "artefact" and one.when == "call":
                terminalreporter.write_line(str(value))


@dataclass(frozen=True)
class Packages:
    """The Debian package, the same built again elsewhere, a later version, and the directory that
    the first has been unpacked into, which tests only read."""

    first: Path
    again: Path
    later: Path
    tree: Path


@pytest.fixture(scope="session")
def workshop() -> Iterator[Path]:
    """A directory for what is built."""
    with private_directory("ldb-") as directory:
        yield directory


@pytest.fixture(scope="session")
def packages(workshop: Path, wheels: Path) -> Packages:
    """Debian packages: of this checkout and a registry, and again of wheels that are there."""
    script: list[str | Path] = [DEPLOY / "debian/build.sh", "--level", "1"]
    (own,) = wheels.glob("lodefs-*.whl")
    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(build, *script, "--out", workshop / "first")
        again = pool.submit(
            build, *script, "--wheel", own, "--out", workshop / "again", wheels=wheels
        )
        one, two = (Path(each.result().splitlines()[-1]) for each in (first, again))
    tree = workshop / "tree"
    run(["dpkg-deb", "-R", one, tree])
    return Packages(one, two, _later(tree, workshop / "later.deb"), tree)


def _later(tree: Path, later: Path) -> Path:
    """The package of a directory with a higher version."""
    control = tree / "DEBIAN/control"
    text = control.read_text()
    control.write_text(re.sub(r"(Version: .*)", r"\1+later", text))
    run(["dpkg-deb", "-Znone", "--root-owner-group", "-b", tree, later])
    control.write_text(text)
    return later


@pytest.fixture(scope="session")
def wheels(workshop: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with the wheels of lodefs and of all that it needs, for Debian's Python. All
    processes of a run share it."""
    shared = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        shared = shared.parent
    made = shared / "wheels"
    with (shared / "wheels.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not made.exists():
            _make_wheels(workshop, shared / "wheels.new").rename(made)
    return made


def _make_wheels(workshop: Path, wheels: Path) -> Path:
    source = workshop / "source"
    for name in ("chunkstore", "lodefs", "mount", "proxy"):
        shutil.copytree(ROOT / name, source / name)
    for name in ("pyproject.toml", "README.md", "LICENSE", "constraints.txt"):
        shutil.copy(ROOT / name, source)
    pip = [sys.executable, "-m", "pip", "--quiet"]
    run([*pip, "wheel", "--no-deps", "-w", wheels, source], timeout_s=BUILD_TIMEOUT_S)
    (own,) = wheels.glob("lodefs-*.whl")
    fits = ["--python-version", PYTHON_VERSION, "--only-binary", ":all:"]
    constraints: list[str | Path] = ["-c", source / "constraints.txt"]
    wanted = f"{own}[{EXTRAS}]"
    run([*pip, "download", "-d", wheels, *fits, *constraints, wanted], timeout_s=BUILD_TIMEOUT_S)
    return wheels


@pytest.fixture(scope="session")
def debian(workshop: Path) -> Iterator[Machine]:
    """A fresh Debian that has booted: systemd, what the package depends on, what install.sh asks
    for, no more."""
    root = workshop / "debian"
    needs = ["python3-venv", "systemd", "systemd-sysv", "ca-certificates", "libstdc++6"]
    build(DEPLOY / "debian/root.sh", "essential", root, *needs)
    (root / "shared").mkdir()
    see_one_boot_id(root)
    with booted(root) as machine:
        yield machine
