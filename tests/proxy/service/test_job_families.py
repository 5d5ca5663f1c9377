"""What jobs read, at scrapes of the node's proxy."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from lodefs.chunkstore.protocol.figures import component_counts, figure_files, mount_counts
from lodefs.chunkstore.protocol.figures.component_counts import ComponentCounts
from lodefs.chunkstore.protocol.figures.figure_files import (
    directories_for,
    directories_of,
    directory_of,
    private_directory_of,
)
from lodefs.chunkstore.protocol.figures.job_counts import JobColumn
from lodefs.chunkstore.protocol.figures.mount_counts import MountDescription
from lodefs.mount.shm.job_counters import JobCounter, JobTable
from lodefs.mount.shm.traffic_counters import TrafficTable
from lodefs.proxy.config import Config
from lodefs.proxy.metrics import exposition
from lodefs.proxy.page.live_feed import mounts_in
from lodefs.proxy.service.app import families_beside, make_figures_directory
from lodefs.proxy.service.job_families import JobFamilies
from tests.support.proxy.scrape import labels_of, samples

NAME = "lodefs_job_read_bytes_total"


@contextmanager
def counting(directory: Path) -> Iterator[JobCounter]:
    """A mount that counts in a directory until the end, where a process's number is its job's."""
    fd = JobTable.create(directory)
    try:
        counter = JobTable(fd).counter(1, lambda pid: pid)
        assert counter is not None
        yield counter
    finally:
        os.close(fd)


def count(counter: JobCounter, job: int, word: int, amount: int) -> None:
    """At once."""
    counter.add(job, word, amount)
    counter.settle()


def read_bytes(families: JobFamilies, job: int | str, source: str) -> float | None:
    """At a scrape now."""
    found = samples(exposition.text(families()))
    return found.get((NAME, labels_of(job=str(job), source=source)))


def test_a_job_is_shown_with_what_it_read_through_all_mounts(tmp_path: Path) -> None:
    """By source, with the opens that went past them."""
    with counting(tmp_path) as one, counting(tmp_path) as two:
        count(one, 7, JobColumn.STORE_BYTES, 100)
        count(two, 7, JobColumn.STORE_BYTES, 20)
        count(two, 7, JobColumn.KERNEL_OPENS, 2)
        count(two, 7, JobColumn.KERNEL_OPENED_BYTES, 3000)
        families = JobFamilies(tmp_path)
        found = samples(exposition.text(families()))
    assert found[NAME, labels_of(job="7", source="store")] == 120
    assert found[NAME, labels_of(job="7", source="direct")] == 0
    assert found["lodefs_job_passthrough_opens_total", labels_of(job="7")] == 2
    assert found["lodefs_job_passthrough_opened_bytes_total", labels_of(job="7")] == 3000


def test_no_figure_goes_back_when_a_mount_ends_and_all_go_after_an_hour(tmp_path: Path) -> None:
    """The last figures of its mounts stay a job's for an hour after its last read."""
    times = [0.0]
    families = JobFamilies(tmp_path, now_s=lambda: times[0])
    with counting(tmp_path) as other:
        with counting(tmp_path) as ending:
            count(ending, 7, JobColumn.PEERS_BYTES, 100)
            count(other, 7, JobColumn.PEERS_BYTES, 1)
            assert read_bytes(families, 7, "peers") == 101
        del ending
        assert read_bytes(families, 7, "peers") == 101
    del other
    assert read_bytes(families, 7, "peers") == 101
    times[0] = 2**40
    assert read_bytes(families, 7, "peers") is None
    times[0] = 0.0
    assert read_bytes(families, 7, "peers") is None


def test_no_figure_goes_back_when_a_row_becomes_anothers(tmp_path: Path) -> None:
    """What the job reads later, through this mount or another one, comes on top."""
    families = JobFamilies(tmp_path)
    fd = JobTable.create(tmp_path)
    rows = JobTable(fd).rows(1)
    assert rows is not None
    counter = JobCounter(rows, lambda pid: pid)
    with counting(tmp_path) as other:
        count(counter, 7, JobColumn.STORE_BYTES, 1000)
        count(other, 7, JobColumn.STORE_BYTES, 5)
        assert read_bytes(families, 7, "store") == 1005
        rows.words[rows.of(7) + JobColumn.STORE_BYTES] = 0
        assert read_bytes(families, 7, "store") == 1005
        count(counter, 7, JobColumn.STORE_BYTES, 3)
        assert read_bytes(families, 7, "store") == 1008
        os.close(fd)
    del rows, counter


