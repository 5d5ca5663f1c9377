"""Counts a mount's reads for each of a node's jobs (protocol.figures.job_counts).

A read belongs to the job of the process that the kernel's request names. The control group of a
process, into which Slurm has put it and which it cannot leave, identifies its job
(docs/decisions/0050-bytes-of-jobs.md). Reading that may wait for locks of the kernel whose holders
may wait for this mount. So a separate thread does it, which answers no requests and holds no lock.
"""

from __future__ import annotations

import mmap
import os
import re
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from threading import Event, Lock, Thread

from lodefs.chunkstore.protocol.figures import figure_files
from lodefs.chunkstore.protocol.figures.job_counts import (
    ENDING,
    FIGURES,
    FILE_BYTES,
    GAP_NOW,
    GAP_WORD,
    GAPS,
    HEAD_BYTES,
    JOB_MAX,
    MAGIC,
    PROCESS_ROWS,
    PROCESS_WORDS,
    PROCESSES,
    RECORDS,
    ROW_WORDS,
    USED_WORD,
    JobColumn,
    encode_head,
)
from lodefs.chunkstore.protocol.figures.mount_counts import Column
from lodefs.mount.shm.traffic_counters import READS_OF, RowCounter

REMEMBERED_S = 5.0  # how long the job of a process is cached: its number may be reused
IDLE_S = 300.0  # after this time without reads, a job without a record may lose its row
WAITING_MAX = 1000  # processes whose jobs must be looked up
_NOBODY = -1
_EXITING = 4  # PF_EXITING of linux/sched.h, in proc_pid_stat(5)
# Slurm's plugins for both versions of control groups use these names: /slurm/uid_5/job_7/step_0 of
# the freezer, and /system.slice/slurmstepd.scope/job_7/step_0. Several slurmds of one machine add
# their names. A container adds its own groups before the freezer's, of which systemd gives none to
# users. In the second version it gives users groups below user.slice and in services, whose names
# they choose.
_PLACE_1 = rb"(?:[^:\n]*,)?freezer(?:,[^:\n]*)?:(?:/(?!user[-.@/])[^/\n]+)*?/slurm[^/\n]*/uid_\d+"
_PLACE_2 = rb":(?:/(?!user[-.])[^/\n]+\.slice)*/(?:[^/\n]+_)?slurmstepd\.scope"
_JOB = re.compile(
    rb"^\d+:(?:" + _PLACE_1 + rb"|" + _PLACE_2 + rb")/job_(\d{1,10})(?=[/\n])", re.MULTILINE
)
_WORD_OF = {
    Column.DIRECT_READS.value: JobColumn.DIRECT_BYTES.value,
    Column.CACHE_READS.value: JobColumn.CACHE_BYTES.value,
    Column.PEERS_READS.value: JobColumn.PEERS_BYTES.value,
    Column.STORE_READS.value: JobColumn.STORE_BYTES.value,
}
_WORDS = tuple(_WORD_OF.get(column, 0) for column in range(max(_WORD_OF) + 1))  # faster
_OPENS = {
    Column.KERNEL_OPENS: JobColumn.KERNEL_OPENS.value,
    Column.KERNEL_OPENED_BYTES: JobColumn.KERNEL_OPENED_BYTES.value,
}

JobOf = Callable[[int], int | None]
"""The job of a process, or of one of its threads; 0: no job; None: the process has ended."""


def job_of(pid: int, proc: Path = Path("/proc")) -> int | None:
    """Implements JobOf by /proc/PID/cgroup. For that, Linux before 6.8 takes a lock, and the
    process that holds it may wait for the memory map of one that waits for a page of this mount."""
    try:
        with open(f"{proc}/{pid}/cgroup", "rb") as file:
            found = _JOB.search(file.read())
        if found:
            return int(found[1])
        with open(f"{proc}/{pid}/stat", "rb") as file:  # an ending process is shown without a group
            flags = int(file.read().rpartition(b")")[2].split()[6])
    except (OSError, ValueError, IndexError):
        return None
    return None if flags & _EXITING else 0


def is_told(job: int, records: Path = RECORDS) -> bool:
    """Whether a job's counts are complete: it has no datasets, or its epilog has run."""
    return not os.path.exists(records / f"{job}.json")  # never raises


class JobTable:
    """The table in the file ``fd``, which stays the caller's."""

    def __init__(self, fd: int) -> None:
        self._fd = fd
        memory = memoryview(mmap.mmap(fd, FILE_BYTES))
        self._is_known = bytes(memory[: len(MAGIC)]) == MAGIC
        head = memory[:HEAD_BYTES].cast("Q")
        self._used = head[USED_WORD : USED_WORD + PROCESSES]
        self._gaps = head[GAP_WORD : GAP_WORD + GAPS]
        self._words = memory[HEAD_BYTES:].cast("Q")

    @staticmethod
    def create(directory: Path, device: str = "") -> int:
        """Returns a file for an empty table of a mount with the device MAJOR:MINOR, locked for as
        long as any process has it. Raises: OSError."""
        with suppress(Exception):  # a mount does not depend on what others left there
            for _ in figure_files.living(directory, ENDING, sweep=True):
                pass
        fd = figure_files.create(directory, ENDING, encode_head(device), HEAD_BYTES)
        os.ftruncate(fd, FILE_BYTES)
        return fd

    def rows(self, slot: int) -> JobRows | None:
        """Returns the rows of the process in a slot; None if it has none, or no space is left,
        which the table then says."""
        if not self._is_known:
            return None
        if not 0 <= slot < PROCESSES:
            self.counts_not(PROCESSES)
            return None
        first = slot * PROCESS_WORDS
        try:  # writing to memory on a full disk would kill the process
            os.posix_fallocate(self._fd, HEAD_BYTES + 8 * first, 8 * PROCESS_WORDS)
        except OSError:
            self.counts_not(slot)
            return None
        if self._gaps[slot] == GAP_NOW:  # left by the previous process
            self._gaps[slot] = int(time.time()) + 1
        return JobRows(self._words[first : first + PROCESS_WORDS], self._used[slot : slot + 1])

    def counts_not(self, slot: int) -> None:
        """Records in the table that the process in a slot cannot count."""
        self._gaps[slot] = GAP_NOW

    def counter(self, slot: int, job_of: JobOf = job_of) -> JobCounter | None:
        """Returns a counter for the process in a slot, if it has rows."""
        rows = self.rows(slot)
        return None if rows is None else JobCounter(rows, job_of)


