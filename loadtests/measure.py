"""Runs a command and measures it: seconds, processor seconds, memory."""

from __future__ import annotations

import os
import subprocess
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil

from loadtests.errors import LoadtestError

COMMAND_TIMEOUT_S = 1800


@dataclass(frozen=True, slots=True)
class Run:
    """One finished command. ``memory_bytes`` is the highest sum over its processes (PSS)."""

    seconds: float
    cpu_s: float
    memory_bytes: int
    output: str


class CommandError(RuntimeError):
    """A command of a benchmark failed; the text is what it printed."""


def run(
    command: Sequence[str | Path],
    *,
    env: Mapping[str, str] | None = None,
    cwd: Path | None = None,
    watch_memory: bool = False,
) -> Run:
    """Runs the command to its end. Raises: CommandError if it exits with anything but 0."""
    before = os.times()
    start = time.perf_counter()
    child = subprocess.Popen(
        [str(word) for word in command],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        cwd=cwd,
        env={**os.environ, **(env or {})},
    )
    memory = MemoryWatch(child.pid) if watch_memory else None
    output, _ = child.communicate(timeout=COMMAND_TIMEOUT_S)
    seconds = time.perf_counter() - start
    after = os.times()
    if child.returncode != 0:
        raise CommandError(f"{command[0]}: exit code {child.returncode}: {output[-2000:]}")
    cpu_s = sum(after[2:4]) - sum(before[2:4])
    return Run(seconds, cpu_s, memory.stop() if memory else 0, output)


class MemoryWatch:
    """The highest memory of a process and its children, sampled every 50 ms."""

    def __init__(self, pid: int) -> None:
        self._process = psutil.Process(pid)
        self._highest = 0
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()

    def stop(self) -> int:
        """Ends sampling. Returns the highest sum of proportional set sizes in bytes."""
        self._end.set()
        self._thread.join()
        return self._highest

    def _watch(self) -> None:
        while not self._end.wait(0.05):
            total = 0
            try:
                family = [self._process, *self._process.children(recursive=True)]
            except psutil.NoSuchProcess:
                return
            for process in family:
                try:
                    total += process.memory_full_info().pss
                except (psutil.NoSuchProcess, psutil.AccessDenied):
                    continue
            self._highest = max(self._highest, total)


def read_all(path: Path) -> int:
    """Reads a directory or file into the page cache. Returns the number of bytes."""
    if path.is_file():
        return _read(path)
    return sum(_read(Path(folder, name)) for folder, _, names in os.walk(path) for name in names)


def _read(path: Path) -> int:
    total = 0
    with path.open("rb", buffering=0) as file:
        while data := file.read(1 << 20):
            total += len(data)
    return total


def read_compared(path: Path, source: Path) -> None:
    """Reads a file by 1 MiB pieces into one buffer, and compares samples with its source. Raises:
    AssertionError."""
    buffer, at = bytearray(1 << 20), 0
    with path.open("rb", buffering=0) as file, source.open("rb", buffering=0) as wanted:
        while count := file.readinto(buffer):
            if at % (64 << 20) == 0 and os.pread(wanted.fileno(), 4096, at) != buffer[:4096]:
                raise AssertionError(f"{path}: wrong bytes at {at}")
            at += count
    if at != source.stat().st_size:
        raise AssertionError(f"{path}: {at} bytes came")


def size_of(path: Path) -> int:
    """The bytes of all files below a directory."""
    return sum(
        os.lstat(os.path.join(folder, name)).st_size
        for folder, _, names in os.walk(path)
        for name in names
    )


def check_may_drop(name: str) -> None:
    """Raises: LoadtestError if this process cannot do what ``drop_page_cache`` does."""
    if os.geteuid() != 0:
        raise LoadtestError(f"{name}: only root may drop the page cache; run it as root")


def drop_page_cache() -> None:
    """Makes the kernel drop clean pages, as if nothing had been read. Needs root."""
    os.sync()
    Path("/proc/sys/vm/drop_caches").write_text("3\n")


def load_note() -> str:
    """Returns the note that a result has of what else the machine did."""
    return f"load of the last minute: {os.getloadavg()[0]:.1f}, this included"


def disk_notes(what: str, place: Path, scratch: Path) -> list[str]:
    """Returns the note of a comparison with ``what`` at a place, if that is on another disk."""
    if os.stat(place).st_dev == os.stat(scratch).st_dev:
        return []
    return [f"{what} lies on another disk than {scratch}: use --dir"]
