"""Watches a mount for a while: its requests, and the threads that make them."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from lodefs.job_profile.layers import Tick
from lodefs.mount.shm.request_trace import Record, RequestTrace

THREADS_MAX = 128  # threads that are sampled
BLOCKED, RUNNING = "D", "R"


class JobThreads:
    """Samples a job's threads through /proc (proc_pid_stat(5)): those of the processes that were
    added. Threads that end are forgotten."""

    def __init__(self, proc: Path = Path("/proc")) -> None:
        self._proc = proc
        self._known = {0, os.getpid()}  # requests without a process, and this process
        self._processes: set[int] = set()
        self._threads: list[int] = []

    def add(self, threads: Iterable[int]) -> None:
        """Adds threads or processes of the job, with all threads of their process."""
        new = set(threads) - self._known
        self._known |= new
        for thread in new:
            with suppress(OSError, ValueError, IndexError):
                status = (self._proc / str(thread) / "status").read_text()
                process = int(status.partition("\nTgid:")[2].split(maxsplit=1)[0])
                if process != os.getpid():
                    self._processes.add(process)

    def refresh(self) -> None:
        found: list[int] = []
        for process in list(self._processes):
            try:
                found += map(int, os.listdir(self._proc / str(process) / "task"))
            except OSError:
                self._processes.discard(process)
        self._threads = found[:THREADS_MAX]

    def look(self, at_s: float) -> Tick:
        states = [state for thread in self._threads if (state := self._state(thread))]
        return Tick(at_s, states.count(BLOCKED), states.count(RUNNING), seen=bool(states))

    def _state(self, thread: int) -> str:
        with suppress(OSError):
            stat = (self._proc / str(thread) / "stat").read_bytes()
            return chr(stat[stat.rindex(b")") + 2])
        return ""


TICK_S = 0.02
DRAIN_S = 0.1  # a busy process fills its ring in a quarter of a second
REFRESH_S = 0.5
LEASE_S = 3.0  # the trace stops this long after this process has ended
RECORDS_MAX = 1_000_000  # more are counted as lost


class Watched(NamedTuple):
    """The requests that were seen. ``lost``: requests that came too fast to be traced."""

    seconds: float
    records: list[Record]
    ticks: list[Tick]
    lost: int


def watch(
    trace: RequestTrace,
    users: Iterable[int],
    seconds: float,
    *,
    on_progress: Callable[[float], None] = lambda _done_s: None,
) -> Watched:
    """Watches for a time; ``users``: processes that are known to use the mount. KeyboardInterrupt
    ends it early, and what was seen is returned."""
    threads = JobThreads()
    threads.add(users)
    reader, records, ticks = trace.reader(), list[Record](), list[Tick]()
    left_out = 0
    begin_s = now_s = time.monotonic()
    drain_s = refresh_s = 0.0
    try:
        while now_s < begin_s + seconds:
            if now_s >= refresh_s:
                trace.switch_on(now_s + LEASE_S)
                threads.refresh()
                refresh_s = now_s + REFRESH_S
            ticks.append(threads.look(now_s))
            if now_s >= drain_s:
                found = list(reader.read())
                threads.add(one.pid for one in found)
                left_out += max(0, len(records) + len(found) - RECORDS_MAX)
                records += found[: RECORDS_MAX - len(records)]
                drain_s = now_s + DRAIN_S
                on_progress(now_s - begin_s)
            time.sleep(TICK_S)
            now_s = time.monotonic()
    except KeyboardInterrupt:
        now_s = time.monotonic()
    finally:
        trace.switch_on(0.0)
    records += list(reader.read())[: RECORDS_MAX - len(records)]
    return Watched(now_s - begin_s, records, ticks, reader.lost + left_out)
