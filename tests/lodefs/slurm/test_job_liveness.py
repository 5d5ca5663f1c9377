"""Which jobs are at work on a node, by its processes."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from lodefs.slurm.job_liveness import jobs_with_steps

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
