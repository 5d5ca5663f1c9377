"""Mounting and unmounting, as the command line and other programs ask for it."""

from __future__ import annotations

import os
import select
import stat
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import NamedTuple

import msgspec

from lodefs.chunkstore.errors import (
    Denied,
    InUse,
    InvalidInput,
    LodefsError,
    NotFound,
    Unavailable,
)
from lodefs.chunkstore.format.names import split_path
from lodefs.chunkstore.format.tree import Kind
from lodefs.chunkstore.nodeapi.connection import parse_address
from lodefs.chunkstore.nodeapi.read_client import Client
from lodefs.chunkstore.nodeapi.wire import error_of
from lodefs.mount.kernel import mount_syscalls, mount_table
from lodefs.mount.lifecycle import control_socket, handover, process_scan, resources
from lodefs.mount.lifecycle.daemon import go_on, ready_timeout_s, say_in_foreground, serve
from lodefs.mount.lifecycle.handover import Grip, State
from lodefs.mount.lifecycle.process_scan import MountUser
from lodefs.mount.lifecycle.spawn import start
from lodefs.mount.lifecycle.systemd_fdstore import FdStore
from lodefs.mount.mount_spec import Job, TakeOver
from lodefs.mount.options import MountOptions, check_mode
from lodefs.mount.shm.startup_state import Stage
from lodefs.mount.shm.traffic_counters import Traffic

END_TIMEOUT_S = 30.0  # for the daemon of a mount to end after unmounting
LOOK_S = 1.0  # for who only looks at a mount that is taken away, and its processes after that
REPORT_MARGIN_S = 5.0
TAKE_OVER_TIMEOUT_S = 60.0


class Mounted(NamedTuple):
    """A mount that can be read. ``pid`` answers for it; not ``supervised``: that is one of
    workers which have lost their supervisor.

    ``passthrough``: whether the kernel reads complete files of the cache by itself: ``on``, or
    ``off: `` and why not; "" where that was not asked.
    """

    mountpoint: str
    repo: str
    commit: str
    path: bytes
    pid: int | None
    passthrough: str = ""
    supervised: bool = True


class Unmounted(NamedTuple):
    """``lazy``: it is out of sight but still in use, by ``users`` as far as they can be seen; it
    ends with its last user."""

    mountpoint: str
    lazy: bool
    users: Sequence[MountUser] = ()


def mount(options: MountOptions, *, fork: bool = False, stage: Stage | None = None) -> Mounted:
    """Mount a snapshot and return when its root has been read through the mount.

    A process of its own answers for the mount from then on; with ``fork`` a child of this one,
    which is faster and for programs that end soon; who then has a ``stage`` sets it to TOLD, from
    when on the mount counts as made. InvalidInput (mount point, options), InUse (a
    lodefs mount is there), NotFound, Denied, Unsupported, Unavailable (proxy or kernel did not
    answer).
    """
    options = _at(options, check_mountpoint(options.mountpoint))
    job = resolve(options)
    sessions: list[int] = []
    try:
        report = start(
            job,
            options.mountpoint,
            options.log_path,
            ready_timeout_s(options) + REPORT_MARGIN_S,
            fork=fork,
            stage=stage,
            begun=sessions.append,
        )
    except BaseException:
        if stage is not None:
            take_back(options.mountpoint, stage)
        else:
            _take_back(options.mountpoint, sessions)
        raise
    if report.failure is not None:
        raise error_of(report.failure)
    place, snapshot = options.mountpoint, job.snapshot
    state = mount_table.passthrough_of(place)
    return Mounted(place, snapshot.repo, snapshot.commit, options.path, report.pid, state)


