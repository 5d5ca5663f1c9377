"""A push that is killed at any of its writes: all or nothing, and the repetition works."""

from __future__ import annotations

import re
import signal
import sys
from pathlib import Path

import pytest

from lodefs.chunkstore.errors import NotFound
from lodefs.chunkstore.objects.directory import DirectoryObjects
from lodefs.chunkstore.repo.checks.verify import verify
from lodefs.chunkstore.repo.store import Store, create_store, open_store
from lodefs.chunkstore.system.progress import Progress
from tests.support.chunkstore import pusher
from tests.support.chunkstore.child_process import Child
from tests.support.chunkstore.directories import in_commit, in_directory, random_files, write_files

PUTS_MAX = 30


def run_pusher(tmp_path: Path, when: str, number: int, prefix: str = "") -> tuple[int, int | None]:
    """Exit code, and the new bytes where the push came to its end."""
    argv = [sys.executable, "-m", "tests.support.chunkstore.pusher"]
    paths = [tmp_path / name for name in ("source", "store", "index")]
    with Child([*argv, *paths, when, str(number), prefix], cwd=Path(__file__).parents[3]) as child:
        code = child.wait()
        found = re.search(r"commit [0-9a-f]{64} new (\d+)", child.output)
        if code not in (0, -signal.SIGKILL):
            raise child.failed("failed")
    return code, int(found[1]) if found else None


def repeat(tmp_path: Path) -> None:
    """A push in this process, which takes a third of the time of one in its own."""
    source, store, index = (str(tmp_path / name) for name in ("source", "store", "index"))
    pusher.main(source, store, index, "never", "0")


def sound_store(tmp_path: Path) -> Store:
    store = open_store(DirectoryObjects(tmp_path / "store"))
    assert verify(store, None, data=True, progress=Progress()).problems == []
    return store


def assert_pushed(tmp_path: Path) -> None:
    """The store is sound, and the branch has the files of the source."""
    store = sound_store(tmp_path)
    commit = head(store)
    assert commit is not None
    assert in_commit(store, "r", commit) == in_directory(tmp_path / "source")


def head(store: Store) -> str | None:
    try:
        return store.resolve("r", "main").hex()
    except NotFound:
        return None


@pytest.mark.slow
def test_killed_before_any_put(tmp_path: Path) -> None:
    """Whichever put is the last before the ref: the store is sound, the branch stands where it
    stood, and the next push from the same index completes."""
    source = tmp_path / "source"
    create_store(DirectoryObjects(tmp_path / "store"))
    random_files(source, files=12, size_bytes_max=50_000)
    repeat(tmp_path)
    for number in range(1, PUTS_MAX):
        old = head(open_store(DirectoryObjects(tmp_path / "store")))
        random_files(source, files=25, size_bytes_max=900_000, seed=100 + number)
        code, _ = run_pusher(tmp_path, "before", number)
        if code == 0:
            break
        assert head(sound_store(tmp_path)) == old
        repeat(tmp_path)
        assert_pushed(tmp_path)
    else:
        raise AssertionError("the push never came to its end")
    assert number > 8  # two of the probe, two of data, trees, shard, commit, ref
    assert_pushed(tmp_path)


@pytest.mark.slow
def test_killed_after_the_ref(tmp_path: Path) -> None:
    """The branch stands at the whole new commit, and the next push from the same index finds
    nothing to do."""
    create_store(DirectoryObjects(tmp_path / "store"))
    random_files(tmp_path / "source", files=12, size_bytes_max=50_000)
    code, _ = run_pusher(tmp_path, "after", 1, "repos/r/refs/")
    assert code == -signal.SIGKILL
    assert_pushed(tmp_path)
    assert run_pusher(tmp_path, "never", 0) == (0, 0)
    assert_pushed(tmp_path)


@pytest.mark.slow
def test_the_repetition_sends_little(tmp_path: Path) -> None:
    """What a killed push had stored before its commit is not sent again."""
    create_store(DirectoryObjects(tmp_path / "store"))
    write_files(tmp_path / "source", {f"{n}": b"%d" % n * 1000 for n in range(50)})
    code, _ = run_pusher(tmp_path, "before", 1, "repos/r/commits/")
    assert code == -signal.SIGKILL
    code, new_bytes = run_pusher(tmp_path, "never", 0)
    assert (code, new_bytes) == (0, 0)
    assert head(sound_store(tmp_path)) is not None
