"""What holds a mount, made when it begins: descriptors for workers, shared memory, a socket."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec

from lodefs.chunkstore.errors import Denied, LodefsError, NotFound, Unavailable
from lodefs.chunkstore.nodeapi import lease
from lodefs.chunkstore.nodeapi.connection import parse_address
from lodefs.mount.kernel import device, mount_table
from lodefs.mount.kernel.session import Session
from lodefs.mount.lifecycle import control_socket
from lodefs.mount.lifecycle.handover import Door, Grip
from lodefs.mount.mount_spec import Job
from lodefs.mount.options import MountOptions
from lodefs.mount.shm.open_files import Handles
from lodefs.mount.shm.process_table import Roster
from lodefs.mount.shm.traffic_counters import Table

WORKERS = "workers"  # the memory that mount.shm.process_table owns
HANDLES = "handles"  # the one of mount.shm.open_files
TRAFFIC = "traffic"  # the one of mount.shm.traffic_counters


def folders() -> list[Path]:
    """Where sockets of this user's mounts may lie."""
    return control_socket.folders(os.environ, os.geteuid())


@contextmanager
def leased(proxy: str, *, required: bool = True) -> Iterator[None]:
    """With a lease of a proxy that ends when nobody uses it: this process and the workers that it
    forks have it, each until its end. Unavailable where the proxy is ending, unless not
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
    say: Callable[[str], None],
) -> Grip:
    """Of a new connection ``fd``. Where the kernel cannot send requests again (before Linux 6.9),
    no roster: workers end with their supervisor there, and nobody takes the mount over."""
    memories = {HANDLES: Handles.create().fd} if session.passthrough else {}
    number = mounted.device if mounted is not None else ""
    grip = widen(Grip(job, session, fd, memories=memories, number=number), say)
    if mounted is None:
        return grip
    memories = {**memories, TRAFFIC: Table.create()}
    if session.resend:
        memories |= {WORKERS: Roster.create()}
    try:
        listener, place = control_socket.listen(mounted.device, folders())
    except Unavailable as error:
        say(str(error))
        return msgspec.structs.replace(grip, memories=memories)
    return msgspec.structs.replace(grip, memories=memories, listener=listener.detach(), place=place)


def mounted(grip: Grip) -> mount_table.Mount | None:
    """The mount that a grip holds, where it still is on its directory, perhaps under others; None
    where it lives out of sight, for who has files open in it (umount -l)."""
    here, source = grip.job.options.mountpoint, source_of(grip.job)
    for found in reversed(mount_table.read_table()):
        same = found.device == grip.number if grip.number else found.source == source
        if found.mountpoint == here and found.is_lodefs and same:
            return found
    return None


def source_of(job: Job) -> bytes:
    """What the table of mounts says of it."""
    return mount_table.source_of(job.snapshot.repo, job.snapshot.commit, job.options.path)


def process_count(options: MountOptions) -> int:
    """The workers of a mount, and the process that may store ahead (mount.read.prefetcher)."""
    return options.worker_count() + 1


def widen(grip: Grip, say: Callable[[str], None]) -> Grip:
    """With a descriptor for each process; where none can be had, workers share the first."""
    clones = list(grip.clones)
    try:
        while len(clones) < process_count(grip.job.options):
            clones.append(device.open_clone(grip.device))
    except LodefsError as error:
        say(f"workers share one descriptor: {error}")
    return msgspec.structs.replace(grip, clones=tuple(clones))


def roster(grip: Grip) -> Roster | None:
    """Who serves the mount; None where workers end with their supervisor."""
    fd = grip.memories.get(WORKERS)
    return None if fd is None else Roster(fd)


def handles(grip: Grip) -> Handles | None:
    """Which files are open; None where nothing is passed through."""
    fd = grip.memories.get(HANDLES)
    return None if fd is None else Handles(fd)


def traffic(grip: Grip) -> Table | None:
    """What was read; None where nobody could ask for it, or an older lodefs made the mount."""
    fd = grip.memories.get(TRAFFIC)
    return None if fd is None else Table(fd)


def door(grip: Grip, *, supervised: bool) -> Door | None:
    """Where others ask for the mount; None where they cannot."""
    if grip.listener < 0:
        return None
    table = traffic(grip)
    return Door(grip, supervised=supervised, traffic=table.total if table is not None else None)
