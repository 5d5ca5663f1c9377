"""Whatever happens beside gc runs, no ref comes to lack a byte, and garbage goes."""

from __future__ import annotations

from pathlib import Path

import pytest

from loadtests.bench.collections import Bucket, play_on, torn_put
from loadtests.services import S3Server
from tests.support.chunkstore.child_process import private_directory
from tests.support.chunkstore.directories import MEMORY
from tests.support.maintenance.schedules import one_at_a_time, play, write_sources

SCHEDULES = 60
RGW_SEEDS = (13,)


@pytest.mark.slow
def test_any_schedule(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Pushes, changes, copies, tags, deletions, purges, repairs, merges and gc runs in random
    orders, a request at a time; with crashes, stalls of hours, wrong clocks, lists that lack
    objects, refused deletes and lost answers: everything that a ref leads to and that was not
    purged is there at all times, and two undisturbed gc runs (three if a writer died right
    before its last put) leave no garbage. Dry runs say what a gc run then does."""
    sources = write_sources(tmp_path / "sources")
    monkeypatch.setattr("tempfile.tempdir", MEMORY)
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
        "given_up",
        "merged",
    ):
        assert sum(getattr(one, what) for one in played) > SCHEDULES / 4, what
    for what in ("purged", "repaired"):
        assert any(getattr(one, what) for one in played), what


@pytest.mark.rgw
@pytest.mark.slow
def test_schedules_over_rgw(rgw: S3Server, tmp_path: Path) -> None:
    """Some of them, some with kills: what a real RGW answers, and holds in the end, is what a store
    in memory does."""
    bucket = Bucket(rgw, rgw.make_bucket())
    sources = write_sources(tmp_path / "sources")
    with one_at_a_time():
        played = [play_on(bucket, seed, tmp_path / "indexes", sources) for seed in RGW_SEEDS]
    assert any(one.killed for one in played)
    assert all(one.collections for one in played)


@pytest.mark.rgw
def test_a_client_that_goes_in_the_middle_of_a_put(rgw: S3Server) -> None:
    """Nothing comes of it; the same request, sent to its end, is one that the server takes."""
    bucket = Bucket(rgw, rgw.make_bucket())
    client = rgw.client()
    for part in (0.5, 1.0):
        torn_put(bucket, "some/key", b"0123456789", part)
        found = client.list_objects_v2(Bucket=bucket.name).get("Contents", [])
        assert [(one["Key"], one["Size"]) for one in found] == [("some/key", 10)] * (part == 1.0)
