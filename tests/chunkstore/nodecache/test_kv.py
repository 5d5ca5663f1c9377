"""KeyValues: memory and RocksDB keep one contract; a secondary follows its primary."""

from __future__ import annotations

import os
import re
import shutil
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import pytest

from lodefs.chunkstore.errors import Corrupt, InUse, LodefsError, Unavailable
from lodefs.chunkstore.nodecache.kv import KeyValues, Row
from lodefs.chunkstore.nodecache.kv_rocks import (
    BLOCK_CACHE_SIZE_BYTES,
    RocksKeyValues,
    RocksSecondary,
)
from tests.support.chunkstore.key_values_suite import KeyValuesSuite
from tests.support.chunkstore.memory_key_values import MemoryKeyValues


class TestMemory(KeyValuesSuite):
    """The reference implementation."""

    @pytest.fixture
    def kv(self) -> KeyValues:
        return MemoryKeyValues()


class TestRocks(KeyValuesSuite):
    """RocksDB, as the one writer."""

    @pytest.fixture
    def kv(self, tmp_path: Path) -> Iterator[KeyValues]:
        kv = RocksKeyValues(tmp_path / "index")
        yield kv
        kv.close()


class _Followed:
    """Writes to a primary, reads from a secondary that catches up after each write."""

    def __init__(self, primary: RocksKeyValues, secondary: RocksSecondary) -> None:
        self.primary, self.secondary = primary, secondary
        self.get = secondary.get
        self.get_many = secondary.get_many
        self.lacks = secondary.lacks
        self.scan = secondary.scan
        self.floor = secondary.floor
        self.catch_up = secondary.catch_up

    def write(self, rows: list[tuple[bytes, bytes | None]], *, durable: bool = False) -> None:
        self.primary.write(rows, durable=durable)
        self.secondary.catch_up()

    def close(self) -> None:
        self.secondary.close()
        self.primary.close()


class TestSecondary(KeyValuesSuite):
    """A reader's view of another process's index keeps the same contract."""

    @pytest.fixture
    def kv(self, tmp_path: Path) -> Iterator[_Followed]:
        primary = RocksKeyValues(tmp_path / "index")
        followed = _Followed(primary, RocksSecondary(tmp_path / "index", tmp_path / "second"))
        yield followed
        followed.close()


def test_rows_outlive_the_process(tmp_path: Path) -> None:
    """What was written is there after opening again."""
    first = RocksKeyValues(tmp_path / "index")
    first.write([(b"a", b"1")])
    first.close()
    second = RocksKeyValues(tmp_path / "index")
    assert second.get(b"a") == b"1"
    second.close()


def test_a_second_writer_is_refused(tmp_path: Path) -> None:
    """Two writers of one index cannot be."""
    first = RocksKeyValues(tmp_path / "index")
    with pytest.raises(InUse):
        RocksKeyValues(tmp_path / "index")
    first.close()


def test_a_closed_index_says_so(tmp_path: Path) -> None:
    """Use after close is Unavailable, not a foreign exception."""
    kv = RocksKeyValues(tmp_path / "index")
    kv.close()
    with pytest.raises(Unavailable, match="closed"):
        kv.get(b"a")


def test_a_secondary_needs_its_directory_only_to_open(tmp_path: Path) -> None:
    """Its log may be removed: it follows on, however much it has to tell."""
    primary = RocksKeyValues(tmp_path / "index")
    secondary = RocksSecondary(tmp_path / "index", tmp_path / "second", block_cache_size_bytes=1000)
    shutil.rmtree(tmp_path / "second")
    for n in range(50):
        primary.write([(b"%d" % n, os.urandom(100_000))])
        secondary.catch_up()
        assert len(secondary.get(b"%d" % n) or b"") == 100_000
    secondary.close()
    primary.close()
    assert not (tmp_path / "second").exists()


def test_a_secondary_refuses_to_write(tmp_path: Path) -> None:
    """Readers cannot change the index."""
    primary = RocksKeyValues(tmp_path / "index")
    secondary = RocksSecondary(tmp_path / "index", tmp_path / "second")
    with pytest.raises(LodefsError):
        secondary.write([(b"a", b"1")])
    assert primary.get(b"a") is None
    secondary.close()
    primary.close()


def test_reader_and_writer_have_the_options_that_they_were_given(tmp_path: Path) -> None:
    """Filters, and one block cache of the size that is wanted: also for who opens what is there."""
    RocksKeyValues(tmp_path / "index").close()
    primary = RocksKeyValues(tmp_path / "index")
    secondary = RocksSecondary(
        tmp_path / "index", tmp_path / "second", block_cache_size_bytes=3 << 20
    )
    secondary.close()
    primary.close()
    for log, size_bytes in (("index", BLOCK_CACHE_SIZE_BYTES), ("second", 3 << 20)):
        options = (tmp_path / log / "LOG").read_text()
        for name, value in (
            ("filter_policy", "bloomfilter"),
            ("block_cache_name", ".*HyperClockCache"),
            ("capacity ", str(size_bytes)),
            ("index_type", "2"),  # two levels
            ("partition_filters", "1"),
        ):
            assert re.search(rf"^ *{name}: {value}$", options, re.MULTILINE), (log, name)


def test_a_damaged_index_is_corrupt(tmp_path: Path) -> None:
    """Where RocksDB's own files are broken, the error names the directory."""
    path = tmp_path / "index"
    RocksKeyValues(path).close()
    for manifest in path.glob("MANIFEST-*"):
        manifest.write_bytes(os.urandom(100))
    with pytest.raises((Corrupt, Unavailable), match="index"):
        RocksKeyValues(path)


def test_reads_go_on_while_a_full_index_is_opened_anew(tmp_path: Path) -> None:
    """After a full disk the next write closes the database and opens it again: lookups and scans of
    other threads wait for that, and none fails."""
    kv = RocksKeyValues(tmp_path / "index", space_size_bytes=0)
    rows: list[Row] = [(b"%04d" % n, b"x") for n in range(1000)]
    kv.write(rows)
    is_over = threading.Event()

    def read() -> int:
        reads = 0
        while not is_over.is_set():
            assert kv.get(b"0500") == b"x"
            assert kv.get_many([b"0001", b"0999"]) == [b"x", b"x"]
            assert kv.floor(b"0", b"0700") == (b"0700", b"x")
            assert next(kv.scan(b"00")) == (b"0000", b"x")
            reads += 1
        return reads

    with ThreadPoolExecutor(2) as pool:
        reading = [pool.submit(read) for _ in range(2)]
        for _ in range(10):
            kv._is_stuck = True  # as a write leaves it that found no space
            with suppress(InUse):  # a scan keeps it open: the next write tries again
                kv.write([(b"written", b"y")])
        is_over.set()
        assert all(done.result() for done in reading)
    kv.write([(b"written", b"y")])
    assert kv.get(b"written") == b"y"
    kv.close()
