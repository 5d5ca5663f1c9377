"""Mounting and unmounting, as the command line and other programs ask for it."""

from __future__ import annotations

import errno
import os
import select
import stat
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import msgspec

from chunkstore.errors import InUse, InvalidInput, NotFound, Unavailable
from chunkstore.names import split_path
from chunkstore.tree import Kind
from chunkstore.wire import error_of
from mount import attach, mounttable
from mount.client import Client
from mount.daemon import Job, Report, ready_timeout_s, say_to_stderr, serve
from mount.options import MountOptions
from mount.transport import parse_address

END_TIMEOUT_S = 30.0  # for the daemon of a mount to end after unmounting
REPORT_BYTES_MAX = 65536
_DEAD = frozenset({errno.ENOTCONN, errno.ECONNABORTED})


class Mounted(NamedTuple):
    """A mount that can be read. ``pid`` answers for it."""

    mountpoint: str
    repo: str
    commit: str
    path: bytes
    pid: int | None


class Unmounted(NamedTuple):
    """``lazy``: it is out of sight, but somebody still uses it; it ends with its last user."""

    mountpoint: str
    lazy: bool


def mount(options: MountOptions) -> Mounted:
    """Mount a snapshot and return when its root has been read through the mount.

    A process of its own answers for the mount from then on. InvalidInput (mount point,
    options), InUse (a lodefs mount is there), NotFound, Denied, Unsupported, Unavailable (proxy
    or kernel did not answer).
    """
    options = _at(options, check_mountpoint(options.mountpoint))
    job = resolve(options)
    report = _start(job)
    if report.failure is not None:
        raise error_of(report.failure)
    return Mounted(
        options.mountpoint, job.snapshot.repo, job.snapshot.commit, options.path, report.pid
    )


def mount_here(options: MountOptions, on_ready: Callable[[Mounted], None]) -> None:
    """The same in this process, which answers for the mount until it is unmounted, or SIGTERM
    or SIGINT.

    Must be called in the main thread of a process without other threads.
    """
    options = _at(options, check_mountpoint(options.mountpoint))
    job = resolve(options)
    snapshot = job.snapshot
    mounted = Mounted(options.mountpoint, snapshot.repo, snapshot.commit, options.path, os.getpid())
    serve(job, say_to_stderr, lambda: on_ready(mounted))


def unmount(mountpoint: str, *, timeout_s: float = END_TIMEOUT_S) -> Unmounted:
    """Take a lodefs mount away and wait for its process to end. Works with a dead or stuck mount.

    One that is in use goes out of sight at once and ends with its last user. InvalidInput where
    none is.
    """
    place = _canonical(mountpoint)
    found = mounttable.on_top(place)
    if found is None or not found.is_lodefs:
        raise InvalidInput(f"{mountpoint}: there is no lodefs mount here; see 'lodefs mounts'")
    pid_fd = _open_pid(mounttable.pid_of(place))
    try:
        try:
            attach.detach(place, lazy=False)
        except BlockingIOError:
            attach.detach(place, lazy=True)
            return Unmounted(place, lazy=True)
        if pid_fd >= 0 and not select.select([pid_fd], [], [], timeout_s)[0]:
            raise Unavailable(f"{mountpoint} is unmounted, but its process does not end")
    finally:
        if pid_fd >= 0:
            os.close(pid_fd)
    return Unmounted(place, lazy=False)


def list_mounts() -> list[Mounted]:
    """All lodefs mounts that this process sees; ``pid`` None for those that do not answer."""
    return [
        Mounted(m.mountpoint, m.repo, m.commit, m.path, mounttable.pid_of(m.mountpoint))
        for m in mounttable.read_table()
        if m.is_lodefs
    ]


def check_mountpoint(mountpoint: str) -> str:
    """The absolute path of an empty directory that can be mounted on. InvalidInput, InUse.

    A dead lodefs mount that was left there (its process was killed) is taken away first.
    """
    place = _canonical(mountpoint)
    found = mounttable.on_top(place)
    if found is not None and found.is_lodefs:
        if not is_dead(place):
            raise InUse(
                f"{mountpoint}: {found.repo}@{found.commit} is mounted here; "
                f"'lodefs unmount {mountpoint}' takes it away"
            )
        attach.detach(place, lazy=True)
    try:
        if not stat.S_ISDIR(os.stat(place).st_mode):
            raise InvalidInput(f"{mountpoint} is not a directory")
        with os.scandir(place) as entries:
            if next(entries, None) is not None:
                raise InvalidInput(f"{mountpoint} is not empty; mount on an empty directory")
    except FileNotFoundError as error:
        raise InvalidInput(f"{mountpoint} does not exist; create it with mkdir -p") from error
    except OSError as error:
        raise InvalidInput(f"{mountpoint} cannot be mounted on: {error.strerror}") from error
    return place


