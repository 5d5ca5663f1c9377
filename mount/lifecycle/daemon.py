"""The mount's own process: from a resolved job to a served mount, in the foreground or detached.

``python -P -m mount.lifecycle.daemon FD`` reads the job from standard input (so that a token is in
no argument list), detaches, and writes one report to the descriptor FD: a pid, or why it failed.
"""

from __future__ import annotations

import errno
import os
import sys
import syslog
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path

import msgspec

from lodefs.chunkstore.errors import InvalidInput, LodefsError, Unavailable
from lodefs.chunkstore.nodeapi.connection import parse_address
from lodefs.chunkstore.nodeapi.read_client import Client, Outage
from lodefs.chunkstore.nodeapi.wire import Failure, Snapshot
from lodefs.chunkstore.nodecache.layout import FLAT_DIR
from lodefs.chunkstore.system.fd_limit import raise_limit
from lodefs.mount.fs import passthrough, worker
from lodefs.mount.fs.filesystem import FileSystem, Memory, View
from lodefs.mount.fs.interrupts import Lines
from lodefs.mount.fs.passthrough import Opening
from lodefs.mount.fs.pending_requests import Waits
from lodefs.mount.kernel import device, features, mount_syscalls, mount_table
from lodefs.mount.kernel.session import Session
from lodefs.mount.lifecycle import control_socket, handover, resources
from lodefs.mount.lifecycle.handover import Grip
from lodefs.mount.lifecycle.supervisor import Post, Supervisor, ended
from lodefs.mount.lifecycle.worker_main import Attendant, Ending
from lodefs.mount.mount_spec import Job, Report, TakeOver
from lodefs.mount.options import MountOptions
from lodefs.mount.read import memory_fit
from lodefs.mount.read.cache_monitor import Nearby
from lodefs.mount.read.cached_reader import DirectReader
from lodefs.mount.read.prefetcher import Storer
from lodefs.mount.read.prefetcher import serve as serve_wishes
from lodefs.mount.read.read_events import LOOK_UP, Tell, Wishes, untold
from lodefs.mount.shm.process_table import SLOTS
from lodefs.mount.shm.startup_state import Progress, Stage
from lodefs.mount.shm.traffic_counters import Count, by_origin, uncounted

IDENTIFIER = "lodefs-mount"  # of lines in the journal
CACHE_TIMEOUT_S = 5.0  # of requests that no reader waits for
_BDI = Path("/sys/class/bdi")

Say = Callable[[str], None]


def serve(
    job: Job,
    say: Say,
    on_ready: Callable[[], None],
    on_held: Callable[[Grip], bool] = lambda _grip: False,
    stage: Stage | None = None,
) -> bool:
    """Mount and answer for the mount until it is unmounted (False) or left to others (True).

    ``on_ready`` is called once the mount's root has been read through it, ``on_held`` with what
    the mount can be held with: whether it is kept so. Errors of errors.py before that. The process
    must have no threads.
    ``stage``: of whom asked for the mount and decides when it counts as made; by itself it does
    when its root has been read.
    """
    raise_limit("a mount")
    with resources.leased(job.options.proxy):
        return _serve(job, say, on_ready, on_held, stage)


def _serve(
    job: Job,
    say: Say,
    on_ready: Callable[[], None],
    on_held: Callable[[Grip], bool],
    stage: Stage | None,
) -> bool:
    options = job.options
    made = stage or Stage()
    made.pid = os.getpid()
    fd, mounted = _attach(job)
    supervisor: Supervisor | None = None
    place: control_socket.Place | None = None
    failures: list[LodefsError] = []

    def on_probe(code: int) -> bool:
        if code == 0:
            on_ready()
            if stage is None:
                made.progress = Progress.TOLD
            return True
        reason = os.strerror(code) if code > 0 else "no answer in time"
        failures.append(Unavailable(f"{options.mountpoint}: its root cannot be read: {reason}"))
        return False

    try:
        grip = resources.begin(job, agree(fd, job, say), fd, mounted, say)
        place = grip.place
        if made.unwanted:
            raise Unavailable(f"{options.mountpoint}: nobody waits for this mount any more")
        kept = on_held(grip)
        supervisor = _supervisor(grip, say, lambda: made.is_ready, kept=kept)
        supervisor.run(lambda: probe(options, mounted), on_probe, ready_timeout_s(options))
    finally:
        if supervisor is None or not supervisor.left:
            over = ended(fd) if supervisor is None else supervisor.over
            _take_away(job, mounted, place, over=over)
    if failures:
        raise failures[0]
    return supervisor.left


