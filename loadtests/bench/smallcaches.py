"""Benchmark of datasets that are larger than a node's cache: bytes fetched for bytes requested.

The node runs in this process, over a store in a directory that answers after 5 ms, with a cache of
a third of the set. Readers read through it as clients of HTTP do.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import AsyncIterator, Iterable, Iterator, Sequence
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from loadtests.cli import Lodefs
from loadtests.results import Result
from lodefs.chunkstore.objects.interface import ObjectInfo, ObjectStore, Part
from lodefs.chunkstore.objects.open_url import open_objects
from lodefs.chunkstore.repo.store import Store, open_store
from lodefs.proxy.cache.tables import CacheSettings
from lodefs.proxy.metrics.counters import Counter
from lodefs.proxy.node import SnapshotFile
from lodefs.proxy.service.store_node import NodeSettings, StoreNode

REPO = "bench/sets"
KIB, MIB, GIB = 1 << 10, 1 << 20, 1 << 30
FOLDERS, FILES_EACH = 48, 128  # 6,144 files of 50 to 150 KiB
LARGE, LARGE_BYTES = 2, 300 * MIB
SHARDS, SHARD_BYTES = 75, 8 * MIB
CACHE_BYTES = 200 * MIB  # a third of each of the three datasets
FITS_BYTES = 1024 * MIB
BLOCK_BYTES = 64 * KIB
PIECE_BYTES = 256 * KIB
READERS = 8
DELAY_S = 0.005
EPOCHS = 2
RATIO_MAX = {  # limits for bytes fetched per byte requested
    "small files shuffled": 2.0,
    "64 KiB blocks shuffled": 3.0,  # a block lies in two or three chunks
    "small files in order": 1.4,
    "large files in order": 1.2,
    "shards shuffled": 1.1,
}
REQUESTS_MAX = {  # for each GiB requested
    "small files in order": 400.0,
    "large files in order": 400.0,
    "small files shuffled, they fit": 300.0,
}


class Step(NamedTuple):
    """The next step of a reader: a part of a file, read piece by piece."""

    path: str
    first: int
    size_bytes: int


@dataclass(frozen=True, slots=True)
class Seen:
    """The cost of one pattern of reads."""

    asked_bytes: int
    fetched_bytes: int
    requests: int
    reads: int
    unread_bytes: int
    seconds: float


class _Late:
    """An object store whose reads take DELAY_S longer."""

    def __init__(self, below: ObjectStore) -> None:
        self._below = below
        self.url = below.url
        self.put, self.delete, self.close = below.put, below.delete, below.close

    def get(self, key: str, *, offset: int = 0, size: int, if_match: str | None = None) -> Part:
        time.sleep(DELAY_S)
        return self._below.get(key, offset=offset, size=size, if_match=if_match)

    def head(self, key: str) -> ObjectInfo:
        time.sleep(DELAY_S)
        return self._below.head(key)

    def list(
        self, prefix: str, *, after: str = "", limit: int | None = None
    ) -> Iterator[ObjectInfo]:
        time.sleep(DELAY_S)
        return self._below.list(prefix, after=after, limit=limit)


def small_caches(scratch: Path) -> Result:
    """Runs patterns of reads over a dataset of three caches, and some over datasets that fit."""
    result = Result("small-cache")
    lodefs = Lodefs(f"file://{scratch}/store", scratch / "home", {})
    lodefs.run("init", lodefs.store)
    lodefs.run("push", _corpus(scratch / "set"), REPO)
    objects = open_objects(lodefs.store)
    store = open_store(_Late(objects))
    for name, (steps, cache_bytes, before) in _patterns().items():
        folder = scratch / "node" / name.replace(" ", "-")
        folder.mkdir(parents=True)
        seen = asyncio.run(_read(store, folder, steps, cache_bytes, before))
        _report(result, name, seen)
    objects.close()
    result.notes.append(
        "A request takes 5 ms; 8 readers; two epochs together, the first from an empty cache."
    )
    return result


def _corpus(folder: Path) -> Path:
    """Makes small files in folders, large files, and shards, all incompressible."""
    source = random.Random(1)
    for path in _small():
        _write(folder / path, source.randrange(50 * KIB, 150 * KIB), source)
    for path, size in (*_sized(_large(), LARGE_BYTES), *_sized(_shards(), SHARD_BYTES)):
        _write(folder / path, size, source)
    return folder


def _write(path: Path, size_bytes: int, source: random.Random) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("wb") as file:
        for at in range(0, size_bytes, MIB):
            file.write(source.randbytes(min(MIB, size_bytes - at)))


def _small() -> list[str]:
    return [f"small/{n:02}/{m:03}.bin" for n in range(FOLDERS) for m in range(FILES_EACH)]


def _large() -> list[str]:
    return [f"large/{n}.bin" for n in range(LARGE)]


def _shards() -> list[str]:
    return [f"shards/{n:02}.tar" for n in range(SHARDS)]


def _sized(paths: Iterable[str], size_bytes: int) -> list[tuple[str, int]]:
    return [(path, size_bytes) for path in paths]


Pattern = tuple[list[Step], int, list[Step]]  # steps, bytes of the cache, steps that fill it first


def _patterns() -> dict[str, Pattern]:
    """The patterns of reads."""
    order = random.Random(2)
    small, whole = _small(), [Step(path, 0, -1) for path in _small()]
    blocks = [
        Step(path, at, BLOCK_BYTES)
        for path in _large()
        for at in range(0, LARGE_BYTES, BLOCK_BYTES)
    ]
    large = [Step(path, 0, LARGE_BYTES) for path in _large()]
    shards = [Step(path, 0, SHARD_BYTES) for path in _shards()]

    def shuffled(steps: Sequence[Step], epochs: int = EPOCHS) -> list[Step]:
        return [step for _ in range(epochs) for step in order.sample(steps, len(steps))]

    folders = [small[at : at + FILES_EACH] for at in range(0, len(small), FILES_EACH)]
    by_folder = [
        Step(path, 0, -1)
        for _ in range(EPOCHS)
        for folder in order.sample(folders, FOLDERS)
        for path in order.sample(folder, FILES_EACH)
    ]
    part = whole[: len(whole) // 6]  # half a cache
    return {
        "small files shuffled": (shuffled(whole), CACHE_BYTES, []),
        "64 KiB blocks shuffled": (shuffled(blocks), CACHE_BYTES, []),
        "small files in order": (whole * EPOCHS, CACHE_BYTES, []),
        "small files shuffled by folder": (by_folder, CACHE_BYTES, []),
        "large files in order": (large * EPOCHS, CACHE_BYTES, []),
        "shards shuffled": (shuffled(shards), CACHE_BYTES, []),
        "small files shuffled, they fit": (shuffled(whole), FITS_BYTES, []),
        "blocks shuffled, they fit": (shuffled(blocks), FITS_BYTES, []),
        "small files that fit, after others": (shuffled(part), CACHE_BYTES, large),
        "the same, after they were evicted": (shuffled(part), CACHE_BYTES, part + large),
    }


async def _read(
    store: Store, folder: Path, steps: Sequence[Step], cache_bytes: int, before: Sequence[Step]
) -> Seen:
    """Reads a pattern on a new node."""
    async with _node(store, folder, cache_bytes) as node:
        snapshot = await node.names.snapshot(REPO, "main")
        files: dict[str, SnapshotFile] = {}
        for path in {step.path for step in (*steps, *before)}:
            found = await node.names.file(snapshot, path.encode())
            assert isinstance(found, SnapshotFile)
            files[path] = found
        await _read_all(node, files, before)
        values = node.counts.values
        was, begun_s = dict(values), time.perf_counter()
        asked_bytes = await _read_all(node, files, steps)
        seconds = time.perf_counter() - begun_s
        more = {counter: values[counter] - was[counter] for counter in values}
    return Seen(
        asked_bytes,
        more[Counter.FETCHED_BYTES],
        more[Counter.FETCHES],
        len(steps),
        more[Counter.EVICTED_UNREAD_BYTES],
        seconds,
    )


@asynccontextmanager
async def _node(store: Store, folder: Path, cache_bytes: int) -> AsyncIterator[StoreNode]:
    node = StoreNode(store, NodeSettings(CacheSettings(folder / "cache", cache_bytes)))
    try:
        yield node
    finally:
        await node.close()


async def _read_all(node: StoreNode, files: dict[str, SnapshotFile], steps: Sequence[Step]) -> int:
    """Runs all steps with READERS threads, each taking the next one. Returns the bytes read."""
    left = iter(steps)
    size_bytes = 0

    async def reader() -> None:
        nonlocal size_bytes
        for path, first, wanted_bytes in left:
            file = files[path]
            end = file.entry.size_bytes if wanted_bytes < 0 else first + wanted_bytes
            for at in range(first, end, PIECE_BYTES):
                size = min(PIECE_BYTES, end - at)
                async with aclosing(await node.files.open(file, at, size)) as stream:
                    size_bytes += len(stream.first)
                    async for piece in stream:
                        size_bytes += len(piece)

    await asyncio.gather(*[reader() for _ in range(READERS)])
    return size_bytes


def _report(result: Result, name: str, seen: Seen) -> None:
    asked = seen.asked_bytes
    result.add(
        f"{name}: fetched / asked", seen.fetched_bytes / asked, "x", at_most=RATIO_MAX.get(name)
    )
    result.add(f"{name}: evicted unread / asked", seen.unread_bytes / asked, "x")
    requests = seen.requests / (asked / GIB)
    result.add(f"{name}: requests a GiB asked", requests, at_most=REQUESTS_MAX.get(name))
    result.add(f"{name}: reads", seen.reads / seen.seconds, "/s")
