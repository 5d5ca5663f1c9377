"""What a push says that it read, and that is new."""

from __future__ import annotations

from pathlib import Path
from random import Random

import pytest

from lodefs.chunkstore.push.push import PushOptions, push
from tests.support.chunkstore.handmade import memory_store


@pytest.mark.parametrize("workers", [0, 2])
def test_each_chunk_is_new_once(tmp_path: Path, workers: int) -> None:
    """What a push has several times counts as new once, in one file and in files that are alike; a
    second push has nothing new."""
    store, source, block = memory_store(), tmp_path / "source", Random(4).randbytes(2 << 20)
    source.mkdir()
    with (source / "zeros").open("wb") as file:
        file.truncate(5 << 20)
    for name, content in (("a", block), ("b", block), ("more", bytes(1 << 20))):
        (source / name).write_bytes(content)
    options = PushOptions("", "", 0, tmp_path / "index", workers=workers)
    chunk_bytes_max = store.settings.chunking.size_bytes_max
    result = push(store, source, "r", "main", options)
    assert len(block) < result.new_bytes <= len(block) + 3 * chunk_bytes_max
    (source / "c").write_bytes(block)
    assert push(store, source, "r", "main", options).new_bytes == 0
