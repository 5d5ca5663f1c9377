"""DiskLoad: the kernel's figures decide; without them the node's own reads do."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from lodefs.proxy.cache.scrub import DiskLoad


class Disk:
    """A disk that was busy for some time, as the kernel shows it, and a node's own work."""

    def __init__(self, tmp_path: Path) -> None:
        device = tmp_path.stat().st_dev
        self.stat = tmp_path / f"{os.major(device)}:{os.minor(device)}" / "stat"
        self.stat.parent.mkdir()
        self.now_s = 100.0
        self.in_flight_bytes = self.reads = 0
        self.ticks(5_000)
        self.load = DiskLoad(
            tmp_path,
            lambda: (self.in_flight_bytes, self.reads),
            system=tmp_path,
            clock_s=lambda: self.now_s,
        )

    def ticks(self, busy_ms: int) -> None:
        self.stat.write_text(f"  1 2 3 4 5 6 7 8 0 {busy_ms} 11 12\n")


@pytest.mark.parametrize(("busy_ms", "is_busy"), [(0, False), (249, False), (250, True)])
def test_the_share_of_time_decides(tmp_path: Path, busy_ms: int, is_busy: bool) -> None:
    """A disk that had requests under way for a quarter of the second is busy, whoever made them;
    reads that memory answered do not count."""
    disk = Disk(tmp_path)
    disk.now_s += 1
    disk.reads += 100
    disk.ticks(5_000 + busy_ms)
    assert disk.load.is_busy() is is_busy
    disk.now_s += 1
    assert not disk.load.is_busy()  # nothing since


def test_what_was_before_the_mark_does_not_count(tmp_path: Path) -> None:
    """The scrub's own reads lie before the mark."""
    disk = Disk(tmp_path)
    disk.now_s += 1
    disk.ticks(6_000)
    disk.load.mark()
    disk.now_s += 1
    assert not disk.load.is_busy()


def gone(disk: Disk) -> None:
    disk.stat.unlink()


def broken(disk: Disk) -> None:
    disk.stat.write_text("no figures")


@pytest.mark.parametrize("how", [gone, broken])
def test_without_figures_reads_count(tmp_path: Path, how: Callable[[Disk], None]) -> None:
    """A file system whose disk cannot be told is busy while the node answers reads."""
    disk = Disk(tmp_path)
    how(disk)
    assert not disk.load.is_busy()
    disk.reads += 1
    assert disk.load.is_busy()
    assert not disk.load.is_busy()


def test_fetches_are_work(tmp_path: Path) -> None:
    """What is on its way from the store is about to be written."""
    disk = Disk(tmp_path)
    disk.in_flight_bytes = 1
    assert disk.load.is_busy()
