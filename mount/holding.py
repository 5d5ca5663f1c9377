"""What holds a mount, made when it begins: descriptors for workers, shared memory, a socket."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import msgspec

from chunkstore import lease
from chunkstore.errors import Denied, LodefsError, NotFound, Unavailable
from mount import device, mounttable, rundir
from mount.handles import Handles
from mount.handover import Door, Grip
from mount.job import Job
from mount.options import MountOptions
from mount.roster import Roster
from mount.session import Session
from mount.traffic import Table
from mount.transport import parse_address

WORKERS = "workers"  # the memory that mount.roster owns
HANDLES = "handles"  # the one of mount.handles
TRAFFIC = "traffic"  # the one of mount.traffic


def folders() -> list[Path]:
    """Where sockets of this user's mounts may lie."""
    return rundir.folders(os.environ, os.geteuid())


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
    mounted: mounttable.Mount | None,
    say: Callable[[str], None],
) -> Grip:
    """Of a new connection ``fd``. Where the kernel cannot send requests again (before Linux 6.9),
    no roster: workers end with their supervisor there, and nobody takes the mount over."""
    memories = {HANDLES: Handles.create().fd} if session.passthrough else {}
    grip = widen(Grip(job, session, fd, memories=memories), say)
    if mounted is None:
        return grip
    memories = {**memories, TRAFFIC: Table.create()}
    if session.resend:
        memories |= {WORKERS: Roster.create()}
    try:
        listener, place = rundir.listen(mounted.device, folders())
    except Unavailable as error:
        say(str(error))
        return msgspec.structs.replace(grip, memories=memories)
    return msgspec.structs.replace(grip, memories=memories, listener=listener.detach(), place=place)


def process_count(options: MountOptions) -> int:
    """The workers of a mount, and the process that may store ahead (mount.storer)."""
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


def maker(mounted: mounttable.Mount) -> int:
    """The process that made a mount; 0 where that is not known. Device numbers are given again as
    soon as they are free, but then the socket is another one."""
    place = rundir.find(mounted.device, folders())
    if place is not None:
        with suppress(Unavailable):
            return rundir.maker(place)
    return 0


def door(grip: Grip, *, supervised: bool, is_ready: Callable[[], bool]) -> Door | None:
    """Where others ask for the mount; None where they cannot."""
    if grip.listener < 0:
        return None
    table = traffic(grip)
    total = table.total if table is not None else None
    return Door(grip, supervised=supervised, traffic=total, is_ready=is_ready)
