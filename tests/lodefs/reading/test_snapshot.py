"""lodefs.snapshot and lodefs.open against a real proxy."""

from __future__ import annotations

import os
import pickle
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

import lodefs
from lodefs.chunkstore.errors import InvalidInput, NotADirectory, NotFound
from tests.support.chunkstore.child_process import private_directory
from tests.support.lodefs.dataset_node import DatasetNode
from tests.support.mount.mounts import until
from tests.support.proxy.node_process import REPO

pytestmark = pytest.mark.slow


def test_reads(node: DatasetNode) -> None:
    """A snapshot gives files whole, by ranges, as bytes and as text, and what is known of them."""
    with lodefs.snapshot(REPO, proxy=node.address) as snapshot:
        assert snapshot.commit == node.commit
        data = (node.source / "large").read_bytes()
        assert snapshot.read("large") == data
        assert snapshot.read("large", [(0, 3), (100, 200), (-5, None)]) == [
            data[:3], data[100:200], data[-5:]
        ]  # fmt: skip
        with snapshot.open("large") as file:
            file.seek(2_000_000)
            assert file.read(10) == data[2_000_000:2_000_010]
        with snapshot.open("text", "r") as text:
            assert text.readline() == "line 0\n"
        assert snapshot.read("a/b/é +%@") == "é +%@".encode() * 100
        entry = snapshot.entry("a/01.bin")
        assert (entry.kind, entry.size_bytes) == ("file", 1300)
        assert snapshot.digest("a/01.bin") == entry.digest
        assert snapshot.exists("a/b") and not snapshot.exists("a/c")
        assert len(list(snapshot.files("a"))) == 36
        assert [one.path for one in snapshot.list("a/b")] == sorted(
            f"a/b/{name}" for name in os.listdir(node.source / "a/b")
        )


def test_from_the_cache_alone(node: DatasetNode) -> None:
    """What is on the node is read without a request."""
    with lodefs.snapshot(REPO, proxy=node.address) as snapshot:
        snapshot.read("a/02.bin")

        def is_there() -> bool:
            found = snapshot.file("a/02.bin")
            return snapshot.cache.find(found.ino, 0, found.size_bytes, found) is not None

        until(is_there)
        snapshot._clients.close()
        snapshot._clients._url = "unix:/nowhere"
        assert snapshot.read("a/02.bin") == (node.source / "a/02.bin").read_bytes()


def test_a_truncated_file_of_the_cache(node: DatasetNode) -> None:
    """A cache file that was cut under a reader gives right bytes, by every way of reading."""
    data = (node.source / "large").read_bytes()
    with lodefs.snapshot(REPO, proxy=node.address) as snapshot:

        def is_there() -> bool:
            found = snapshot.file("large")
            return snapshot.cache.find(found.ino, 0, found.size_bytes, found) is not None

        def read_into() -> bytes:
            buffer = bytearray(len(data))
            assert snapshot.raw("large").readinto(buffer) == len(buffer)
            return bytes(buffer)

        ways: list[Callable[[], bytes]] = [
            lambda: snapshot.read("large"),
            lambda: b"".join(snapshot.read("large", [(0, 10), (10, None)])),
            lambda: snapshot.open("large").read(),
            read_into,
        ]
        for read in ways:
            assert read() == data
            until(is_there)
            for path in node.cache_files():
                os.chmod(path, 0o644)
                os.truncate(path, 100)
            assert read() == data


def test_errors(node: DatasetNode) -> None:
    """What cannot be read is named; what would write says how to."""
    with lodefs.snapshot(REPO, proxy=node.address) as snapshot:
        with pytest.raises(NotFound, match="a/missing"):
            snapshot.read("a/missing")
        with pytest.raises(NotADirectory):
            snapshot.read("large/x")
        with pytest.raises(InvalidInput, match="directory, not a file"):
            snapshot.open("a")
        with pytest.raises(InvalidInput, match=r"lodefs\.transaction"):
            snapshot.open("new", "wb")
        with pytest.raises(NotFound, match="out of the snapshot"):
            snapshot.read("out")
        with pytest.raises(InvalidInput, match="levels of symlinks"):
            snapshot.read("loop")
    with pytest.raises(NotFound):
        lodefs.snapshot(f"{REPO}@unknown", proxy=node.address)
    with pytest.raises(InvalidInput, match="without a path"):
        lodefs.snapshot(f"{REPO}:a", proxy=node.address)


