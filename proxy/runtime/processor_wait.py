"""For how long threads waited for a processor: neither a disk nor a peer is to blame for it."""

from __future__ import annotations

import os
import threading
from typing import NamedTuple

WAIT_S_MAX = 2.0  # for one write or request; deadlines are those of real time


class ProcessorWait(NamedTuple):
    """How long a thread of this process had waited for a processor when it was looked at."""

    thread: int
    waited_s: float

    @staticmethod
    def begin() -> ProcessorWait:
        """Returns that of the calling thread now. The call takes some 6 µs."""
        thread = threading.get_native_id()
        return ProcessorWait(thread, _waited_s(thread))

    def since_s(self) -> float:
        """Returns for how long the thread has waited since then, up to WAIT_S_MAX. Any thread may
        ask. The wait for the interpreter, while another thread has no processor, does not count."""
        return min(max(_waited_s(self.thread) - self.waited_s, 0.0), WAIT_S_MAX)


class TimedWrite(NamedTuple):
    """A write under way: when it began, and how long its thread had waited for a processor."""

    at_s: float
    wait: ProcessorWait

    def disk_s(self, now_s: float) -> float:
        """Returns how long the disk has taken: the time that the thread waited for a processor does
        not count."""
        return max(now_s - self.at_s - self.wait.since_s(), 0.0)


def _waited_s(thread: int) -> float:
    """Returns 0.0 if the kernel does not tell, or the thread has ended.

    Source: https://docs.kernel.org/scheduler/sched-stats.html.
    """
    try:
        fd = os.open(f"/proc/self/task/{thread}/schedstat", os.O_RDONLY)
    except OSError:
        return 0.0
    try:
        return int(os.read(fd, 100).split()[1]) / 1e9
    except (OSError, ValueError, IndexError):
        return 0.0
    finally:
        os.close(fd)
