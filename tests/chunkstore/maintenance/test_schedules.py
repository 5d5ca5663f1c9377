"""Whatever happens beside collections, no ref comes to lack a byte, and garbage goes."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.chunkstore.child_process import private_directory
from tests.support.maintenance.schedules import one_at_a_time, play, write_sources

SCHEDULES = 60
MEMORY = Path("/dev/shm")  # push indexes are synced very often


@pytest.mark.slow
def test_any_schedule(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Pushes, changes, copies, tags, deletions, merges and collections in random orders, each
    request in turn; with crashes, stalls of hours, wrong clocks, lists that lack objects, refused
    deletes and lost answers: everything that a ref leads to is there at all times, and two
    undisturbed collections (three if a writer died right before its last put) leave no garbage."""
    sources = write_sources(tmp_path / "sources")
    if MEMORY.is_dir():
        monkeypatch.setattr("tempfile.tempdir", str(MEMORY))
    with one_at_a_time(), private_directory() as directory:
        played = [play(seed, directory / "indexes", sources) for seed in range(SCHEDULES)]
    for what in (
        "pushes",
        "changes",
        "copies",
        "kept",
        "collections",
        "killed",
        "deleted",
        "merged",
    ):
        assert sum(getattr(one, what) for one in played) > SCHEDULES / 4, what
