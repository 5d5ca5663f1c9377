"""A job's datasets on a node: asked of the node's mount service, shown, and taken away again.

A user's mistake never fails a prolog, which would drain the node: it is written into the record,
and the job says it by itself.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import TypeVar

import msgspec

from lodefs.chunkstore.errors import InvalidInput, LodefsError, Unavailable
from lodefs.chunkstore.system.safe_open import PLACE, closing, open_plain
from lodefs.mount.helper.deadline_calls import left_s
from lodefs.mount.helper.interface import Source
from lodefs.mount.kernel import detached_mounts
from lodefs.mount.service.interface import MountClaim, MountHandle, MountService
from lodefs.settings.datasets import ON_SUCCESS, Dataset
from lodefs.slurm.job_comment import datasets_in, is_fixed
from lodefs.slurm.job_record import JobRecord, JobRecords, Shown
from lodefs.slurm.job_tree import JobTrees, copy_of

NOT_DONE = "the prolog of the job did not finish on this node"
PIN_WHILE_USED = 0
PATIENCE_S = 15.0  # with a service or a proxy that is being started again
RELEASE_TIMEOUT_S = 5.0
_PAUSE_S = 0.3

Bind = Callable[[str, Shown, int], None]
"""Puts a copy of the mount at a place, which is of a dataset, onto the directory of a descriptor.
Raises: OSError, LodefsError."""
CheckRead = Callable[[int, str], None]
"""Raises NotFound where a user (by number) may not read a repository."""
BeginChanges = Callable[[JobRecord, Shown], str]
"""Mounts a dataset for changes of a job, and says where. Raises: LodefsError."""
T = TypeVar("T")


class JobMounts:
    """The mounts of jobs on one node. ``check_read`` checks users who submit jobs, since the node
    mounts with its own rights. ``begin_changes`` mounts a dataset for changes of a job."""

    def __init__(
        self,
        records: JobRecords,
        service: MountService,
        bind: Bind | None = None,
        *,
        check_read: CheckRead = lambda _uid, _repo: None,
        begin_changes: BeginChanges | None = None,
        patience_s: float = PATIENCE_S,
    ) -> None:
        self._records = records
        self._trees = JobTrees(records)
        self._service = service
        self._bind = bind or bind_copy
        self._check_read = check_read
        self._begin_changes = begin_changes or _no_changes
        self._patience_s = patience_s

    def begin(
        self,
        record: JobRecord,
        comment: str,
        *,
        pinned: bool,
        timeout_s: float,
        writes_here: bool = False,
    ) -> str:
        """Shows the datasets that a job's comment names below its tree. ``record``: of the job,
        without datasets. Mounts that an earlier job of this id has left are removed first.
        ``writes_here``: whether this is the node on which the job may change its writable datasets.

        Returns the reason why the job has no datasets, which its record then has, too; "" if it has
        them, or names none. Raises: OSError (a full /run).
        """
        deadline_s = time.monotonic() + timeout_s
        try:
            self.end(record.job)
            datasets = _fixed(datasets_in(comment), writes_here=writes_here)
            record = msgspec.structs.replace(record, datasets=datasets)
            if not record.datasets:
                return ""
            for shown in record.datasets:
                self._check_read(record.uid, shown.repo)
            self._records.write(msgspec.structs.replace(record, problem=NOT_DONE))
            self._trees.make(record.job)
            for shown in record.datasets:
                self._show(record, shown, PIN_WHILE_USED if pinned else None, deadline_s)
            self._trees.give(record.job, record.uid)
        except LodefsError as error:
            record = msgspec.structs.replace(record, problem=str(error))
            with suppress(LodefsError):  # the end says so
                self._trees.remove(record.job)
        self._records.write(record)  # with its datasets, so that the end releases them
        return record.problem

    def end(self, job: int) -> None:
        """Removes all mounts of a job on this node, if there are any. Readers keep their open
        files. A mount that cannot be removed does not keep the others, and if the service does not
        answer, the record stays for another call. Raises: LodefsError."""
        record = self._records.read(job)
        try:
            self._trees.remove(job)
        finally:
            deadline_s = time.monotonic() + self._patience_s
            for user in record.users if record is not None else ():
                _patiently(partial(self._service.release, user, RELEASE_TIMEOUT_S), deadline_s)
        self._records.remove(job)

    def _show(self, record: JobRecord, shown: Shown, pin_s: int | None, deadline_s: float) -> None:
        until_s = min(deadline_s, time.monotonic() + self._patience_s)
        if shown.is_writable:
            place = _patiently(partial(self._begin_changes, record, shown), until_s)
        else:
            place = self._held(record, shown, pin_s, deadline_s, until_s)
        with self._trees.made_place(record.job, shown) as place_fd:
            self._bind(place, shown, place_fd)

    def _held(
        self, record: JobRecord, shown: Shown, pin_s: int | None, deadline_s: float, until_s: float
    ) -> str:
        """Returns the mountpoint that the mount service made for the job."""
        wanted = MountClaim(source=Source(repo=shown.repo, path=shown.path), rev=shown.commit,
                        pin_s=pin_s)  # fmt: skip

        def acquire() -> MountHandle:
            return self._service.acquire(record.user(shown), wanted, None, left_s(deadline_s))

        return _patiently(acquire, until_s).place


def _patiently(call: Callable[[], T], deadline_s: float) -> T:
    """Repeats a call that raises Unavailable, until the deadline."""
    while True:
        try:
            return call()
        except Unavailable:
            if time.monotonic() + _PAUSE_S > deadline_s:
                raise
        time.sleep(_PAUSE_S)


def bind_copy(place: str, shown: Shown, directory_fd: int) -> None:
    """See ``Bind``."""
    with (
        closing(open_plain(place, PLACE)) as root_fd,
        copy_of(root_fd, shown) as copy_fd,
    ):
        detached_mounts.put(copy_fd, directory_fd, shown.directory)


def _no_changes(_record: JobRecord, shown: Shown) -> str:
    raise InvalidInput(f"{shown.directory}: this node shows no datasets for changes (:rw)")


def _fixed(datasets: Sequence[Dataset], *, writes_here: bool) -> tuple[Shown, ...]:
    for dataset in datasets:
        if not is_fixed(dataset.spec):
            raise InvalidInput(
                f"{dataset}: its commit was not fixed when the job was submitted: the submit host "
                "lacks lodefs' cli_filter.lua; name a commit in full, or ask your administrator"
            )
        if dataset.is_writable and not dataset.branch:
            raise InvalidInput(
                f"{dataset}: the branch for its changes was not fixed when the job was submitted: "
                "write :rw=BRANCH, or ask your administrator for lodefs' cli_filter.lua"
            )
    return tuple(
        Shown(
            d.spec.repo,
            d.spec.rev,
            d.spec.path,
            d.directory,
            d.branch if writes_here else "",
            d.when or ON_SUCCESS,
        )
        for d in datasets
    )