def is_dead(mountpoint: str) -> bool:
    """Whether a FUSE mount has lost its process. The kernel asks for statfs each time, unlike
    stat."""
    try:
        os.statvfs(mountpoint)
    except OSError as error:
        return error.errno in _DEAD
    return False


def resolve(options: MountOptions) -> Job:
    """Ask the proxy what the revision and the path are now: from here on they are fixed.

    NotFound, InvalidInput where the path is not a directory.
    """
    client = Client(
        parse_address(options.proxy), token=options.token, timeout_s=options.read_timeout_s
    )
    try:
        snapshot = client.snapshot(options.repo, options.rev)
        client.mounted(snapshot)
        node = snapshot.root
        for name in split_path(options.path):
            try:
                node = client.lookup(node.ino, name)
            except NotFound as error:
                path = options.path.decode("utf-8", "backslashreplace")
                raise NotFound(f"{options.repo}@{options.rev} has no {path!r}") from error
    finally:
        client.close()
    if node.kind != Kind.DIRECTORY:
        path = options.path.decode("utf-8", "backslashreplace")
        raise InvalidInput(
            f"{path!r} is no directory of the snapshot: only directories are mounted"
        )
    return Job(options, snapshot, node)


def _at(options: MountOptions, place: str) -> MountOptions:
    return msgspec.structs.replace(options, mountpoint=place)


def _canonical(mountpoint: str) -> str:
    """The absolute path without symlinks, found without touching a mount that may be stuck
    there."""
    folder, name = os.path.split(os.path.abspath(mountpoint))
    path = os.path.join(os.path.realpath(folder), name)
    if any(m.mountpoint == path for m in mounttable.read_table()):
        return path
    return os.path.realpath(path)


def _start(job: Job) -> Report:
    """Start the daemon and wait for its report, at most a little longer than it gives itself."""
    read_fd, write_fd = os.pipe()
    try:
        with subprocess.Popen(
            [sys.executable, "-P", "-m", "mount.daemon", str(write_fd)],
            stdin=subprocess.PIPE,
            pass_fds=[write_fd],
            start_new_session=True,
            cwd="/",
            env=os.environ | {"PYTHONPATH": _python_path()},
        ) as starter:
            os.close(write_fd)
            write_fd = -1
            starter.communicate(msgspec.msgpack.encode(job))
        return _receive(read_fd, job, ready_timeout_s(job.options) + 5)
    except BaseException:
        _take_back(job)
        raise
    finally:
        os.close(read_fd)
        if write_fd >= 0:
            os.close(write_fd)


def _take_back(job: Job) -> None:
    """Leave no mount behind that nobody waits for any more (an interrupt, a time limit).

    One that is still in the making ends by itself: its report finds no reader.
    """
    found = mounttable.on_top(job.options.mountpoint)
    source = mounttable.source_of(job.snapshot.repo, job.snapshot.commit, job.options.path)
    if found is not None and found.is_lodefs and found.source == source:
        attach.detach(job.options.mountpoint, lazy=True)


def _receive(read_fd: int, job: Job, timeout_s: float) -> Report:
    deadline_s = time.monotonic() + timeout_s
    data = b""
    while not data.endswith(b"\n") and len(data) < REPORT_BYTES_MAX:
        ready, _, _ = select.select([read_fd], [], [], max(deadline_s - time.monotonic(), 0))
        part = os.read(read_fd, REPORT_BYTES_MAX) if ready else b""
        if not part:
            why = "ended without a word" if ready else "did not get ready in time"
            log = job.options.log_path or "the system log"
            raise Unavailable(f"{job.options.mountpoint}: the mount {why}; see {log}")
        data += part
    return msgspec.json.decode(data, type=Report)


def _python_path() -> str:
    """Where this package lies, first; it need not be installed."""
    here = str(Path(__file__).resolve().parents[1])
    return os.pathsep.join([here, *filter(None, [os.environ.get("PYTHONPATH")])])


def _open_pid(pid: int | None) -> int:
    if pid is None:
        return -1
    try:
        return os.pidfd_open(pid)
    except OSError:
        return -1


__all__ = [
    "MountOptions",
    "Mounted",
    "Unmounted",
    "list_mounts",
    "mount",
    "mount_here",
    "unmount",
]
