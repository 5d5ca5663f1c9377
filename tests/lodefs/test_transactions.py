"""lodefs.transaction: files that a program and its processes write become one commit."""

from __future__ import annotations

import multiprocessing
import os
import pickle
import threading
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from pathlib import Path

import pytest

import lodefs
from lodefs.api.transactions import Part
from lodefs.chunkstore.errors import AlreadyExists, Conflict, InvalidInput, NoSpace, NotFound
from lodefs.chunkstore.objects.directory import DirectoryObjects
from lodefs.chunkstore.repo.store import Store, create_store
from tests.support.chunkstore.directories import in_commit

pytestmark = pytest.mark.slow


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Store:
    """A store, which the environment names, with a repository r."""
    place = str(tmp_path / "store")
    made = create_store(DirectoryObjects(place))
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("LODEFS_STORE", place)
    monkeypatch.setenv("LODEFS_CONFIG", os.devnull)
    with lodefs.transaction("r", message="first") as tx:
        tx.put("a", b"1")
        tx.put("d/f", b"f")
    return made


def files(store: Store, branch: str = "main") -> dict[bytes, bytes]:
    """What is in a branch."""
    seen = in_commit(store, "r", store.resolve("r", branch).hex())
    return {path: one.content for path, one in seen.items() if one.content or path == b"empty"}


def messages() -> list[str]:
    """Of the commits of main, the newest first."""
    return [entry.commit.message for entry in lodefs.log("r")]


def test_all_kinds_of_changes(store: Store, tmp_path: Path) -> None:
    """Each does what it says; the block is one commit, with its message."""
    local = tmp_path / "local"
    local.write_bytes(b"local")
    local.chmod(0o755)
    with lodefs.transaction("r@main", message="second", author="me", metadata={"run": "7"}) as tx:
        with tx.open("text", "w") as text:
            text.write("é\n")
        with tx.open("deep/new", "xb", executable=True) as file:
            file.write(b"new")
        tx.put("local", local)
        with local.open("rb") as stream:
            tx.put("stream", stream)
        tx.link("link", "a")
        tx.mkdir("empty")
        tx.copy("d", "d2")
        tx.rename("d/f", "d/g")
        tx.copy_from("r@main:a", "b")
        tx.remove("a")
        assert (tx.read("text"), tx.read("deep/new", 1, 2)) == ("é\n".encode(), b"e")
        assert tx.exists("d/g") and not tx.exists("d/f") and tx.exists("")
    assert tx.result is not None and tx.result.stored_bytes > 0
    assert messages() == ["second", "first"]
    newest = next(iter(lodefs.log("r"))).commit
    assert (newest.author, dict(newest.metadata)) == ("me", {"run": "7"})
    seen = in_commit(store, "r", tx.result.commit)
    assert seen[b"deep/new"].executable and seen[b"local"].executable
    assert seen[b"link"].content == b"a"
    assert b"empty" in seen
    assert {path: one.content for path, one in seen.items() if one.content} == {
        b"text": "é\n".encode(), b"deep/new": b"new", b"local": b"local", b"stream": b"local",
        b"link": b"a", b"d2/f": b"f", b"d/g": b"f", b"b": b"1",
    }  # fmt: skip


def test_commits_in_between_and_none(store: Store) -> None:
    """Each has its own message; a block that changes nothing commits nothing, one that raises or is
    discarded neither."""
    with lodefs.transaction("r", message="end") as tx:
        tx.put("b", b"2")
        first = tx.commit("middle")
        tx.put("c", b"3")
    assert tx.result is not None and tx.result.commit != first.commit
    with lodefs.transaction("r") as tx:
        tx.put("b", b"2")
    assert tx.result is not None and tx.result.unchanged
    with lodefs.transaction("r@other") as tx:
        pass
    assert tx.result is None
    with pytest.raises(KeyError):  # noqa: PT012, SIM117
        with lodefs.transaction("r") as tx:
            tx.put("e", b"4")
            raise KeyError
    with lodefs.transaction("r") as tx:
        tx.put("e", b"4")
        tx.discard()
    assert messages() == ["end", "middle", "first"]
    assert [branch.name for branch in lodefs.branch.list("r")] == ["main"]


def test_a_conflict_keeps_what_is_staged(store: Store) -> None:
    """The block raises it; another block of the same transaction decides, and commits what the
    first one staged."""
    tx = lodefs.transaction("r", message="ours")
    with pytest.raises(Conflict, match=r"both sides changed a: .*rebase"):  # noqa: PT012, SIM117
        with tx:
            tx.put("a", b"ours")
            tx.put("big", bytes(range(256)) * 100)
            with lodefs.transaction("r", message="theirs") as other:
                other.put("a", b"theirs")
                other.put("new", b"n")
    with pytest.raises(InvalidInput, match="is not open"):
        tx.put("b", b"")
    with tx:
        tx.rebase(ours=["a"])
        tx.put("more", b"m")
    assert messages() == ["ours", "theirs", "first"]
    assert files(store) == {
        b"a": b"ours", b"big": bytes(range(256)) * 100, b"d/f": b"f", b"more": b"m", b"new": b"n",
    }  # fmt: skip