class JobRows:
    """The rows of one process, for one of its threads. A row is its first word; 0: other reads."""

    def __init__(
        self,
        words: memoryview[int],
        used: memoryview[int],
        is_told: Callable[[int], bool] = is_told,
    ) -> None:
        self.words, self._used, self._is_told = words, used, is_told
        used[0] = max(used[0], 1)
        begun = range(ROW_WORDS, used[0] * ROW_WORDS, ROW_WORDS)
        self._rows = {words[at + JobColumn.JOB]: at for at in begun if words[at + JobColumn.LAST]}

    def of(self, job: int) -> int:
        """Returns the row of a job that reads now, or that of other reads if none is left."""
        at = self._rows.get(job)
        if at is None:
            at = self._free()
            if at is None:
                return 0
            self.words[at + JobColumn.JOB] = job
            self._rows[job] = at
        self.words[at + JobColumn.LAST] = int(time.time())
        return at

    def _free(self) -> int | None:
        """Returns an unused row without counts."""
        used = self._used[0]
        if used < PROCESS_ROWS:
            self._used[0] = used + 1
            return used * ROW_WORDS
        before_s = time.time() - IDLE_S
        for job, at in self._rows.items():
            if self.words[at + JobColumn.LAST] < before_s and self._is_told(job):
                for word in (JobColumn.LAST, *FIGURES):  # readers ignore a row without LAST
                    self.words[at + word] = 0
                del self._rows[job]
                return at
        return None


class JobCounter:
    """Counts for one process of a mount. Any of its threads may add; one thread calls
    ``settle``."""

    def __init__(
        self,
        rows: JobRows,
        job_of: JobOf,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._rows, self._words, self._job_of, self._clock = rows, rows.words, job_of, clock
        self._lock = Lock()  # held for a few words, never during a system call
        self._found: dict[int, int] = {}  # rows by process
        self._before: dict[int, int] = {}  # the same, from some seconds ago
        self._waiting: dict[int, list[int]] = {}  # words of a row, by process
        self._unknown = Event()
        self._forget_s = 0.0

    def add(self, pid: int, word: int, amount: int) -> None:
        """Counts a read for the job of a process."""
        with self._lock:
            at = self._found.get(pid)
            if at is None:
                self._wait(pid, word, amount)
            elif at >= 0:
                self._words[at + word] += amount

    def _wait(self, pid: int, word: int, amount: int) -> None:
        if not pid:  # the mount's process namespace does not show it
            return
        words = self._waiting.get(pid)
        if words is None and len(self._waiting) < WAITING_MAX:
            self._waiting[pid] = words = [0] * ROW_WORDS
            self._unknown.set()
        if words is not None:
            words[word] += amount
        else:
            self._words[word] += amount
            self._words[JobColumn.LAST] = int(time.time())

    def start(self) -> None:
        """Settles from now on, for as long as this process lives. Raises: RuntimeError if no thread
        can be started."""
        Thread(target=self._settle_all, name="jobs", daemon=True).start()

    def _settle_all(self) -> None:
        while True:
            self._unknown.wait(REMEMBERED_S if self._found else None)
            self._unknown.clear()
            self.settle()

    def settle(self) -> None:
        """Counts what waits, and forgets the jobs of processes looked up some seconds ago."""
        if self._clock() >= self._forget_s:
            self._forget_s = self._clock() + REMEMBERED_S
            with self._lock:
                self._before, self._found = self._found, {}
        for pid in list(self._waiting):
            at = self._row_of(pid)
            with self._lock:
                more = self._waiting.pop(pid)
                if at is None:  # it has ended: its number may be reused now
                    at = self._before.get(pid, 0)
                else:
                    self._found[pid] = at
                if at != _NOBODY:
                    for word in FIGURES:
                        self._words[at + word] += more[word]
                if not at:
                    self._words[JobColumn.LAST] = int(time.time())

    def _row_of(self, pid: int) -> int | None:
        job = self._job_of(pid)
        if job is None:
            return None
        return self._rows.of(job) if 0 < job <= JOB_MAX else _NOBODY


class RequestCounter:
    """Counts the reads of one thread: for the mount, and for the job of the process ``pid()`` whose
    request it answers."""

    __slots__ = ("_jobs", "_pid", "_row")

    def __init__(self, row: RowCounter, jobs: JobCounter, pid: Callable[[], int]) -> None:
        self._row, self._jobs, self._pid = row, jobs, pid

    def read(self, reads: int, size_bytes: int) -> None:
        """See RowCounter."""
        self._row.read(reads, size_bytes)
        self._jobs.add(self._pid(), _WORDS[reads], size_bytes)

    def brought(self, origin: bytes, size_bytes: int) -> None:
        """See RowCounter."""
        self.read(READS_OF.get(origin, Column.CACHE_READS), size_bytes)

    def add(self, column: Column, amount: int) -> None:
        """See RowCounter; jobs count only opens."""
        self._row.add(column, amount)
        word = _OPENS.get(column)
        if word is not None:
            self._jobs.add(self._pid(), word, amount)
