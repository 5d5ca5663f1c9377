"""disk_key_set.py: a set that lies in files."""

from __future__ import annotations

import random
import tracemalloc
from pathlib import Path

import pytest

from lodefs.chunkstore.errors import LodefsError
from lodefs.chunkstore.repo.disk_key_set import KEY_BYTES, DiskKeySet


def test_each_key_is_new_once() -> None:
    """As a set would say, over several tables, with keys that fall on the same slot."""
    rng = random.Random(1)
    keys = [rng.randbytes(KEY_BYTES) for _ in range(3000)]
    keys += [keys[0][:8] + rng.randbytes(KEY_BYTES - 8) for _ in range(50)]
    rng.shuffle(asked := keys + rng.choices(keys, k=3000))
    known: set[bytes] = set()
    with DiskKeySet(slots_min=16) as seen:
        for key in asked:
            assert seen.add(key) is (key not in known)
            known.add(key)


@pytest.mark.slow
def test_keys_take_no_memory() -> None:
    """The interpreter holds nothing for a key."""
    rng = random.Random(2)
    with DiskKeySet() as seen:
        seen.add(rng.randbytes(KEY_BYTES))
        tracemalloc.start()
        try:
            for _ in range(30_000):
                seen.add(rng.randbytes(KEY_BYTES))
            assert tracemalloc.get_traced_memory()[0] < 30_000
        finally:
            tracemalloc.stop()


def test_no_room_is_an_error_that_says_the_way_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where no file can be made, nothing is half added."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "none"))
    with DiskKeySet() as seen, pytest.raises(LodefsError, match="TMPDIR"):
        seen.add(bytes(range(KEY_BYTES)))
