"""What the process that stores ahead gives the kernel, after which reads."""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from lodefs.chunkstore.errors import Unavailable
from lodefs.chunkstore.format.inodes import ROOT_INO, child_ino
from lodefs.chunkstore.nodecache.view import CacheView, open_view
from lodefs.chunkstore.protocol.figures.mount_counts import Column
from lodefs.mount.fs.filesystem import LARGE
from lodefs.mount.kernel import device
from lodefs.mount.read.cache_monitor import CacheMonitor
from lodefs.mount.read.prefetch_policy import AGAIN_S, BLOCK_BYTES, READ_BYTES_MAX, Policy
from lodefs.mount.read.prefetcher import GAP_BYTES_MAX, IN_VAIN_MAX, MISSING_MAX, Prefetcher
from lodefs.mount.read.read_events import ReadEvent
from tests.support.mount.dict_tree import DictTree, Link
from tests.support.mount.node_cache import NodeCache

pytestmark = pytest.mark.slow

_random = random.Random(11)
SMALL = {b"%03d" % n: _random.randbytes(1 + 37 * n) for n in range(300)}
BIG = _random.randbytes(3 * BLOCK_BYTES + 5)
TREE = DictTree({b"d": {**SMALL, b"sub": {}, b"link": Link(b"000"), b"none": b""}, b"big": BIG})
D, BIG_INO = child_ino(ROOT_INO, b"d"), child_ino(ROOT_INO, b"big")
INOS = {name: child_ino(D, name) for name in SMALL}
A, B, C = (INOS[b"%03d" % n] for n in (7, 9, 11))
ROW = {ino: SMALL[name] for name, ino in INOS.items() if name < b"256"}  # stand in one row


class Clock:
    """Time that passes only when a test says so."""

    def __init__(self) -> None:
        self.now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


class CacheHolder(CacheMonitor):
    """The cache as it can be read now."""

    def __init__(self, view: CacheView | None) -> None:
        self.view = view
        self.errors: list[Exception] = []

    def failed(self, _view: CacheView, error: Exception) -> None:
        self.errors.append(error)


class Rig:
    """A storer, its cache, and the kernel, which knows all nodes but those in ``forgotten``."""

    def __init__(self, cache: NodeCache) -> None:
        self.clock = Clock()
        self.cache = cache
        view = open_view(cache.place, TREE.snapshot, clock=self.clock)
        self.near = CacheHolder(view)
        self.view = view
        self.stored: dict[tuple[int, int], bytes] = {}  # node, offset
        self.forgotten: set[int] = set()
        self.tries = self.counted_bytes = 0
        self.make()

    def make(self, *, large: bool = True) -> None:
        policy = Policy(self.clock)
        self.prefetcher = Prefetcher(3, self.near, large=large, count=self._count, policy=policy)

    def _count(self, column: Column, amount: int) -> None:
        assert column is Column.AHEAD_BYTES
        self.counted_bytes += amount

    def store(self, _device: int, node: int, first: int, data: memoryview) -> bool:
        self.tries += 1
        if node in self.forgotten:
            return False
        self.stored[node, first] = bytes(data)
        return True

    def have(self, change: Callable[[NodeCache], None]) -> None:
        """The cache changes, and the view sees it."""
        change(self.cache)
        self.clock.now_s += 60
        assert self.view.catch_up()

    def read(self, *inos: int, first: int = 0, size_bytes: int = 4096) -> None:
        """Workers answered reads of files, and the storer hears of them one by one."""
        for ino in inos:
            self.prefetcher.prefetch([ReadEvent(ino, first, size_bytes)])

    def taken(self) -> dict[tuple[int, int], bytes]:
        """What was stored since the last time."""
        stored, self.stored = self.stored, {}
        return stored


@pytest.fixture
def rig(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Rig]:
    cache = NodeCache(tmp_path / "cache", TREE)
    made = Rig(cache)
    monkeypatch.setattr(device, "store", made.store)
    yield made
    cache.close()


def whole(files: dict[int, bytes], *without: int) -> dict[tuple[int, int], bytes]:
    return {(ino, 0): data for ino, data in files.items() if ino not in without}


def test_the_second_read_stores_the_files_beside_it(rig: Rig) -> None:
    """All small files of the row, but those that were read; it is counted, and the cache's file
    marked as used."""
    rig.have(lambda cache: cache.hold(D, INOS.values()))
    rig.read(A)
    assert rig.taken() == {}
    rig.read(B)
    assert rig.taken() == whole(ROW, A, B)
    assert rig.counted_bytes == sum(len(data) for data in whole(ROW, A, B).values())
    assert (rig.view.used, rig.view.stored_bytes) == ({1}, rig.counted_bytes)


def test_reads_that_were_on_their_way_store_nothing(rig: Rig) -> None:
    """What was just stored or read is not stored again; later, the kernel has dropped all of it."""
    rig.have(lambda cache: cache.hold(D, INOS.values()))
    rig.read(A, B)
    rig.taken()
    rig.read(A, B, C, *ROW)
    assert rig.taken() == {}
    rig.clock.now_s += AGAIN_S
    rig.read(C)
    assert rig.taken() == whole(ROW, C)


def test_reads_that_come_together_are_told_apart_from_what_is_stored(rig: Rig) -> None:
    """Files that are read while others wait to be stored are left out."""
    rig.have(lambda cache: cache.hold(D, INOS.values()))
    rig.prefetcher.prefetch([ReadEvent(ino, 0, 4096) for ino in (A, B, C)])
    assert rig.taken() == whole(ROW, A, B, C)


