"""Proxies of other stores: started, found, started again."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from lodefs.chunkstore.errors import Unavailable
from lodefs.chunkstore.objects.open_url import open_objects
from lodefs.chunkstore.repo.store import create_store
from lodefs.proxies import store_proxies
from lodefs.proxies.own_proxy import ask, own_proxy, ready, served_store
from lodefs.proxies.store_proxies import StoreProxies
from lodefs.settings.session import Session
from tests.support.chunkstore.child_process import private_directory
from tests.support.mount.mounts import WAIT_S, alive, until

pytestmark = pytest.mark.slow
NODE = "unix:/nonexistent/proxy.sock"


class Node:
    """A node with no proxy of its own, and a store in a directory."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder / "proxies"
        self.store = str(folder / "store")
        create_store(open_objects(self.store))
        self.said: list[str] = []
        self.pids: set[int] = set()
        self.own = own_proxy(self.folder, self.store)

    def proxies(self) -> StoreProxies:
        """As a process on it has them."""
        environment = {"LODEFS_CONFIG": os.devnull, "LODEFS_PROXY": NODE, "HOME": "/"}
        return StoreProxies(Session(environment), self.folder, self.said.append)

    def pid(self) -> int:
        """The proxy of the store, which runs; 0 while its number is being written."""
        text = self.own.pid_file.read_text()
        if text:
            self.pids.add(int(text))
        return int(text or 0)

    def close(self) -> None:
        """Leave nothing behind."""
        for file in self.folder.glob("proxy-*/pid"):
            self.pids.add(int(file.read_text()))
        for pid in self.pids:
            if alive(pid):
                os.kill(pid, signal.SIGKILL)
        until(lambda: not any(alive(pid) for pid in self.pids))


@pytest.fixture
def node(monkeypatch: pytest.MonkeyPatch) -> Iterator[Node]:
    monkeypatch.setattr(store_proxies, "KEEP_S", 0.05)
    with private_directory() as folder:
        made = Node(folder)
        yield made
        made.close()


def test_the_nodes_own(node: Node) -> None:
    """Without a store it is the node's proxy, whether it runs or not."""
    proxies = node.proxies()
    assert proxies.proxy_for("", 0.0) == NODE
    proxies.close()
    assert not node.folder.exists()


def test_another_store(node: Node) -> None:
    """A proxy is started for it, kept running, and found by the next process; it ends when it is
    not used."""
    proxies = node.proxies()
    with pytest.raises(Unavailable, match="being started"):
        proxies.proxy_for(node.store, 0.01)
    url = proxies.proxy_for(node.store, WAIT_S)
    assert served_store(ask(url, "/status")) == node.store
    first = node.pid()
    os.kill(first, signal.SIGKILL)
    until(lambda: node.pid() not in (0, first) and ready(url))
    proxies.close()

    second = node.pid()
    proxies = node.proxies()
    assert proxies.proxy_for(node.store, WAIT_S) == url
    assert node.pid() == second
    proxies.close()
    assert alive(second)


def test_adopted(node: Node) -> None:
    """A process that comes after another keeps its proxies running, and ends idle ones."""
    proxies = node.proxies()
    url = proxies.proxy_for(node.store, WAIT_S)
    proxies.close()
    first = node.pid()
    os.kill(first, signal.SIGKILL)
    os.waitpid(first, 0)
    proxies = node.proxies()
    proxies.adopt()
    until(lambda: node.pid() not in (0, first) and ready(url))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(store_proxies, "IDLE_S", 0.0)
        second = node.pid()
        until(lambda: not alive(second))
    proxies.close()
    assert not (node.own.directory / "store").exists()


def test_a_store_that_cannot_be_served(node: Node) -> None:
    """What the proxy says when it does not start is the error."""
    proxies = node.proxies()
    with pytest.raises(Unavailable, match="does not start"):
        proxies.proxy_for(f"{node.store}/none", WAIT_S)
    assert not list(node.folder.glob("*/store")), "nobody keeps it running"
    proxies.close()


def test_damaged_notes(node: Node) -> None:
    """A ``store`` file that is empty or no text keeps nobody from starting, and is written anew."""
    for name, data in (("proxy-1", b"\xff\xfe"), ("proxy-2", b"\n"), ("proxy-3", b"")):
        (node.folder / name).mkdir(parents=True)
        (node.folder / name / "store").write_bytes(data)
    node.own.directory.mkdir()
    (node.own.directory / "store").write_bytes(b"\xff")
    proxies = node.proxies()
    proxies.adopt()
    assert not proxies._busy_s
    proxies.proxy_for(node.store, WAIT_S)
    proxies.close()
    assert (node.own.directory / "store").read_text() == f"{node.store}\n"


def test_a_note_that_is_right_is_left_alone(node: Node) -> None:
    """It is written once, whole."""
    node.own.directory.mkdir(parents=True)
    store_proxies._note(node.own, node.store)
    inode = (node.own.directory / "store").stat().st_ino
    store_proxies._note(node.own, node.store)
    assert (node.own.directory / "store").stat().st_ino == inode
    assert not (node.own.directory / "store.new").exists()


def test_any_fault_is_told(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    """Who waits for a proxy hears of an error that nobody foresaw, and so does the log; settings
    in the store's URL are in neither."""

    def fail(*_: object) -> None:
        raise ValueError("no such thing")

    monkeypatch.setattr(store_proxies, "serve_command", fail)
    proxies = node.proxies()
    with pytest.raises(Unavailable, match="does not start: ValueError") as caught:
        proxies.proxy_for("s3://bucket/prefix?endpoint_url=hushhush", WAIT_S)
    proxies.close()
    assert node.said == [str(caught.value)]
    assert "hushhush" not in node.said[0]


def test_the_keeper_survives_errors(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    """An error of the operating system in one round leaves the next ones."""
    calls = []

    def fail(own: object, *_: object) -> None:
        calls.append(own)
        raise OSError(24, "too many open files")

    proxies = node.proxies()
    monkeypatch.setattr(proxies, "_look_after", fail)
    proxies._keep(node.store)
    until(lambda: len(calls) > 1)
    proxies.close()


def test_who_has_the_number_of_a_proxy_that_is_gone_is_left_alone(node: Node) -> None:
    """Whatever that process calls itself: who listens at the proxy's socket is ended."""
    node.own.directory.mkdir(parents=True)
    words = ["sh", "-c", "read -r line", str(node.own.socket)]
    with subprocess.Popen(words, stdin=subprocess.PIPE) as process:
        node.own.pid_file.write_text(f"{process.pid}\n")
        store_proxies._end(node.own)
        process.communicate(b"\n", timeout=WAIT_S)
    assert process.returncode == 0
