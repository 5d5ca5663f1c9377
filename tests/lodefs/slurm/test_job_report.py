"""What the epilog logs of a job."""

from __future__ import annotations

import os
import socket
from contextlib import suppress
from pathlib import Path

import msgspec
import pytest

from lodefs.chunkstore.protocol.figures.job_counts import FIGURES, JobColumn
from lodefs.mount.kernel import mount_table
from lodefs.mount.kernel.mount_table import FS_TYPE, Mount
from lodefs.mount.shm.job_counters import JobCounter, JobTable
from lodefs.slurm import job_report
from lodefs.slurm.job_record import JobRecord, JobRecords, Shown
from lodefs.slurm.job_report import JobReport, devices_of, figures_of, log, report_of

DEVICE = "0:57"
RECORD = JobRecord(job=7, uid=5, datasets=(Shown("cats", "0" * 64, b"", "/data"),))


def line_of(record: JobRecord, figures: Path) -> str:
    """Of a job whose mount has the device."""
    report = report_of(record, figures, [DEVICE])
    assert report is not None
    return report.line


def test_the_line_says_where_the_bytes_of_the_job_came_from(tmp_path: Path) -> None:
    """Those of this job alone; what came from the cache by the proxy or without it is one."""
    fd = JobTable.create(tmp_path, DEVICE)
    counter = JobTable(fd).counter(1, lambda pid: pid)
    assert counter is not None
    amounts = (1, 20, 300, 4000, 2, 70)
    for word, amount in zip(FIGURES, amounts, strict=True):
        counter.add(7, word, amount)
        counter.add(8, word, 9)
    counter.settle()
    assert line_of(RECORD, tmp_path) == (
        "job 7 read: uid=5 cache_bytes=21 peers_bytes=300 store_bytes=4000 passthrough_opens=2 "
        "passthrough_opened_bytes=70"
    )
    os.close(fd)


def test_a_job_that_read_nothing_is_told_and_one_without_mounts_is_not(tmp_path: Path) -> None:
    """A dataset that nobody read is worth a line."""
    fd = JobTable.create(tmp_path, DEVICE)
    assert "store_bytes=0" in line_of(RECORD, tmp_path)
    assert report_of(msgspec.structs.replace(RECORD, problem="it failed"), tmp_path, []) is None
    assert report_of(JobRecord(job=7, uid=5), tmp_path, []) is None
    os.close(fd)


def test_what_a_mount_that_does_not_count_brought_is_not_known(tmp_path: Path) -> None:
    """Never 0: not where there are no files, nor those of other mounts alone, nor where the mount
    is gone; in JSON it is null."""
    nowhere = "job 7 read: not known: uid=5"
    assert line_of(RECORD, tmp_path / "nowhere") == nowhere
    fds = [JobTable.create(tmp_path, device) for device in ("0:56", "")]
    assert line_of(RECORD, tmp_path) == nowhere
    fds.append(JobTable.create(tmp_path, DEVICE))
    assert line_of(RECORD, tmp_path) != nowhere
    for devices in (["0:58"], [""], [DEVICE, ""]):
        report = report_of(RECORD, tmp_path, devices)
        assert report == JobReport(7, 5, whole=False)
        assert msgspec.to_builtins(report)["cache_bytes"] is None
    assert report_of(RECORD, None, [DEVICE]) == JobReport(7, 5, whole=False)
    for fd in fds:
        os.close(fd)


def test_what_other_mounts_brought_is_the_least_that_was_read(tmp_path: Path) -> None:
    """One of the job's two mounts counts."""
    fd = JobTable.create(tmp_path, DEVICE)
    counter = counting(fd, {50: 7})
    counter.add(50, JobColumn.CACHE_BYTES, 2)
    counter.settle()
    report = report_of(RECORD, tmp_path, [DEVICE, "0:58"])
    assert report is not None
    assert report.line.startswith("job 7 read at least: uid=5 cache_bytes=2 ")
    os.close(fd)


