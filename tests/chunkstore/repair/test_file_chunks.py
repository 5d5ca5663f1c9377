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
from lodefs.chunkstore.repair import file_chunks
from lodefs.chunkstore.repair.file_chunks import chunks_of_file
from lodefs.chunkstore.repair.sources import DirectorySource

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


@pytest.mark.parametrize("change", ["cut", "grown"])
def test_a_file_that_changes_is_named(
    tmp_path: Path, change: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file that is cut off, or grows, while a repair reads it costs no more than what it does not
    have; what was found before counts, and the file is named once."""
    monkeypatch.setattr(file_chunks, "WINDOW_SIZE_BYTES", 1)
    path = tmp_path / "file"
    data = Random(1).randbytes(50_000)
    path.write_bytes(data)
    ends = [0, *cut(data, PARAMS)]
    chunks = {ChunkId(digest_of(data[a:b])): data[a:b] for a, b in pairwise(ends)}
    source = DirectorySource(tmp_path, PARAMS)
    found: dict[ChunkId, bytes] = {}
    for chunk_id, raw in source.chunks({one: len(raw) for one, raw in chunks.items()}):
        if not found:
            os.truncate(path, 100 if change == "cut" else 60_000)
        found[chunk_id] = bytes(raw)
    assert found
    assert found.items() <= chunks.items()
    assert list(source.notes) == [f"{path} changed while it was read"]
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
    assert list(source.chunks({ChunkId(digest_of(b"x")): 1})) == []
    assert not source.notes
