"""The process that fetches from the hub: what it leaves in the store, goes on from, and refuses."""

from __future__ import annotations

import io
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from lodefs.chunkstore.errors import Corrupt, InvalidInput, Unavailable
from lodefs.chunkstore.format.foreign import hub
from lodefs.chunkstore.protocol.orders.hub_orders import FetchOrder, HubOrder, HubOutcome
from lodefs.chunkstore.push import store_process
from lodefs.chunkstore.push.hub import hub_fetch, hub_listing
from lodefs.chunkstore.push.hub.hub_arrival import Arrival
from lodefs.chunkstore.push.hub.hub_fetch import Fetch
from lodefs.chunkstore.repo.refs import BRANCHES
from lodefs.chunkstore.repo.store import create_store
from tests.support.chunkstore.directories import in_commit
from tests.support.chunkstore.hub_server import HubServer, etag_of, serve_hub
from tests.support.chunkstore.memory_objects import MemoryObjects

WEIGHTS = bytes(range(256)) * 1000
FILES = {"config.json": b"{}", "sub/w": WEIGHTS, "empty": b""}


class World:
    """A store, and a hub with a model."""

    def __init__(self, folder: Path, server: HubServer) -> None:
        self.server = server
        self.repository = server.repository("org/name")
        self.sha = self.repository.commit(FILES)
        self.store = create_store(MemoryObjects())
        self.index_dir = folder / "index"
        self.told: list[HubOutcome] = []

    def fetch(self, rev: str = "main", size_bytes_max: int = 1 << 40) -> HubOutcome:
        order = FetchOrder(HubOrder("model", "org/name", rev, "r"), size_bytes_max)
        return Fetch(self.store, self.index_dir, order, self.told.append).run()

    def contents(self, rev: str) -> dict[str, bytes]:
        found = in_commit(self.store, "r", self.store.resolve("r", rev).hex())
        return {path.decode(): one.content for path, one in found.items()}

    def branches(self) -> set[str]:
        return {name for name, _ in self.store.refs("r").living(BRANCHES)}


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    with serve_hub() as server:
        monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", server.url)
        yield World(tmp_path, server)


def test_whole(world: World) -> None:
    """The branch has the files, that of the hub's id the tags; each file was asked for once, and
    the listing was there before the files."""
    outcome = world.fetch()
    assert (outcome.state, outcome.sha) == ("done", world.sha)
    assert [one.sha for one in world.told] == [world.sha]
    assert world.contents("main") == {**FILES, "sub": b""}
    assert world.contents(hub.branch_of(world.sha))["sub/w"].decode() == (
        f"{etag_of(WEIGHTS)} {len(WEIGHTS)}"
    )
    assert world.store.resolve("r", f"hub-{world.sha}~1") == world.store.resolve("r", "main")
    assert world.branches() == {"main", f"hub-{world.sha}"}
    reads = {path: n for path, n in world.server.reads().items() if path.startswith("GET ")}
    assert set(reads.values()) == {1} and len(reads) == 2


def test_another_revision(world: World) -> None:
    """Another name of the same commit reads no file; another commit reads what has changed."""
    world.fetch()
    world.server.requests.clear()
    world.repository.branches["v1"] = world.sha
    assert world.fetch("v1").state == "done"
    assert world.store.resolve("r", "v1") == world.store.resolve("r", "main")
    second = world.repository.commit({**FILES, "config.json": b"[]"})
    assert world.fetch(second).state == "done"
    assert world.branches() == {"main", "v1", f"hub-{world.sha}", f"hub-{second}"}
    assert world.contents(f"hub-{second}~1")["config.json"] == b"[]"
    reads = [path for path in world.server.reads() if path.startswith("GET ")]
    assert reads == [f"GET /org/name/resolve/{second}/config.json"]


def test_a_hub_that_goes_away(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """What has come stays, and the next fetch reads the rest; a branch that moves meanwhile makes a
    fetch of another commit."""
    with monkeypatch.context() as patched:
        patched.setattr(Arrival, "run", lambda _: (_ for _ in ()).throw(Unavailable("x")))
        with pytest.raises(Unavailable):
            world.fetch()
    assert world.branches() == {f"hub-{world.sha}.listing", f"hub-{world.sha}.arriving"}
    moved = world.repository.commit({"config.json": b"{}"})
    assert world.fetch().sha == moved
    assert world.fetch(world.sha).state == "done"
    assert world.branches() == {"main", f"hub-{moved}", f"hub-{world.sha}"}
    assert world.contents("main") == {"config.json": b"{}"}


def test_a_hub_that_lies(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file whose bytes do not have the listed tag does not become part of a commit; neither does
    a tree with impossible paths."""
    with monkeypatch.context() as patched:
        patched.setattr("tests.support.chunkstore.hub_server.etag_of", lambda _: "0" * 40)
        with pytest.raises(Corrupt):
            world.fetch()
    for path in ("a/../../x", "x" * 300):
        world.repository.commit({path: b"1"})
        with pytest.raises(InvalidInput):
            world.fetch()
    assert "main" not in world.branches()


@pytest.mark.parametrize("step", ["store_listing", "Arrival", "keep_tags", "point_ref"])
def test_killed_before_each_step(world: World, monkeypatch: pytest.MonkeyPatch, step: str) -> None:
    """The next process goes on, and asks for no file again."""
    with monkeypatch.context() as patched:
        patched.setattr(hub_fetch, step, lambda *_, **__: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            world.fetch()
    assert world.fetch().state == "done"
    assert world.branches() == {"main", f"hub-{world.sha}"}
    assert world.contents("main") == {**FILES, "sub": b""}
    reads = {path: n for path, n in world.server.reads().items() if path.startswith("GET ")}
    assert set(reads.values()) == {1}


def test_limits(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """A repository that is too large is not fetched, and neither is a list without an end."""
    assert world.fetch(size_bytes_max=1000).message.startswith(
        "hf://org/name has 256,002 bytes, and this site fetches at most 1,000"
    )
    monkeypatch.setattr(hub_listing, "FILES_MAX", 2)
    with pytest.raises(InvalidInput, match="more than 2 files"):
        world.fetch()
    assert [*world.store.objects.list("repos/")] == []


def test_memory() -> None:
    """An answer that needs more than the limit is an error of one read."""
    code = (
        "from lodefs.chunkstore.system.processes import limit_memory\n"
        "limit_memory(256 << 20)\n"
        "try: b'x' * (1 << 30)\n"
        "except MemoryError: print('refused')"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "refused\n"


def test_process_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Before it reads its order it is tied to the node, which may be killed, and to the limit."""
    called: list[int] = []
    monkeypatch.setattr(store_process, "die_with_parent", called.append)
    monkeypatch.setattr(hub_fetch, "limit_memory", called.append)
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"{}")))
    with pytest.raises(InvalidInput):
        hub_fetch.main()
    assert called == [hub_fetch.MEMORY_BYTES_MAX, os.getppid()]
