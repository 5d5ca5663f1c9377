"""Readers of stretches of a file, which know nothing of each other, make the chunks of one."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from random import Random

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from lodefs.chunkstore.errors import SourceChanged
from lodefs.chunkstore.format.chunking import ChunkingParams, cut
from lodefs.chunkstore.format.names import digest_of
from lodefs.chunkstore.push.workers.pipeline import CutFile, CutUnit
from lodefs.chunkstore.push.workers.pool import InlineWorkers, WorkerPool, Workers
from lodefs.chunkstore.push.workers.source_files import SourceFile, Stretch
from tests.chunkstore.push.workers.test_pool import Collector
from tests.chunkstore.push.workers.test_window_join import contents

PARAMS = ChunkingParams(64, 256, 1024)
UNIT_BYTES = 4096


class StretchCollector(Collector):
    """Also keeps the last part of each file."""

    def __init__(self) -> None:
        super().__init__()
        self.last: dict[int, CutFile] = {}

    def wanted(self, unit: CutUnit) -> list[bool]:
        self.last.update({file.token: file for file in unit.files if file.last})
        return [*super().wanted(unit)]


def stretches(size_bytes: int, step: int) -> list[SourceFile]:
    """The file ``f`` in stretches."""
    begins = range(0, size_bytes, step)
    found = [Stretch(begin, min(begin + step, size_bytes)) for begin in begins]
    return [SourceFile(b"f", size_bytes, n, stretch) for n, stretch in enumerate(found)]


def put_together(sink: StretchCollector, files: list[SourceFile]) -> list[tuple[bytes, int]]:
    """The chunks of all stretches, without those that the stretch before has too."""
    chunks: list[tuple[bytes, int]] = []
    position = 0
    for file in files:
        stretch = sink.last[file.token].stretch
        assert stretch is not None
        at = stretch.begin
        for chunk_id, size_bytes in sink.ids[file.token]:
            if at >= position:
                assert at == position
                chunks.append((chunk_id, size_bytes))
                position += size_bytes
            at += size_bytes
        assert at == stretch.end
    return chunks


def expected(data: bytes) -> list[tuple[bytes, int]]:
    ends = [0, *cut(data, PARAMS)]
    return [(digest_of(data[a:b]), b - a) for a, b in pairwise(ends)]


def read(workers: Workers, data: bytes, step: int) -> tuple[StretchCollector, list[SourceFile]]:
    sink, files = StretchCollector(), stretches(len(data), step)
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "f").write_bytes(data)
        for file in files:  # each by a run of its own, as by another machine
            workers.run(folder, [file], sink)
    return sink, files


@pytest.fixture(scope="module")
def inline() -> Iterator[Workers]:
    with InlineWorkers(PARAMS, unit_bytes=UNIT_BYTES) as workers:
        yield workers


@given(contents(), st.integers(1024, 9000))
@example(bytes(30_000), 5000)  # never a cut that the bytes decide
@example(b"\x01" + bytes(30_000), 5120)
@example(Random(1).randbytes(3000) + bytes(20_000) + Random(2).randbytes(3000), 5000)
@example((Random(3).randbytes(700) * 40)[:25_000], 4096)
@example(bytes(8193), 4096)
def test_stretches_have_the_chunks_of_one_reader(inline: Workers, data: bytes, step: int) -> None:
    """Whatever the content, each reader's chunks go on where those before it end, and their bytes
    have the digest that is told."""
    sink, files = read(inline, data, step)
    assert put_together(sink, files) == expected(data)
    for file in files:
        last = sink.last[file.token]
        assert last.stretch is not None
        begin, end = last.stretch
        assert last.digest == digest_of(data[begin:end])
        assert last.size_bytes == end - begin


def test_processes_read_little_beyond_a_stretch() -> None:
    """In noise, neighbours meet soon: no reader takes more than some chunks of the next one."""
    data = Random(5).randbytes(400_000)
    with WorkerPool(PARAMS, unit_bytes=UNIT_BYTES, workers=2) as workers:
        sink, files = read(workers, data, 50_000)
    assert put_together(sink, files) == expected(data)
    for file in files:
        seen = sink.last[file.token].stretch
        assert file.stretch is not None and seen is not None
        assert seen.end - file.stretch.end < 20 * PARAMS.size_bytes_max


def test_a_file_of_another_size_is_an_error(inline: Workers, tmp_path: Path) -> None:
    """A stretch of it may not exist any more, so it is not read again."""
    (tmp_path / "f").write_bytes(bytes(9000))
    sink = StretchCollector()
    inline.run(tmp_path, [SourceFile(b"f", 20_000, 0, Stretch(10_000, 20_000))], sink)
    assert isinstance(sink.errors[0], SourceChanged)