@pytest.mark.parametrize("jobs_max", [1, 2])
def test_jobs_without_series_of_their_own_count_together(tmp_path: Path, jobs_max: int) -> None:
    """The most used ones have series."""
    families = JobFamilies(tmp_path, jobs_max)
    with counting(tmp_path) as counter:
        for job, size_bytes in ((7, 500), (8, 10), (9, 1)):
            count(counter, job, JobColumn.CACHE_BYTES, size_bytes)
        assert read_bytes(families, 7, "cache") == 500
        assert read_bytes(families, 8, "cache") == (10 if jobs_max == 2 else None)
        assert read_bytes(families, "other", "cache") == (1 if jobs_max == 2 else 11)


@pytest.fixture
def socket_path(tmp_path: Path) -> Path:
    """Of a proxy for all users, which has made the directories beside it."""
    config = Config.from_mapping({
        "store": str(tmp_path / "store"),
        "cache_dir": str(tmp_path / "cache"),
        "cache_size_bytes_max": "1GiB",
        "socket_mode": "0666",
    })  # fmt: skip
    make_figures_directory(tmp_path / "proxy.sock", config)
    make_figures_directory(tmp_path / "proxy.sock", config)  # one that is started again
    return tmp_path / "proxy.sock"


def test_users_of_the_proxy_can_neither_hide_nor_hold_files_of_jobs(socket_path: Path) -> None:
    """They may write beside its socket, where their mounts count; jobs are counted where nobody may
    even look."""
    shared, private = directory_of(socket_path), private_directory_of(socket_path)
    assert stat.S_IMODE(shared.stat().st_mode) == 0o1777
    assert stat.S_IMODE(private.stat().st_mode) == 0o700
    with counting(private) as counter, counting(shared) as forged:
        count(counter, 7, JobColumn.STORE_BYTES, 100)
        count(forged, 7, JobColumn.STORE_BYTES, 5)
        found = samples(exposition.text(families_beside(socket_path)()))
    assert found[NAME, labels_of(job="7", source="store")] == 100


@pytest.mark.parametrize("uid", [0, 5])
def test_no_user_of_the_proxy_hides_mounts_and_components_of_others(
    socket_path: Path, monkeypatch: pytest.MonkeyPatch, uid: int
) -> None:
    """Not by more names than are looked at: of root never, of others for a few scrapes."""
    monkeypatch.setattr(figure_files, "NAMES_MAX", 3)
    shared, directories = directory_of(socket_path), directories_for(socket_path, uid)
    for ending in (mount_counts.ENDING, component_counts.ENDING):
        for n in range(3):
            (shared / f"{n}{ending}").symlink_to("nowhere")
    monkeypatch.setattr(os, "getpid", lambda: 9)  # a name after those
    fd = TrafficTable.create(MountDescription(b"/data", "cats", "c" * 64, "1", 0.0), *directories)
    component = ComponentCounts("mounter", version="1", directories=directories)
    component.publish()
    for _ in range(1 if uid == 0 else 3):
        found = samples(exposition.text(families_beside(socket_path)()))
    assert found["lodefs_mounts", labels_of()] == 1
    assert ("lodefs_component_info", labels_of(component="mounter", version="1")) in found
    component.close()
    os.close(fd)


def test_root_counts_beside_users_where_a_proxy_has_made_no_directory_of_its_own(
    socket_path: Path,
) -> None:
    """An older one; or root of a user namespace, who cannot write there."""
    private_directory_of(socket_path).rmdir()
    description = MountDescription(b"/data", "cats", "c" * 64, "1", 0.0)
    fd = TrafficTable.create(description, *directories_for(socket_path, 0))
    assert [mount.mount for mount in mounts_in(*directories_of(socket_path))] == ["/data"]
    os.close(fd)