def test_a_process_that_could_not_count_before_the_job_began_is_no_matter(tmp_path: Path) -> None:
    """One that cannot, or could not while the job ran, is."""
    fd = JobTable.create(tmp_path, DEVICE)
    table = JobTable(fd)
    early, late = (msgspec.structs.replace(RECORD, begun_s=at) for at in (1.0, 2.0**40))
    assert "store_bytes=0" in line_of(early, tmp_path)
    table.counts_not(3)
    assert "not known" in line_of(early, tmp_path)
    assert "not known" in line_of(late, tmp_path)
    assert table.rows(3) is not None
    assert "not known" in line_of(early, tmp_path)
    assert "store_bytes=0" in line_of(late, tmp_path)
    os.close(fd)


def test_the_devices_of_a_job_are_those_of_its_mounts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """None where nothing of ours is mounted on the directory of a dataset."""
    place = f"{tmp_path.resolve()}/7/data"
    ours = Mount(place, FS_TYPE, b"cats@0", DEVICE)
    for table, device in (([ours._replace(fs_type="tmpfs"), ours], DEVICE), ([], "")):
        monkeypatch.setattr(mount_table, "read_table", lambda table=table: table)
        assert devices_of(RECORD, JobRecords(tmp_path)) == [device]


def counting(fd: int, jobs: dict[int, int]) -> JobCounter:
    """A process of a mount that knows whose processes are; others have ended."""
    rows = JobTable(fd).rows(1)
    assert rows is not None
    return JobCounter(rows, jobs.get)


def test_what_is_nobodys_known_may_be_the_jobs(tmp_path: Path) -> None:
    """Where it was read while the job ran; the line then says so."""
    fd = JobTable.create(tmp_path, DEVICE)
    counter = counting(fd, {50: 7})
    counter.add(60, JobColumn.CACHE_BYTES, 1)
    counter.add(50, JobColumn.CACHE_BYTES, 2)
    counter.settle()
    record = msgspec.structs.replace(RECORD, before=figures_of(7, tmp_path))
    assert line_of(RECORD, tmp_path).startswith("job 7 read at least: uid=5 cache_bytes=2 ")
    counter.add(50, JobColumn.CACHE_BYTES, 5)
    counter.settle()
    assert line_of(record, tmp_path).startswith("job 7 read: uid=5 cache_bytes=5 ")
    counter.add(60, JobColumn.CACHE_BYTES, 1)
    counter.settle()
    assert line_of(record, tmp_path).startswith("job 7 read at least: uid=5 cache_bytes=5 ")
    os.close(fd)


def test_a_job_that_is_requeued_is_told_what_this_run_read(tmp_path: Path) -> None:
    """Its number, and the mount, are those of the run before; other jobs are not in its record."""
    fd = JobTable.create(tmp_path, DEVICE)
    counter = counting(fd, {50: 7, 60: 8})
    for amount in (100, 20):
        before = figures_of(7, tmp_path)
        counter.add(50, JobColumn.STORE_BYTES, amount)
        counter.add(60, JobColumn.STORE_BYTES, amount)
        counter.settle()
    assert all(jobs.keys() <= {0, 7} for jobs in before.values())
    records = JobRecords(tmp_path / "jobs")
    records.write(msgspec.structs.replace(RECORD, before=before))
    record = records.read(7)
    assert record is not None
    assert " store_bytes=20 " in line_of(record, tmp_path)
    os.close(fd)


def test_a_log_that_takes_nothing_holds_nobody_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What it takes is a message of syslog; full, or gone, it is left alone."""
    monkeypatch.setattr(job_report, "SYSLOG_TIMEOUT_S", 0.01)
    address = str(tmp_path / "log")
    log("lost", address)
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listener:
        listener.bind(address)
        log("job 7 read: uid=5", address)
        _fill(address)
        log("lost", address)
        told = listener.recv(1000)
    assert told.startswith(b"<30>")
    assert told.endswith(b": job 7 read: uid=5")


def _fill(address: str) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender, suppress(BlockingIOError):
        sender.setblocking(False)
        for _ in range(100_000):
            sender.sendto(b"x", address)
        pytest.fail("no queue of datagrams is so long")