def _attach(job: Job) -> tuple[int, mount_table.Mount | None]:
    """The device of a new mount, and how the table shows it; an error leaves no mount behind."""
    options = job.options
    fd = mount_syscalls.attach(
        options.mountpoint, resources.source_of(job), allow_other=options.allow_other
    )
    try:
        return fd, mount_table.on_top(options.mountpoint)
    except BaseException:
        os.close(fd)
        mount_syscalls.detach(options.mountpoint, lazy=True)
        raise


def go_on(
    grip: Grip,
    say: Say,
    on_ready: Callable[[], None],
    confirm: Callable[[], None],
    *,
    kept: bool = False,
) -> bool:
    """The same for a mount that is there already, in the place of another supervisor.

    ``confirm`` is called when the new workers serve; before that, the mount is not touched, and
    an error leaves it to those who have it. ``kept``: what holds it is kept elsewhere, too. The
    process must have no threads.
    """
    raise_limit("a mount")
    with resources.leased(grip.job.options.proxy, required=False):
        return _go_on(grip, say, on_ready, confirm, kept=kept)


def _go_on(
    grip: Grip,
    say: Say,
    on_ready: Callable[[], None],
    confirm: Callable[[], None],
    *,
    kept: bool,
) -> bool:
    mounted = resources.mounted(grip)
    grip = resources.widen(grip, say)
    supervisor = _supervisor(grip, say, lambda: True, kept=kept)

    def on_settled(_code: int) -> bool:
        on_ready()
        return True

    try:
        supervisor.run(None, on_settled, 0.0, confirm)
    finally:
        if supervisor.settled and not supervisor.left:
            _take_away(grip.job, mounted, grip.place, over=supervisor.over)
    return supervisor.left


def _take_away(
    job: Job, mounted: mount_table.Mount | None, place: control_socket.Place | None, *, over: bool
) -> None:
    """Unmount, where that has not happened, and leave no socket behind.

    ``over``: our connection has ended. What lives there then is a mount that was made since, even
    if it looks the same: the kernel soon gives device numbers to others.
    """
    here = job.options.mountpoint
    still_there = mounted is not None and mount_table.on_top(here) == mounted
    if still_there and (not over or mount_table.is_dead(here)):
        mount_syscalls.detach(here, lazy=True)
    if place is not None:
        place.remove()


def agree(fd: int, job: Job, say: Say) -> Session:
    """Answer INIT: what was agreed on, and why there is no passthrough, where there is none."""
    options = job.options
    fits = memory_fit.fits(job.snapshot.size_bytes, memory_fit.total_bytes())
    reason = passthrough.objection(
        options.passthrough, job.snapshot, lambda: cache_dir(options), fits_memory=fits
    )
    session = device.handshake(fd, passthrough=reason is None, without=options.without)
    if options.without:
        left_out = ", ".join(sorted(options.without))
        say(f"{options.mountpoint}: {features.VARIABLE} leaves out {left_out}")
    if session.passthrough:
        return session
    reason = reason or "the kernel does not offer it (Linux 6.9 or newer, CONFIG_FUSE_PASSTHROUGH)"
    if options.passthrough != "off":
        say(f"{options.mountpoint}: no passthrough: {reason}")
    return msgspec.structs.replace(session, objection=reason)


def cache_dir(options: MountOptions) -> Path | None:
    """The directory of the node's cache; None where the proxy does not tell, or this process
    cannot read it."""
    address = parse_address(options.proxy)
    if not address.path:
        return None
    client = Client(address, timeout_s=CACHE_TIMEOUT_S)
    try:
        place = client.cache_place()
    except LodefsError:
        return None
    finally:
        client.close()
    directory = Path(os.fsdecode(place.directory))
    return directory if os.access(directory / FLAT_DIR, os.R_OK | os.X_OK) else None


def ready_timeout_s(options: MountOptions) -> float:
    """How long it may take until a mount is ready: two requests at their limits, and the rest."""
    return 2 * options.read_timeout_s + options.ready_margin_s


