"""``lodefs slurm epilog`` and ``sweep``: the mounts go, whatever becomes of the rest."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from lodefs.commands import slurm
from lodefs.slurm import job_liveness, job_record, job_report
from lodefs.slurm.job_record import JobRecord, JobRecords
from lodefs.slurm.job_report import JobReport
from tests.support.lodefs.command_line import Lodefs


class Mounts:
    """Notes which jobs' were taken away. That of job 13 fails, by a fault of lodefs."""

    def __init__(self, done: list[str]) -> None:
        self._done = done

    def end(self, job: int) -> None:
        """As of JobMounts."""
        self._done.append(f"end {job}")
        if job == 13:
            raise RecursionError("too deep")


@pytest.fixture
def done(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What an epilog did, in order."""
    found: list[str] = []
    monkeypatch.setattr(slurm, "_mounts", lambda *_: Mounts(found))
    monkeypatch.setattr(job_report, "log", found.append)
    return found


def test_the_mounts_go_though_nobody_can_tell_the_figures(
    lodefs: Lodefs, done: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where that is a fault of lodefs; it is said."""

    def fails(*_: object) -> str:
        raise RuntimeError("a fault")

    monkeypatch.setattr(slurm, "_report", fails)
    result = lodefs("slurm", "epilog", SLURM_JOB_ID="7")
    assert result.code == 0
    assert done == ["end 7"]
    assert "the reads of job 7 are not known: a fault" in result.err


def test_the_log_is_written_last(
    lodefs: Lodefs, done: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may take its time."""
    monkeypatch.setattr(slurm, "_report", lambda *_: JobReport(7, 5, whole=False))
    result = lodefs("slurm", "epilog", SLURM_JOB_ID="7")
    assert result.out == "job 7 read: not known: uid=5\n"
    assert done == ["end 7", "job 7 read: not known: uid=5"]


def test_json_has_null_for_what_is_not_known(
    lodefs: Lodefs, done: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """And a number for what is; the log has the line."""
    monkeypatch.setattr(slurm, "_report", lambda *_: JobReport(7, 5, whole=False))
    found = json.loads(lodefs("slurm", "epilog", "--json", SLURM_JOB_ID="7").out)
    assert (found["job"], found["whole"], found["cache_bytes"]) == (7, False, None)
    assert done == ["end 7", "job 7 read: not known: uid=5"]


def test_an_epilog_that_fails_says_so_and_drains_no_node(lodefs: Lodefs, done: list[str]) -> None:
    """Whatever fails."""
    result = lodefs("slurm", "epilog", SLURM_JOB_ID="13")
    assert (result.code, done) == (0, ["end 13"])
    assert "too deep; `lodefs slurm sweep` tries again" in result.err


def test_a_job_that_cannot_be_swept_holds_up_no_other(
    lodefs: Lodefs, done: list[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Whatever is wrong with it."""
    records = JobRecords(tmp_path)
    monkeypatch.setattr(job_record, "JobRecords", lambda: records)
    monkeypatch.setattr(job_liveness, "jobs_with_steps", lambda: {11})
    monkeypatch.setattr(job_liveness, "ask_controller", lambda _environ: lambda job: job == 12)
    for job in (11, 12, 13, 14):
        records.write(JobRecord(job=job, uid=5))
        os.utime(tmp_path / f"{job}.json", (0, 0))
    result = lodefs("slurm", "sweep")
    assert done == ["end 13", "end 14"]
    assert (result.code, result.out) == (1, "job 14 is gone: its mounts were released\n")
    assert "job 13: too deep" in result.err
