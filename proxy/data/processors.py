"""The number of processors of this process: sched_getaffinity(2), and the quota of its control
group (Linux' Documentation/admin-guide/cgroup-v2.rst, cpu.max)."""

from __future__ import annotations

import os
from pathlib import Path

CGROUPS = Path("/sys/fs/cgroup")
OWN_CGROUP = Path("/proc/self/cgroup")


def count(cgroups: Path = CGROUPS, own: Path = OWN_CGROUP) -> int:
    """Returns at least 1; rounds the quota up."""
    allowed = len(os.sched_getaffinity(0))
    quotas = [quota for folder in _folders(cgroups, own) if (quota := _quota(folder)) is not None]
    return max(min([allowed, *quotas]), 1)


def _folders(cgroups: Path, own: Path) -> list[Path]:
    """Returns the process's control group and those above it, as far as they are visible."""
    try:
        lines = own.read_text().splitlines()
    except OSError:
        return []
    names = [line.removeprefix("0::").strip("/") for line in lines if line.startswith("0::")]
    return [folder for name in names for folder in ((cgroups / name), *(cgroups / name).parents)]


def _quota(folder: Path) -> int | None:
    """Parses "MAX PERIOD", in microseconds; returns None without a limit."""
    try:
        limit, period = (folder / "cpu.max").read_text().split()
        return -(-int(limit) // int(period))
    except (OSError, ValueError, ZeroDivisionError):
        return None  # "max", the root, or no such control group
