"""A step's own view of its job's datasets: each on the directory that the job has named.

Runs as root in the mount namespace that the plug-in has made for the step. A dataset may cover
nothing: its directory must be empty, and no directory of the system. The plug-in forbids the step
new privileges, so no setuid program ever trusts what a job shows it. What is mounted, and where,
are descriptors: the user opens the one, and the other lies where only root makes names.
"""

from __future__ import annotations

import os
import pwd
import signal
import socket
from collections.abc import Sequence
from contextlib import suppress
from typing import NoReturn

from lodefs.chunkstore.errors import InvalidInput, NotFound, Unavailable
from lodefs.chunkstore.protocol import rpc
from lodefs.chunkstore.system import libc
from lodefs.chunkstore.system.safe_open import PLACE, closing
from lodefs.mount.kernel import detached_mounts
from lodefs.settings.datasets import Dataset
from lodefs.slurm.job_comment import check_directory
from lodefs.slurm.job_record import JobRecord, JobRecords, Shown
from lodefs.slurm.job_tree import JobTrees


def enter(records: JobRecords, job: int, asked: Sequence[Dataset]) -> None:
    """Show a job's datasets in this process's mount namespace. ``asked``: what the step's own
    option names; the job must have it. Raises: InvalidInput (its directories), NotFound, and for
    what the prolog has found Unavailable."""
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
    """InvalidInput where a step asks for what its job does not have."""
    have = {(one.repo, one.path, one.directory) for one in record.datasets}
    for dataset in asked:
        if (dataset.spec.repo, dataset.spec.path, dataset.directory) not in have:
            raise InvalidInput(
                f"{dataset}: datasets belong to a whole job: give --lodefs to sbatch or salloc, "
                "or to an srun outside of a job"
            )


def _show(trees: JobTrees, job: int, shown: Shown, uid: int) -> None:
    with closing(opened_as(uid, shown.directory)) as directory_fd:
        check_directory(os.readlink(f"/proc/self/fd/{directory_fd}"))  # where symlinks have led to
        with trees.copy(job, shown) as copy_fd:
            detached_mounts.put(copy_fd, directory_fd, shown.directory)


TIMEOUT_S = 10.0
MESSAGE_BYTES_MAX = 8192
_PR_SET_DUMPABLE = 4  # linux/prctl.h


def opened_as(uid: int, directory: str) -> int:
    """A descriptor (``PLACE``) of an empty directory, which is made where it is missing: looked at,
    made and opened by the job's user.

    The user may change each part of its path at any time, and may not learn by it what only root
    sees. So a child with the user's rights alone goes there, and root gets a descriptor. The child
    is given up where it does not answer in time: the user's own file system may serve the path.

    Nothing may be asked of it but what the kernel knows by itself. Raises: InvalidInput.
    """
    try:
        user = pwd.getpwuid(uid)
        groups = os.getgrouplist(user.pw_name, user.pw_gid)
    except KeyError as error:
        raise InvalidInput(f"{directory}: this machine has no user {uid}") from error
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with ours:
        with theirs:
            child = os.fork()
            if not child:
                _answer(theirs, directory, uid, user.pw_gid, groups)
        try:
            return _answered(ours, directory)
        finally:
            os.kill(child, signal.SIGKILL)
            with suppress(ChildProcessError):
                os.waitpid(child, os.WNOHANG)  # not for long: its file system may be stuck


def _answered(ours: socket.socket, directory: str) -> int:
    try:
        ours.settimeout(TIMEOUT_S)
        message = rpc.receive(ours, MESSAGE_BYTES_MAX, fds_max=1)
    except TimeoutError as error:
        raise InvalidInput(f"{directory}: its file system does not answer") from error
    except ConnectionError as error:
        raise InvalidInput(f"{directory}: who looked at it was killed") from error
    if not message.fds:
        raise InvalidInput(message.data.decode("utf-8", "replace"))
    return message.fds[0]


def _answer(
    theirs: socket.socket, directory: str, uid: int, gid: int, groups: list[int]
) -> NoReturn:
    try:
        libc.call("prctl", _PR_SET_DUMPABLE, 0, 0, 0, 0)  # the user may not take it over
        os.setgroups(groups)
        os.setresgid(gid, gid, gid)
        os.setresuid(uid, uid, uid)
        socket.send_fds(theirs, [b"opened"], [_opened(directory)])
    except InvalidInput as error:
        theirs.send(str(error).encode("utf-8", "replace")[:MESSAGE_BYTES_MAX])
    finally:
        os._exit(0)


def _opened(directory: str) -> int:
    try:
        fd = _open_or_make(directory)
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
    """By a path whose symlinks are followed, as the user could."""
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
