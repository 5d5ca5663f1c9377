"""The work of a mount's processes besides the supervisor: workers answer the kernel, and one more
process prefetches what they are likely to be asked for."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial

from lodefs.chunkstore.protocol.connection import parse_address
from lodefs.chunkstore.protocol.read_client import Client, Outage
from lodefs.chunkstore.protocol.trace_context import trace_of_environment
from lodefs.chunkstore.protocol.wire import Snapshot
from lodefs.mount.fs import worker
from lodefs.mount.fs.device_lead import BeforeBlocking
from lodefs.mount.fs.filesystem import FileSystem, Memory, MountView
from lodefs.mount.fs.interrupts import InterruptPipes
from lodefs.mount.fs.passthrough import PassthroughFiles
from lodefs.mount.fs.pending_requests import PendingRequests
from lodefs.mount.options import MountOptions
from lodefs.mount.process import mount_resources
from lodefs.mount.process.handover import MountResources
from lodefs.mount.process.mount_log import Log
from lodefs.mount.process.mount_resources import JOBS, TRACE
from lodefs.mount.process.serving.worker_main import EndEvent, WorkerMain, is_mount_over
from lodefs.mount.process.supervisor import WorkerContext, ended
from lodefs.mount.read.cache_monitor import CacheMonitor
from lodefs.mount.read.cached_reader import CachedReader
from lodefs.mount.read.prefetcher import Prefetcher
from lodefs.mount.read.prefetcher import serve as serve_wishes
from lodefs.mount.read.read_events import LOOK_UP, EmitRead, ReadEvents, ignore_read
from lodefs.mount.shm.job_counters import JobCounter, JobTable, RequestCounter
from lodefs.mount.shm.process_table import SUPERVISOR
from lodefs.mount.shm.request_trace import RequestTrace, TraceWriter
from lodefs.mount.shm.traffic_counters import RowCounter, uncounted

CACHE_TIMEOUT_S = 5.0  # for requests that no reader waits for


def serve_requests(
    context: WorkerContext,
    resources: MountResources,
    view: MountView,
    interrupts: InterruptPipes,
    emit: EmitRead,
    log: Log,
) -> None:
    """Runs a worker process."""
    options = resources.job.options
    pending = PendingRequests(options.threads)

    def wake() -> None:
        interrupts.wake(context.index)
        emit(LOOK_UP)

    end = EndEvent(wake)
    handles = mount_resources.handles(resources)
    rows = ProcessRows(context, resources)
    counter = rows.traffic()
    opens = None if handles is None else partial(PassthroughFiles, context.fd, handles, log=log)
    jobs = rows.jobs()
    worker.Worker(
        fd=context.fd,
        session=resources.session,
        readers=reader_factory(options, view, log, opens, counter, emit, jobs),
        threads=options.threads,
        marks=context.marks,
        log=log,
        ended=end,
        pending=pending,
        on_interrupt=interrupts.notify,
        trace=rows.trace(),
        counter=counter,
    ).start()
    control_server = mount_resources.control_server(resources, supervised=False)
    attendant = WorkerMain(
        context, interrupts, pending, control_server, mount_resources.process_table(resources), log
    )
    context.serving()
    attendant.run(end)
    is_last = attendant.alone and is_mount_over(context.fd, context.life_fd)
    if is_last and resources.place is not None:
        resources.place.remove()


def store_ahead(
    context: WorkerContext,
    resources: MountResources,
    snapshot: Snapshot,
    events: ReadEvents,
    log: Log,
) -> None:
    """Runs the process that prefetches, beside the workers."""
    client = Client(parse_address(resources.job.options.proxy), timeout_s=CACHE_TIMEOUT_S)
    monitor = CacheMonitor(client, snapshot, log)
    large = not resources.session.passthrough  # otherwise large files have pages of their own
    counter = ProcessRows(context, resources).traffic()
    prefetcher = Prefetcher(context.fd, monitor, large=large, count=counter.add)
    context.serving()
    serve_wishes(events, monitor, prefetcher, lambda: ended(context.fd))


def reader_factory(
    options: MountOptions,
    view: MountView,
    log: Log,
    opens: Callable[..., PassthroughFiles] | None = None,
    counter: RowCounter | None = None,
    emit: EmitRead = ignore_read,
    jobs: JobCounter | None = None,
) -> worker.ReaderFactory:
    """Makes a reader and a file system for each thread of a worker; all share what they learn.

    A proxy on a Unix socket is on this machine. Its cache may be read directly, or passed through
    to the kernel by what ``opens`` makes from a thread's reader. ``counter`` and ``jobs`` count
    what is read.
    """
    address = parse_address(options.proxy)
    row = counter or uncounted()
    remembered = Memory()
    outage = Outage()
    monitor: CacheMonitor | None = None
    says_user = bool(address.path) and os.geteuid() == 0  # the proxy believes root
    if address.path:
        client = Client(address, timeout_s=CACHE_TIMEOUT_S)
        monitor = CacheMonitor(client, view.snapshot, log, nodes=remembered.nodes)
        if opens is not None:
            marker = CachedReader(Client(address, timeout_s=CACHE_TIMEOUT_S), monitor)
            monitor.before_report = opens(marker).mark_used
        monitor.start()

    def make(before_blocking: BeforeBlocking) -> tuple[worker.ThreadReader, FileSystem]:
        counter = row if jobs is None else RequestCounter(row, jobs, lambda: before_blocking.pid)
        client = Client(
            address,
            token=options.token,
            timeout_s=options.read_timeout_s,
            outage=outage,
            before_blocking=before_blocking,
            count=counter.brought,
        ).mounted(view.snapshot)
        client.traced(trace_of_environment(os.environ))
        if says_user:
            client.for_user(lambda: before_blocking.user)
        if monitor is None:
            return client, FileSystem(client, view, remembered)
        direct = CachedReader(client, monitor, before_blocking, counter, emit)
        passing = None if opens is None else opens(direct, count=counter.add)
        return direct, FileSystem(direct, view, remembered, passing)

    return make


class ProcessRows:
    """The rows of a worker in the shared tables. A table that does not exist, or has another form,
    has no rows, and nothing is counted in it."""

    def __init__(self, context: WorkerContext, resources: MountResources) -> None:
        # Without a process table: the rows after the supervisor's, in turn
        self._slot = context.slot if resources.session.resend else context.index + 1
        self._resources = resources

    def traffic(self) -> RowCounter:
        """Returns the row for counts of the mount, for a process that begins."""
        counter = traffic_row(self._resources, self._slot)
        counter.begin()
        return counter

    def jobs(self) -> JobCounter | None:
        """Returns the row for counts of jobs from now on; None if jobs are not counted."""
        fd = self._resources.memories.get(JOBS)
        if fd is None:
            return None
        try:
            table = JobTable(fd)
        except (OSError, ValueError):  # the table has another size
            return None
        counter = table.counter(self._slot)
        try:
            if counter is not None:
                counter.start()
        except RuntimeError:  # no thread can be started
            table.counts_not(self._slot)
            return None
        return counter

    def trace(self) -> TraceWriter | None:
        """Returns the row for traced requests."""
        fd = self._resources.memories.get(TRACE)
        return None if fd is None else RequestTrace(fd).writer(self._slot)


def supervisor_row(resources: MountResources) -> RowCounter:
    """Returns the row of a mount that the supervisor counts in."""
    return traffic_row(resources, SUPERVISOR)


def traffic_row(resources: MountResources, slot: int) -> RowCounter:
    """Returns the row of a mount that the process in a slot counts in."""
    table = mount_resources.traffic(resources)
    return table.counter(slot) if table is not None else uncounted()
