"""A node as a process of its own, for tests that kill it: a pushed directory, a proxy, its cache.

``python -m tests.support.proxy.node_process STORE CACHE SOCKET LIMIT_BYTES`` is that process: the
real proxy, but with a cache as small as a test wants it, and one that looks after itself at once.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from lodefs.chunkstore.objects.directory import DirectoryObjects
from lodefs.chunkstore.objects.interface import Part
from lodefs.proxy.config import Config
from lodefs.proxy.metrics.store_calls import StoreCalls
from lodefs.proxy.service.app import OpenedNode
from tests.support.chunkstore.child_process import Child

REPO = "data/set"
KEEP_EVERY_S = 0.2
HELD = "held"  # a file beside the store
HELD_AFTER_BYTES = 32 * 1024 * 1024


class NodeProcess:
    """A store with ``source`` pushed to REPO, and the proxy of a node over it, which runs.

    Everything lies in ``folder`` (a short path: a socket is in it), the cache in ``cache_dir``.
    """

    def __init__(
        self, folder: Path, source: Path, *, size_bytes_max: int, cache_dir: Path | None = None
    ) -> None:
        self.store = folder / "store"
        self.cache_dir = cache_dir or folder / "cache"
        self._socket = folder / "node.sock"
        self._size_bytes_max = size_bytes_max
        self.commit = _push(self.store, source, folder / "push-index")
        self.start()

    @property
    def address(self) -> str:
        """As a mount's option ``proxy`` has it."""
        return f"unix:{self._socket}"

    @property
    def pid(self) -> int:
        """The process id of the proxy."""
        return self._child.pid

    @property
    def log(self) -> str:
        """What the proxy has written since it was started."""
        return self._child.output

    def start(self) -> None:
        """Starts the proxy, on the cache that the last one left; returns when it is ready."""
        paths = [str(path) for path in (self.store, self.cache_dir, self._socket)]
        self._child = Child(
            [
                sys.executable,
                "-m",
                "tests.support.proxy.node_process",
                *paths,
                str(self._size_bytes_max),
            ]
        )
        try:
            self._child.wait_for("ready: ")
        except BaseException:
            self._child.kill()  # nobody else knows of it yet
            raise

    def kill(self) -> None:
        """kill -9."""
        self._child.kill()

    def restart(self) -> None:
        """kill -9, and another one in its place."""
        self.kill()
        self.start()

    def hold(self) -> None:
        """A proxy reads no more than HELD_AFTER_BYTES, or little more, until ``let_go``."""
        self.store.with_name(HELD).touch()

    def let_go(self) -> None:
        """The store answers again."""
        self.store.with_name(HELD).unlink()

    def cache_files(self) -> list[Path]:
        """The slabs and flat files that are there now."""
        return [path for path in self.cache_dir.glob("[fs]*/*/*") if path.parent.name != "suspects"]


def _push(store_dir: Path, source: Path, index_dir: Path) -> str:
    from lodefs.chunkstore.push.push import PushOptions, push
    from lodefs.chunkstore.repo.store import create_store

    store = create_store(DirectoryObjects(str(store_dir)))
    options = PushOptions(message="", author="", time_s=0, index_dir=index_dir, workers=0)
    return push(store, source, REPO, "main", options).commit


class HeldObjects(DirectoryObjects):
    """A store that does not answer while HELD lies beside it, once much was read."""

    def __init__(self, root: str) -> None:
        super().__init__(root)
        self._held = Path(root).with_name(HELD)
        self._read_bytes = 0

    def get(self, key: str, *, offset: int = 0, size: int, if_match: str | None = None) -> Part:
        while self._read_bytes > HELD_AFTER_BYTES and self._held.exists():
            time.sleep(0.01)
        part = super().get(key, offset=offset, size=size, if_match=if_match)
        self._read_bytes += len(part.data)
        return part


@asynccontextmanager
async def _small_node(config: Config, _: StoreCalls) -> AsyncIterator[OpenedNode]:
    from lodefs.chunkstore.repo.store import open_store
    from lodefs.proxy.cache.tables import CacheSettings
    from lodefs.proxy.service.store_node import NodeSettings, StoreNode

    store = open_store(HeldObjects(config.store))
    cache = CacheSettings(config.cache_dir, config.cache_size_bytes_max or 0, free_size_bytes_min=0)
    node = StoreNode(store, NodeSettings(cache, keep_every_s=KEEP_EVERY_S))
    try:
        yield OpenedNode(node, is_lost=node.is_cache_lost)
    finally:
        await node.close()


def main(store: str, cache: str, socket: str, limit_bytes: str) -> None:
    """Serves until SIGTERM."""
    from lodefs.proxy.service.app import serve
    from lodefs.proxy.service.logs import configure_logs

    config = Config(
        store=store,
        cache_dir=Path(cache),
        socket_path=Path(socket),
        cache_size_bytes_max=int(limit_bytes),
    )
    configure_logs(config.log_level, config.log_format)

    async def run() -> None:
        stop = asyncio.Event()
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
        await serve(config, stop, environ=os.environ, open_node=_small_node)

    asyncio.run(run())


if __name__ == "__main__":
    main(*sys.argv[1:])
