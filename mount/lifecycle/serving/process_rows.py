"""Where one process of a mount counts and tells: its rows in the tables that all of them share."""

from __future__ import annotations

from lodefs.mount.lifecycle import mount_resources
from lodefs.mount.lifecycle.handover import MountResources
from lodefs.mount.lifecycle.mount_resources import JOBS, TRACE
from lodefs.mount.lifecycle.supervisor import WorkerContext
from lodefs.mount.shm.job_counters import JobCounter, JobTable
from lodefs.mount.shm.process_table import SUPERVISOR
from lodefs.mount.shm.request_trace import RequestTrace, TraceWriter
from lodefs.mount.shm.traffic_counters import RowCounter, uncounted


class ProcessRows:
    """Those of the worker with a context. A table that there is not, or that has another form, has
    none: then nothing is counted there."""

    def __init__(self, context: WorkerContext, resources: MountResources) -> None:
        # Without a roster: those after the supervisor's in turn
        self._slot = context.slot if resources.session.resend else context.index + 1
        self._resources = resources

    def traffic(self) -> RowCounter:
        """For what is counted of the mount, by a process that begins."""
        counter = traffic_row(self._resources, self._slot)
        counter.begin()
        return counter

    def jobs(self) -> JobCounter | None:
        """For what is counted for jobs, from now on; None where that is not done."""
        fd = self._resources.memories.get(JOBS)
        if fd is None:
            return None
        try:
            table = JobTable(fd)
        except (OSError, ValueError):  # of another size
            return None
        counter = table.counter(self._slot)
        try:
            if counter is not None:
                counter.start()
        except RuntimeError:  # no room for its thread
            table.counts_not(self._slot)
            return None
        return counter

    def trace(self) -> TraceWriter | None:
        """For requests."""
        fd = self._resources.memories.get(TRACE)
        return None if fd is None else RequestTrace(fd).writer(self._slot)


def supervisor_row(resources: MountResources) -> RowCounter:
    """What the supervisor counts of a mount."""
    return traffic_row(resources, SUPERVISOR)


def traffic_row(resources: MountResources, slot: int) -> RowCounter:
    """What the process in a slot counts of a mount."""
    table = mount_resources.traffic(resources)
    return table.counter(slot) if table is not None else uncounted()
