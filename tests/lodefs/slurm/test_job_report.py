"""What the epilog logs of a job."""

from __future__ import annotations

import os
from pathlib import Path

import msgspec

from lodefs.chunkstore.nodeapi.figures.job_counts import FIGURES
from lodefs.mount.shm.job_counters import JobTable
from lodefs.slurm.job_record import JobRecord, Shown
from lodefs.slurm.job_report import report_of

RECORD = JobRecord(job=7, uid=5, datasets=(Shown("cats", "0" * 64, b"", "/data"),))


def test_the_line_says_where_the_bytes_of_the_job_came_from(tmp_path: Path) -> None:
    """Those of this job alone; what came from the cache by the proxy or without it is one."""
    fd = JobTable.create(tmp_path)
    counter = JobTable(fd).counter(1, lambda pid: pid)
    assert counter is not None
    amounts = (1, 20, 300, 4000, 2, 70)
    for word, amount in zip(FIGURES, amounts, strict=True):
        counter.add(7, word, amount)
        counter.add(8, word, 9)
    assert report_of(RECORD, tmp_path) == (
        "job 7 read: uid=5 cache_bytes=21 peers_bytes=300 store_bytes=4000 passthrough_opens=2 "
        "passthrough_opened_bytes=70"
    )
    os.close(fd)


def test_a_job_that_read_nothing_is_told_and_one_without_mounts_is_not(tmp_path: Path) -> None:
    """A dataset that nobody read is worth a line."""
    assert "store_bytes=0" in report_of(RECORD, tmp_path / "nowhere")
    assert report_of(msgspec.structs.replace(RECORD, problem="it failed"), tmp_path) == ""
    assert report_of(JobRecord(job=7, uid=5), tmp_path) == ""
