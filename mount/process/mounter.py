"""Mounts and unmounts for the command line and for other programs."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import NamedTuple

import msgspec

from lodefs.chunkstore.errors import Denied, InvalidInput, LodefsError, NotFound, Unavailable
from lodefs.chunkstore.protocol.wire import error_of
from lodefs.chunkstore.system.processes import is_over
from lodefs.mount.kernel import mount_syscalls, mount_table, mountpoints, namespaces
from lodefs.mount.mount_spec import Job, MountRequest, Reply, TakeOver
from lodefs.mount.options import MountOptions
from lodefs.mount.process import control_socket, handover, mount_resources, process_scan
from lodefs.mount.process.daemon import go_on, serve
from lodefs.mount.process.handover import MountResources, State
from lodefs.mount.process.mount_log import say_in_foreground
from lodefs.mount.process.mount_target import (
    canonical,
    may_ask,
    prepare,
    request_handover,
    state_of_mount,
)
from lodefs.mount.process.process_scan import MountUser
from lodefs.mount.process.serving import readiness
from lodefs.mount.process.spawn import start
from lodefs.mount.process.systemd_fdstore import FdStore
from lodefs.mount.shm.request_trace import RequestTrace
from lodefs.mount.shm.traffic_counters import Traffic

END_TIMEOUT_S = 30.0  # for the daemon of a mount to end after unmounting
LOOK_S = 1.0  # for programs that only look at the mount, and for its processes after that
REPLY_MARGIN_S = 5.0
TAKE_OVER_TIMEOUT_S = 60.0


class Mounted(NamedTuple):
    """A mount that can be read. ``pid`` answers for it; not ``supervised``: that is a worker
    without a supervisor.

    ``passthrough``: whether the kernel reads complete files of the cache by itself: ``on``, or
    ``off: `` with the reason; "" if it was not asked. ``is_others``: of another user, and root asks
    it nothing. ``is_writable``: it is an overlay over such a mount.
    """

    mountpoint: str
    repo: str
    commit: str
    path: bytes
    pid: int | None
    passthrough: str = ""
    supervised: bool = True
    is_others: bool = False
    is_writable: bool = False


class Unmounted(NamedTuple):
    """The result of unmounting. ``lazy``: the mount is out of sight but still in use, by ``users``
    as far as they can be seen; it ends with its last user."""

    mountpoint: str
    lazy: bool
    users: Sequence[MountUser] = ()


def mount(options: MountOptions, *, fork: bool = False) -> Mounted:
    """Mounts a snapshot, and returns when its root has been read through the mount.

    A separate process answers for the mount from then on. With ``fork`` it is a child of this one,
    which starts faster and suits programs that end soon. In a user namespace the mount ends with
    its mount namespace.
    Raises: InvalidInput (mount point, options), InUse (a lodefs mount is there), NotFound, Denied,
    Unsupported, Unavailable (proxy or kernel did not answer). After an error nothing is mounted.
    """
    place = canonical(options.mountpoint)
    leaves = options.leaves_namespace or not namespaces.in_first_user_namespace()
    options = msgspec.structs.replace(options, mountpoint=place, leaves_namespace=leaves)
    request = MountRequest(options)
    timeout_s = options.read_timeout_s + readiness.timeout_s(options) + REPLY_MARGIN_S
    return _mounted(place, start(request, place, options.log_path, timeout_s, fork=fork))


def _mounted(place: str, reply: Reply) -> Mounted:
    if reply.failure is not None:
        raise error_of(reply.failure)
    state = mount_table.passthrough_of(place)
    return Mounted(place, reply.repo, reply.commit, reply.path, reply.pid, state)


def mount_here(options: MountOptions, on_ready: Callable[[Mounted], None]) -> None:
    """Mounts in this process, which answers for the mount until it is unmounted, taken over, or
    SIGTERM or SIGINT comes. SIGUSR2 leaves the mount to a process that takes it over.

    A systemd service that keeps descriptors continues the mount of its predecessor.
    Must be called in the main thread of a process without other threads.
    """
    store = FdStore(os.environ)
    kept = store.recover()

    def ready(job: Job) -> None:
        store.ready()
        on_ready(_here(job))

    shown = mount_resources.mounted(kept) if kept is not None else None
    if kept is not None and shown is not None and same_mount(kept.job.options, options):
        left = _go_on_here(kept, options, ready)
    else:
        if kept is not None:
            try:
                _let_go(kept, shown)
            finally:
                store.forget()
        job = prepare(options)
        log = say_in_foreground(job.options.mountpoint)
        left = serve(job, log, lambda: ready(job), store.keep)
    if not left:
        store.forget()


def _let_go(kept: MountResources, shown: mount_table.Mount | None) -> None:
    """Lets go of a mount that is not wanted: another one is asked for, or it was taken off its
    directory. Its workers, if any, continue to serve processes with files open in it."""
    try:
        if shown is not None and mount_table.on_top(shown.mountpoint) == shown:
            mount_syscalls.detach(shown.mountpoint, lazy=True)
    finally:
        kept.close()


def same_mount(kept: MountOptions, wanted: MountOptions) -> bool:
    """Whether a mount is the one asked for. A branch that has moved since makes no difference."""
    place = canonical(wanted.mountpoint)
    return (kept.repo, kept.rev, kept.path, kept.mountpoint) == (
        wanted.repo, wanted.rev, wanted.path, place,
    )  # fmt: skip


def _go_on_here(
    kept: MountResources, options: MountOptions, on_ready: Callable[[Job], None]
) -> bool:
    """Continues a mount with the present limits, proxy and token, and its own snapshot."""
    job = msgspec.structs.replace(
        kept.job, options=msgspec.structs.replace(options, mountpoint=kept.job.options.mountpoint)
    )
    resources = msgspec.structs.replace(kept, job=job)
    taken = None
    process_table = mount_resources.process_table(resources)
    if resources.place is not None and process_table is not None and process_table.has_supervisor():
        taken = handover.take(resources.place)  # another process took the mount over meanwhile
        taken.resources.close()  # equal to what was kept

    def confirm() -> None:
        if taken is not None:
            taken.confirm()
            taken.unlock()

    log = say_in_foreground(job.options.mountpoint)
    private = () if taken is None else (taken.connection,)
    return go_on(resources, log, lambda: on_ready(job), confirm, kept=True, private=private)


def take_over(mountpoint: str, *, log_path: str = "", fork: bool = False) -> Mounted:
    """Starts a new supervisor for a mount whose own was killed or is to be replaced.

    Readers notice nothing. ``fork``: as for ``mount``. Raises: InvalidInput (no lodefs mount, or a
    dead one), Unavailable (no answer), InUse (another take-over is under way), UnknownFormat
    (another version).
    """
    place = canonical(mountpoint)
    request = TakeOver(place, log_path)
    return _mounted(place, start(request, place, log_path, TAKE_OVER_TIMEOUT_S, fork=fork))


def take_over_here(mountpoint: str, on_ready: Callable[[Mounted], None]) -> None:
    """Takes a mount over into this process, as ``mount_here`` mounts."""
    store = FdStore(os.environ)
    taken = request_handover(mountpoint)
    job = taken.resources.job

    def ready() -> None:
        taken.unlock()
        store.keep(taken.resources)
        store.ready()
        on_ready(_here(job))

    log = say_in_foreground(job.options.mountpoint)
    if not go_on(taken.resources, log, ready, taken.confirm, private=(taken.connection,)):
        store.forget()


def _here(job: Job) -> Mounted:
    """Returns a mount that this process answers for."""
    snapshot, options = job.snapshot, job.options
    return Mounted(options.mountpoint, snapshot.repo, snapshot.commit, options.path, os.getpid())


def unmount(mountpoint: str, *, timeout_s: float = END_TIMEOUT_S) -> Unmounted:
    """Unmounts a lodefs mount, dead or alive, and waits for its process to end.

    A mount in use, perhaps in another mount namespace, goes out of sight at once and ends with its
    last user: ``lazy``, unless that is soon, as for a program that only looked at it (df, ``lodefs
    mounts``). Raises: InvalidInput if there is no lodefs mount.
    """
    place = canonical(mountpoint)
    found = mount_table.on_top(place)
    if found is None or not found.is_lodefs:
        raise InvalidInput(f"{mountpoint}: there is no lodefs mount here; see 'lodefs mounts'")
    if os.geteuid() not in (0, found.owner):
        raise Denied(f"{mountpoint} belongs to {_user_name(found.owner)}: unmount it as that user")
    pid = state_of_mount(found).pid  # the process of another user's mount is not trusted
    pid_fd = _open_pid(pid) if process_scan.runs_as(pid, found.owner) else -1
    try:
        try:
            mount_syscalls.detach(place, lazy=False)
        except BlockingIOError:
            users = process_scan.processes_using(place)
            mount_syscalls.detach(place, lazy=True)
            return Unmounted(place, pid_fd < 0 or not is_over(pid_fd, LOOK_S), users)
        if pid_fd >= 0 and not is_over(pid_fd, LOOK_S):
            if _answers(found):  # it is mounted in another mount namespace, too
                return Unmounted(place, lazy=True)
            if found.owner == os.geteuid() and not is_over(pid_fd, timeout_s):
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
    """Whether a process serves a mount that is no longer in this mount namespace."""
    place = control_socket.find(found.device)
    with suppress(LodefsError):
        return place is not None and handover.state_of(place).pid != 0
    return False


def list_mounts() -> list[Mounted]:
    """Returns all lodefs mounts that this process sees; ``pid`` is None if one does not answer, or
    is not asked."""
    table = mount_table.read_table()
    found = [(mount, _look(mount)) for mount in table if mount.is_lodefs]
    writable = [mount for mount in table if mount.is_writable]
    below = {mount.lower_device for mount in writable}
    lower = {mount.device: looked for mount, looked in found}
    return [
        *(looked for mount, looked in found if not (mount.device in below and _is_own(mount))),
        *(_above(mount, lower.get(mount.lower_device)) for mount in writable),
    ]


def _is_own(mount: mount_table.Mount) -> bool:
    """Whether the mount below a writable one serves only that (mount.writable.upper_place)."""
    return os.path.basename(mount.mountpoint).startswith("lower-")


def _above(mount: mount_table.Mount, lower: Mounted | None) -> Mounted:
    """Returns a writable mount, and the process that serves the one below it, if any."""
    if lower is None:
        lower = Mounted(mount.mountpoint, mount.repo, mount.commit, mount.path, None)
    return lower._replace(mountpoint=mount.mountpoint, is_writable=True)


def _look(found: mount_table.Mount) -> Mounted:
    place = found.mountpoint
    state = state_of_mount(found)
    pid = state.pid or None
    passthrough = mount_table.passthrough_of(place) if pid is not None else ""
    return Mounted(
        place, found.repo, found.commit, found.path, pid, passthrough, state.supervised,
        is_others=not may_ask(found),
    )  # fmt: skip


def traffic_of(
    mountpoint: str, timeout_s: float = control_socket.CONNECT_TIMEOUT_S
) -> Traffic | None:
    """Returns the counts of reads through a mount; None if it does not count, or may not be asked.

    Raises: NotFound without a lodefs mount; Unavailable if no process answers in time.
    """
    state = state_of(mountpoint, timeout_s)
    return state.traffic if state is not None else None


def state_of(mountpoint: str, timeout_s: float = control_socket.CONNECT_TIMEOUT_S) -> State | None:
    """Returns the state that a mount's process reports; None if it may not be asked. Raises what
    ``traffic_of`` raises."""
    found = mount_table.served(mountpoints.plain(mountpoint))
    if found is None or not found.is_lodefs:
        raise NotFound(f"{mountpoint}: there is no lodefs mount here")
    place = control_socket.find(found.device)
    return handover.state_of(place, timeout_s) if place is not None else None


def trace_of(mountpoint: str) -> RequestTrace:
    """Returns the trace of a mount's requests, which is written while somebody watches. Raises:
    NotFound without a lodefs mount, Denied for another user's, Unavailable."""
    found = mount_table.served(mountpoints.plain(mountpoint))
    if found is None or not found.is_lodefs:
        raise NotFound(f"{mountpoint}: there is no lodefs mount here")
    if os.geteuid() != found.owner:
        owner = _user_name(found.owner)
        raise Denied(f"{mountpoint} belongs to {owner}: ask as that user")
    place = control_socket.find(found.device)
    if place is None:
        raise Unavailable(f"{mountpoint}: its socket is not found: ask as the user who mounted it")
    fd = handover.trace(place)
    try:
        return RequestTrace(fd)
    finally:
        os.close(fd)


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
