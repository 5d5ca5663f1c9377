"""A step's own view of its job's datasets, each on the directory that the job has named.

Runs as root in the mount namespace that the plug-in has made for the step. A dataset must not hide
anything: its directory must be empty, and not a system directory. The plug-in forbids new
privileges to the step, so no setuid program ever trusts what a job shows it. Mount and directory
are descriptors: the user opens the directory, and the mount lies where only root creates names.
"""

from __future__ import annotations

import os
from collections.abc import Sequence

from lodefs.chunkstore.errors import InvalidInput, NotFound, Unavailable
from lodefs.chunkstore.system.safe_open import PLACE, closing
from lodefs.mount.kernel import detached_mounts
from lodefs.settings.datasets import Dataset
from lodefs.slurm.job_comment import check_directory
from lodefs.slurm.job_record import JobRecord, JobRecords, Shown
from lodefs.slurm.job_tree import JobTrees
from lodefs.slurm.user_process import opened_by


def enter(records: JobRecords, job: int, asked: Sequence[Dataset]) -> None:
    """Shows a job's datasets in this process's mount namespace. ``asked``: the datasets of the
    step's own option, which the job must have. Raises: InvalidInput (its directories), NotFound,
    and Unavailable for a problem that the prolog has recorded."""
    record = records.read(job)
    if record is None:
        if asked:
            raise NotFound("lodefs has nothing of this job here: does its prolog run on this node?")
        return
    if record.problem:
        raise Unavailable(record.problem)
    check_asked(record, asked)
    for shown in record.datasets:
        _show(JobTrees(records), job, shown, record.uid)


def check_asked(record: JobRecord, asked: Sequence[Dataset]) -> None:
    """Raises InvalidInput if a step asks for a dataset that its job does not have."""
    have = {(one.repo, one.path, one.directory) for one in record.datasets}
    for dataset in asked:
        if (dataset.spec.repo, dataset.spec.path, dataset.directory) not in have:
            raise InvalidInput(
                f"{dataset}: datasets belong to a whole job: give --lodefs to sbatch or salloc, "
                "or to an srun outside of a job"
            )


def _show(trees: JobTrees, job: int, shown: Shown, uid: int) -> None:
    with closing(opened_as(uid, shown.directory)) as directory_fd:
        _check_place(directory_fd)  # again, by root
        with trees.copy(job, shown) as copy_fd:
            detached_mounts.put(copy_fd, directory_fd, shown.directory)


def _check_place(fd: int) -> None:
    """Raises InvalidInput for a directory of the system, to which symlinks may have led."""
    check_directory(os.readlink(f"/proc/self/fd/{fd}"))


def opened_as(uid: int, directory: str) -> int:
    """Returns a descriptor (``PLACE``) of an empty directory, which is made where it is missing:
    looked at, made and opened with the rights of the job's user. As ``opened_by``. Raises:
    InvalidInput."""
    return opened_by(uid, directory, _opened)


def _opened(directory: str) -> int:
    try:
        fd = _open_or_make(directory)
        _check_place(fd)
        names_fd = os.open(".", os.O_RDONLY | os.O_DIRECTORY, dir_fd=fd)
        with closing(names_fd), os.scandir(names_fd) as entries:
            is_empty = next(entries, None) is None
    except OSError as error:
        raise InvalidInput(f"{directory}: {error.strerror}; name a directory") from error
    if not is_empty:
        raise InvalidInput(
            f"{directory} is not empty, and a mount would hide what is in it; choose an empty "
            "directory, or one that does not exist yet"
        )
    return fd


def _open_or_make(directory: str) -> int:
    """Opens or creates it by a path whose symlinks are followed, with the user's rights."""
    try:
        return os.open(directory, PLACE)
    except FileNotFoundError:
        pass
    try:
        os.makedirs(directory, exist_ok=True)
    except OSError as error:
        raise InvalidInput(
            f"{directory} does not exist, and you may not make it ({error.strerror}); name a "
            "directory that is there, or one below your home or /tmp"
        ) from error
    return os.open(directory, PLACE)