def mount_here(options: MountOptions, on_ready: Callable[[Mounted], None]) -> None:
    """The same in this process, which answers for the mount until it is unmounted, taken over,
    or SIGTERM or SIGINT comes. SIGUSR2 leaves the mount to whom takes it over.

    As a service of systemd that keeps descriptors, it goes on with the mount of its predecessor.
    Must be called in the main thread of a process without other threads.
    """
    store = FdStore(os.environ)
    kept = store.recover()

    def ready(job: Job) -> None:
        store.ready()
        on_ready(_here(job))

    shown = resources.mounted(kept) if kept is not None else None
    if kept is not None and shown is not None and same_mount(kept.job.options, options):
        left = _go_on_here(kept, options, ready)
    else:
        if kept is not None:
            try:
                _let_go(kept, shown)
            finally:
                store.forget()
        job = resolve(_at(options, check_mountpoint(options.mountpoint)))
        say = say_in_foreground(job.options.mountpoint)
        left = serve(job, say, lambda: ready(job), store.keep)
    if not left:
        store.forget()


def _let_go(kept: Grip, shown: mount_table.Mount | None) -> None:
    """Of a mount that is not wanted: another is asked for, or somebody took it off its directory,
    where those who have files open in it are served on by its workers, if there are any."""
    try:
        if shown is not None and mount_table.on_top(shown.mountpoint) == shown:
            mount_syscalls.detach(shown.mountpoint, lazy=True)
    finally:
        kept.close()


def same_mount(kept: MountOptions, wanted: MountOptions) -> bool:
    """Whether a mount is what is asked for. A branch that moved since makes no difference."""
    place = _canonical(wanted.mountpoint)
    return (kept.repo, kept.rev, kept.path, kept.mountpoint) == (
        wanted.repo, wanted.rev, wanted.path, place,
    )  # fmt: skip


def _go_on_here(kept: Grip, options: MountOptions, on_ready: Callable[[Job], None]) -> bool:
    """With the limits, proxy and token of now, and the snapshot of then."""
    job = msgspec.structs.replace(kept.job, options=_at(options, kept.job.options.mountpoint))
    grip = msgspec.structs.replace(kept, job=job)
    taken = None
    roster = resources.roster(grip)
    if grip.place is not None and roster is not None and roster.has_supervisor():
        taken = handover.take(grip.place)  # somebody took the mount over meanwhile
        taken.grip.close()  # the same as what was kept

    def confirm() -> None:
        if taken is not None:
            taken.confirm()
            taken.unlock()

    say = say_in_foreground(job.options.mountpoint)
    return go_on(grip, say, lambda: on_ready(job), confirm, kept=True)


def take_over(mountpoint: str, *, log_path: str = "", fork: bool = False) -> Mounted:
    """Start a new supervisor for a mount, whose own was killed or is to be replaced.

    Readers notice nothing. ``fork`` as of ``mount``. InvalidInput (no lodefs mount there, or a
    dead one), Unavailable (it does not answer), InUse (another take-over is under way),
    UnknownFormat (another version).
    """
    place = _socket_of(mountpoint)
    order = TakeOver(str(place.path), place.inode, log_path)
    report = start(order, mountpoint, log_path, TAKE_OVER_TIMEOUT_S, fork=fork)
    if report.failure is not None:
        raise error_of(report.failure)
    where = _canonical(mountpoint)
    state = mount_table.passthrough_of(where)
    return Mounted(where, report.repo, report.commit, report.path, report.pid, state)


def take_over_here(mountpoint: str, on_ready: Callable[[Mounted], None]) -> None:
    """The same in this process, as mount_here."""
    store = FdStore(os.environ)
    taken = handover.take(_socket_of(mountpoint))
    job = taken.grip.job

    def ready() -> None:
        taken.unlock()
        store.keep(taken.grip)
        store.ready()
        on_ready(_here(job))

    say = say_in_foreground(job.options.mountpoint)
    if not go_on(taken.grip, say, ready, taken.confirm):
        store.forget()


