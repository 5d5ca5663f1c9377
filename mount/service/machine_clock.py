"""The time, and the identity of a start of the machine."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
_FIRST_PROCESS = Path("/proc/1/stat")


def boot_id() -> str:
    """Returns the id of this start of the machine."""
    return _BOOT_ID.read_text().strip()


def container_boot_id() -> str:
    """Returns a boot id for mounts whose users end with this process's container: it includes the
    start time of the container's first process (proc_pid_stat(5))."""
    started = _FIRST_PROCESS.read_text().rpartition(") ")[2].split()[19]
    return f"{boot_id()}-{started}"


class Clock(NamedTuple):
    """Unix time, and seconds since the machine started."""

    now_s: Callable[[], float]
    uptime_s: Callable[[], float]


CLOCK = Clock(time.time, lambda: time.clock_gettime(time.CLOCK_BOOTTIME))
