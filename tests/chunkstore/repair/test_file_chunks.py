"""Chunks of files on this machine, also of files that somebody changes."""

from __future__ import annotations

import os
from itertools import pairwise
from pathlib import Path
from random import Random

import pytest

from lodefs.chunkstore.errors import SourceChanged
from lodefs.chunkstore.format.chunking import ChunkingParams, cut
from lodefs.chunkstore.format.names import ChunkId, digest_of
from lodefs.chunkstore.push.workers import source_files
from lodefs.chunkstore.repair.sources import file_chunks
from lodefs.chunkstore.repair.sources.file_chunks import chunks_of_file
from lodefs.chunkstore.repair.sources.local_sources import DirectorySource
from lodefs.chunkstore.repair.sources.source import Search

PARAMS = ChunkingParams(64, 256, 1024)


@pytest.mark.parametrize("size_bytes", [0, 1, 2047, 2048, 2049, 100_000])
def test_the_cuts_of_the_whole_file(
    tmp_path: Path, size_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file that is read in windows has the chunks that it has as a whole."""
    monkeypatch.setattr(file_chunks, "WINDOW_SIZE_BYTES", 1)  # so: two of the largest chunks
    data = Random(size_bytes).randbytes(size_bytes)
    path = tmp_path / "file"
    path.write_bytes(data)
    found = [(at, bytes(chunk)) for at, chunk in chunks_of_file(os.fsencode(path), PARAMS)]
    assert found == [(a, data[a:b]) for a, b in pairwise([0, *cut(data, PARAMS)])]


@pytest.mark.parametrize("size_bytes", [100, 60_000])
@pytest.mark.parametrize("when", ["looked", "read"])
def test_a_file_that_changes_is_named(
    tmp_path: Path, size_bytes: int, when: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file that is cut off, or grows, while it is searched, or before its chunks are read, costs
    no more than what it does not have; it is named once."""
    monkeypatch.setattr(file_chunks, "WINDOW_SIZE_BYTES", 1)
    path = tmp_path / "file"
    data = Random(1).randbytes(50_000)
    path.write_bytes(data)
    ends = [0, *cut(data, PARAMS)]
    chunks = {ChunkId(digest_of(data[a:b])): data[a:b] for a, b in pairwise(ends)}
    wanted = {one: len(raw) for one, raw in chunks.items()}
    source = DirectorySource(tmp_path, PARAMS)

    def read_full(fd: int, buffer: memoryview, offset: int, enough: int) -> int:
        done = source_files.read_full(fd, buffer, offset, enough)
        if when == "looked":
            os.truncate(path, size_bytes)
        return done

    monkeypatch.setattr(file_chunks, "read_full", read_full)
    source.look(Search(wanted))
    os.truncate(path, size_bytes)
    found = {one: bytes(raw) for one, raw in source.chunks(wanted)}
    is_known = when == "read" and size_bytes > len(data)
    assert found.items() <= chunks.items()
    assert (len(found) == len(chunks)) is is_known
    assert list(source.notes) == ([] if is_known else [f"{path} changed while it was read"])


def test_a_file_that_is_written_to(tmp_path: Path) -> None:
    """A file of the same size that was written to meanwhile counts as changed."""
    path = tmp_path / "file"
    path.write_bytes(b"x" * 5000)
    reading = chunks_of_file(os.fsencode(path), PARAMS)
    next(reading)
    os.utime(path, ns=(1, 1))
    with pytest.raises(SourceChanged, match="file changed while it was read"):
        list(reading)


def test_what_is_no_file(tmp_path: Path) -> None:
    """Nothing comes of FIFOs and symlinks, and nothing hangs."""
    os.mkfifo(tmp_path / "fifo")
    os.symlink("/etc/passwd", tmp_path / "link")
    source = DirectorySource(tmp_path, PARAMS)
    wanted = {ChunkId(digest_of(b"x")): 1}
    source.look(Search(wanted))
    assert list(source.chunks(wanted)) == []
    assert not source.notes
