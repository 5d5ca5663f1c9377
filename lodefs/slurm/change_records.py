"""The records of changes that jobs make to datasets, until they are committed or kept.

``ROOT/JOB-TIME-N.json`` is written for each dataset that a run of a job may change, before it is
mounted, and survives a reboot. The changes lie in an upper place (mount.writable.upper_place).
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from enum import Enum
from pathlib import Path

import msgspec

from lodefs.mount.helper import state_files
from lodefs.settings.datasets import CommitWhen
from lodefs.slurm.job_liveness import JobEnd
from lodefs.slurm.job_record import JobRecord, Shown, Versioned, read_record

ROOT = Path("/var/lib/lodefs/slurm")
MOUNTED = Path("/run/lodefs/changes")
_WHOSE = "changes of a job that another command commits; try again when that has ended"


class Change(Versioned, frozen=True, kw_only=True):
    """Changes that a run of a job may make to a dataset. ``shown``: the dataset, with its base and
    its branch. ``restarts``, ``begun_s``, ``boot``: which run of the job, on which boot of the
    node. ``makes_branch``: the branch was not there when the job began. ``upper``: the directory in
    which the changes lie in one of their own; "" where root's do. ``commit``: the commit of the
    changes, once it is made. ``told``: the outcome that the job's user was last told."""

    job: int
    uid: int
    gid: int
    restarts: int
    begun_s: float
    boot: str
    shown: Shown
    number: int
    makes_branch: bool = False
    upper: str = ""
    commit: str = ""
    told: str = ""

    @property
    def name(self) -> str:
        """A name of its own among all changes of this node."""
        return f"{self.job}-{int(self.begun_s)}-{self.number}"

    @property
    def mountpoint(self) -> str:
        """The directory on which the dataset is mounted for changes while the job runs. The job's
        processes get it from there, and `lodefs commit` and `lodefs unmount` find the changes by
        it."""
        return str(MOUNTED / self.name)

    @property
    def dataset(self) -> str:
        """Returns the name of the changed dataset, for people."""
        path = f":{os.fsdecode(self.shown.path)}" if self.shown.path else ""
        return f"{self.shown.repo}@{self.shown.branch}{path}"


class Fate(Enum):
    """The action to take on changes."""

    COMMIT = "commit"
    KEEP = "keep"
    WAIT = "wait"  # for the end of the job
    ASK = "ask"  # how the job ended


def fate_of(change: Change, record: JobRecord | None, boot: str, end: JobEnd | None) -> Fate:
    """Pure. ``record``: of the job on this node now; ``boot``: this boot of the node; ``end``: of
    the job's run, where it is known (None: nobody was asked).

    After a reboot nothing is committed unasked: what the job had not synced may be lacking.
    """
    when: CommitWhen = change.shown.when
    if record is not None and record.begun_s == change.begun_s:
        return Fate.WAIT
    if when == "never" or change.boot != boot:
        return Fate.KEEP
    if when == "always":
        return Fate.COMMIT
    if end is None:
        return Fate.ASK
    if end is JobEnd.AT_WORK:
        return Fate.WAIT
    return Fate.COMMIT if end is JobEnd.SUCCEEDED else Fate.KEEP


class ChangeRecords:
    """The files of all changes of this node, root's alone. ``locks``: a directory for their
    locks."""

    def __init__(self, root: Path = ROOT, locks: Path = MOUNTED) -> None:
        self.root = root
        self.locks = locks

    def write(self, change: Change) -> None:
        """Writes a record, which is on disk when this returns. Raises: NoSpace, Denied,
        Unavailable; InvalidInput."""
        try:
            state_files.make_private(self.root)
        except OSError as error:
            raise state_files.translated(error, self.root) from error
        state_files.write_whole(self._path(change.name), msgspec.json.encode(change))

    def changes(self, job: int | None = None) -> Iterator[Change]:
        """Yields all records, or those of a job, by name. Raises: UnknownFormat."""
        names: list[str] = []
        with suppress(FileNotFoundError):
            names = sorted(os.listdir(self.root))
        for name in names:
            is_one = name.endswith(".json") and (job is None or name.startswith(f"{job}-"))
            if is_one and (found := self._read(name.removesuffix(".json"))) is not None:
                yield found

    @contextmanager
    def taken(self, change: Change) -> Iterator[Change | None]:
        """Locks a change for this process, and yields its present record; None if the change is
        settled. The lock lies in ``locks``, as records are replaced, and jobs may have filled their
        disk. Raises: InUse, UnknownFormat, NoSpace, Denied, Unavailable."""
        if not self._path(change.name).exists():
            yield None
            return
        lock = self.locks / f"{change.name}.lock"
        try:
            state_files.make_private(self.locks)
            fd = state_files.lock(lock, _WHOSE)
        except OSError as error:
            raise state_files.translated(error, lock) from error
        try:
            yield self._read(change.name)
        finally:
            if not self._path(change.name).exists():  # others may wait for the lock otherwise
                lock.unlink(missing_ok=True)
            os.close(fd)

    def remove(self, change: Change) -> None:
        """Removes a record, if there is one, after its changes are in a commit, or kept for
        somebody."""
        self._path(change.name).unlink(missing_ok=True)

    def _read(self, name: str) -> Change | None:
        return read_record(self._path(name), Change)

    def _path(self, name: str) -> Path:
        return self.root / f"{name}.json"
