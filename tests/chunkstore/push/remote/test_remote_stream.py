"""One file at a URL as a stream."""

from __future__ import annotations

import io
from random import Random

import pytest

from lodefs.chunkstore.errors import SourceChanged
from lodefs.chunkstore.push.remote import remote_files
from lodefs.chunkstore.push.remote.remote_stream import RemoteStream, open_remote_file
from tests.support.chunkstore.memory_remote import MemoryRemote

DATA = Random(1).randbytes(1000)


@pytest.mark.parametrize("piece_bytes", [1, 99, 100, 1000, 5000])
def test_all_bytes(piece_bytes: int) -> None:
    """All bytes come, in order, from any place on, however large the pieces are."""
    stream = RemoteStream(MemoryRemote({b"": DATA}), b"", len(DATA), piece_bytes)
    assert stream.read(7) == DATA[: min(7, piece_bytes)]
    assert stream.seek(10) == stream.tell() == 10
    assert io.BufferedReader(stream).read() == DATA[10:]
    stream.close()


def test_changes() -> None:
    """Bytes of two states are never one file."""
    source = MemoryRemote({b"": DATA})
    stream = RemoteStream(source, b"", len(DATA), 10)
    assert stream.read(10)
    source.files[b""] = DATA[::-1]
    with pytest.raises(SourceChanged, match="was changed"):
        stream.readall()
    stream.close()


def test_open(monkeypatch: pytest.MonkeyPatch) -> None:
    """A directory and nothing are no file."""
    source = MemoryRemote({b"": DATA})
    monkeypatch.setitem(remote_files.SCHEMES, "memory", lambda _url: source)
    stream = open_remote_file("memory://source")
    assert stream is not None and stream.read() == DATA
    stream.close()
    source.files = {b"a": b""}
    assert open_remote_file("memory://source") is None
