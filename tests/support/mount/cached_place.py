"""A proxy with a cache and a reader of files that reads the cache beside it."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from lodefs.chunkstore.format.inodes import ROOT_INO, child_ino
from lodefs.chunkstore.nodecache.view import CacheView, open_view
from lodefs.chunkstore.protocol.connection import parse_address
from lodefs.chunkstore.protocol.read_client import Client
from lodefs.chunkstore.protocol.wire import CachePlace, Entry, Snapshot
from lodefs.chunkstore.system.lru import Lru
from lodefs.mount.fs.filesystem import NODES_MAX
from lodefs.mount.read.cache_monitor import CacheMonitor
from lodefs.mount.read.cached_reader import CachedReader
from lodefs.proxy.service.store_node import StoreNode
from tests.support.proxy.fake_node import RunningProxy
from tests.support.proxy.rig import MIB, REPO, Rig, serve_rig

_random = random.Random(9)
BIG = _random.randbytes(3 * MIB + 777)
FILES = {
    b"one": b"a chunk",
    b"two": _random.randbytes(1900),
    b"middle": _random.randbytes(300_000),
    b"empty": b"",
    b"big": BIG,
    # the middle is cut where other chunks are: what it shares lies in the flat file of big
    b"same": BIG[: 1 * MIB // 1000 * 1000] + _random.randbytes(500_000),
    b"d/x": b"below",
    **{b"many/%04d" % n: b"%d" % n for n in range(700)},
}
SOME = [path for path in FILES if path < b"many/0050" or path > b"many/0699"]  # of many, 50
DATA = "data"


class Clock:
    """Time that passes only when a test says so."""

    def __init__(self) -> None:
        self.now_s = 100.0

    def __call__(self) -> float:
        return self.now_s

    monotonic = __call__

    def sleep(self, seconds: float) -> None:
        self.now_s += seconds


class Place:
    """A proxy with a cache, and a direct reader on it."""

    def __init__(self, rig: Rig, proxy: RunningProxy, node: StoreNode) -> None:
        self.rig = rig
        self.proxy = proxy
        self.node = node
        self.clock = Clock()
        self.lines: list[str] = []
        self.cache = rig.directory / "cache"
        self.clients = [self._client(), self._client()]
        self.snapshot = self.clients[0].snapshot(REPO, "main")
        self.remembered: Lru[int, Entry] = Lru(NODES_MAX)
        self.monitor = CacheMonitor(
            self.clients[1], self.snapshot, self.lines.append, nodes=self.remembered,
            opener=self.open, clock=self.clock,
        )  # fmt: skip
        client = self.clients[0].mounted(self.snapshot)
        self.reader = CachedReader(client, self.monitor)

    def _client(self) -> Client:
        clock = Clock()  # waiting for a proxy that is gone takes no time
        address = parse_address(self.proxy.address)
        return Client(address, timeout_s=60.0, clock=clock)

    def open(self, place: CachePlace, snapshot: Snapshot) -> CacheView:
        return open_view(place, snapshot, clock=self.clock)

    @property
    def view(self) -> CacheView:
        assert self.monitor.view is not None
        return self.monitor.view

    def turn(self, seconds: float = 100.0) -> None:
        """Some time later, the thread beside the readers does its work."""
        self.clock.now_s += seconds
        self.monitor.maintain()

    def ino(self, path: bytes) -> int:
        ino = ROOT_INO
        for name in path.split(b"/"):
            ino = child_ino(ino, name)
        return ino

    def look_up(self, path: bytes) -> int:
        """The number of a path whose directories are loaded now."""
        ino = ROOT_INO
        for name in path.split(b"/"):
            ino = self.reader.lookup(ino, name).ino
        return ino

    def read(self, path: bytes, first: int = 0, size_bytes: int | None = None) -> bytes:
        """As the kernel reads: in pieces of at most 1 MiB."""
        ino = self.look_up(path)
        end = len(FILES[path]) if size_bytes is None else first + size_bytes
        pieces = []
        while first < end:
            piece = bytes(self.reader.read(ino, first, min(MIB, end - first)))
            if not piece:
                break
            pieces.append(piece)
            first += len(piece)
        return b"".join(pieces)

    def warm(self, *paths: bytes) -> None:
        """Files are in the cache, and the view knows it; ``SOME`` if none are named."""
        for path in paths or SOME:
            assert self.read(path) == FILES[path]
        self.turn()
        self.turn()

    @contextmanager
    def asked(self, route: str, times: int | None = 0) -> Iterator[None]:
        """Inside, the proxy answers so many requests of a route; None: at least one."""
        before = self.proxy.requests(route)
        yield
        count = self.proxy.requests(route) - before
        assert count == times if times is not None else count > 0

    def close(self) -> None:
        self.monitor.close()
        for client in self.clients:
            client.close()


@contextmanager
def place_on(folder: Path, *, size_bytes_max: int = 64 * MIB) -> Iterator[Place]:
    """A proxy that serves FILES, and a reader on its cache."""
    rig = Rig(folder, FILES)
    with serve_rig(rig, rig.settings(size_bytes_max)) as (proxy, node):
        place = Place(rig, proxy, node)
        try:
            yield place
        finally:
            place.close()
