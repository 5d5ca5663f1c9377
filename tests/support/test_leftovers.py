"""Directories of runs that were killed go; all others stay."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.chunkstore import leftovers
from tests.support.chunkstore.child_process import Child

RUN = """
import sys, time
from tests.support.chunkstore.child_process import private_directory
with private_directory(sys.argv[1]) as path:
    (path / "part").mkdir()
    (path / "part" / "file").write_text("left")
    print("made", path, flush=True)
    sys.stdin.buffer.read() if sys.argv[2] == "end" else time.sleep(1000)
"""


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)
    return tmp_path


def made(child: Child) -> Path:
    return Path(child.wait_for("^made (.*)$")[1])


@pytest.mark.slow
def test_what_a_killed_run_left_goes(place: Path) -> None:
    """Its directory goes, that of a run which lives stays, and one that nobody noted too."""
    (place / "lodefs-other").mkdir()
    with (
        Child([sys.executable, "-c", RUN, "ld-", "stay"]) as living,
        Child([sys.executable, "-c", RUN, "ld-", "stay"]) as dying,
    ):
        alive, dead = made(living), made(dying)
        assert leftovers.clear() == []
        dying.kill()
        assert leftovers.clear() == [dead]
        assert leftovers.clear() == []
        assert (alive / "part" / "file").exists()
        assert not dead.exists()
    assert (place / "lodefs-other").exists()


@pytest.mark.slow
def test_what_is_used_stays_until_it_is_not() -> None:
    """A process that the killed run left behind keeps its directory."""
    with Child([sys.executable, "-c", RUN, "ld-", "stay"]) as run:
        dead = made(run)
    with (dead / "part" / "file").open():
        assert leftovers.clear() == []
    assert leftovers.clear() == [dead]


@pytest.mark.slow
@pytest.mark.skipif(os.geteuid() != 0, reason="mounts as root")
def test_mounts_in_it_go_first(tmp_path: Path) -> None:
    """What is mounted in a directory is taken away, and nothing of it is removed."""
    kept = tmp_path / "kept"
    kept.mkdir()
    (kept / "precious").touch()
    with Child([sys.executable, "-c", RUN, "ld-", "stay"]) as run:
        dead = made(run)
        subprocess.run(["mount", "--bind", kept, dead / "part"], check=True, timeout=20)
    assert leftovers.clear() == [dead]
    assert (kept / "precious").exists()


def test_a_directory_that_ends_leaves_nothing(place: Path) -> None:
    """After its context neither it nor its lock is there."""
    with leftovers.claimed("ld-") as path:
        assert path.parent == place
    assert not path.exists()
    assert [file for folder in place.iterdir() for file in folder.iterdir()] == []
