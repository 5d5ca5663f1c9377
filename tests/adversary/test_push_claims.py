"""What a push takes from the store of others: chunks, which are proved, and never the word of a
tree that some digest lies in some segments."""

from __future__ import annotations

import time
from functools import cache
from pathlib import Path
from random import Random

import pytest

from lodefs.chunkstore.format.names import Spec
from lodefs.chunkstore.push.push import PushOptions, PushResult, push
from lodefs.chunkstore.repo.checks.verify import verify
from lodefs.chunkstore.repo.refs import BRANCHES
from lodefs.chunkstore.repo.store import Store
from lodefs.chunkstore.system.progress import Progress
from tests.adversary.hostile_repo import Claims, FileClaim, TreeClaim, lying_commit
from tests.support.chunkstore.directories import in_commit, in_directory, write_files
from tests.support.chunkstore.handmade import Files, memory_store

SIZES_BYTES = {"one chunk": 5000, "several chunks": 300_000, "over a MiB": 1_200_000}


@cache
def content(size_bytes: int, seed: int) -> bytes:
    return Random(seed).randbytes(size_bytes)


def honest_files(size_bytes: int) -> dict[bytes, bytes]:
    """Directories beside each other and in each other, some with a file of that size."""
    small = {path: b"content of " + path for path in (b"d/c", b"d/e/f", b"z/y")}
    paths = (b"a", b"d/b", b"g/h/i/j")
    return small | {path: content(size_bytes, seed) for seed, path in enumerate(paths)}


def lies(size_bytes: int) -> dict[str, Claims]:
    """By name: what lies behind the paths of honest_files."""
    other = content(size_bytes, 77)
    inner: Files = {b"f": other}
    return {
        "a file of the root": {b"a": FileClaim(other)},
        "a file deep below": {b"g/h/i/j": FileClaim(other)},
        "a file of another size": {b"d/b": FileClaim(other[:-700])},
        "a file of stretched segments": {b"d/b": FileClaim(other[:-700], stretched=True)},
        "a directory": {b"d/e": TreeClaim(inner)},
        "a directory of directories": {b"d": TreeClaim({b"e/f": other})},
        "the root": {b"": TreeClaim({b"a": other})},
    }


class Machine:
    """Somebody honest, who pushes one directory."""

    def __init__(self, store: Store, tmp_path: Path, files: dict[bytes, bytes]) -> None:
        self.store = store
        self.source = tmp_path / "source"
        self.index_dir = tmp_path / "index"
        write_files(self.source, {path.decode(): data for path, data in files.items()})

    def push(self, repo: str = "r", index: str = "own") -> PushResult:
        options = PushOptions(
            message="",
            author="",
            time_s=0,
            index_dir=self.index_dir / index,
            workers=0,
            clock_ns=lambda: time.time_ns() + 3600 * 10**9,
        )
        return push(self.store, self.source, repo, "main", options)

    def assert_honest(self, result: PushResult, repo: str = "r") -> None:
        """The commit holds what the source holds, to the last byte."""
        assert in_commit(self.store, repo, result.commit) == in_directory(self.source)
        spec = Spec(repo, result.commit)
        assert verify(self.store, spec, data=True, progress=Progress()).problems == []


@pytest.mark.parametrize("size", SIZES_BYTES)
@pytest.mark.parametrize("lie", lies(1000))
@pytest.mark.parametrize("repo", ["r", "another"])
def test_a_push_over_a_lying_head(tmp_path: Path, size: str, lie: str, repo: str) -> None:
    """Somebody commits the honest directory's digests with other bytes behind them, and then it is
    pushed for the first time, to that branch or elsewhere: the commit that the honest one is told
    has the honest bytes."""
    store = memory_store()
    files = honest_files(SIZES_BYTES[size])
    lying_commit(store, "r", files, lies(SIZES_BYTES[size])[lie])
    machine = Machine(store, tmp_path, files)
    result = machine.push(repo)
    machine.assert_honest(result, repo)
    again = machine.push(repo)
    assert (again.unchanged, again.files_read, again.commit) == (True, 0, result.commit)


@pytest.mark.parametrize("size", SIZES_BYTES)
@pytest.mark.parametrize("lie", lies(1000))
@pytest.mark.parametrize("index", ["own", "new"])
def test_a_head_that_begins_to_lie(tmp_path: Path, size: str, lie: str, index: str) -> None:
    """The honest directory was pushed, and then somebody moves the branch to a commit of the same
    digests and other bytes: pushed again, from the same machine or from another one that finds all
    chunks in the store, the commit that the honest one is told has the honest bytes."""
    store = memory_store()
    files = honest_files(SIZES_BYTES[size])
    machine = Machine(store, tmp_path, files)
    machine.push()
    lying_commit(store, "r", files, lies(SIZES_BYTES[size])[lie])
    result = machine.push(index=index)
    machine.assert_honest(result)
    assert result.new_bytes == 0
    (machine.source / "new file").write_bytes(b"new")
    lying_commit(store, "r", files, lies(SIZES_BYTES[size])[lie])
    machine.assert_honest(machine.push(index=index))


@pytest.mark.parametrize("lie", lies(1000))
def test_a_lying_head_and_a_change(tmp_path: Path, lie: str) -> None:
    """A machine that never saw the branch changes one file: none of the directories beside it comes
    from the lying head."""
    store = memory_store()
    files = honest_files(40_000)
    lying_commit(store, "r", files, lies(40_000)[lie])
    machine = Machine(store, tmp_path, files | {b"d/c": b"changed", b"new/n": b"new"})
    machine.assert_honest(machine.push())


def test_a_head_whose_trees_are_missing(tmp_path: Path) -> None:
    """Somebody commits a root whose tree names a pack that is not there: a push to that branch goes
    on, and its commit is whole."""
    store = memory_store()
    files = honest_files(1000)
    head = lying_commit(store, "r", files, {})
    for segment in store.commit("r", head).root.segments:
        store.objects.delete(f"packs/{segment.pack.hex()[:2]}/{segment.pack.hex()}")
    machine = Machine(store, tmp_path, files | {b"d/c": b"changed"})
    machine.assert_honest(machine.push())
    assert store.refs("r").read(BRANCHES, "main").sequence == 1
