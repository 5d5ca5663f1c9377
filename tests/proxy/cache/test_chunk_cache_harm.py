"""Files of the cache that somebody cut or removed while the proxy writes to them."""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

from lodefs.chunkstore.format.names import digest_of
from lodefs.chunkstore.nodecache import layout as layout
from lodefs.chunkstore.system import batched_writes
from lodefs.chunkstore.types import Buffer
from lodefs.proxy.cache import recovery
from lodefs.proxy.cache.cache_file import CacheFile
from lodefs.proxy.cache.chunk_cache import Cache, Flat
from lodefs.proxy.cache.reservation import Chunk
from lodefs.proxy.cache.tables import CacheSettings
from lodefs.proxy.metrics.counters import Counter, Counts
from tests.support.proxy.rig import MIB, chunk_of

HARMS: dict[str, Callable[[Path], None]] = {
    "cut": lambda path: os.truncate(path, 7),
    "emptied": lambda path: os.truncate(path, 0),
    "removed": lambda path: path.unlink(),
}
WHOLE = random.Random(4).randbytes(2 * MIB)
FLAT = Flat(digest_of(WHOLE), len(WHOLE))


@pytest.fixture
def counts() -> Counts:
    return Counts()


@pytest.fixture
def cache(tmp_path: Path, counts: Counts) -> Iterator[Cache]:
    made = Cache(CacheSettings(tmp_path / "cache", 64 * MIB, free_size_bytes_min=0), counts)
    yield made
    made.close()


def new(seed: int) -> list[tuple[Chunk, bytes]]:
    raw = random.Random(seed).randbytes(50_000)
    return [chunk_of(raw)]


def part(first: int) -> list[tuple[Chunk, bytes]]:
    raw = WHOLE[first : first + 100_000]
    return [chunk_of(raw, first)]


def check(cache: Cache, chunks: list[tuple[Chunk, bytes]], *, found: bool) -> None:
    """What is found of chunks is right."""
    for chunk, raw in chunks:
        (place,) = cache.find([layout.chunk_key(chunk.id)])
        assert (place is not None) == found
        if place is not None:
            with place.file.in_use() as fd:
                assert os.pread(fd, place.size_bytes, place.offset) == raw


@pytest.mark.parametrize("is_open", [True, False])
@pytest.mark.parametrize("harm", HARMS)
def test_a_slab_that_was_damaged_is_not_written_to(
    cache: Cache, counts: Counts, harm: str, is_open: bool
) -> None:
    """Nothing is written behind the end of a slab that was cut: it is dropped, and the next chunks
    go to another."""
    assert cache.store(new(1), None)
    (slab,) = cache.files.values()
    if not is_open:
        assert slab.close_if_idle()
    HARMS[harm](slab.path)
    assert not cache.store(new(2), None)
    assert counts.values[Counter.CACHE_CORRUPT] == 1
    assert cache.store(new(3), None)
    check(cache, new(1) + new(2), found=False)
    check(cache, new(3), found=True)
    assert cache.used_bytes == 50_000


@pytest.mark.parametrize("harm", HARMS)
def test_a_flat_file_that_was_damaged_is_not_written_to(cache: Cache, harm: str) -> None:
    """The same with a flat file, which would look complete and hold zeros."""
    assert cache.store(part(0), FLAT)
    (flat,) = cache.files.values()
    HARMS[harm](flat.path)
    assert not cache.store(part(100_000), FLAT)
    assert cache.store(part(200_000), FLAT)
    check(cache, part(0) + part(100_000), found=False)
    check(cache, part(200_000), found=True)


def test_a_file_that_is_dropped_while_it_is_written(cache: Cache) -> None:
    """Chunks whose file is dropped before their rows are written get no rows."""
    assert cache.store(new(1), None)
    (slab,) = cache.files.values()

    def step(name: str) -> None:
        if name == "data":
            cache.eviction.drop(slab, "a test wants it")

    cache.step = step
    assert not cache.store(new(2), None)
    cache.step = lambda _name: None
    check(cache, new(1) + new(2), found=False)
    assert cache.used_bytes == 0
    assert cache.store(new(3), None)
    check(cache, new(3), found=True)


