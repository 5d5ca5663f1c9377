"""The records of jobs with datasets on a node: one file each, in a directory that a reboot empties.
``read_record`` reads these files, and those of change_records.py.

``ROOT/JOB.json`` is written before the first mount is requested, and removed after the last was
released, so that whatever a dead prolog or epilog has left is known. ``ROOT/JOB/DIR`` shows a
dataset.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import TypeVar

import msgspec

from lodefs.chunkstore.errors import InvalidInput, UnknownFormat
from lodefs.chunkstore.format.decoding import from_json
from lodefs.chunkstore.protocol.figures.job_counts import RECORDS, Jobs
from lodefs.mount.helper import state_files
from lodefs.mount.service.interface import User
from lodefs.settings.datasets import ON_SUCCESS, CommitWhen

ROOT = RECORDS
VERSION = 1
RECORD_BYTES_MAX = 1 << 20


class Versioned(msgspec.Struct, frozen=True, kw_only=True):
    """A record of this node."""

    version: int = VERSION


R = TypeVar("R", bound=Versioned)


def read_record(path: Path, kind: type[R]) -> R | None:
    """Returns the record in a file; None without one. Raises: UnknownFormat, Corrupt; OSError."""
    try:
        record = from_json(state_files.read_whole(path, RECORD_BYTES_MAX), kind)
    except FileNotFoundError:
        return None
    except InvalidInput as error:
        raise UnknownFormat(f"{path}: {error}") from error
    if record.version != VERSION:
        raise UnknownFormat(f"{path} is of version {record.version}")
    return record


class Shown(msgspec.Struct, frozen=True):
    """A dataset that the job asked for: ``REPO@COMMIT[:PATH]`` in its parts, and its directory.
    ``branch``: where a commit of the job's changes on this node goes ``when`` it has ended; "" if
    it accepts no changes here."""

    repo: str
    commit: str
    path: bytes
    directory: str
    branch: str = ""
    when: CommitWhen = ON_SUCCESS

    @property
    def is_writable(self) -> bool:
        """Whether the job may change it on this node."""
        return bool(self.branch)


class JobRecord(Versioned, frozen=True, kw_only=True):
    """A job on this node. ``problem``: why it has no datasets, for the user; "" where it has.
    ``before``: what had been read by the node's mounts, by jobs of its number and by nobody known,
    before it began: a job that is requeued has the number that it had. ``begun_s``: Unix time.
    ``gid``: the group of what the user is shown for changes. ``restarts``: how often the job was
    requeued before this run of it."""

    job: int
    uid: int
    gid: int = 0
    restarts: int = 0
    datasets: tuple[Shown, ...] = ()
    problem: str = ""
    before: dict[str, Jobs] = {}
    begun_s: float = 0.0

    def user(self, shown: Shown) -> User:
        """Returns the holder of the mount of a dataset that takes no changes."""
        return User(f"slurm-{self.job}-{self.datasets.index(shown)}", shown.directory)

    @property
    def users(self) -> tuple[User, ...]:
        return tuple(self.user(shown) for shown in self.datasets if not shown.is_writable)


class JobRecords:
    """The files of all jobs of this node, for root to write and everybody to read."""

    def __init__(self, root: Path = ROOT) -> None:
        self.root = root

    def tree(self, job: int) -> Path:
        """Returns the directory below which a job's datasets are, each on its own."""
        return self.root / str(job)

    def place(self, job: int, shown: Shown) -> Path:
        """Returns the directory of one dataset."""
        return self.tree(job) / shown.directory.lstrip("/")

    def write(self, record: JobRecord) -> None:
        """Raises: OSError."""
        self.root.mkdir(mode=0o755, parents=True, exist_ok=True)
        fresh = self.root / f".{record.job}.fresh"
        try:
            fresh.write_bytes(msgspec.json.encode(record))
            fresh.chmod(0o644)
            fresh.rename(self._path(record.job))
        except OSError:  # a full /run
            fresh.unlink(missing_ok=True)
            raise

    def read(self, job: int) -> JobRecord | None:
        """Returns the record of a job; None without one. Raises: UnknownFormat, Corrupt."""
        return read_record(self._path(job), JobRecord)

    def remove(self, job: int) -> None:
        """Removes the record of a job, if there is one."""
        with suppress(FileNotFoundError):
            self._path(job).unlink()

    def jobs(self) -> Iterator[int]:
        """Yields the jobs with a record or a tree, in order."""
        names: list[str] = []
        with suppress(FileNotFoundError):
            names = os.listdir(self.root)
        yield from sorted({int(n) for name in names if (n := name.removesuffix(".json")).isdigit()})

    def age_s(self, job: int, now_s: float) -> float:
        """Returns the time since a job's record was written; 0 without one, or if the clock went
        back."""
        with suppress(FileNotFoundError):
            return max(0.0, now_s - self._path(job).stat().st_mtime)
        return 0.0

    def _path(self, job: int) -> Path:
        return self.root / f"{job}.json"