def test_files_that_are_not_on_the_node_are_left_out(rig: Rig) -> None:
    """Those that are there are stored; after some in a row that are not, no more are looked for."""
    names = sorted(ROW, key=lambda ino: TREE.nodes[ino].name)
    held = [*names[: MISSING_MAX - 1 : 2], *names[MISSING_MAX:100]]
    rig.have(lambda cache: cache.hold(D, held))
    rig.read(names[0], names[2])
    assert rig.taken() == whole({ino: ROW[ino] for ino in held}, names[0], names[2])


def test_what_the_kernel_has_forgotten_is_soon_given_up(rig: Rig) -> None:
    """Nobody knows these names: storing them is in vain, and not tried again for each of them."""
    rig.have(lambda cache: cache.hold(D, INOS.values()))
    rig.forgotten = set(INOS.values())
    rig.read(A, B)
    assert rig.tries == IN_VAIN_MAX
    assert rig.counted_bytes == 0
    for ino in ROW:
        rig.clock.now_s += AGAIN_S
        rig.read(ino)
    assert rig.tries < 3 * IN_VAIN_MAX


def test_a_part_of_a_small_file_is_not_all_of_it(rig: Rig) -> None:
    """A file of which only some bytes were read is stored with the others."""
    rig.have(lambda cache: cache.hold(D, INOS.values()))
    large = INOS[b"255"]
    rig.read(large, size_bytes=4096)
    rig.read(A)
    assert rig.taken() == whole(ROW, A)


def test_reads_behind_the_end_are_ignored(rig: Rig) -> None:
    """Of a small file and of a large one."""
    rig.have(lambda cache: cache.hold(D, INOS.values()))
    rig.have(lambda cache: cache.complete(BIG_INO))
    for _ in range(3):
        rig.read(A, B, first=1 << 20)
        rig.read(BIG_INO, first=4 * BLOCK_BYTES)
        rig.read(BIG_INO, first=len(BIG))
    assert rig.taken() == {}


def test_a_slab_that_has_become_shorter_stores_nothing(rig: Rig) -> None:
    """Never bytes that are not there."""
    rig.have(lambda cache: cache.hold(D, INOS.values()))
    rig.cache.cut_slabs(100)
    rig.read(A, B)
    assert rig.taken() == {}


@pytest.mark.parametrize("in_memory", [True, False])
def test_files_that_lie_apart_are_stored_from_memory(
    rig: Rig, monkeypatch: pytest.MonkeyPatch, *, in_memory: bool
) -> None:
    """What would be brought from the disk for a single file is left to whoever asks for it; what
    lies together is brought."""
    preadv = os.preadv

    def read(fd: int, buffers: tuple[memoryview, ...], offset: int, flags: int) -> int:
        if flags & os.RWF_NOWAIT and not in_memory:
            raise BlockingIOError
        return preadv(fd, buffers, offset, flags)

    monkeypatch.setattr(os, "preadv", read)
    apart = [INOS[b"%03d" % n] for n in range(1, 11)]
    close = [INOS[b"%03d" % n] for n in range(11, 21)]
    rig.have(lambda cache: cache.hold(D, apart, gap_bytes=GAP_BYTES_MAX + 1))
    rig.have(lambda cache: cache.hold(D, close, gap_bytes=GAP_BYTES_MAX))
    rig.read(apart[0], close[0])
    expected = [*close, *(apart if in_memory else [])]
    assert rig.taken() == whole({ino: ROW[ino] for ino in expected}, apart[0], close[0])


def test_small_reads_of_a_large_file_store_their_block(rig: Rig) -> None:
    """From the second one in it on; the last block ends with the file."""
    rig.have(lambda cache: cache.complete(BIG_INO))
    rig.read(BIG_INO, first=BLOCK_BYTES + 8192)
    rig.read(BIG_INO, first=3 * BLOCK_BYTES)
    assert rig.taken() == {}
    rig.read(BIG_INO, first=BLOCK_BYTES + 4096)
    rig.read(BIG_INO, first=3 * BLOCK_BYTES)
    assert rig.taken() == {
        (BIG_INO | LARGE, BLOCK_BYTES): BIG[BLOCK_BYTES : 2 * BLOCK_BYTES],
        (BIG_INO | LARGE, 3 * BLOCK_BYTES): BIG[3 * BLOCK_BYTES :],
    }
    rig.read(BIG_INO, BIG_INO, first=0, size_bytes=READ_BYTES_MAX + 1)
    assert rig.taken() == {}


def test_incomplete_files_and_passthrough_have_no_blocks(rig: Rig) -> None:
    """What is not there is not stored; nor is what the kernel reads by itself."""
    rig.read(BIG_INO, BIG_INO, BIG_INO)
    rig.have(lambda cache: cache.complete(BIG_INO))
    rig.make(large=False)
    rig.read(BIG_INO, BIG_INO, BIG_INO)
    assert rig.taken() == {}


def test_nonsense_is_ignored(rig: Rig) -> None:
    """Numbers that are nothing, a directory, a symlink, an empty file; and no cache at all."""
    rig.have(lambda cache: cache.hold(D, INOS.values()))
    others = [child_ino(D, name) for name in (b"sub", b"link", b"none")]
    rig.read(*[5, D, *others] * 3)
    rig.near.view = None
    rig.read(A, B, C)
    assert rig.taken() == {}
    assert rig.near.errors == []


def test_an_index_that_cannot_be_read_is_told(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever looks after the cache hears of it; no error leaves the storer."""
    error = Unavailable("gone")

    def broken(_ino: int) -> None:
        raise error

    monkeypatch.setattr(rig.view, "node", broken)
    rig.read(A)
    assert rig.near.errors == [error]