def write_part(part: Part, number: int) -> Part:
    """What a process does."""
    with part:
        for n in range(20):
            part.put(f"parts/{number}-{n}", b"%d %d " % (number, n) * 500)
        part.put(f"own/{number}", part.read("begun"))
    return part


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_processes_write_parts(store: Store, method: str) -> None:
    """Parts travel by pickle, small, and what they wrote is one commit with what the parent wrote
    before, meanwhile and after."""
    with lodefs.transaction("r", message="parts") as tx:
        tx.put("begun", b"yes")
        forks = [tx.fork() for _ in range(3)]
        context = multiprocessing.get_context(method)
        with ProcessPoolExecutor(2, mp_context=context) as pool:
            tasks = [pool.submit(write_part, fork, n) for n, fork in enumerate(forks)]
            tx.put("meanwhile", b"m")
            done = [task.result() for task in tasks]
        assert len(pickle.dumps(done[0])) < 2000
        tx.merge(done)
        tx.put("after", b"a")
    found = files(store)
    assert len([path for path in found if path.startswith(b"parts/")]) == 60
    assert found[b"parts/2-19"] == b"2 19 " * 500
    assert found[b"own/1"] == b"yes"
    assert {b"begun", b"meanwhile", b"after"} < found.keys()
    assert messages() == ["parts", "first"]


def test_a_process_that_was_forked_in_the_block(store: Store) -> None:
    """It cannot write with its parent's transaction, nor end it."""
    reader, writer = os.pipe()
    with lodefs.transaction("r") as tx:
        tx.put("b", b"2")
        if not (child := os.fork()):
            try:
                with pytest.raises(InvalidInput, match="belongs to its parent"):
                    tx.put("x", b"x")
                tx.__exit__(None, None, None)
                os.write(writer, b"refused")
            finally:
                os._exit(0)
        os.waitpid(child, 0)
        os.close(writer)
        tx.put("c", b"3")
    with open(reader, "rb") as pipe:
        assert pipe.read() == b"refused"
    assert files(store).keys() == {b"a", b"b", b"c", b"d/f"}


def test_parts_that_are_not_ready(store: Store) -> None:
    """What was not written, failed, is open or of another transaction is not merged."""
    with lodefs.transaction("r") as other:
        foreign = write_plain(other.fork(), "x")
        other.discard()
    with lodefs.transaction("r") as tx:
        fork = tx.fork()
        with pytest.raises(InvalidInput, match="was not written"):
            tx.merge([fork])
        with pytest.raises(InvalidInput, match="of another transaction"):
            tx.merge([foreign])
        with fork:
            fork.put("y", b"y")
            with pytest.raises(InvalidInput, match="before its `with` block or after"):
                pickle.dumps(fork)
        tx.merge([fork])
        tx.put("y", b"3")
        with pytest.raises(Conflict, match=r"changed y: .* paths of its own"):
            tx.merge([write_plain(tx.fork(), "z"), write_plain(fork, "y", b"2")])
    found = files(store)
    assert (found[b"y"], found[b"z"]) == (b"3", b"1")


def write_plain(part: Part, path: str, content: bytes = b"1") -> Part:
    """One file."""
    with part:
        part.put(path, content)
    return part


def test_threads_write_side_by_side(store: Store) -> None:
    """Each file is whole, and there is one commit; processes are forked meanwhile."""
    with lodefs.transaction("r") as tx, ThreadPoolExecutor(4) as pool:
        barrier = threading.Barrier(4)

        def write(number: int) -> None:
            barrier.wait()
            for n in range(10):
                with tx.open(f"t/{number}/{n}") as file:
                    for _ in range(10):
                        file.write(b"%d" % number * 1000)

        written = pool.map(write, range(4))
        for _ in range(5):
            if not (child := os.fork()):
                os._exit(0)
            assert os.waitpid(child, 0)[1] == 0
        list(written)
    found = files(store)
    assert all(
        found[b"t/%d/%d" % (t, n)] == b"%d" % t * 10_000 for t in range(4) for n in range(10)
    )


def test_what_is_refused(store: Store) -> None:
    """A tag or commit in place of a branch, a path, an unknown revision, a deleted repository, a
    mode, what is used outside of its block, more than the quota."""
    commit = store.resolve("r", "main").hex()
    lodefs.tag("r", "v1.0")
    for spec, kind, message in (
        ("r@v1.0", InvalidInput, "has a tag v1.0"),
        (f"r@{commit[:12]}", InvalidInput, "beginning of commit"),
        ("r:path", InvalidInput, "without a path"),
        ("R?", InvalidInput, "repository"),
    ):
        with pytest.raises(kind, match=message), lodefs.transaction(spec):
            pass
    with pytest.raises(NotFound, match="none"), lodefs.transaction("r", base="none"):
        pass
    with lodefs.transaction("unknown/repository") as tx:
        with pytest.raises(NotFound, match="a does not exist"):
            tx.remove("a")
        with pytest.raises(InvalidInput, match="mode 'rb'"):
            tx.open("a", "rb")
        with pytest.raises(InvalidInput, match="is already open"):
            tx.__enter__()
    with pytest.raises(InvalidInput, match="not open: it works in its `with` block"):
        tx.put("a", b"")
    with (
        pytest.raises(InvalidInput, match="open for writing: close"),
        lodefs.transaction("r") as tx,
    ):
        tx.open("half").write(b"1")
    lodefs.quota("r", 10_000)
    with pytest.raises(NoSpace, match="the quota of r is 10,000"), lodefs.transaction("r") as tx:
        tx.put("big", b"b" * 20_000)
    with tx:
        tx.remove("big")
        tx.put("small", b"s")
    lodefs.rm("r")
    with pytest.raises(AlreadyExists, match="lodefs undelete"), lodefs.transaction("r"):
        pass
