"""The mount's own process: from a resolved job to a served mount, in the foreground or detached.

``python -P -m mount.daemon FD`` reads the job from standard input (so that a token is in no
argument list), detaches, and writes one report to the descriptor FD: a pid, or why it failed.
"""

from __future__ import annotations

import errno
import os
import sys
import syslog
import time
from collections.abc import Callable
from pathlib import Path
from threading import Event

import msgspec

from chunkstore.errors import InvalidInput, LodefsError, Unavailable
from chunkstore.wire import Failure, Node, Snapshot
from mount import attach, device, mounttable, worker
from mount.client import Client, Outage
from mount.filesystem import FileSystem, Memory, View
from mount.options import MountOptions
from mount.session import Session
from mount.supervisor import Supervisor
from mount.transport import parse_address

_BDI = Path("/sys/class/bdi")

Say = Callable[[str], None]


class Job(msgspec.Struct, frozen=True):
    """A mount whose revision and path are resolved: it can never be of anything else."""

    options: MountOptions
    snapshot: Snapshot
    root: Node


class Report(msgspec.Struct, frozen=True):
    """What the daemon tells whom started it: ``failure`` is None when the mount can be read."""

    pid: int
    failure: Failure | None = None


def serve(job: Job, say: Say, on_ready: Callable[[], None]) -> None:
    """Mount and answer for the mount until it is unmounted or this process is told to end.

    ``on_ready`` is called once the mount's root has been read through it. Errors of errors.py
    before that. The process must have no threads.
    """
    options = job.options
    source = mounttable.source_of(job.snapshot.repo, job.snapshot.commit, options.path)
    fd = attach.attach(options.mountpoint, source, allow_other=options.allow_other)
    mounted = mounttable.on_top(options.mountpoint)
    failures: list[LodefsError] = []

    def on_probe(code: int) -> bool:
        if code == 0:
            on_ready()
            return True
        reason = os.strerror(code) if code > 0 else "no answer in time"
        failures.append(Unavailable(f"{options.mountpoint}: its root cannot be read: {reason}"))
        return False

    try:
        session = device.handshake(fd)
        _supervisor(fd, session, job, say).run(
            lambda: probe(options, mounted), on_probe, ready_timeout_s(options)
        )
    finally:
        if mounted is not None and mounttable.on_top(options.mountpoint) == mounted:
            attach.detach(options.mountpoint, lazy=True)
    if failures:
        raise failures[0]


def ready_timeout_s(options: MountOptions) -> float:
    """How long it may take until a mount is ready: two requests at their limits, and the rest."""
    return 2 * options.read_timeout_s + options.ready_margin_s


def _supervisor(fd: int, session: Session, job: Job, say: Say) -> Supervisor:
    options = job.options
    view = View(job.snapshot, job.root, options.uid, options.gid, os.getpid())

    def work(worker_fd: int, marks: memoryview[float]) -> None:
        ended = Event()
        worker.serve(
            worker_fd,
            session,
            reader_factory(options, view),
            threads=options.threads,
            marks=marks,
            say=say,
            ended=ended,
        )
        ended.wait()

    return Supervisor(
        fd,
        session,
        work,
        workers=options.worker_count(),
        threads=options.threads,
        hang_s=options.read_timeout_s + options.hang_margin_s,
        say=say,
    )


def reader_factory(options: MountOptions, view: View) -> worker.ReaderFactory:
    """Makes a client and a file system for each thread of a worker; what they learn they share."""
    address = parse_address(options.proxy)
    memory = Memory()
    outage = Outage()

    def make(on_slow: Callable[[], None]) -> tuple[Client, FileSystem]:
        client = Client(
            address,
            token=options.token,
            timeout_s=options.read_timeout_s,
            outage=outage,
            on_slow=on_slow,
        ).mounted(view.snapshot)
        return client, FileSystem(client, view, memory)

    return make


def probe(options: MountOptions, mounted: mounttable.Mount | None) -> int:
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
    """The detached process."""
    report_fd = int(sys.argv[1])
    job = msgspec.msgpack.decode(sys.stdin.buffer.read(), type=Job)
    if os.fork():
        os._exit(0)  # the second process is no session leader: it can get no terminal
    os.umask(0o022)
    say: Say = say_to_stderr

    def report(failure: Failure | None) -> None:
        os.write(report_fd, msgspec.json.encode(Report(os.getpid(), failure)) + b"\n")
        os.close(report_fd)

    ready = False

    def on_ready() -> None:
        nonlocal ready
        ready = True
        report(None)
        say(f"mounted {job.snapshot.repo}@{job.snapshot.commit} on {job.options.mountpoint}")

    try:
        say = _redirect(job.options.log_path)
        serve(job, say, on_ready)
        say(f"{job.options.mountpoint} is unmounted")
    except Exception as error:  # noqa: BLE001 - whatever it was, whoever waits must hear of it
        say(f"{type(error).__name__}: {error}")
        if not ready:
            kind = type(error).__name__ if isinstance(error, LodefsError) else "Unavailable"
            report(Failure(kind, str(error)))
        sys.exit(1)


def say_to_stderr(text: str) -> None:
    """A line for a log file or a terminal."""
    stamp = time.strftime("%Y-%m-%dT%H:%M:%S%z")
    sys.stderr.write(f"{stamp} lodefs mount[{os.getpid()}] {text}\n")
    sys.stderr.flush()


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
