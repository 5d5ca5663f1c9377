"""Where bytes lie in the cache, as far as memory knows: what is good is found, whatever lies by."""

from __future__ import annotations

from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from lodefs.chunkstore.nodecache.layout import FileKind, FileRow, FileState
from lodefs.proxy.cache.cache_file import CacheFile
from lodefs.proxy.cache.extents import Extents

RUNS = st.tuples(st.integers(0, 40), st.integers(1, 30), st.integers(0, 3))


def file_of(number: int) -> CacheFile:
    row = FileRow(FileKind.SLAB, FileState.OPEN, b"boot", bytes(32), 1000, 1000, 0)
    return CacheFile(number, row, Path("/nowhere"), Path("/nowhere"), lambda _file: None)


@given(st.lists(RUNS, max_size=12), st.sets(st.integers(0, 3)), st.lists(RUNS, max_size=4))
def test_what_is_found_is_there(
    before: list[tuple[int, int, int]], dead: set[int], after: list[tuple[int, int, int]]
) -> None:
    """Extents are in living files, at the offsets that were told, and no longer than was told."""
    files = [file_of(number) for number in range(4)]
    extents = Extents()
    told: set[tuple[int, int]] = set()  # (byte, file)
    for runs in (before, after):
        for start, size_bytes, number in runs:
            if files[number].is_alive:
                extents.add(start, size_bytes, files[number], start + 100 * number)
                told |= {(at, number) for at in range(start, start + size_bytes)}
        for number in dead:
            files[number].state = FileState.EVICTED
    for at in range(80):
        found = extents.find(at)
        if found is not None:
            file, offset, size_bytes = found
            assert file.is_alive
            assert offset == at + 100 * file.number
            assert {(at + n, file.number) for n in range(size_bytes)} <= told


def test_a_dead_run_hides_none_behind_it() -> None:
    """A run inside of another one, whose file is gone, leaves no hole."""
    old, new = file_of(1), file_of(2)
    extents = Extents()
    extents.add(50, 10, old, 0)
    extents.add(0, 100, new, 0)
    old.state = FileState.EVICTED
    assert extents.find(70) == (new, 70, 30)
    assert extents.find(55) == (new, 55, 45)
