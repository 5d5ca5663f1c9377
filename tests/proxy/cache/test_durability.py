"""Durability: what is known to be on disk, when syncing and checking fail."""

from __future__ import annotations

import errno
import os
import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from lodefs.chunkstore.errors import NoSpace, Unavailable
from lodefs.chunkstore.format.names import digest_of
from lodefs.chunkstore.nodecache import layout as layout
from lodefs.proxy.cache import durability, recovery
from lodefs.proxy.cache.cache_file import CacheFile
from lodefs.proxy.cache.chunk_cache import Cache, Flat
from lodefs.proxy.cache.tables import CacheSettings
from lodefs.proxy.metrics.counters import Counter, Counts
from tests.support.proxy.rig import MIB, chunk_of

BOOT, NEXT_BOOT = b"first boot......", b"second boot....."
RAWS = [random.Random(n).randbytes(MIB) for n in range(3)]


class Opened(Cache):
    """A cache with three flat files that no sync has seen."""

    def __init__(self, path: Path, boot: bytes = BOOT) -> None:
        settings = CacheSettings(path, 64 * MIB, free_size_bytes_min=0)
        self.counts = Counts()
        super().__init__(settings, self.counts, boot=boot, now_s=lambda: 1000.0)
        if not self.files:
            for raw in RAWS:
                digest = digest_of(raw)
                assert self.store([chunk_of(raw)], Flat(digest, MIB))


@pytest.fixture
def cache(tmp_path: Path) -> Iterator[Opened]:
    made = Opened(tmp_path / "cache")
    yield made
    made.close()


def refuse(monkeypatch: pytest.MonkeyPatch, number: int, code: int) -> None:
    """From now on one file cannot be opened."""
    opened = CacheFile.open

    def fail(file: CacheFile) -> int:
        if file.number == number:
            raise OSError(code, os.strerror(code))
        return opened(file)

    monkeypatch.setattr(CacheFile, "open", fail)


def test_a_file_that_cannot_be_opened_stays(cache: Opened, monkeypatch: pytest.MonkeyPatch) -> None:
    """A sync without a descriptor for one file puts the others on disk, says so, drops nothing,
    and the next sync gets the one, too."""
    first, *others = cache.files.values()
    with monkeypatch.context() as patched:
        refuse(patched, first.number, errno.EMFILE)
        with pytest.raises(Unavailable, match="Too many open files"):
            durability.sync(cache)
    assert first.is_alive
    assert first.boot == BOOT
    assert [file.boot for file in others] == [layout.DURABLE] * 2
    durability.sync(cache)
    assert first.boot == layout.DURABLE
    assert cache.counts.values[Counter.CACHE_CORRUPT] == 0


@pytest.mark.parametrize("code", [errno.EIO, errno.ENOSPC])
def test_what_the_kernel_could_not_write_is_dropped(
    cache: Opened, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    """A sync that fails means that bytes may be lost, although they can still be read."""

    def fail(_fd: int) -> None:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(os, "fdatasync", fail)
    durability.sync(cache)
    assert not cache.files
    assert cache.counts.values[Counter.CACHE_CORRUPT] == 3


def test_what_is_not_noted_is_not_believed(tmp_path: Path) -> None:
    """A file whose row cannot be written counts as not on disk, so that the next sync notes it,
    and nothing is checked after a reboot."""
    cache = Opened(tmp_path / "cache")
    write = cache.kv.write

    def full(rows: object, *, durable: bool = False) -> None:
        raise NoSpace("the index is full")

    cache.kv.write = full  # type: ignore[method-assign]
    with pytest.raises(NoSpace):
        durability.sync(cache)
    assert {file.boot for file in cache.files.values()} == {BOOT}
    cache.kv.write = write  # type: ignore[method-assign]
    durability.sync(cache)
    cache.close()
    again = Opened(tmp_path / "cache", NEXT_BOOT)
    assert {file.boot for file in again.files.values()} == {layout.DURABLE}
    again.close()


def test_a_use_that_is_not_noted_is_noted_later(cache: Opened) -> None:
    """A file's last use whose row cannot be written is written the next time."""
    durability.sync(cache)
    file = next(iter(cache.files.values()))
    file.last_use_s += 1000
    write = cache.kv.write

    def full(rows: object, *, durable: bool = False) -> None:
        raise NoSpace("the index is full")

    cache.kv.write = full  # type: ignore[method-assign]
    with pytest.raises(NoSpace):
        durability.save_uses(cache)
    cache.kv.write = write  # type: ignore[method-assign]
    durability.save_uses(cache)
    row = cache.kv.get(layout.file_key(file.number))
    assert row is not None
    assert layout.decode_file_row(row).last_use_s == file.last_use_s


def test_recovery_drops_only_what_is_damaged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a power cut a damaged file goes, one that cannot be opened just now stays, unsure, and
    is told of; the next attempt settles it."""
    cache = Opened(tmp_path / "cache")
    cache.close()
    cache = Opened(tmp_path / "cache", NEXT_BOOT)
    damaged, closed, right = cache.files.values()
    damaged.path.chmod(0o644)
    with damaged.path.open("r+b") as file:
        file.write(bytes(10))
    with monkeypatch.context() as patched:
        refuse(patched, closed.number, errno.ENFILE)
        assert recovery.clean(cache, stopping=lambda: False) == 1
    assert [file.is_alive for file in (damaged, closed, right)] == [False, True, True]
    assert [file.is_trusted(NEXT_BOOT) for file in (closed, right)] == [False, True]
    assert recovery.clean(cache, stopping=lambda: False) == 0
    assert closed.is_trusted(NEXT_BOOT)
    assert cache.kv.get(layout.checked_key(closed.number)) == layout.encode_checked(1000)
    cache.close()
