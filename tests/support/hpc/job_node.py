"""A node's directory of jobs, and mounts of its mount service, for which no process answers."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from lodefs.mount.kernel import mount_syscalls, mount_table
from lodefs.slurm.job_mounts import bind_copy
from lodefs.slurm.job_record import JobRecord, JobRecords, Shown
from lodefs.slurm.job_tree import JobTrees
from tests.support.chunkstore import leftovers

COMMIT = "0123456789abcdef" * 4
SHOWN = Shown("cats", COMMIT, b"", "/tmp/a/data")
SOURCE = mount_table.source_of("cats", COMMIT, b"")


class JobNode:
    """With job 7, of a user. Who asks one of its mounts for anything waits for ever."""

    def __init__(self, folder: Path, uid: int) -> None:
        folder.chmod(0o755)
        self.folder = folder
        self.records = JobRecords(folder / "jobs")
        self.records.write(JobRecord(job=7, uid=uid))
        self.trees = JobTrees(self.records)
        self.tree = self.records.tree(7)
        self.service = folder / "service"
        self.service.mkdir(mode=0o700)
        self.devices: list[int] = []

    def mount(self, place: Path, source: bytes = SOURCE) -> Path:
        """A mount of FUSE."""
        place.mkdir(parents=True, exist_ok=True)
        self.devices.append(mount_syscalls.attach(str(place), source, allow_other=True))
        return place

    def show(self, shown: Shown = SHOWN) -> Path:
        """Mount a dataset, and show it in the tree."""
        held = self.mount(self.service / str(len(self.devices)))
        with self.trees.made_place(7, shown) as fd:
            bind_copy(str(held), shown, fd)
        return self.records.place(7, shown)

    def mounted(self) -> list[str]:
        """Where something is mounted below the directory of jobs."""
        below = f"{self.records.root}/"
        return [m.mountpoint for m in mount_table.read_table() if m.mountpoint.startswith(below)]

    def close(self) -> None:
        """Leave nothing mounted."""
        for mounted in reversed(mount_table.read_table()):
            if mounted.mountpoint.startswith(f"{self.folder}/"):
                mount_syscalls.detach(mounted.mountpoint, lazy=True)
        for fd in self.devices:
            os.close(fd)


@contextmanager
def job_node(uid: int) -> Iterator[JobNode]:
    """One that others get to, unlike pytest's own directories. Needs root, to mount."""
    with leftovers.claimed("job-") as folder:
        made = JobNode(Path(os.path.realpath(folder)), uid)
        try:
            yield made
        finally:
            made.close()
