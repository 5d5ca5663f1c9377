"""Orphans: what a killed process leaves is cleaned up, and nothing else."""

from __future__ import annotations

import os
import random
import signal
import sys
from pathlib import Path

import pytest

from lodefs.chunkstore.format.names import digest_of
from lodefs.chunkstore.nodecache import layout as layout
from lodefs.proxy.cache import recovery
from lodefs.proxy.cache.cache_file import CacheFile
from lodefs.proxy.cache.chunk_cache import Cache, Flat
from lodefs.proxy.cache.tables import CacheSettings
from lodefs.proxy.metrics.counters import Counts
from tests.support.chunkstore.child_process import Child
from tests.support.proxy.rig import chunk_of

MIB = 1024 * 1024

CHILD = """
import random, sys
from pathlib import Path
from lodefs.chunkstore.format.names import digest_of
from lodefs.proxy.cache.chunk_cache import Cache, Chunk, Flat
from lodefs.proxy.cache.tables import CacheSettings
from lodefs.proxy.metrics.counters import Counts

settings = CacheSettings(Path(sys.argv[1]), 6 << 20, free_size_bytes_min=0)
def chunk_of(raw, offset=0):
    return Chunk(digest_of(raw), len(raw), offset), raw

cache = Cache(settings, Counts(), call_soon=lambda call: call())
n = 0
while True:
    rng = random.Random(n)
    raws = [rng.randbytes(40_000) for _ in range(8)]
    cache.store([chunk_of(raw) for raw in raws], None)
    whole = rng.randbytes(1 << 20)
    flat = Flat(digest_of(whole), len(whole))
    for first in range(0, len(whole), 1 << 18):
        raw = whole[first : first + (1 << 18)]
        cache.store([chunk_of(raw, first)], flat)
    n += 1
    print("round", n, flush=True)
"""


def written(rounds: int) -> list[bytes]:
    """The chunks that the child wrote in so many rounds."""
    chunks = []
    for n in range(rounds):
        rng = random.Random(n)
        chunks += [rng.randbytes(40_000) for _ in range(8)]
        whole = rng.randbytes(1 << 20)
        chunks += [whole[first : first + (1 << 18)] for first in range(0, 1 << 20, 1 << 18)]
    return chunks


@pytest.mark.slow
@pytest.mark.parametrize("rounds", [1, 4, 9])
def test_killed_for_real(tmp_path: Path, rounds: int) -> None:
    """kill -9 in the middle of storing and evicting: the next process finds right bytes alone,
    most of them, and no files without rows after cleaning up."""
    path = tmp_path / "cache"
    with Child([sys.executable, "-c", CHILD, path]) as child:
        child.wait_for(rf"^round {rounds}$")
        child.process.send_signal(signal.SIGKILL)
        child.process.wait(60)
        done = len(child.output.splitlines())  # it may have gone on for long
    cache = Cache(CacheSettings(path, 6 * MIB, free_size_bytes_min=0), Counts())
    recovery.clean(cache, stopping=lambda: False)
    found = 0
    for raw in written(done + 1):
        (place,) = cache.find([layout.chunk_key(digest_of(raw))])
        if place is not None:
            found += 1
            with place.file.in_use() as fd:
                assert os.pread(fd, place.size_bytes, place.offset) == raw
    assert found > 0
    files = {file for file in path.glob("[fs]*/*/*") if file.is_file()}
    assert files <= {file.path for file in cache.files.values()}
    assert cache.used_bytes == sum(file.present_bytes for file in cache.files.values())
    for file in cache.flats.values():
        if file.state is layout.FileState.COMPLETE:
            assert digest_of(file.path.read_bytes()) == file.content
    cache.close()


def test_only_files_of_the_cache_are_removed(tmp_path: Path) -> None:
    """Files without rows go; files with rows, new ones, and what is not ours stay."""
    settings = CacheSettings(tmp_path / "cache", 64 * MIB, free_size_bytes_min=0)
    cache = Cache(settings, Counts())
    raw = b"x" * MIB
    cache.store([chunk_of(raw)], Flat(digest_of(raw), MIB))
    cache.store([chunk_of(b"small")], None)
    kept = {file.path for file in cache.files.values()}
    orphan_slab = layout.slab_path(settings.path, 0x77)
    orphan_flat = layout.flat_path(settings.path, digest_of(raw), 0x78)
    note = settings.path / "slabs" / "77" / "note.txt"
    for path in (orphan_slab, orphan_flat, note):
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(b"?")
    recovery.clean(cache, stopping=lambda: False)
    assert {p for p in settings.path.glob("[fs]*/*/*") if p.is_file()} == {*kept, note}
    cache.close()


def test_cleaning_stops_when_the_node_does(tmp_path: Path) -> None:
    """A node that closes does not wait for all files to be looked at."""
    settings = CacheSettings(tmp_path / "cache", 64 * MIB, free_size_bytes_min=0)
    cache = Cache(settings, Counts())
    orphan = layout.slab_path(settings.path, 0x77)
    orphan.parent.mkdir()
    orphan.write_bytes(b"?")
    recovery.clean(cache, stopping=lambda: True)
    assert orphan.exists()
    cache.close()


def test_reads_may_add_files_meanwhile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Recovery goes through the files that were there at its start, while new ones come."""
    settings = CacheSettings(tmp_path / "cache", 64 * MIB, free_size_bytes_min=0)
    cache = Cache(settings, Counts())

    def add() -> None:
        raw = random.Random(len(cache.files)).randbytes(MIB)
        cache.store([chunk_of(raw)], Flat(digest_of(raw), MIB))

    def is_recovered(_file: CacheFile, _boot: bytes) -> bool:
        add()
        return True

    add()
    add()
    monkeypatch.setattr(CacheFile, "is_recovered", is_recovered)
    assert recovery.clean(cache, stopping=lambda: False) == 0
    assert len(cache.files) == 4
    cache.close()


def test_what_cannot_be_removed_is_left_to_do(tmp_path: Path) -> None:
    """Recovery is not done while a file without rows cannot be removed, though there is nothing to
    check; and it is when that file is gone."""
    settings = CacheSettings(tmp_path / "cache", 64 * MIB, free_size_bytes_min=0)
    cache = Cache(settings, Counts())
    orphan = layout.slab_path(settings.path, 0x77)
    orphan.mkdir(parents=True)  # not even root can unlink it
    assert recovery.clean(cache, stopping=lambda: False)
    orphan.rmdir()
    assert not recovery.clean(cache, stopping=lambda: False)
    cache.close()