def _supervisor(grip: Grip, say: Say, is_ready: Callable[[], bool], *, kept: bool) -> Supervisor:
    job, options, session = grip.job, grip.job.options, grip.session
    state = "on" if session.passthrough else f"off: {session.objection}"
    view = View(job.snapshot, job.root, options.uid, options.gid, os.getpid(), state, options.mode)
    lines, wishes = Lines(options.worker_count()), Wishes()
    stores = session.stores and bool(parse_address(options.proxy).path)
    tell = wishes.tell if stores else untold

    def work(post: Post) -> None:
        if post.index < options.worker_count():
            _work(post, grip, view, lines, tell, say, is_ready)
        else:
            _store_ahead(post, grip, view.snapshot, wishes, say)

    return Supervisor(
        grip.device,
        grip.session,
        work,
        workers=options.worker_count(),
        threads=options.threads,
        hang_s=options.read_timeout_s + options.hang_margin_s,
        say=say,
        clones=grip.clones,
        call_fd=wishes.fileno() if stores else -1,
        roster=resources.roster(grip),
        door=resources.door(grip, supervised=True, is_ready=is_ready),
        kept=kept,
    )


def _work(
    post: Post,
    grip: Grip,
    view: View,
    lines: Lines,
    tell: Tell,
    say: Say,
    is_ready: Callable[[], bool],
) -> None:
    """What a worker process does."""
    options = grip.job.options
    waits = Waits(options.threads)

    def wake() -> None:
        lines.wake(post.index)
        tell(LOOK_UP)

    ended = Ending(wake)
    handles = resources.handles(grip)
    count = _counter(post, grip)
    opening = Opening(post.fd, handles, say, count) if handles is not None else None
    worker.serve(
        post.fd,
        grip.session,
        reader_factory(options, view, say, opening, count, tell),
        threads=options.threads,
        marks=post.marks,
        say=say,
        ended=ended,
        waits=waits,
        on_interrupt=lines.tell,
    )
    door = resources.door(grip, supervised=False, is_ready=is_ready)
    attendant = Attendant(post, lines, waits, door, resources.roster(grip), say)
    post.serving()
    attendant.run(ended)
    if attendant.alone and grip.place is not None:
        grip.place.remove()


def _store_ahead(post: Post, grip: Grip, snapshot: Snapshot, wishes: Wishes, say: Say) -> None:
    """What the process beside the workers does."""
    client = Client(parse_address(grip.job.options.proxy), timeout_s=CACHE_TIMEOUT_S)
    nearby = Nearby(client, snapshot, say)
    large = not grip.session.passthrough  # else they have pages of their own
    storer = Storer(post.fd, nearby, large=large, count=_counter(post, grip))
    post.serving()
    serve_wishes(wishes, nearby, storer, lambda: ended(post.fd))


def _counter(post: Post, grip: Grip) -> Count:
    table = resources.traffic(grip)
    row = post.slot if grip.session.resend else post.index  # there is no roster without it
    return table.counter(row) if table is not None and 0 <= row < SLOTS else uncounted


def reader_factory(
    options: MountOptions,
    view: View,
    say: Say,
    opening: Opening | None = None,
    count: Count = uncounted,
    tell: Tell = untold,
) -> worker.ReaderFactory:
    """Makes a reader and a file system for each thread of a worker; what they learn they share.

    Through a Unix socket the proxy is on this machine, and its cache may be read directly, or
    passed through to the kernel.
    """
    address = parse_address(options.proxy)
    remembered = Memory()
    outage = Outage()
    nearby: Nearby | None = None
    if address.path:
        nearby = Nearby(Client(address, timeout_s=CACHE_TIMEOUT_S), view.snapshot, say)
        if opening is not None:
            marker = DirectReader(
                Client(address, timeout_s=CACHE_TIMEOUT_S), nearby, remembered.nodes
            )
            nearby.before_report = partial(opening.mark_used, marker)
        nearby.start()

    def make(on_slow: Callable[[], None]) -> tuple[worker.ThreadReader, FileSystem]:
        client = Client(
            address,
            token=options.token,
            timeout_s=options.read_timeout_s,
            outage=outage,
            on_slow=on_slow,
            count=by_origin(count),
        ).mounted(view.snapshot)
        if nearby is None:
            return client, FileSystem(client, view, remembered)
        direct = DirectReader(client, nearby, remembered.nodes, on_slow, count, tell)
        opens = opening.opens(direct) if opening is not None else None
        return direct, FileSystem(direct, view, remembered, opens)

    return make


def probe(options: MountOptions, mounted: mount_table.Mount | None) -> int:
    """Read the root through the kernel, as an application does: 0, or the errno. Run in a child."""
    try:
        os.statvfs(options.mountpoint)
        with os.scandir(options.mountpoint) as entries:
            for entry in entries:
                entry.stat(follow_symlinks=False)
                break
    except OSError as error:
        return error.errno or errno.EIO
    if mounted is not None:
        raise_read_ahead(_BDI / mounted.device, options.read_ahead_kib)
    return 0