def _socket_of(mountpoint: str) -> control_socket.Place:
    """Where the processes of a mount answer. InvalidInput, Unavailable."""
    found = mount_table.on_top(_canonical(mountpoint))
    if found is None or not found.is_lodefs:
        raise InvalidInput(f"{mountpoint}: there is no lodefs mount here; see 'lodefs mounts'")
    place = control_socket.find(found.device, resources.folders())
    if place is not None:
        try:
            handover.state_of(place)
        except Unavailable:
            if not mount_table.is_dead(found.mountpoint):
                raise
        else:
            return place
    if place is not None or mount_table.is_dead(found.mountpoint):
        raise InvalidInput(
            f"{mountpoint}: nobody serves this mount any more; 'lodefs mount' there takes it "
            "away and mounts anew"
        )
    raise Unavailable(
        f"{mountpoint}: the mount has no socket for this user: it is somebody else's, or was "
        "made without a directory for it, or by an older lodefs before Linux 6.9"
    )


def _here(job: Job) -> Mounted:
    """A mount that this process answers for."""
    snapshot, options = job.snapshot, job.options
    return Mounted(options.mountpoint, snapshot.repo, snapshot.commit, options.path, os.getpid())


def unmount(mountpoint: str, *, timeout_s: float = END_TIMEOUT_S) -> Unmounted:
    """Take a lodefs mount away and wait for its process to end. Works with a dead or stuck mount.

    One that is in use, also in another mount namespace, goes out of sight at once and ends with
    its last user: ``lazy``, unless that is soon, as with one that only looked at it (df,
    ``lodefs mounts``). InvalidInput where none is.
    """
    place = _canonical(mountpoint)
    found = mount_table.on_top(place)
    if found is None or not found.is_lodefs:
        raise InvalidInput(f"{mountpoint}: there is no lodefs mount here; see 'lodefs mounts'")
    if os.geteuid() not in (0, found.owner):
        raise Denied(f"{mountpoint} belongs to {_user_name(found.owner)}: unmount it as that user")
    pid_fd = _open_pid(_state(found).pid)
    try:
        try:
            mount_syscalls.detach(place, lazy=False)
        except BlockingIOError:
            users = process_scan.processes_using(place)
            mount_syscalls.detach(place, lazy=True)
            return Unmounted(place, pid_fd < 0 or not _ends(pid_fd, LOOK_S), users)
        if pid_fd >= 0 and not _ends(pid_fd, LOOK_S):
            if _answers(found):  # another mount namespace has it, too
                return Unmounted(place, lazy=True)
            if not _ends(pid_fd, timeout_s):
                raise Unavailable(f"{mountpoint} is unmounted, but its process does not end")
    finally:
        if pid_fd >= 0:
            os.close(pid_fd)
    return Unmounted(place, lazy=False)


def _user_name(uid: int | None) -> str:
    import pwd  # here: needed for this message alone

    try:
        return pwd.getpwuid(-1 if uid is None else uid).pw_name
    except (KeyError, OverflowError):
        return f"user {uid}"


def _answers(found: mount_table.Mount) -> bool:
    """Whether somebody serves a mount, which is not in this mount namespace any more."""
    place = control_socket.find(found.device, resources.folders())
    with suppress(LodefsError):
        return place is not None and handover.state_of(place).pid != 0
    return False


def _ends(pid_fd: int, timeout_s: float) -> bool:
    """Whether a process ends in time."""
    return bool(select.select([pid_fd], [], [], timeout_s)[0])


def list_mounts() -> list[Mounted]:
    """All lodefs mounts that this process sees; ``pid`` None for those that do not answer."""
    return [_look(found) for found in mount_table.read_table() if found.is_lodefs]


def _look(found: mount_table.Mount) -> Mounted:
    place = found.mountpoint
    state = _state(found)
    pid = state.pid or None
    passthrough = mount_table.passthrough_of(place) if pid is not None else ""
    return Mounted(place, found.repo, found.commit, found.path, pid, passthrough, state.supervised)


