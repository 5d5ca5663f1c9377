"""A node of the cluster, seen from outside: what is mounted, kept and pinned there, what runs."""

from __future__ import annotations

import os
import pwd
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from loadtests.slurm import configs
from lodefs.chunkstore.errors import LodefsError
from lodefs.chunkstore.protocol.cache_control import PINS, PinsView
from lodefs.chunkstore.protocol.control_client import ControlClient

_HELPER = b"lodefs.mount.helper.helper_process"


@dataclass(frozen=True, slots=True)
class Process:
    """``pid``, ``parent``: as this process sees them; ``inside``: as the cluster does."""

    pid: int
    parent: int
    inside: int
    uid: int
    command: bytes


def processes(pid_namespace: str) -> Iterator[Process]:
    """All of the cluster. ``pid_namespace``: what the link ``/proc/PID/ns/pid`` says."""
    for path in Path("/proc").glob("[0-9]*"):
        with suppress(OSError, KeyError):
            if os.readlink(path / "ns/pid") != pid_namespace:
                continue
            lines = dict(line.split(":\t", 1) for line in (path / "status").read_text().split("\n")
                         if ":\t" in line)  # fmt: skip
            yield Process(
                int(path.name),
                int(lines["PPid"]),
                int(lines["NSpid"].split()[-1]),
                int(lines["Uid"].split()[0]),
                (path / "cmdline").read_bytes(),
            )


def of_jobs(pid_namespace: str) -> list[Process]:
    """Those that only a job has: steps, the user's, and the mounts' processes."""
    found = list(processes(pid_namespace))
    user = pwd.getpwnam(configs.USER).pw_uid
    mounting = {one.pid for one in _of_mounts(found)}
    return [
        one
        for one in found
        if one.pid in mounting or one.uid == user or one.command.startswith(b"slurmstepd")
    ]


def _of_mounts(found: list[Process]) -> list[Process]:
    services = {one.pid for one in found if b"mounter\0" in one.command}
    return [one for one in found if _HELPER in one.command and one.parent not in services]


def _mount_namespace(pid: int) -> str:
    """ "" where there is no such process any more."""
    with suppress(OSError):
        return os.readlink(f"/proc/{pid}/ns/mnt")
    return ""


@dataclass(frozen=True, slots=True)
class Node:
    """``pid``: of a process, here, that stays in the node's namespaces; ``pid_namespace``: theirs,
    of all nodes."""

    name: str
    pid: int
    pid_namespace: str

    @property
    def root(self) -> Path:
        """The node's files."""
        return Path(f"/proc/{self.pid}/root")

    def mount_processes(self) -> tuple[list[Process], list[Process]]:
        """Supervisors of the node's mounts, and their workers."""
        found = _of_mounts(list(processes(self.pid_namespace)))
        here = [one for one in found if _mount_namespace(one.pid) == _mount_namespace(self.pid)]
        pids = {one.pid for one in here}
        workers = [one for one in here if one.parent in pids]
        return [one for one in here if one.parent not in pids], workers

    def remains(self) -> Iterator[str]:
        """What is not as on a node without jobs."""
        table = Path(f"/proc/{self.pid}/mountinfo").read_text()
        ours = ("fuse.lodefs", " lodefs:")
        yield from (line for line in table.splitlines() if any(one in line for one in ours))
        run = self.root / configs.RUN.relative_to("/")
        changes = self.root / configs.CHANGES.relative_to("/")
        for folder in (
            run / "jobs",
            run / "changes",
            run / "mounter-state/mounts",
            *(changes / name for name in ("slurm", "writable")),
        ):
            with suppress(FileNotFoundError):
                yield from (f"{folder.name}/{name}" for name in os.listdir(folder))
        try:
            pins = ControlClient(f"unix:{run}/proxy.sock").call(PinsView, "GET", PINS).pins
        except LodefsError as error:
            yield str(error)
        else:
            yield from (f"pin of {pin.owners}: {pin.repo}@{pin.commit}" for pin in pins)
