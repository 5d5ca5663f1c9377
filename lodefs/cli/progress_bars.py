"""Shows a Progress on a terminal during long work, and nothing anywhere else."""

from __future__ import annotations

import gc
import math
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import TYPE_CHECKING

from lodefs.chunkstore.system.progress import Progress
from lodefs.cli.text import size

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress as Bar
    from rich.progress import TaskID

YOUNG_MAX = 50_000  # allocations between two searches for garbage
WAIT_S = 1.0  # shorter work shows nothing
EVERY_S = 0.1
BAR_CHARS = 20
BLANKS_CHARS = 5  # the spinner and the space between columns
SPACE = "  "
ORDER = ("files", "amount", "sent", "rate", "left")


@contextmanager
def show_progress(*, enabled: bool | None = None) -> Iterator[Progress]:
    """Counters for a long operation, shown on standard error if that is a terminal. Meanwhile
    Python rarely searches for garbage: a walk through a store makes millions of objects and hardly
    a cycle, and searching took a sixth of its time."""
    progress = Progress()
    with _seldom_searched():
        if sys.stderr.isatty() if enabled is None else enabled:
            with _shown(progress):
                yield progress
        else:
            yield progress


@contextmanager
def _seldom_searched() -> Iterator[None]:
    before = gc.get_threshold()
    gc.set_threshold(YOUNG_MAX, *before[1:])
    try:
        yield
    finally:
        gc.set_threshold(*before)


@contextmanager
def _shown(progress: Progress) -> Iterator[None]:
    done = threading.Event()
    thread = threading.Thread(target=_show, args=(progress, done), name="meter", daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()


def _show(progress: Progress, done: threading.Event) -> None:
    if done.wait(WAIT_S):
        return
    from rich.console import Console  # here: slow to import, and most commands are short

    with bars(Console(stderr=True)) as bar:
        task = bar.add_task("", total=None, words="")
        while not done.wait(EVERY_S):
            _update(bar, task, progress)


def bars(console: Console) -> Bar:
    """Returns the line that is drawn on the terminal."""
    from rich.progress import BarColumn, SpinnerColumn, TextColumn
    from rich.progress import Progress as Bars

    columns = (
        SpinnerColumn(),
        TextColumn("{task.description}", markup=False),
        BarColumn(BAR_CHARS),
        TextColumn("{task.fields[words]}", markup=False),
    )
    return Bars(*columns, console=console, transient=True)


def _update(bar: Bar, task: TaskID, progress: Progress) -> None:
    bar.update(task, total=progress.bytes_total or None, completed=progress.bytes_done)
    now = bar.tasks[task]
    room_chars = bar.console.width - BAR_CHARS - BLANKS_CHARS
    phase = progress.phase[:room_chars]
    words = progress_text(progress, now.speed, now.time_remaining, room_chars - len(phase))
    bar.update(task, description=phase, words=words)


def progress_text(
    progress: Progress, rate: float | None, left_s: float | None, room_chars: int
) -> str:
    """Returns text such as ``1,024/17,614 files  12.0 MiB/300.0 MiB  8.0 MiB/s  left 0:00:36``: all
    that is known and fits. ``rate``: bytes a second."""
    by_weight = {
        "amount": _part(progress.bytes_done, progress.bytes_total, size),
        "left": f"left {timedelta(seconds=math.ceil(left_s))}" if left_s else "",
        "rate": f"{size(int(rate))}/s" if rate else "",
        "files": _part(progress.files_done, progress.files_total, "{:,}".format, " files"),
        "sent": f"{size(progress.bytes_sent)} transferred" if progress.bytes_sent else "",
    }
    chosen: dict[str, str] = {}
    for name, words in by_weight.items():
        if words and len(SPACE.join([*chosen.values(), words])) > room_chars:
            break
        if words:
            chosen[name] = words
    return SPACE.join(chosen[name] for name in ORDER if name in chosen)


def _part(done: int, total: int, show: Callable[[int], str], unit: str = "") -> str:
    """Returns ``3/7 files``; without a total ``3 files``; nothing if neither is known."""
    if not done and not total:
        return ""
    return show(done) + (f"/{show(total)}" if total else "") + unit
