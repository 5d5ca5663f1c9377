"""A step's own view of its job's datasets: each on the directory that the job has named.

Runs as root in the mount namespace that the plug-in has made for the step. A dataset may cover
nothing: its directory must be empty, and no directory of the system. The plug-in forbids the step
new privileges, so no setuid program ever trusts what a job shows it.
"""

from __future__ import annotations

import os
import pwd
import subprocess
from collections.abc import Sequence

from lodefs.chunkstore.errors import InvalidInput, NotFound, Unavailable
from lodefs.chunkstore.system import libc
from lodefs.settings.datasets import Dataset
from lodefs.slurm.job_comment import check_directory
from lodefs.slurm.job_record import JobRecord, JobRecords, Shown

MKDIR_TIMEOUT_S = 10.0
_MS_BIND = 4096  # linux/mount.h


def enter(records: JobRecords, job: int, asked: Sequence[Dataset]) -> None:
    """Show a job's datasets in this process's mount namespace. ``asked``: what the step's own
    option names; the job must have it.

    Raises: InvalidInput (its directories), NotFound, and for what the prolog has found Unavailable.
    """
    record = records.read(job)
    if record is None:
        if asked:
            raise NotFound("lodefs has nothing of this job here: does its prolog run on this node?")
        return
    if record.problem:
        raise Unavailable(record.problem)
    check_asked(record, asked)
    for shown in record.datasets:
        _show(str(records.place(job, shown)), shown, record.uid)


def check_asked(record: JobRecord, asked: Sequence[Dataset]) -> None:
    """InvalidInput where a step asks for what its job does not have."""
    have = {(one.repo, one.path, one.directory) for one in record.datasets}
    for dataset in asked:
        if (dataset.spec.repo, dataset.spec.path, dataset.directory) not in have:
            raise InvalidInput(
                f"{dataset}: datasets belong to a whole job: give --lodefs to sbatch or salloc, "
                "or to an srun outside of a job"
            )


def _show(place: str, shown: Shown, uid: int) -> None:
    if not os.path.lexists(shown.directory):
        _make(shown.directory, uid)
    real = os.path.realpath(shown.directory)
    check_directory(real)
    try:
        directory_fd = os.open(real, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError as error:
        raise InvalidInput(f"{shown.directory}: {error.strerror}; name a directory") from error
    try:
        path = f"/proc/self/fd/{directory_fd}"
        if os.readlink(path) != real:  # a part of the path has become a symlink meanwhile
            raise InvalidInput(f"{shown.directory}: it changes while it is mounted")
        if os.listdir(directory_fd):
            raise InvalidInput(
                f"{shown.directory} is not empty, and a mount would hide what is in it; choose an "
                "empty directory, or one that does not exist yet"
            )
        libc.call("mount", os.fsencode(place), path.encode(), None, _MS_BIND, None)
    except OSError as error:
        raise Unavailable(f"{shown.directory}: mount(2) says {error.strerror}") from error
    finally:
        os.close(directory_fd)


def _make(directory: str, uid: int) -> None:
    """Make a directory with the rights of the job's user alone."""
    try:
        user = pwd.getpwuid(uid)
        groups = os.getgrouplist(user.pw_name, user.pw_gid)
        done = subprocess.run(
            ["mkdir", "-p", "--", directory],
            user=uid,
            group=user.pw_gid,
            extra_groups=groups,
            capture_output=True,
            text=True,
            timeout=MKDIR_TIMEOUT_S,
            check=False,
        )
    except (KeyError, OSError, subprocess.TimeoutExpired) as error:
        raise InvalidInput(f"{directory} does not exist, and cannot be made: {error}") from error
    if done.returncode:
        why = done.stderr.strip().rpartition(": ")[2] or "mkdir failed"
        raise InvalidInput(
            f"{directory} does not exist, and you may not make it ({why}); name a directory that "
            "is there, or one below your home or /tmp"
        )
