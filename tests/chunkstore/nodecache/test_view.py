"""Files of the cache as a reader opens them."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from lodefs.chunkstore.nodecache.layout import FileKind, FileRow, FileState
from lodefs.chunkstore.nodecache.view import Descriptor, OpenFile


def test_an_evicted_file_is_refused_without_a_word(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its reader gets the error, and nothing else is written into the log of a mount."""
    said: list[object] = []
    monkeypatch.setattr(sys, "unraisablehook", said.append)
    place = Descriptor(os.open(tmp_path, os.O_PATH))
    row = FileRow(FileKind.SLAB, FileState.OPEN, bytes(16), b"", 0, 0, 0)
    with pytest.raises(FileNotFoundError):
        OpenFile(place, 1, row)
    assert said == []
