"""The mount process: turns a request into a served mount, in the foreground or detached.

``main``, with the argument FD, receives the request from the socket FD, so that no argument list
has a token, and answers there (mount.process.startup).
"""

from __future__ import annotations

import os
import signal
import socket
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial

import msgspec

from lodefs.chunkstore.errors import DeadlineExceeded, LodefsError, Unavailable
from lodefs.chunkstore.format.decoding import msgpack_decoder
from lodefs.chunkstore.protocol import rpc
from lodefs.chunkstore.protocol.connection import parse_address
from lodefs.chunkstore.system.fd_limit import raise_limit
from lodefs.mount.fs.filesystem import MountView
from lodefs.mount.fs.interrupts import InterruptPipes
from lodefs.mount.kernel import (
    mount_syscalls,
    mount_table,
    namespaces,
    passed_device,
)
from lodefs.mount.kernel.namespaces import Departure
from lodefs.mount.mount_spec import Job, MountRequest, Reply, TakeOver
from lodefs.mount.options import MountOptions
from lodefs.mount.process import control_socket, mount_resources, startup
from lodefs.mount.process.handover import MountResources
from lodefs.mount.process.mount_log import Log, Logs
from lodefs.mount.process.mount_target import prepare, request_handover
from lodefs.mount.process.serving import agreement, readiness, worker_tasks
from lodefs.mount.process.startup import Requester
from lodefs.mount.process.supervisor import (
    Private,
    Supervisor,
    SupervisorConfig,
    WorkerContext,
    ended,
)
from lodefs.mount.read.read_events import ReadEvents, ignore_read


def serve(
    job: Job,
    log: Log,
    on_ready: Callable[[], None],
    on_held: Callable[[MountResources], bool] = lambda _grip: False,
    requester: Requester | None = None,
    timeout_s: float | None = None,
) -> bool:
    """Mounts, and answers for the mount until it ends. Returns False if it was unmounted, True if
    it was left to others.

    ``on_ready`` is called when the mount's root has been read through it; ``on_held`` with all that
    holds the mount, and returns whether that is kept elsewhere. A ``requester`` must then
    acknowledge the mount within ``timeout_s``, or it is unmounted. The process must have no
    threads.
    Raises: errors of errors.py before the mount counts as made.
    """
    raise_limit("a mount")
    with mount_resources.leased(job.options.proxy):
        return _serve(job, log, on_ready, on_held, requester, timeout_s)


def _serve(
    job: Job,
    log: Log,
    on_ready: Callable[[], None],
    on_held: Callable[[MountResources], bool],
    requester: Requester | None,
    timeout_s: float | None,
) -> bool:
    options = job.options
    # Before the mount is there: it may ask the proxy
    objection = agreement.passthrough_objection(job)
    signal.setitimer(signal.ITIMER_REAL, 0)  # from here on the supervisor keeps the time
    fd, mounted = _attach(job)
    supervisor: Supervisor | None = None
    place: control_socket.Place | None = None
    departure: Departure | None = None
    failures: list[LodefsError] = []

    def on_probe(code: int) -> bool:
        if code == 0:
            on_ready()
            return True
        if code < 0 and timeout_s is not None:
            failures.append(DeadlineExceeded("the mount was not ready in time"))
            return False
        reason = os.strerror(code) if code > 0 else "no answer in time"
        failures.append(Unavailable(f"{options.mountpoint}: its root cannot be read: {reason}"))
        return False

    try:
        departure = _departure(options, mounted) if requester is not None else None
        session = agreement.agree(fd, job, objection, log)
        resources = mount_resources.begin(job, session, fd, mounted, log)
        place = resources.place
        supervisor = _supervisor(
            resources, log, requester, kept=on_held(resources), departure=departure
        )
        limit_s = readiness.timeout_s(options) if timeout_s is None else timeout_s
        is_passed = passed_device.passed(options.mountpoint) is not None
        check = None if is_passed else partial(readiness.probe, options, mounted)
        supervisor.run(check, on_probe, limit_s)
    finally:
        if supervisor is None or not supervisor.left:
            over = ended(fd) if supervisor is None else supervisor.over
            if departure is not None:
                departure.go_back()
            _take_away(job, mounted, place, over=over)
    if failures:
        raise failures[0]
    if not supervisor.made:
        raise Unavailable(f"{options.mountpoint}: the requester of this mount has gone")
    return supervisor.left


