"""The read path by data processes and in the proxy's own: one contract for both; and that nobody
reads wrong bytes or fails, whatever happens to the processes."""

from __future__ import annotations

import asyncio
import logging
import os
import random
import shutil
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from lodefs.chunkstore.errors import Corrupt
from lodefs.chunkstore.maintenance.collect import CollectOptions, collect
from lodefs.chunkstore.maintenance.merge import BELOW_BYTES_MAX
from lodefs.chunkstore.nodecache import layout as layout
from lodefs.chunkstore.objects.directory import DirectoryObjects
from lodefs.chunkstore.objects.limiting import Limited
from lodefs.chunkstore.objects.pack_locations import PackLocations
from lodefs.chunkstore.repo.store import open_store
from lodefs.proxy.data.processes import DataProcesses, DataSettings
from lodefs.proxy.fetch.data_plane import DataPlane
from lodefs.proxy.metrics.counters import Counter
from lodefs.proxy.node import Located
from lodefs.proxy.service.store_node import StoreNode
from tests.proxy.data.test_processes import until
from tests.support.proxy.rig import MIB, Rig, file_of, read_path
from tests.support.proxy.slow_data_process import DEAD, SLOW, TOO_SLOW

WAIT_S = 60.0
LARGE = random.Random(1).randbytes(12 * MIB)
SOFT = b"".join(b"%d lines compress well\n" % n for n in range(150_000))
SMALL = {b"small/%02d" % n: random.Random(n).randbytes(60_000) for n in range(40)}
FILES = {b"large": LARGE, b"soft": SOFT, **SMALL}


class DiskRig(Rig):
    """A rig whose store is a directory, which data processes can read."""

    def __init__(self, folder: Path) -> None:
        self.store_dir = folder / "store"
        self.below = DirectoryObjects(self.store_dir)
        super().__init__(folder, FILES, chunk_size_bytes=90_000, pack_chunks=512, below=self.below)

    def data(self, settings: DataSettings) -> DataPlane:
        """Data processes, ready."""
        processes = DataProcesses(settings)
        processes.start()
        until(lambda: len(processes.pids) == settings.processes)
        reads = PackLocations(Limited(self.below, 16))
        return DataPlane(processes, reads, transfer_timeout_s=WAIT_S)

    def spoil(self, *bad: bytes) -> None:
        """Changes bytes of the store, as a disk would: the objects' tags stay."""
        found = 0
        for path in (self.store_dir / "packs").rglob("*"):
            if path.is_file():
                status, data = path.stat(), path.read_bytes()
                found += sum(one in data for one in bad)
                for one in bad:
                    data = data.replace(one, bytes(len(one)))
                path.write_bytes(data)
                os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
        assert found == len(bad)


@pytest.fixture
def rig(tmp_path: Path) -> DiskRig:
    return DiskRig(tmp_path)


