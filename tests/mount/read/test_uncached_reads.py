"""Large reads from the disk leave the page cache alone, and never give wrong bytes."""

from __future__ import annotations

import fcntl
import math
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lodefs.chunkstore.system import libc
from lodefs.mount.read import uncached_reads
from lodefs.mount.read.uncached_reads import (
    CACHED_MIN,
    SIZE_BYTES_MIN,
    SLOW_BYTES_PER_S,
    SLOW_MAX,
    UncachedPolicy,
)
from tests.support.chunkstore.child_process import private_directory
from tests.support.mount.cached_place import BIG, DATA, Place, place_on
from tests.support.mount.pages import pages_in_memory
from tests.support.proxy.rig import MIB

QUICK_S, SLOW_S = 0.5 * MIB / SLOW_BYTES_PER_S, 2 * MIB / SLOW_BYTES_PER_S


@given(st.integers(0, 4 * MIB), st.integers(0, 4 * MIB))
def test_large_aligned_reads_alone(offset: int, size_bytes: int) -> None:
    """Other reads need the page cache: it reads ahead for small ones, and aligns the others."""
    is_aligned = offset % 4096 == size_bytes % 4096 == 0
    wanted = UncachedPolicy().wants(offset, size_bytes)
    assert wanted == (is_aligned and size_bytes >= SIZE_BYTES_MIN)


def rested(policy: UncachedPolicy) -> int:
    """How many large reads go through the page cache now."""
    count = 0
    while not policy.wants(0, MIB):
        count += 1
    return count


def test_a_slow_disk_is_read_through_the_page_cache() -> None:
    """Some slow reads in a row say that the disk is slow, and one that failed says enough; after a
    while it is tried again. A slow read among quick ones says nothing."""
    policy = UncachedPolicy()
    for _ in range(3):
        for seconds in [SLOW_S] * (SLOW_MAX - 1) + [QUICK_S]:
            policy.took(MIB, seconds)
            assert rested(policy) == 0
    for _ in range(2):
        for _ in range(SLOW_MAX):
            assert rested(policy) == 0
            policy.took(MIB, SLOW_S)
        assert rested(policy) == CACHED_MIN
    policy.took(MIB, math.inf)
    assert rested(policy) == CACHED_MIN


@pytest.fixture
def place(monkeypatch: pytest.MonkeyPatch) -> Iterator[Place]:
    """A place on a disk that counts as quick, however busy the machine is."""
    monkeypatch.setattr(uncached_reads, "SLOW_BYTES_PER_S", 0)
    with private_directory() as folder, place_on(folder) as made:
        made.turn()
        made.warm()
        yield made


def flat_of_big(place: Place) -> Path:
    """The file of the cache with all bytes of ``big``."""
    (path,) = [
        path
        for path in (place.cache / "flat").rglob("*")
        if path.is_file() and path.stat().st_size == len(BIG)
    ]
    return path


def drop(path: Path) -> None:
    """Has the kernel forget a file's pages."""
    with path.open("rb") as file:
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def test_the_cache_file_gets_no_pages(place: Place) -> None:
    """What a mount keeps itself is not kept a second time; the file's end, which is not aligned, is
    read through the page cache, and so is what is there already."""
    flat = flat_of_big(place)
    drop(flat)
    if any(pages_in_memory(flat)):
        pytest.skip("this file system has files in memory alone")
    with place.asked(DATA):
        assert place.read(b"big", 0, 3 * MIB) == BIG[: 3 * MIB]
        assert not any(pages_in_memory(flat))
        assert place.read(b"big") == BIG
        assert pages_in_memory(flat)[-1]
        assert place.read(b"big", 0, 100) == BIG[:100]
        assert place.read(b"big", 0, MIB) == BIG[:MIB]
        assert pages_in_memory(flat)[0]


def refuse(_size_bytes: int) -> int:
    raise OSError(22, "refused")


@pytest.mark.parametrize("answer", [refuse, lambda size_bytes: size_bytes // 2])
def test_a_read_that_fails_goes_through_the_page_cache(
    place: Place, monkeypatch: pytest.MonkeyPatch, answer: Callable[[int], int]
) -> None:
    """A file system may refuse uncached reads when it is read, or stop short of the end."""
    preadv = os.preadv
    uncached: list[int] = []

    def read(fd: int, buffers: tuple[memoryview, ...], offset: int, flags: int = 0) -> int:
        if fcntl.fcntl(fd, fcntl.F_GETFL) & os.O_DIRECT:
            uncached.append(fd)
            return answer(len(buffers[0]))
        return preadv(fd, buffers, offset, flags)

    monkeypatch.setattr(os, "preadv", read)
    monkeypatch.setattr(libc, "cached_pages", lambda *_: 0)
    with place.asked(DATA):
        assert place.read(b"big") == BIG
    assert len(uncached) == 1  # the others are not tried


@pytest.mark.parametrize("lacks", ["cachestat", "O_DIRECT"])
def test_older_systems(place: Place, monkeypatch: pytest.MonkeyPatch, lacks: str) -> None:
    """Without the system call, or on a file system without such reads, all is read as ever."""

    def fails(*_: object) -> int:
        raise OSError(38, "not here")

    if lacks == "cachestat":
        monkeypatch.setattr(libc, "cached_pages", fails)
    else:
        monkeypatch.setattr(libc, "cached_pages", lambda *_: 0)
        monkeypatch.setattr("lodefs.chunkstore.nodecache.view.OpenFile.uncached", fails)
    with place.asked(DATA):
        assert place.read(b"big") == BIG


def test_a_file_that_was_cut_is_asked_for(place: Place) -> None:
    """An uncached read that ends early is not taken for the file's bytes."""
    flat = flat_of_big(place)
    place.read(b"big")
    os.chmod(flat, 0o644)
    os.truncate(flat, MIB + 4096)
    drop(flat)
    with place.asked(DATA, None):
        assert place.read(b"big") == BIG
