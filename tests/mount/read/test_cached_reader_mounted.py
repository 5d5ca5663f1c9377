"""Direct reads through the real kernel: a mount on a real proxy with a real cache."""

from __future__ import annotations

import mmap
import os
import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from lodefs.chunkstore.nodecache import layout as layout
from lodefs.proxy.metrics.counters import Counter
from lodefs.proxy.service.store_node import StoreNode
from tests.support.chunkstore.child_process import private_directory
from tests.support.mount.mounts import Mounts, read_anew, until
from tests.support.mount.pages import pages_in_memory
from tests.support.proxy.fake_node import RunningProxy
from tests.support.proxy.rig import MIB, REPO, Rig, serve_rig

pytestmark = [pytest.mark.slow, pytest.mark.fuse]

_random = random.Random(4)
FILES = {
    b"big": _random.randbytes(3 * MIB + 5),
    **{b"d/%03d" % n: _random.randbytes(1 + 37 * n) for n in range(100)},
}


class Rigged:
    """A mount, its proxy and its node."""

    def __init__(self, proxy: RunningProxy, node: StoreNode, place: Path, cache: Path) -> None:
        self.proxy = proxy
        self.node = node
        self.place = place
        self.cache = cache

    def data_requests(self) -> int:
        return self.proxy.requests("data")

    def read_all(self) -> None:
        """Every byte is right, whatever the kernel remembers."""
        for path in FILES:
            self.read(path)

    def read(self, path: bytes) -> None:
        """The same of one file."""
        assert read_anew(os.fsencode(self.place) + b"/" + path) == FILES[path]

    def reads_without_proxy(self) -> bool:
        """Whether a round of reads asked the proxy for nothing."""
        before = self.data_requests()
        self.read_all()
        return self.data_requests() == before


@pytest.fixture
def rigged() -> Iterator[Rigged]:
    with private_directory() as folder:
        rig = Rig(folder, FILES)
        with serve_rig(rig) as (proxy, node):
            mounts = Mounts(folder, proxy)
            try:
                mounts.mount(repo=REPO, workers=2)
                yield Rigged(proxy, node, mounts.place, folder / "cache")
            finally:
                mounts.close()


def test_warm_reads_make_no_requests(rigged: Rigged) -> None:
    """Once it is in the cache and the workers see that, data is read without the proxy; and the
    proxy hears of it."""
    rigged.read_all()
    until(rigged.reads_without_proxy)
    until(lambda: rigged.node.counts.values[Counter.DIRECT_BYTES] >= len(FILES[b"big"]))


def let_go(path: Path) -> None:
    """A file's bytes are on its disk, and in memory no more."""
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
    finally:
        os.close(fd)


def test_a_small_file_brings_its_neighbours_from_the_disk(rigged: Rigged) -> None:
    """After the first read of a slab that is on its disk alone, all of the slab (of less than
    256 KiB) is in memory; the kernel by itself brings less."""
    rigged.read_all()
    until(rigged.reads_without_proxy)
    (slab,) = (rigged.cache / layout.SLABS_DIR).glob("*/*")
    let_go(slab)
    pages = slab.stat().st_blocks * 512 // mmap.PAGESIZE  # of those that hold bytes
    if any(pages_in_memory(slab)[:pages]):
        pytest.skip("this file system keeps all of its files in memory")
    with slab.open("rb", buffering=0) as file:
        let_go(slab)
        file.read(1)
        assert not all(pages_in_memory(slab)[:pages])
    let_go(slab)

    def are_all_there() -> bool:
        rigged.read(b"d/001")  # which the kernel answers if the mount stored it ahead just now
        return all(pages_in_memory(slab)[:pages])

    until(are_all_there)


@pytest.mark.parametrize("harm", ["delete", "cut", "evict"])
def test_harm_to_the_cache_under_a_mount(rigged: Rigged, harm: str) -> None:
    """Cache files that go or become shorter under a mount that has them open: right bytes."""
    rigged.read_all()
    until(rigged.reads_without_proxy)
    for file in list(rigged.node._cache.files.values()):
        if harm == "evict":
            rigged.node._cache.eviction.evict(file)
        elif harm == "delete":
            file.path.unlink()
        else:
            os.truncate(file.path, 1000)
    for _ in range(3):
        rigged.read_all()


def test_a_cache_that_cannot_be_read_here() -> None:
    """Where the index does not open, everything is read through the proxy, and the log says so."""
    with private_directory() as folder:
        rig = Rig(folder, FILES)
        with serve_rig(rig) as (proxy, node):
            (folder / "cache" / layout.VERSION_FILE).write_text("lodefs-cache 99\n")
            mounts = Mounts(folder, proxy)
            try:
                mounts.mount(repo=REPO, workers=1)
                until(lambda: "not read directly" in mounts.log.read_text())
                rigged = Rigged(proxy, node, mounts.place, folder / "cache")
                for _ in range(2):
                    rigged.read_all()
                assert rigged.data_requests() > 100
            finally:
                mounts.close()