@pytest.mark.parametrize("by_processes", [True, False])
def test_all_is_read_right_and_cached(rig: DiskRig, *, by_processes: bool) -> None:
    """Large, compressible and small files are read right, cold and warm; large ones end whole;
    most bytes of the store never come to the proxy's process if there are data processes."""

    async def read() -> None:
        data = rig.data(DataSettings(1)) if by_processes else None
        async with rig.node(data=data) as node:
            for _ in range(2):
                for name, content in FILES.items():
                    assert await read_path(node, name) == content
            status = node.status()
            flat = node._cache.complete_flat((await file_of(node, b"large")).content_id)
            assert flat is not None
            assert flat.path.read_bytes() == LARGE
            assert status[Counter.FILLED_BYTES] == sum(map(len, FILES.values()))
        own_bytes = sum(size for _, _, size in rig.objects.ranges)
        assert (own_bytes < sum(map(len, FILES.values())) // 3) == by_processes

    asyncio.run(read())


@pytest.mark.parametrize("by_processes", [True, False])
def test_packs_are_put_into_composites_meanwhile(rig: DiskRig, *, by_processes: bool) -> None:
    """A node that knows where a pack was reads on where it is now, and so does one that comes
    later."""
    rig.store = open_store(PackLocations(rig.objects))
    halves = [b"large"], [name for name in FILES if name != b"large"]

    async def read() -> None:
        data = rig.data(DataSettings(1)) if by_processes else None
        async with rig.node(data=data) as node:
            for names in halves:
                for name in names:
                    assert await read_path(node, name) == FILES[name]
                options = CollectOptions(merge_below_bytes=BELOW_BYTES_MAX)
                collect(open_store(PackLocations(rig.below)), options)
            assert not [path for path in (rig.store_dir / "packs").rglob("*") if path.is_file()]
        shutil.rmtree(rig.directory / "cache")
        data = rig.data(DataSettings(1)) if by_processes else None
        async with rig.node(data=data) as node:
            for name, content in FILES.items():
                assert await read_path(node, name) == content

    asyncio.run(read())


@pytest.mark.parametrize("by_processes", [True, False])
def test_wrong_bytes_cost_their_file_alone(rig: DiskRig, *, by_processes: bool) -> None:
    """Wrong bytes in the store fail the files that consist of them, and no others; none is ever
    given out, and none comes to the cache."""
    rig.spoil(LARGE[5 * MIB : 5 * MIB + 1000], SMALL[b"small/07"][:500])

    async def read() -> None:
        data = rig.data(DataSettings(1)) if by_processes else None
        async with rig.node(data=data) as node:
            for name, content in FILES.items():
                if name in (b"large", b"small/07"):
                    with pytest.raises(Corrupt):
                        await read_path(node, name)
                else:
                    assert await read_path(node, name) == content
            assert await read_path(node, b"large", 0, 4 * MIB) == LARGE[: 4 * MIB]

    asyncio.run(read())


@contextmanager
def repeated(harm: Callable[[], None], processes: DataProcesses) -> Iterator[None]:
    """Does harm again and again while data processes have orders."""
    ended = threading.Event()

    def work() -> None:
        while not ended.wait(0.03):
            if processes.status()["data_processes_busy_orders"]:
                harm()

    thread = threading.Thread(target=work)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


async def all_read_right(node: StoreNode) -> None:
    """Every file, by readers at the same time."""
    found = await asyncio.gather(*(read_path(node, name) for name in FILES))
    wrong = [name for name, content in zip(FILES, found, strict=True) if content != FILES[name]]
    assert not wrong


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
def test_nobody_notices_that_processes_end(
    rig: DiskRig, number: signal.Signals, caplog: pytest.LogCaptureFixture
) -> None:
    """Data processes are killed or stopped in the middle of orders: every file is read right,
    then and later, and what was written is right."""
    caplog.set_level(logging.INFO, "lodefs.data")

    def lost() -> int:
        return sum("a data process ended" in one.getMessage() for one in caplog.records)

    def harm() -> None:
        for pid in data.processes.pids:
            if pid:
                with suppress(ProcessLookupError):
                    os.kill(pid, number)

    data = rig.data(DataSettings(2, argv=SLOW, look_s=0.05, hang_s=0.1))

    async def read() -> None:
        async with rig.node(data=data) as node:
            with repeated(harm, data.processes):
                async with asyncio.timeout(WAIT_S):
                    while lost() < 3:
                        node._cache.eviction.free(64 * MIB)
                        await all_read_right(node)
            await all_read_right(node)
        async with rig.node() as later:
            await all_read_right(later)

    asyncio.run(read())


@pytest.mark.parametrize("to_bytes", [0, 300_000])
def test_files_that_are_cut_while_orders_run_are_not_trusted(rig: DiskRig, to_bytes: int) -> None:
    """Somebody cuts the cache's files while data processes write to them: the zeros that this
    leaves are no bytes of any file, then and later."""
    data = rig.data(DataSettings(1, argv=SLOW))
    cuts = 0

    def harm() -> None:
        nonlocal cuts
        for path in (rig.directory / "cache").glob("[fs]*/*/*"):
            with suppress(FileNotFoundError):
                os.truncate(path, to_bytes)
                cuts += 1

    async def read() -> None:
        async with rig.node(data=data) as node:
            with repeated(harm, data.processes):
                async with asyncio.timeout(WAIT_S):
                    while not (cuts and node.counts.values[Counter.CACHE_CORRUPT]):
                        node._cache.eviction.free(64 * MIB)
                        await all_read_right(node)
            await all_read_right(node)
        async with rig.node() as later:
            await all_read_right(later)

    asyncio.run(read())


@pytest.mark.parametrize("argv", [TOO_SLOW, DEAD])
def test_a_slow_disk_under_data_processes(rig: DiskRig, argv: tuple[str, ...]) -> None:
    """What data processes cannot write in time the proxy's own process fetches into memory: readers
    get it though a write never ends, and the next reads do not wait for the disk again."""

    async def read() -> None:
        data = rig.data(DataSettings(1, argv=argv, look_s=0.05))
        async with rig.node(data=data) as node:
            assert await read_path(node, b"large") == LARGE
            asked = len(rig.objects.ranges)
            assert asked
            assert await read_path(node, b"soft") == SOFT
            assert data.processes.status()["data_processes_restarts"] == 0 or argv is DEAD

    asyncio.run(read())


def test_without_space_readers_get_their_bytes(rig: DiskRig) -> None:
    """A cache that can keep nothing costs no reader anything."""

    async def read() -> None:
        data = rig.data(DataSettings(1))
        settings = rig.settings(size_bytes_max=0)
        async with rig.node(settings, data=data) as node:
            assert await read_path(node, b"large") == LARGE

    asyncio.run(read())


def test_what_is_not_fetched_leaves_no_hole(rig: DiskRig) -> None:
    """Places in slabs that nothing was written to are used by what comes next."""

    async def read() -> None:
        data = rig.data(DataSettings(1))
        async with rig.node(data=data) as node:
            data.processes.close()  # each order fails from now on
            for name in SMALL:
                assert await read_path(node, name) == SMALL[name]
            slabs = [f for f in node._cache.files.values() if f.kind is layout.FileKind.SLAB]
            assert sum(slab.reserved_bytes for slab in slabs) == sum(
                slab.present_bytes for slab in slabs
            )

    asyncio.run(read())


async def bytes_by_places(node: StoreNode, name: bytes, step: int) -> bytes:
    """A file, read as a mount does that is told where bytes lie."""
    file = await file_of(node, name)
    size = file.entry.size_bytes
    content = b""
    while len(content) < size:
        at = len(content)
        found = await node.files.locate(file, at, min(step, size - at))
        if isinstance(found, Located):
            place = found.place
            assert (place.first, place.file_size_bytes) == (at, size)
            path = node._cache.files[place.number].path
            with path.open("rb") as cached:
                content += os.pread(cached.fileno(), place.size_bytes, place.offset)
        else:
            content += bytes(found.first) + b"".join([bytes(piece) async for piece in found])
            await found.aclose()
    return content


@pytest.mark.parametrize("by_processes", [True, False])
@pytest.mark.parametrize("step", [128 * 1024, MIB])
def test_places_have_the_bytes(rig: DiskRig, step: int, *, by_processes: bool) -> None:
    """Where a reader is told that bytes lie they lie, cold and warm."""

    async def read() -> None:
        data = rig.data(DataSettings(1)) if by_processes else None
        async with rig.node(data=data) as node:
            for _ in range(2):
                for name in (b"large", b"soft", b"small/03"):
                    assert await bytes_by_places(node, name, step) == FILES[name]

    asyncio.run(read())
