"""A job's threads as /proc shows them (proc_pid_stat(5)): which are blocked, and which run."""

from __future__ import annotations

import os
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from lodefs.job_profile.layers import Tick

THREADS_MAX = 128  # that are looked at
BLOCKED, RUNNING = "D", "R"


class JobThreads:
    """Of the processes that are told; threads that end are forgotten."""

    def __init__(self, proc: Path = Path("/proc")) -> None:
        self._proc = proc
        self._known = {0, os.getpid()}  # who asked for themselves, and ourselves
        self._processes: set[int] = set()
        self._threads: list[int] = []

    def add(self, threads: Iterable[int]) -> None:
        """Threads or processes that are of the job, with all threads of their process."""
        new = set(threads) - self._known
        self._known |= new
        for thread in new:
            with suppress(OSError, ValueError, IndexError):
                status = (self._proc / str(thread) / "status").read_text()
                process = int(status.partition("\nTgid:")[2].split(maxsplit=1)[0])
                if process != os.getpid():
                    self._processes.add(process)

    def refresh(self) -> None:
        """Look which threads there are now."""
        found: list[int] = []
        for process in list(self._processes):
            try:
                found += map(int, os.listdir(self._proc / str(process) / "task"))
            except OSError:
                self._processes.discard(process)
        self._threads = found[:THREADS_MAX]

    def look(self, at_s: float) -> Tick:
        """How many are blocked and how many run."""
        states = [state for thread in self._threads if (state := self._state(thread))]
        return Tick(at_s, states.count(BLOCKED), states.count(RUNNING), seen=bool(states))

    def _state(self, thread: int) -> str:
        with suppress(OSError):
            stat = (self._proc / str(thread) / "stat").read_bytes()
            return chr(stat[stat.rindex(b")") + 2])
        return ""
