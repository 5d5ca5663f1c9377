"""A proxy over a store that somebody with write access to the bucket damaged: it goes on
serving."""

from __future__ import annotations

import http.client
import re
import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest

from loadtests.cluster.origin import lodefs_command
from lodefs.chunkstore.format import keys
from tests.adversary.hostile_store import (
    ATTACKED_PATH,
    GOOD,
    GOOD_PATH,
    GOOD_REPO,
    MIB,
    HostileStore,
)
from tests.support.chunkstore.child_process import Child

TOGETHER = 8
MEMORY_MIB_MAX = 600  # the proxy has 80 to 90 MiB when nothing was asked yet
TIMEOUT_S = 120.0


class Proxy:
    """A proxy of a store, in a process of its own."""

    def __init__(self, child: Child, socket_path: Path) -> None:
        self._child = child
        self._socket_path = socket_path

    def get(self, target: str) -> tuple[int, bytes]:
        """Status and body of the answer."""
        with socket.socket(socket.AF_UNIX) as connected:
            connected.settimeout(TIMEOUT_S)
            connected.connect(str(self._socket_path))
            connection = http.client.HTTPConnection("localhost")
            connection.sock = connected
            connection.request("GET", target)
            answer = connection.getresponse()
            return answer.status, answer.read()

    def peak_mib(self) -> int:
        """The most memory that it ever had."""
        status = Path(f"/proc/{self._child.pid}/status").read_text()
        found = re.search(r"VmHWM:\s+(\d+) kB", status)
        assert found is not None
        return int(found[1]) // 1024


def start(store: Path, folder: Path) -> Child:
    return Child(
        [lodefs_command(), "serve", "--cache", folder / "cache", "--socket", folder / "sock"],
        env={"LODEFS_STORE": str(store)},
    )


@contextmanager
def serving(store: Path, folder: Path) -> Iterator[Proxy]:
    folder.mkdir(exist_ok=True)
    with start(store, folder) as child:
        proxy = Proxy(child, folder / "sock")
        while not (folder / "sock").exists() or proxy.get("/readyz")[0] != 200:
            if child.process.poll() is not None:
                raise child.failed("did not start")
            child.pause()
        yield proxy
        assert child.process.poll() is None


def test_hostile_objects_take_little_memory(tmp_path: Path) -> None:
    """Whatever one object claims to be, 3 GB of ref, a pack of a billion chunks, a tree that
    unpacks to a gigabyte or to millions of entries: eight readers of each at once, all at the same
    time, get an error each, the proxy never has 600 MiB, and a good file is still served."""
    hostile = HostileStore(tmp_path / "store")
    repos = []
    for name, attack in hostile.attacks():
        for number in range(TOGETHER if name != "many-entries" else 2):
            repos.append(f"{name}/{number}")
            attack(repos[-1])
    with serving(tmp_path / "store", tmp_path / "node") as proxy, ThreadPoolExecutor(64) as pool:
        repos.sort(key=lambda repo: repo.rpartition("/")[2])  # all attacks side by side
        answers = pool.map(proxy.get, [f"/files/{repo}@main/{ATTACKED_PATH}" for repo in repos])
        statuses = {repo: status for repo, (status, _) in zip(repos, answers, strict=True)}
        assert {repo: status for repo, status in statuses.items() if status != 502} == {}
        assert proxy.get(f"/files/{GOOD_REPO}@main/{GOOD_PATH}") == (200, GOOD)
        assert proxy.peak_mib() < MEMORY_MIB_MAX


@pytest.mark.parametrize("attack", ["huge_ref", "huge_commit", "bomb"])
def test_an_attack_again_and_again(tmp_path: Path, attack: str) -> None:
    """The same hostile object asked for fifty times does not fill the memory bit by bit."""
    hostile = HostileStore(tmp_path / "store")
    getattr(hostile, attack)("repo")
    with serving(tmp_path / "store", tmp_path / "node") as proxy:
        for _ in range(50):
            assert proxy.get(f"/files/repo@main/{ATTACKED_PATH}")[0] == 502
        assert proxy.peak_mib() < MEMORY_MIB_MAX // 3


def test_a_huge_settings_object(tmp_path: Path) -> None:
    """A store.json of 3 GB: the proxy does not start, says why, and does not read it."""
    hostile = HostileStore(tmp_path / "store")
    hostile.sparse(keys.STORE)
    (tmp_path / "node").mkdir()
    with start(tmp_path / "store", tmp_path / "node") as child:
        child.wait_for(rf"store\.json has {3 * 1024 * MIB} bytes")
        assert child.wait() != 0


def test_fifos_hold_up_nobody(tmp_path: Path) -> None:
    """FIFOs in the place of more packs than there are threads: each reader gets an error at once,
    and no thread is lost to them, so that a good file is served."""
    hostile = HostileStore(tmp_path / "store")
    repos = [f"fifo/{number}" for number in range(48)]
    for repo in repos:
        hostile.fifo_pack(repo)
    with serving(tmp_path / "store", tmp_path / "node") as proxy, ThreadPoolExecutor(48) as pool:
        answers = pool.map(proxy.get, [f"/files/{repo}@main/{ATTACKED_PATH}" for repo in repos])
        for status, body in answers:
            assert status == 502
            assert b"FIFO" in body
        assert proxy.get(f"/files/{GOOD_REPO}@main/{GOOD_PATH}") == (200, GOOD)
