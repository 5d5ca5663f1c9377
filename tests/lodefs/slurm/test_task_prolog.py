"""The task prolog tells a job of its record: where its datasets are, or why it has none."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from lodefs.slurm.job_record import ROOT, JobRecord, JobRecords
from tests.support.hpc.job_user import ROOT as PROJECT

SCRIPT = PROJECT / "deploy/slurm/task_prolog.sh"


@pytest.mark.parametrize("problem", ["", 'repository "a" at C:\\\\ is missing'])
def test_it_reads_the_record_as_it_is_written(tmp_path: Path, problem: str) -> None:
    """Whatever stands behind the reason in it."""
    records = JobRecords(tmp_path)
    records.write(JobRecord(job=7, uid=5, problem=problem, before={"a": {}}, begun_s=1.5))
    script = SCRIPT.read_text().replace(str(ROOT), str(tmp_path))
    done = subprocess.run(
        ["sh", "-c", script],
        env={"SLURM_JOB_ID": "7", "PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    if problem:
        assert (done.returncode, done.stderr) == (1, f"lodefs: error: {problem}\n")
    else:
        assert (done.returncode, done.stdout) == (0, f"export LODEFS_ROOT={tmp_path}/7\n")