def _attach(job: Job) -> tuple[int, mount_table.Mount | None]:
    """Returns the device of a new mount, and its line in the mount table. An error leaves no
    mount."""
    options = job.options
    passed_fd = passed_device.passed(options.mountpoint)
    if passed_fd is not None:  # another process mounted it, perhaps where this one cannot see it
        return passed_device.take(passed_fd), None
    fd = mount_syscalls.attach(
        options.mountpoint, mount_resources.source_of(job), allow_other=options.allow_other
    )
    try:
        return fd, mount_table.on_top(options.mountpoint)
    except BaseException:
        os.close(fd)
        mount_syscalls.detach(options.mountpoint, lazy=True)
        raise


def _departure(options: MountOptions, mounted: mount_table.Mount | None) -> Departure | None:
    """Leaves the mount namespace if the options say so. Raises: Unavailable."""
    if not options.leaves_namespace or mounted is None:
        return None
    try:
        return Departure(options.mountpoint, mounted.device)
    except OSError as error:
        raise Unavailable(
            f"{options.mountpoint}: its processes cannot have a mount namespace of their own: "
            f"{error.strerror}"
        ) from error


def go_on(
    resources: MountResources,
    log: Log,
    on_ready: Callable[[], None],
    confirm: Callable[[], None],
    *,
    kept: bool = False,
    private: Sequence[Private] = (),
) -> bool:
    """Serves an existing mount in place of another supervisor.

    ``confirm`` is called when the new workers serve. Before that the mount is not touched, and an
    error leaves it to its present processes. ``kept``: all that holds the mount is also kept
    elsewhere. ``private``: what workers must not hold. The process must have no threads.
    """
    raise_limit("a mount")
    with mount_resources.leased(resources.job.options.proxy, required=False):
        return _go_on(resources, log, on_ready, confirm, kept=kept, private=private)


def _go_on(
    resources: MountResources,
    log: Log,
    on_ready: Callable[[], None],
    confirm: Callable[[], None],
    *,
    kept: bool,
    private: Sequence[Private],
) -> bool:
    mounted = mount_resources.mounted(resources)
    if resources.job.options.leaves_namespace:
        with suppress(OSError):  # without it the mount lives only as long as this process
            namespaces.leave()
    resources = mount_resources.add_clones(resources, log)
    supervisor = _supervisor(resources, log, None, kept=kept, private=private)

    def on_settled(_code: int) -> bool:
        on_ready()
        return True

    try:
        supervisor.run(None, on_settled, 0.0, confirm)
    finally:
        if supervisor.settled and not supervisor.left:
            _take_away(resources.job, mounted, resources.place, over=supervisor.over)
    return supervisor.left


def _take_away(
    job: Job, mounted: mount_table.Mount | None, place: control_socket.Place | None, *, over: bool
) -> None:
    """Unmounts, unless that has happened, and removes the socket.

    ``over``: our connection has ended. A mount that lives there then is a newer one, even if it
    looks the same: the kernel soon reuses device numbers.
    """
    here = job.options.mountpoint
    still_there = mounted is not None and mount_table.on_top(here) == mounted
    if still_there and (not over or mount_table.is_dead(here)):
        mount_syscalls.detach(here, lazy=True)
    if place is not None:
        place.remove()


def _supervisor(
    resources: MountResources,
    log: Log,
    requester: Requester | None,
    *,
    kept: bool,
    private: Sequence[Private] = (),
    departure: Departure | None = None,
) -> Supervisor:
    job, options, session = resources.job, resources.job.options, resources.session
    state = "on" if session.passthrough else f"off: {session.objection}"
    view = MountView(
        job.snapshot, job.root, options.uid, options.gid, os.getpid(), state, options.mode
    )
    workers = options.worker_count()  # read once, since the processors of a process may change
    interrupts, events = InterruptPipes(workers), ReadEvents()
    stores = session.stores and bool(parse_address(options.proxy).path)
    emit = events.emit if stores else ignore_read

    def work(context: WorkerContext) -> None:
        if context.index < workers:
            worker_tasks.serve_requests(context, resources, view, interrupts, emit, log)
        else:
            worker_tasks.store_ahead(context, resources, view.snapshot, events, log)

    config = SupervisorConfig(
        fd=resources.device,
        session=resources.session,
        work=work,
        workers=workers,
        threads=options.threads,
        hang_s=options.read_timeout_s + options.hang_margin_s,
        log=log,
        clones=resources.clones,
        call_fd=events.fileno() if stores else -1,
        process_table=mount_resources.process_table(resources),
        control_server=mount_resources.control_server(resources, supervised=True),
        kept=kept,
        requester=requester,
        private=[*private, *filter(None, [departure])],
        on_made=departure.settle if departure is not None else lambda: None,
        life_fd=_life_fd(options),
        counter=worker_tasks.supervisor_row(resources),
    )
    return Supervisor(config)


