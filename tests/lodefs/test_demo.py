"""demo.py: what a new user sees first, and that it tells the truth."""

from __future__ import annotations

import os
import shutil
import signal
import sys
from pathlib import Path

import pytest

from lodefs.chunkstore.nodecache.index_logs import remove_leftovers
from lodefs.demo import Interruptions, change, differences
from tests.support.chunkstore.child_process import Child, private_directory
from tests.support.mount.mounts import until

DEMO_TIMEOUT_S = 280


def tree(folder: Path) -> Path:
    """A directory with one entry of each kind."""
    (folder / "d" / "e").mkdir(parents=True)
    (folder / "d" / "file").write_bytes(b"x" * 3_000_000)
    (folder / "run").write_text("#!")
    (folder / "run").chmod(0o755)
    (folder / "link").symlink_to("d")
    return folder


def test_equal_directories(tmp_path: Path) -> None:
    """A copy does not differ."""
    source = tree(tmp_path / "a")
    shutil.copytree(source, tmp_path / "b", symlinks=True)
    assert list(differences(source, tmp_path / "b")) == []


@pytest.mark.parametrize(
    ("spoil", "path"),
    [
        ("printf y | dd of=d/file bs=1 seek=2500000 conv=notrunc status=none", b"d/file"),
        ("truncate -s 2999999 d/file", b"d/file"),
        ("rm d/file", b"d/file"),
        ("touch d/e/more", b"d/e/more"),
        ("chmod 644 run", b"run"),
        ("ln -sfn run link", b"link"),
        ("rm link; mkdir link", b"link"),
        ("rmdir d/e; touch d/e", b"d/e"),
    ],
)
def test_every_difference_is_found(tmp_path: Path, spoil: str, path: bytes) -> None:
    """Content, size, names, executable bits, targets and kinds count."""
    source = tree(tmp_path / "a")
    copy = tmp_path / "b"
    shutil.copytree(source, copy, symlinks=True)
    assert os.system(f"cd '{copy}' && {spoil}") == 0
    assert list(differences(source, copy)) == [path]
    assert list(differences(copy, source)) == [path]


def test_change_makes_another_version(tmp_path: Path) -> None:
    """The second version has files edited, added and removed."""
    source = tmp_path / "a"
    source.mkdir()
    for number in range(30):
        (source / f"{number:02}.py").write_text(f"{number}\n" * 100)
    shutil.copytree(source, tmp_path / "b")
    assert change(tmp_path / "b") == "5 files edited, 3 added, 3 removed"
    assert len(list(differences(source, tmp_path / "b"))) == 5 + 3 + 1  # "added" is a directory


@pytest.mark.slow
@pytest.mark.fuse
def test_demo() -> None:
    """The demo succeeds, says what a new user wants to know, and leaves nothing behind."""
    with private_directory() as folder:
        command = [sys.executable, "-m", "lodefs.main", "demo"]
        with Child(command, env={"TMPDIR": str(folder), "HOME": str(folder)}) as child:
            code = child.wait(timeout_s=DEMO_TIMEOUT_S)
            output = child.output
        assert code == 0, output
        for words in ("saved", "every byte of both versions is equal", "lodefs init", "mount v2"):
            assert words in output
        assert os.listdir(folder) == []
        assert str(folder) not in Path("/proc/self/mountinfo").read_text()


@pytest.mark.slow
@pytest.mark.fuse
@pytest.mark.parametrize("after", ["^push v1", "^mount v1"])
def test_demo_that_is_ended_cleans_up(after: str) -> None:
    """SIGTERM in the middle takes the mounts, the proxy and the files away."""
    with private_directory() as folder:
        command = [sys.executable, "-m", "lodefs.main", "demo"]
        with Child(command, env={"TMPDIR": str(folder), "HOME": str(folder)}) as child:
            child.wait_for(after)
            # 0: it was done before the signal came
            assert child.terminate(timeout_s=DEMO_TIMEOUT_S) in (0, 130)

        def is_clean() -> bool:
            remove_leftovers(folder)  # as the next mount does, of workers killed at their start
            return os.listdir(folder) == []

        until(is_clean)
        assert str(folder) not in Path("/proc/self/mountinfo").read_text()


def test_interruptions_are_held() -> None:
    """A signal inside what must be whole is obeyed after it; elsewhere at once; only once."""
    done = []
    with Interruptions() as interruptions:

        def whole() -> None:
            with interruptions.held():
                signal.raise_signal(signal.SIGTERM)
                done.append("whole")

        with pytest.raises(KeyboardInterrupt):
            whole()
        with interruptions.held():
            done.append("cleaned up")
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
    assert done == ["whole", "cleaned up"]
