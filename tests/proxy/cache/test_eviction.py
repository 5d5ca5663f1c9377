"""Eviction, as other processes see it that read the cache directly."""

from __future__ import annotations

import errno
import os
import random
from collections.abc import Sequence
from pathlib import Path

import pytest

from lodefs.chunkstore.errors import NoSpace
from lodefs.chunkstore.format.names import digest_of
from lodefs.chunkstore.nodecache import layout as layout
from lodefs.chunkstore.nodecache.kv import KeyValues
from lodefs.chunkstore.nodecache.kv_rocks import RocksSecondary
from lodefs.proxy.cache.chunk_cache import Cache, Flat
from lodefs.proxy.cache.tables import CacheSettings
from lodefs.proxy.metrics.counters import Counter, Counts
from tests.support.proxy.rig import at_once, chunk_of

MIB = 1024 * 1024
SMALL = [random.Random(n).randbytes(50_000) for n in range(10)]
BIG = random.Random(77).randbytes(MIB)


class Reader:
    """What a mount does: finds rows in its own view of the index, and opens files by itself."""

    def __init__(self, cache_dir: Path, own: Path) -> None:
        self._dir = cache_dir
        self.kv = RocksSecondary(cache_dir / layout.INDEX_DIR, own)

    def read(self, raw: bytes) -> bytes | None:
        value = self.kv.get(layout.chunk_key(digest_of(raw)))
        if value is None:
            return None
        number, offset, size_bytes = layout.decode_chunk_row(value)
        file_value = self.kv.get(layout.file_key(number))
        if file_value is None:
            return None
        row = layout.decode_file_row(file_value)
        if row.state is layout.FileState.EVICTED or not layout.is_trusted(row, layout.boot_id()):
            return None
        try:
            fd = os.open(layout.file_path(self._dir, number, row), os.O_RDONLY)
        except FileNotFoundError:
            return None
        try:
            return os.pread(fd, size_bytes, offset)
        finally:
            os.close(fd)


def fill(cache: Cache) -> None:
    """Ten small chunks in a slab, one flat file."""
    assert cache.store([chunk_of(raw) for raw in SMALL], None)
    assert cache.store([chunk_of(BIG)], Flat(digest_of(BIG), len(BIG)))


@pytest.fixture
def settings(tmp_path: Path) -> CacheSettings:
    return CacheSettings(tmp_path / "cache", 64 * MIB, free_size_bytes_min=0)


def test_a_reader_with_an_old_view_finds_right_bytes_or_none(
    settings: CacheSettings, tmp_path: Path
) -> None:
    """Evicted and stored again behind its back: an old view never leads to other bytes."""
    cache = Cache(settings, Counts(), call_soon=at_once)
    fill(cache)
    old = Reader(settings.path, tmp_path / "old")
    assert [old.read(raw) for raw in [*SMALL, BIG]] == [*SMALL, BIG]
    cache.eviction.free(100 * MIB)
    fresh = [bytes([n]) * 50_000 for n in range(10)]
    cache.store([chunk_of(raw) for raw in fresh], None)
    assert [old.read(raw) for raw in [*SMALL, BIG]] == [None] * 11
    old.kv.catch_up()
    assert [old.read(raw) for raw in fresh] == fresh
    old.kv.close()
    cache.close()


def test_no_rows_stay_behind(settings: CacheSettings) -> None:
    """After everything was evicted the index holds no trace of it."""
    counts = Counts()
    cache = Cache(settings, counts, call_soon=at_once)
    fill(cache)
    cache.eviction.free(100 * MIB)
    for table in (layout.CHUNKS, layout.FILES, layout.RUNS, layout.FLATS):
        assert list(cache.kv.scan(table)) == []
    assert counts.values[Counter.EVICTED_FILES] == 2
    assert counts.values[Counter.EVICTED_BYTES] == 500_000 + MIB
    assert cache.used_bytes == 0
    cache.close()


def test_a_chunk_that_moved_keeps_its_row(settings: CacheSettings) -> None:
    """A chunk that was stored in two files stays known where only the older of them goes."""
    cache = Cache(settings, Counts(), call_soon=at_once)
    chunk = chunk_of(BIG)
    cache.store([chunk], Flat(digest_of(BIG), len(BIG)))
    cache.store([chunk], None)
    cache.eviction.evict(cache.flats[digest_of(BIG)])
    (place,) = cache.find([layout.chunk_key(digest_of(BIG))])
    assert place is not None
    with place.file.in_use() as fd:
        assert os.pread(fd, place.size_bytes, place.offset) == BIG
    cache.close()


class _Full:
    """An index that takes no rows while ``is_full``."""

    def __init__(self, below: KeyValues) -> None:
        self.is_full = False
        self._write = below.write
        self.get, self.get_many, self.scan = below.get, below.get_many, below.scan
        self.floor, self.lacks = below.floor, below.lacks
        self.catch_up, self.close = below.catch_up, below.close

    def write(self, rows: Sequence[tuple[bytes, bytes | None]], *, durable: bool = False) -> None:
        if self.is_full:
            raise NoSpace("the index is full")
        self._write(rows, durable=durable)


def test_a_file_that_cannot_be_removed_now_goes_later(
    settings: CacheSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A disk that refuses to remove a file does not end an eviction; it is tried again."""
    cache = Cache(settings, Counts())
    fill(cache)
    (slab,) = (file.path for file in cache.files.values() if not any(file.content))

    def refuse(path: Path, *, missing_ok: bool = False) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO), str(path))

    with monkeypatch.context() as broken:
        broken.setattr(Path, "unlink", refuse)
        cache.eviction.free(100 * MIB)
    assert slab.exists()
    assert (cache.used_bytes, cache.files, len(cache.evicted)) == (0, {}, 2)
    cache.eviction.finish()
    assert not slab.exists()
    assert list(cache.kv.scan(layout.FILES)) == []
    cache.close()


def test_a_full_index_does_not_stop_eviction(settings: CacheSettings) -> None:
    """Where even deletions find no space, the bytes go all the same, which makes space; the rows
    go later."""
    cache = Cache(settings, Counts(), call_soon=at_once)
    fill(cache)
    cache.kv = full = _Full(cache.kv)
    full.is_full = True
    cache.eviction.free(100 * MIB)
    assert cache.used_bytes == 0
    assert not [path for path in settings.path.glob("[fs]*/*/*") if path.is_file()]
    assert cache.find([layout.chunk_key(digest_of(BIG))]) == [None]
    full.is_full = False
    cache.eviction.finish()
    assert list(cache.kv.scan(layout.CHUNKS)) == list(cache.kv.scan(layout.FILES)) == []
    cache.close()
