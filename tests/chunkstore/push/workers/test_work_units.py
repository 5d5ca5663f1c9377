"""How files are put into units."""

from __future__ import annotations

from collections.abc import Iterator

from hypothesis import given
from hypothesis import strategies as st

from lodefs.chunkstore.format.chunking import ChunkingParams
from lodefs.chunkstore.push.workers.source_files import FileStat, SourceFile
from lodefs.chunkstore.push.workers.work_units import (
    PATHS_BYTES_MAX,
    Attempt,
    FilesUnit,
    Planner,
    Unit,
    UnitLimits,
    WindowUnit,
)
from lodefs.chunkstore.push.workers.worker import CHANGED, RESIZED

LIMITS = UnitLimits(ChunkingParams(64, 256, 1024), unit_bytes=4096, files_max=5)


def file(token: int, size_bytes: int, path: bytes = b"f") -> SourceFile:
    return SourceFile(path, size_bytes, token)


def units(planner: Planner) -> Iterator[Unit]:
    while (unit := planner.next()) is not None:
        yield unit


@given(st.lists(st.integers(0, 20_000), max_size=30))
def test_all_is_planned_once_and_fits(sizes: list[int]) -> None:
    """Every byte of every file is read once, in order, and no unit is larger than a slot."""
    planner = Planner([file(n, size) for n, size in enumerate(sizes)], LIMITS)
    tokens: list[int] = []
    read: dict[int, int] = {}
    for unit in units(planner):
        total = sum(r.overlap + r.size_bytes for r in unit.reads)
        assert total < LIMITS.slot_data_bytes
        if isinstance(unit, FilesUnit):
            assert 0 < len(unit.attempts) <= LIMITS.files_max
            attempts = unit.attempts
        else:
            attempts = [unit.large.attempt]
        for attempt, part in zip(attempts, unit.reads, strict=True):
            token = attempt.file.token
            assert part.offset == read.get(token, 0)
            assert part.overlap == (LIMITS.params.size_bytes_max if part.offset else 0)
            read[token] = part.offset + part.size_bytes
            assert part.final == (read[token] == sizes[token])
            tokens += [] if part.offset else [token]
    assert tokens == list(range(len(sizes)))
    assert [read[n] for n in range(len(sizes))] == sizes


def test_long_paths_make_smaller_units() -> None:
    """The paths of a unit are limited, so that its message has room."""
    limits = UnitLimits(LIMITS.params, 4096, 1000)
    planner = Planner([file(n, 0, b"p" * 4000) for n in range(100)], limits)
    counts = [len(unit.reads) for unit in units(planner)]
    assert sum(counts) == 100
    assert max(counts) * 4000 <= PATHS_BYTES_MAX


def test_file_that_comes_again_is_next() -> None:
    """A file to be read again comes before all that is not planned yet."""
    planner = Planner([file(n, 3000) for n in range(3)], LIMITS)
    first = planner.next()
    assert isinstance(first, FilesUnit)
    planner.again(first.attempts[0])
    rest = [unit.attempts[0].file.token for unit in units(planner) if isinstance(unit, FilesUnit)]
    assert rest == [0, 1, 2]


def test_file_comes_again_at_the_end() -> None:
    """When all is planned, a file that comes again gives one unit more."""
    planner = Planner([], LIMITS)
    assert planner.next() is None
    planner.again(Attempt(file(7, 10)))
    assert isinstance(planner.next(), FilesUnit)
    assert planner.next() is None


def test_windows_end_when_the_file_is_given_up() -> None:
    """No window of a file is planned after it was given up."""
    planner = Planner([file(0, 40_000), file(1, 1)], LIMITS)
    unit = planner.next()
    assert isinstance(unit, WindowUnit)
    unit.large.is_over = True
    last = planner.next()
    assert isinstance(last, FilesUnit) and last.attempts[0].file.token == 1
    assert planner.next() is None


def test_a_change_is_retried_once() -> None:
    """A file that changes while it is read gets a second attempt, by its new size, and no third."""
    second = Attempt(file(0, 10)).again(CHANGED, FileStat(20, 0, 0, 0))
    assert second is not None and second.file.size_bytes == 20
    assert second.again(CHANGED, None) is None


def test_a_stale_scan_is_no_change() -> None:
    """That the scan's size is out of date costs no attempt; that it is so again does."""
    second = Attempt(file(0, 10)).again(RESIZED, FileStat(20, 0, 0, 0))
    assert second is not None
    third = second.again(RESIZED, FileStat(30, 0, 0, 0))
    assert third is not None and third.file.size_bytes == 30
    assert third.again(RESIZED, FileStat(40, 0, 0, 0)) is None