def test_a_write_of_the_end_hides_no_truncation(cache: Cache) -> None:
    """A flat file is emptied just before its last bytes are written, which would give it its old
    size, and zeros before them: nothing is written, and its chunks are found no more."""
    assert cache.store(part(0), FLAT)
    (flat,) = cache.files.values()

    def step(name: str) -> None:
        if name == "data":
            os.truncate(flat.path, 0)

    cache.step = step
    end = part(len(WHOLE) - 100_000)
    assert not cache.store(end, FLAT)
    cache.step = lambda _name: None
    check(cache, part(0) + end, found=False)
    assert cache.store(part(0), FLAT)
    check(cache, part(0), found=True)


def test_a_truncation_during_the_write_of_the_end_shows(
    cache: Cache, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A flat file is emptied after the look at its length and before the write of its last bytes,
    which does not give it its old length: none of its chunks is found."""
    assert cache.store(part(0), FLAT)
    (flat,) = cache.files.values()

    write_at = batched_writes.write_at

    def cut_and_write(fd: int, offset: int, buffers: Sequence[Buffer]) -> int:
        os.truncate(flat.path, 0)
        return write_at(fd, offset, buffers)

    end = part(len(WHOLE) - 100_000)
    monkeypatch.setattr(batched_writes, "write_at", cut_and_write)
    assert not cache.store(end, FLAT)
    check(cache, part(0) + end, found=False)


def test_a_file_that_grew_is_no_harm(cache: Cache) -> None:
    """Bytes behind the last indexed one, left by a kill, do no harm."""
    assert cache.store(new(1), None)
    (slab,) = cache.files.values()
    with slab.path.open("ab") as file:
        file.write(b"left by a killed process")
    assert cache.store(new(2), None)
    check(cache, new(1) + new(2), found=True)


def test_harm_is_named(cache: Cache) -> None:
    """What is told says what happened."""
    assert cache.store(new(1), None)
    (slab,) = cache.files.values()
    assert isinstance(slab, CacheFile)
    assert slab.damage() == ""
    os.truncate(slab.path, 3)
    assert slab.damage() == "it was truncated to 3 bytes"
    slab.path.unlink()
    assert slab.damage() == "it was removed"


def test_another_cache_in_its_place_is_left_alone(tmp_path: Path, counts: Counts) -> None:
    """Somebody moves the directory of an open cache, and puts another cache there, as a disk that
    is mounted late: nothing is made, changed or removed in that, and both can be opened."""
    settings = CacheSettings(tmp_path / "cache", 64 * MIB, free_size_bytes_min=0)
    other, moved = (CacheSettings(tmp_path / name, 64 * MIB) for name in ("other", "moved"))
    cache, there = Cache(settings, counts), Cache(other, Counts())
    stored = [new(1), new(2), part(0)]
    for at in (there, cache):
        for chunks, flat in zip(stored, (None, None, FLAT), strict=True):
            assert at.store(chunks, flat)
    there.close()
    settings.path.rename(moved.path)
    other.path.rename(settings.path)
    before = files_of(settings.path)
    for number in list(cache.files):
        cache.eviction.drop(cache.files[number], "it is in the way")
    assert cache.store(new(3), None)
    assert cache.store(part(200_000), FLAT)
    recovery.clean(cache, stopping=lambda: False)
    cache.close()
    assert files_of(settings.path) == before
    for place, kept in ((settings, stored), (moved, [new(3), part(200_000)])):
        cache = Cache(place, Counts())
        for chunks in kept:
            check(cache, chunks, found=True)
        cache.close()


def files_of(directory: Path) -> dict[Path, bytes]:
    """The files below a directory, without those that say who has it open."""
    found = (path for path in directory.rglob("*") if path.is_file())
    return {path: path.read_bytes() for path in found if path.name.lower() != "lock"}