def traffic_of(
    mountpoint: str, timeout_s: float = control_socket.CONNECT_TIMEOUT_S
) -> Traffic | None:
    """What was read through a mount; None where it does not count, or nobody may ask it.

    NotFound where there is no lodefs mount, Unavailable where nobody answers for it in time.
    """
    state = state_of(mountpoint, timeout_s)
    return state.traffic if state is not None else None


def state_of(mountpoint: str, timeout_s: float = control_socket.CONNECT_TIMEOUT_S) -> State | None:
    """What the process of a mount says of it; None where nobody may ask it. Errors as above."""
    found = mount_table.on_top(mount_table.plain(mountpoint))
    if found is None or not found.is_lodefs:
        raise NotFound(f"{mountpoint}: there is no lodefs mount here")
    place = control_socket.find(found.device, resources.folders())
    return handover.state_of(place, timeout_s) if place is not None else None


def _state(found: mount_table.Mount) -> State:
    """Who answers for a mount: process 0 where nobody does.

    Asked at its socket: what is asked through the kernel may have to wait behind reads.
    """
    place = control_socket.find(found.device, resources.folders())
    if place is not None:
        with suppress(LodefsError):
            return handover.state_of(place)
    return State(mount_table.pid_of(found.mountpoint) or 0, supervised=True)


def check_mountpoint(mountpoint: str) -> str:
    """The absolute path of an empty directory that can be mounted on. InvalidInput, InUse.

    A dead lodefs mount that was left there (its process was killed) is taken away first.
    """
    place = _canonical(mountpoint)
    found = mount_table.on_top(place)
    if found is not None and found.is_lodefs:
        state = _state(found)
        if state.pid or not mount_table.is_dead(place):
            also = (
                ""
                if state.supervised
                else f", 'lodefs mount --take-over {mountpoint}' goes on with it"
            )
            raise InUse(
                f"{mountpoint}: {found.repo}@{found.commit} is mounted here; "
                f"'lodefs unmount {mountpoint}' takes it away{also}"
            )
        mount_syscalls.detach(place, lazy=True)
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


def resolve(options: MountOptions, timeout_s: float | None = None) -> Job:
    """Ask the proxy what the revision and the path are now: from here on they are fixed.

    ``timeout_s``: for all of it, ``read_timeout_s`` where that is not given. NotFound,
    InvalidInput where the path is not a directory or the options are wrong, Unavailable.
    """
    check_mode(options.mode)
    client = Client(
        parse_address(options.proxy),
        token=options.token,
        timeout_s=options.read_timeout_s if timeout_s is None else timeout_s,
    )
    client.begin()
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
    path = mount_table.plain(mountpoint)
    if any(m.mountpoint == path for m in mount_table.read_table()):
        return path
    return os.path.realpath(path)


def take_back(place: str, stage: Stage) -> None:
    """Leave nothing behind of a mount that was made with a ``stage``, and touch no other.

    Whoever answers for it sees that it is not wanted, or is served its notice here.
    """
    stage.take_back()
    found = mount_table.on_top(mount_table.plain(place))
    if found is None or not found.is_lodefs or not stage.pid:
        return
    if resources.maker(found) == stage.pid:
        mount_syscalls.detach(found.mountpoint, lazy=True, abort=True)


def _take_back(place: str, sessions: list[int]) -> None:
    """Leave no mount behind that nobody waits for any more (an interrupt, a time limit), and touch
    no other: its maker is of one of these ``sessions``.

    One that is still in the making ends by itself: its report finds no reader.
    """
    found = mount_table.on_top(place)
    maker = resources.maker(found) if found is not None and found.is_lodefs else 0
    with suppress(ProcessLookupError):
        if maker and os.getsid(maker) in sessions:
            mount_syscalls.detach(place, lazy=True)


def _open_pid(pid: int) -> int:
    if not pid:
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
    "take_over",
    "take_over_here",
    "unmount",
]