def raise_read_ahead(bdi: Path, read_ahead_kib: int) -> bool:
    """Let the kernel read further ahead than the 128 KiB it offers; False where it may not be set.

    Only root of the first user namespace may, with a writable /sys; reading works without it,
    slower.
    """
    try:
        (bdi / "read_ahead_kb").write_text(str(read_ahead_kib))
    except OSError:
        return False
    return True


def main() -> None:
    """The detached process, as a program."""
    run(msgspec.msgpack.decode(sys.stdin.buffer.read(), type=Job | TakeOver), int(sys.argv[1]))


def run(order: Job | TakeOver, report_fd: int, stage: Stage | None = None) -> None:
    """Go into the background and do it; ``report_fd`` hears how it went. ``stage`` as of
    ``serve``. Exits with 1."""
    if os.fork():
        os._exit(0)  # the second process is no session leader: it can get no terminal
    os.umask(0o022)
    reporter = _Reporter(report_fd)
    try:
        if isinstance(order, Job):
            reporter.say = _redirect(order.options.log_path)
            ready = partial(reporter.ready, order, "mounted")
            left = serve(order, reporter.say, ready, stage=stage)
            reporter.say(farewell(order, left=left))
        else:
            _take_over(order, reporter)
    except Exception as error:  # noqa: BLE001 - whatever it was, whoever waits must hear of it
        reporter.failed(error)
        sys.exit(1)


def _take_over(order: TakeOver, reporter: _Reporter) -> None:
    taken = handover.take(control_socket.Place(Path(order.socket), order.inode))
    job = taken.grip.job
    reporter.say = _redirect(order.log_path or job.options.log_path)

    def on_ready() -> None:
        taken.unlock()
        reporter.ready(job, "took over")

    left = go_on(taken.grip, reporter.say, on_ready, taken.confirm)
    reporter.say(farewell(job, left=left))


def farewell(job: Job, *, left: bool) -> str:
    """The last line of a supervisor."""
    return f"{job.options.mountpoint} is {'left to another process' if left else 'unmounted'}"


class _Reporter:
    """Tells whom started this process, once, how it went."""

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._reported = False
        self.say: Say = say_to_stderr

    def ready(self, job: Job, what: str) -> None:
        """The mount can be read."""
        snapshot = job.snapshot
        self._report(Report(os.getpid(), None, snapshot.repo, snapshot.commit, job.options.path))
        self.say(f"{what} {snapshot.repo}@{snapshot.commit} on {job.options.mountpoint}")

    def failed(self, error: Exception) -> None:
        """It cannot, or cannot any more."""
        self.say(f"{type(error).__name__}: {error}")
        if not self._reported:
            kind = type(error).__name__ if isinstance(error, LodefsError) else "Unavailable"
            self._report(Report(os.getpid(), Failure(kind, str(error))))

    def _report(self, report: Report) -> None:
        self._reported = True
        os.write(self._fd, msgspec.json.encode(report) + b"\n")
        os.close(self._fd)


def say_to_stderr(text: str) -> None:
    """A line for a log file or a terminal."""
    stamp = time.strftime("%Y-%m-%dT%H:%M:%S%z")
    sys.stderr.write(f"{stamp} lodefs mount[{os.getpid()}] {text}\n")
    sys.stderr.flush()


def say_in_foreground(mountpoint: str) -> Say:
    """How a process of a service, or on a terminal, logs: to the journal, where standard error
    goes there."""
    from lodefs.chunkstore.system import journald  # here: mounts in the background need none of it

    if journald.is_stderr(os.environ):
        with suppress(OSError):
            sender = journald.Journal(IDENTIFIER)
            fields = {"LODEFS_MOUNTPOINT": mountpoint}
            return lambda text: sender.send(text, journald.WARNING, fields)
    return say_to_stderr


def _say_to_syslog(text: str) -> None:
    syslog.syslog(syslog.LOG_WARNING, text)


def _redirect(log_path: str) -> Say:
    """Standard input and output to nowhere, errors to the log file; how to log from now on."""
    null = os.open(os.devnull, os.O_RDWR)
    if log_path:
        try:
            log = os.open(log_path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o640)
        except OSError as error:
            raise InvalidInput(f"{log_path}: no log can be written: {error.strerror}") from error
    else:
        log = null
        syslog.openlog("lodefs mount", syslog.LOG_PID, syslog.LOG_DAEMON)
    for target, source in ((0, null), (1, null), (2, log)):
        os.dup2(source, target)
    for fd in {null, log} - {0, 1, 2}:
        os.close(fd)
    return say_to_stderr if log_path else _say_to_syslog


if __name__ == "__main__":
    main()
