"""Which jobs are at work on a node, by its processes."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from lodefs.chunkstore.errors import NotFound
from lodefs.slurm.job_liveness import JobEnd, end_in, jobs_with_steps, output_in

SLURMSTEPD = "/usr/sbin/slurmstepd"
TITLE = b"slurmstepd: [98.0]\0"


def process(proc: Path, pid: int, *, uid: int = 0, program: str = SLURMSTEPD) -> Path:
    """What the kernel shows of a process; its title is to be written."""
    shown = proc / str(pid)
    shown.mkdir()
    (shown / "status").write_text(f"Name:\tx\nUid:\t{uid}\t0\t0\t0\nGid:\t0\t0\t0\t0\n")
    (shown / "exe").symlink_to(program)
    return shown / "cmdline"


def test_jobs_are_known_by_slurms_processes(tmp_path: Path) -> None:
    """By their titles, also where the program was replaced meanwhile."""
    process(tmp_path, 1).write_bytes(b"slurmstepd: [12.extern]\0")
    process(tmp_path, 2, program=f"{SLURMSTEPD} (deleted)").write_bytes(b"slurmstepd: [13.0]\0")
    process(tmp_path, 3).write_bytes(b"/usr/sbin/slurmstepd\0infinity\0")
    (tmp_path / "self").mkdir()
    (tmp_path / "4").mkdir()  # one that has just ended
    assert jobs_with_steps(tmp_path) == {12, 13}


@pytest.mark.parametrize(
    ("uid", "program"), [(1001, SLURMSTEPD), (0, "/usr/bin/sudo"), (1001, "/usr/bin/sleep")]
)
def test_a_title_is_believed_of_slurms_program_as_root_alone(
    tmp_path: Path, uid: int, program: str
) -> None:
    """Not of a user's, whatever file it is of, nor of a setuid program that a user starts. It is
    not even read: the memory that it lies in may be a user's file system that never answers."""
    title = process(tmp_path, 1, uid=uid, program=program)
    os.mkfifo(title)
    assert jobs_with_steps(tmp_path) == set()


def shown(job: int, state: str, restarts: int = 0, name: str = "x") -> str:
    """A job as `scontrol show job` has it."""
    return (
        f"JobId={job} JobName={name}\n   UserId=games(5) GroupId=games(60) MCS_label=N/A\n"
        f"   JobState={state} Reason=None Dependency=(null)\n"
        f"   Requeue=1 Restarts={restarts} BatchFlag=1 Reboot=0 ExitCode=0:0\n\n"
    )


@pytest.mark.parametrize(
    ("state", "end"),
    [
        ("COMPLETING", JobEnd.AT_WORK),
        ("RUNNING", JobEnd.AT_WORK),
        ("COMPLETED", JobEnd.SUCCEEDED),
        ("FAILED", JobEnd.FAILED),
        ("CANCELLED", JobEnd.FAILED),
        ("TIMEOUT", JobEnd.FAILED),
        ("NODE_FAIL", JobEnd.FAILED),
        ("PREEMPTED", JobEnd.FAILED),
        ("OUT_OF_MEMORY", JobEnd.FAILED),
    ],
)
def test_how_a_job_has_ended(state: str, end: JobEnd) -> None:
    """As Slurm says it, of this job among those of its array."""
    text = shown(6, "FAILED") + shown(7, state, name="JobState=COMPLETED") + shown(77, "RUNNING")
    assert end_in(text, 7, 0) is end


def test_a_run_that_another_one_follows_did_not_end_well() -> None:
    """Whatever the later one does; a job that is not there is forgotten."""
    assert end_in(shown(7, "COMPLETED", restarts=1), 7, 0) is JobEnd.FAILED
    assert end_in(shown(7, "COMPLETED", restarts=1), 7, 1) is JobEnd.SUCCEEDED
    assert end_in(shown(8, "COMPLETED"), 7, 0) is JobEnd.FORGOTTEN


def test_where_the_output_of_a_job_went() -> None:
    """One of srun or salloc has none of its own."""
    text = shown(6, "FAILED") + shown(7, "COMPLETED")[:-1] + "   StdErr=/home/u/a b.txt\n\n"
    assert output_in(text, 7) == "/home/u/a b.txt"
    with pytest.raises(NotFound):
        output_in(text, 6)
