"""All that holds a mount, made when it begins: descriptors for workers, shared memory, a socket."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec

from lodefs.chunkstore.errors import Denied, LodefsError, NotFound, Unavailable
from lodefs.chunkstore.installed_version import installed_version
from lodefs.chunkstore.protocol import lease
from lodefs.chunkstore.protocol.connection import parse_address
from lodefs.chunkstore.protocol.figures.figure_files import directories_for, private_directory_of
from lodefs.chunkstore.protocol.figures.mount_counts import MountDescription
from lodefs.mount.kernel import device, mount_table
from lodefs.mount.kernel.session import Session
from lodefs.mount.mount_spec import Job
from lodefs.mount.options import MountOptions
from lodefs.mount.process import control_socket
from lodefs.mount.process.handover import ControlServer, MountResources
from lodefs.mount.shm.job_counters import JobTable
from lodefs.mount.shm.open_files import OpenFileTable
from lodefs.mount.shm.process_table import ProcessTable
from lodefs.mount.shm.request_trace import RequestTrace
from lodefs.mount.shm.traffic_counters import TrafficTable

WORKERS = "workers"  # the memory that mount.shm.process_table owns
HANDLES = "handles"  # the memory of mount.shm.open_files
COUNTS = "counts"  # the memory of mount.shm.traffic_counters
JOBS = "jobs"  # the memory of mount.shm.job_counters
TRACE = "trace"  # the memory of mount.shm.request_trace


@contextmanager
def leased(proxy: str, *, required: bool = True) -> Iterator[None]:
    """Holds a lease on a proxy that ends without users. This process and the workers that it forks
    hold it, each until its end. Raises: Unavailable if the proxy is ending, unless not
    ``required``."""
    fd = _lease(proxy, required=required)
    try:
        yield
    finally:
        if fd is not None:
            os.close(fd)


def _lease(proxy: str, *, required: bool) -> int | None:
    path = parse_address(proxy).path
    if not path:
        return None
    try:
        return lease.take(Path(path))
    except (NotFound, Denied):
        return None
    except Unavailable:
        if required:
            raise
        return None


def begin(
    job: Job,
    session: Session,
    fd: int,
    mounted: mount_table.Mount | None,
    log: Callable[[str], None],
) -> MountResources:
    """Returns the resources of a new connection ``fd``. If the kernel cannot send requests again
    (before Linux 6.9), there is no process table: workers end with their supervisor, and no
    take-over is possible."""
    memories = {HANDLES: OpenFileTable.create().fd} if session.passthrough else {}
    number = mounted.device if mounted is not None else ""
    resources = add_clones(MountResources(job, session, fd, memories=memories, number=number), log)
    if mounted is None:
        return resources
    memories = {**memories, COUNTS: _counts(job), TRACE: RequestTrace.create()}
    memories |= _jobs(job, mounted.device, log)
    if session.resend:
        memories |= {WORKERS: ProcessTable.create()}
    try:
        listener, place = control_socket.listen(mounted.device, control_socket.own_folders())
    except Unavailable as error:
        log(str(error))
        return msgspec.structs.replace(resources, memories=memories)
    return msgspec.structs.replace(
        resources, memories=memories, listener=listener.detach(), place=place
    )


def _counts(job: Job) -> int:
    """Returns a new table of counts, next to the proxy's socket if this process can see it."""
    installed = installed_version() or "0+unknown"
    snapshot, where = job.snapshot, os.fsencode(job.options.mountpoint)
    description = MountDescription(where, snapshot.repo, snapshot.commit, installed, time.time())
    socket = parse_address(job.options.proxy).path
    directories = directories_for(socket, os.geteuid()) if socket else ()
    return TrafficTable.create(description, *directories)


def _jobs(job: Job, device: str, log: Callable[[str], None]) -> dict[str, int]:
    """Returns a new table of what the node's jobs read, for a mount of root. A mount of another
    user belongs to one job, and its counts would not be trusted."""
    socket = parse_address(job.options.proxy).path
    if not socket or os.geteuid() != 0:
        return {}
    try:
        return {JOBS: JobTable.create(private_directory_of(socket), device)}
    except (
        FileNotFoundError,
        PermissionError,
    ):  # the proxy reports this, or this is root of a user namespace
        return {}
    except OSError as error:  # the mount works without it
        log(f"{job.options.mountpoint}: reads of jobs are not counted: {error}")
        return {}


def mounted(resources: MountResources) -> mount_table.Mount | None:
    """Returns the mount that these resources hold, if it is still on its directory, perhaps under
    others. None if it lives out of sight, for processes with files open in it (umount -l)."""
    here, source = resources.job.options.mountpoint, source_of(resources.job)
    for found in reversed(mount_table.read_table()):
        same = found.device == resources.number if resources.number else found.source == source
        if found.mountpoint == here and found.is_lodefs and same:
            return found
    return None


def source_of(job: Job) -> bytes:
    """Returns the source of the mount in the mount table."""
    return mount_table.source_of(job.snapshot.repo, job.snapshot.commit, job.options.path)


def process_count(options: MountOptions) -> int:
    """Returns the workers of a mount, and the process that may prefetch (mount.read.prefetcher)."""
    return options.worker_count() + 1


def add_clones(resources: MountResources, log: Callable[[str], None]) -> MountResources:
    """Adds a descriptor for each process; if none can be had, workers share the first. If the
    kernel cannot send requests again, adds none: each worker gets its own when it starts."""
    if not resources.session.resend:
        return resources
    clones = list(resources.clones)
    try:
        while len(clones) < process_count(resources.job.options):
            clones.append(device.open_clone(resources.device))
    except LodefsError as error:
        log(f"workers share one descriptor: {error}")
    return msgspec.structs.replace(resources, clones=tuple(clones))


def process_table(resources: MountResources) -> ProcessTable | None:
    """Returns the table of the mount's processes; None if workers end with their supervisor."""
    fd = resources.memories.get(WORKERS)
    return None if fd is None else ProcessTable(fd)


def handles(resources: MountResources) -> OpenFileTable | None:
    """Returns the table of open files; None if nothing is passed through."""
    fd = resources.memories.get(HANDLES)
    return None if fd is None else OpenFileTable(fd)


def traffic(resources: MountResources) -> TrafficTable | None:
    """Returns the counters of reads; None if nobody can ask for them, or the table has another
    form."""
    fd = resources.memories.get(COUNTS)
    table = None if fd is None else TrafficTable(fd)
    return table if table is not None and table.is_known else None


def control_server(resources: MountResources, *, supervised: bool) -> ControlServer | None:
    """Returns the server at which others ask for the mount; None if they cannot."""
    if resources.listener < 0:
        return None
    table = traffic(resources)
    return ControlServer(
        resources, supervised=supervised, traffic=table.total if table is not None else None
    )
