"""Shows a Progress on a terminal while work goes on: nothing else ever, and not for short work."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from chunkstore.progress import Progress
from lodefs.text import size

if TYPE_CHECKING:
    from rich.progress import Progress as Bar
    from rich.progress import TaskID

WAIT_S = 1.0  # work that ends before shows nothing
EVERY_S = 0.1


@contextmanager
def metered(*, enabled: bool | None = None) -> Iterator[Progress]:
    """Counters for a long operation, shown on standard error where that is a terminal."""
    progress = Progress()
    if enabled is None:
        enabled = sys.stderr.isatty()
    if not enabled:
        yield progress
        return
    done = threading.Event()
    thread = threading.Thread(target=_show, args=(progress, done), name="meter", daemon=True)
    thread.start()
    try:
        yield progress
    finally:
        done.set()
        thread.join()


def _show(progress: Progress, done: threading.Event) -> None:
    if done.wait(WAIT_S):
        return
    from rich.console import Console  # here: slow to import, and most commands are short
    from rich.progress import (
        BarColumn,
        SpinnerColumn,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
        TransferSpeedColumn,
    )
    from rich.progress import Progress as Bars

    columns = (
        SpinnerColumn(),
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        TextColumn("{task.fields[told]}", markup=False),
        TransferSpeedColumn(),
        TimeElapsedColumn(),
        TextColumn("left"),
        TimeRemainingColumn(),
    )
    with Bars(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("", total=None, told="")
        while not done.wait(EVERY_S):
            _update(bar, task, progress)


def _update(bar: Bar, task: TaskID, progress: Progress) -> None:
    bar.update(
        task,
        description=progress.phase,
        total=progress.bytes_total or None,
        completed=progress.bytes_done,
        told=told(progress),
    )


def told(progress: Progress) -> str:
    """``1,024/17,614 files  12.0 MiB/300.0 MiB``; totals only where they are known."""
    files = f"{progress.files_done:,}"
    if progress.files_total:
        files += f"/{progress.files_total:,}"
    amount = size(progress.bytes_done)
    if progress.bytes_total:
        amount += f"/{size(progress.bytes_total)}"
    sent = f"  {size(progress.bytes_sent)} transferred" if progress.bytes_sent else ""
    return f"{files} files  {amount}{sent}"