def _life_fd(options: MountOptions) -> int:
    """Returns a pidfd of the process with which the mount ends; -1 without one. Raises:
    Unavailable."""
    try:
        return os.pidfd_open(options.ends_with) if options.ends_with else -1
    except OSError as error:
        raise Unavailable(
            f"{options.mountpoint}: process {options.ends_with}, which it was made for, has ended"
        ) from error


def main() -> None:
    """Runs the mount process as a program."""
    channel = socket.socket(fileno=int(sys.argv[1]))
    request = msgpack_decoder(MountRequest | TakeOver).decode(rpc.receive(channel).data)
    if os.fork():
        os._exit(0)  # the starter waits for this program to end, and not for the mount
    run(request, Requester(channel, startup.new_done_fd()))


def run(
    request: MountRequest | TakeOver, requester: Requester, timeout_s: float | None = None
) -> None:
    """Becomes the process that answers for a mount, and returns when the mount has ended. Exits
    with 1 on failure, which the requester is told.

    ``timeout_s``: how long the requester may take to acknowledge a new mount.
    """
    os.umask(0o022)
    logs = Logs()
    try:
        if isinstance(request, MountRequest):
            _mount(request, requester, logs, timeout_s)
        else:
            _take_over(request, requester, logs)
    except Exception as error:  # noqa: BLE001 - the requester must get any error
        logs.log(f"{type(error).__name__}: {error}")
        requester.fail(error)
        sys.exit(1)


def _mount(
    request: MountRequest, requester: Requester, logs: Logs, timeout_s: float | None
) -> None:
    deadline_s = None if timeout_s is None else time.monotonic() + timeout_s
    job = prepare(request.options)
    logs.redirect(job.options.log_path)

    def on_ready() -> None:
        requester.answer(_reply(job))
        logs.log(_line("mounted", job))

    left_s = None if deadline_s is None else deadline_s - time.monotonic()
    left = serve(job, logs.log, on_ready, requester=requester, timeout_s=left_s)
    logs.log(farewell(job, left=left))


def _take_over(request: TakeOver, requester: Requester, logs: Logs) -> None:
    taken = request_handover(request.mountpoint)
    signal.setitimer(signal.ITIMER_REAL, 0)
    resources = _with_token(taken.resources, request.token)
    job = resources.job
    logs.redirect(request.log_path or job.options.log_path)
    requester.done()  # the requester may go: the new supervisor stays

    def on_ready() -> None:
        taken.unlock()
        requester.finish(_reply(job))
        logs.log(_line("took over", job))

    private = (taken.connection, requester)
    left = go_on(resources, logs.log, on_ready, taken.confirm, private=private)
    logs.log(farewell(job, left=left))


def _with_token(resources: MountResources, token: str | None) -> MountResources:
    """Returns the same mount with another token for its proxy; None: with its present one."""
    if token is None:
        return resources
    options = msgspec.structs.replace(resources.job.options, token=token)
    return msgspec.structs.replace(
        resources, job=msgspec.structs.replace(resources.job, options=options)
    )


def _reply(job: Job) -> Reply:
    return Reply(os.getpid(), None, job.snapshot.repo, job.snapshot.commit, job.options.path)


def _line(what: str, job: Job) -> str:
    return f"{what} {job.snapshot.repo}@{job.snapshot.commit} on {job.options.mountpoint}"


def farewell(job: Job, *, left: bool) -> str:
    """Returns the last line in a supervisor's log."""
    return f"{job.options.mountpoint} is {'left to another process' if left else 'unmounted'}"