def test_open(node: DatasetNode, monkeypatch: pytest.MonkeyPatch) -> None:
    """lodefs.open takes URLs, and finds the proxy in the environment."""
    monkeypatch.setenv("LODEFS_PROXY", node.address)
    with lodefs.open(f"{node.root}/text", "r") as text:
        assert text.readline() == "line 0\n"
    with lodefs.open(f"lodefs://{REPO}@{node.commit}/a/00.bin") as file:
        assert file.read() == (node.source / "a/00.bin").read_bytes()
    with pytest.raises(InvalidInput, match="names no revision"):
        lodefs.open(f"lodefs://{REPO}/text")
    with pytest.raises(InvalidInput, match="not a file"):
        lodefs.open(node.root)


def test_travels(node: DatasetNode) -> None:
    """A pickle has no listing in it, and reads the same commit."""
    snapshot = lodefs.snapshot(REPO, proxy=node.address)
    list(snapshot.files())
    data = pickle.dumps(snapshot)
    assert len(data) < 1024
    assert pickle.loads(data).read("a/01.bin") == snapshot.read("a/01.bin")


def test_forks_while_threads_read(node: DatasetNode) -> None:
    """Children that are forked while other threads read, read too, and end."""
    snapshot = lodefs.snapshot(REPO, proxy=node.address)
    expected = (node.source / "a/29.bin").read_bytes()
    stop = threading.Event()

    def read_on() -> None:
        while not stop.is_set():
            assert snapshot.read("a/29.bin") == expected

    threads = [threading.Thread(target=read_on) for _ in range(3)]
    for thread in threads:
        thread.start()
    try:
        for _ in range(10):
            pid = os.fork()
            if not pid:
                signal.alarm(60)  # a child that hangs is killed, and the test fails
                os._exit(snapshot.read("a/29.bin") != expected)
            assert os.waitpid(pid, 0)[1] == 0
    finally:
        stop.set()
        for thread in threads:
            thread.join()


def test_a_child_keeps_no_file_of_the_cache(node: DatasetNode) -> None:
    """A forked child holds no space of files that its parent read: they may be evicted."""
    with lodefs.snapshot(REPO, proxy=node.address) as snapshot:

        def are_open() -> bool:
            snapshot.read("large")
            return held() > 0

        def held() -> int:
            places = Path("/proc/self/fd").iterdir()
            return sum("/flat/" in os.readlink(place) for place in places if place.is_symlink())

        until(are_open)
        pid = os.fork()
        if not pid:
            os._exit(min(held(), 1))
        assert os.waitpid(pid, 0)[1] == 0
        assert held()


def test_forgetting_in_the_middle_of_a_look(node: DatasetNode) -> None:
    """What a thread forgets while another one looks is looked up, and is not missing."""
    with lodefs.snapshot(REPO, proxy=node.address) as snapshot:
        list(snapshot.files())
        entries = snapshot.entries
        entries._known = {b"": entries._known[b""]}  # as in the middle of `forget`
        assert snapshot.exists("a/01.bin")
        assert not snapshot.exists("a/missing")
        assert snapshot.read("a/b/plain") == b"plain" * 100


def test_an_own_proxy_comes_back() -> None:
    """Without a proxy one is started; killed while a file is open, it is started again."""
    with private_directory() as folder:
        environment = {
            "PATH": os.environ["PATH"],
            "HOME": str(folder),
            "LODEFS_CONFIG": os.devnull,
            "LODEFS_STORE": str(folder / "store"),
        }
        (folder / "data").mkdir()
        (folder / "data" / "large").write_bytes(bytes(3_000_000))
        subprocess.run([sys.executable, "-c", OWN_PROXY], env=environment, check=True, timeout=240)


OWN_PROXY = """
import lodefs, os, pathlib, signal, subprocess, sys
init = [sys.executable, "-m", "lodefs.main", "init", os.environ["LODEFS_STORE"]]
subprocess.run(init, check=True)
lodefs.push(pathlib.Path.home() / "data", "r")
snapshot = lodefs.snapshot("r")
pid = lambda: int(next(pathlib.Path.home().glob(".cache/lodefs/proxy-*/pid")).read_text())
with snapshot.raw("large") as file:
    assert file.read(10) == bytes(10)
    snapshot.cache._next_turn_s, snapshot.cache.view = 1e18, None  # not from the cache's files
    first = pid()
    os.kill(first, signal.SIGKILL)
    assert len(file.read()) == 2_999_990
    assert pid() != first
os.kill(pid(), signal.SIGTERM)
"""
