"""What a mount counts for each of a node's jobs (nodeapi.figures.job_counts).

A read is the job's whose process asked for it, as the kernel's request says. Of which job a process
is, its control group tells, into which Slurm has put it and which it cannot leave
(docs/decisions/0050-bytes-of-jobs.md).
"""

from __future__ import annotations

import fcntl
import mmap
import re
import time
from collections.abc import Callable
from pathlib import Path
from threading import Lock

from lodefs.chunkstore.nodeapi.figures import figure_files
from lodefs.chunkstore.nodeapi.figures.job_counts import (
    ENDING,
    FIGURES,
    FILE_BYTES,
    HEAD_BYTES,
    JOB_MAX,
    MAGIC,
    PROCESSES,
    ROW_WORDS,
    ROWS,
    USED_WORD,
    Word,
    encode_head,
)
from lodefs.chunkstore.nodeapi.figures.mount_counts import Column
from lodefs.mount.shm.traffic_counters import READS_OF, RowCounter

REMEMBERED_S = 5.0  # of which job a process is: its number may be another's after that
IDLE_S = 3600.0  # after so long without reads, a job's row may become another's
_NOBODY = -1
# As Slurm's plugins for both versions of control groups name them: /slurm/uid_5/job_7/step_0, and
# /system.slice/slurmstepd.scope/job_7/step_0. Several slurmds of one machine add their names.
_JOB = re.compile(rb"(?:/slurm[^/\n]*/uid_\d+|slurmstepd\.scope)/job_(\d{1,10})(?=[/\n])")
_WORD_OF = {
    Column.DIRECT_READS.value: Word.DIRECT_BYTES.value,
    Column.CACHE_READS.value: Word.CACHE_BYTES.value,
    Column.PEERS_READS.value: Word.PEERS_BYTES.value,
    Column.STORE_READS.value: Word.STORE_BYTES.value,
}
_OPENS = {
    Column.KERNEL_OPENS: Word.KERNEL_OPENS.value,
    Column.KERNEL_OPENED_BYTES: Word.KERNEL_OPENED_BYTES.value,
}

JobOf = Callable[[int], int]
"""The job of a process, or of one of its threads; 0: of none."""


def job_of(pid: int, proc: Path = Path("/proc")) -> int:
    """As JobOf, by /proc/PID/cgroup. The kernel writes that without the process's memory map, for
    which a process that waits for a page of this mount would make the caller wait in turn."""
    try:
        with open(f"{proc}/{pid}/cgroup", "rb") as file:
            found = _JOB.search(file.read())
    except OSError:  # it has ended, or cannot be seen from here
        return 0
    return int(found[1]) if found else 0


class JobTable:
    """The table in the file ``fd``, which stays the caller's."""

    def __init__(self, fd: int) -> None:
        self._fd = fd
        memory = memoryview(mmap.mmap(fd, FILE_BYTES))
        self._is_known = bytes(memory[: len(MAGIC)]) == MAGIC
        self._head = memory[:HEAD_BYTES].cast("Q")
        self.words = memory[HEAD_BYTES:].cast("Q")

    @staticmethod
    def create(directory: Path) -> int:
        """A file for an empty table, locked for as long as anybody has it. Raises: OSError."""
        return figure_files.create(directory, ENDING, encode_head(), FILE_BYTES)

    def counter(self, slot: int, job_of: JobOf = job_of) -> JobCounter | None:
        """Counts for the process in a slot, if that has a row."""
        if not (self._is_known and 0 <= slot < PROCESSES):
            return None
        return JobCounter(self, slot, job_of)

    def rows_of(self, slot: int) -> dict[int, int]:
        """The first word of each row in which the process in a slot writes, by job."""
        end = (PROCESSES + self._head[USED_WORD]) * ROW_WORDS
        keys = ((at, self.words[at]) for at in range(PROCESSES * ROW_WORDS, end, ROW_WORDS))
        return {key & JOB_MAX: at for at, key in keys if key >> 32 == slot + 1}

    def claim(self, key: int) -> int | None:
        """The first word of a row that nobody has had; None where there is none left."""
        fcntl.lockf(self._fd, fcntl.LOCK_EX)  # processes that begin together claim together
        try:
            row = PROCESSES + self._head[USED_WORD]
            if row == ROWS:
                return None
            self.words[row * ROW_WORDS + Word.KEY] = key
            self._head[USED_WORD] += 1
        finally:
            fcntl.lockf(self._fd, fcntl.LOCK_UN)
        return row * ROW_WORDS


class JobCounter:
    """Counts for one process of a mount. For any thread of that."""

    def __init__(
        self,
        table: JobTable,
        slot: int,
        job_of: JobOf,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._table, self._words, self._slot = table, table.words, slot
        self._job_of, self._clock = job_of, clock
        self._lock = Lock()
        self._rows = table.rows_of(slot)  # first words, by job
        self._found: dict[int, int] = {}  # the same, by process
        self._forget_s = 0.0

    def add(self, pid: int, word: int, amount: int) -> None:
        """Count for the job of a process."""
        if not pid:  # one that the mount's process namespace does not show
            return
        with self._lock:
            if self._clock() >= self._forget_s:
                self._forget_s = self._clock() + REMEMBERED_S
                self._found.clear()
            at = self._found.get(pid)
            if at is None:
                self._found[pid] = at = self._look(pid)
            if at != _NOBODY:
                self._words[at + word] += amount

    def _look(self, pid: int) -> int:
        job = self._job_of(pid)
        if not 0 < job <= JOB_MAX:
            return _NOBODY
        at = self._rows.get(job)
        if at is None:
            at = self._new_row(job)
        self._words[at + Word.LAST] = int(time.time())
        return at

    def _new_row(self, job: int) -> int:
        """That of others, where there is none."""
        key = (self._slot + 1) << 32 | job
        at = self._table.claim(key)
        if at is None:
            at = self._take_idle()
            if at is None:
                return self._slot * ROW_WORDS
            self._words[at + Word.KEY] = key
        self._rows[job] = at
        return at

    def _take_idle(self) -> int | None:
        """A row of this process whose job has not read for long. Its figures are gone."""
        words, before_s = self._words, time.time() - IDLE_S
        for job, at in self._rows.items():
            if words[at + Word.LAST] < before_s:
                for word in (Word.LAST, *FIGURES):  # without LAST it is left out by who reads
                    words[at + word] = 0
                del self._rows[job]
                return at
        return None


class RequestCounter:
    """Counts what one thread reads: for the mount, and for the job of the process ``pid()`` whose
    request it answers."""

    __slots__ = ("_jobs", "_pid", "_row")

    def __init__(self, row: RowCounter, jobs: JobCounter, pid: Callable[[], int]) -> None:
        self._row, self._jobs, self._pid = row, jobs, pid

    def read(self, reads: int, size_bytes: int) -> None:
        """As RowCounter."""
        self._row.read(reads, size_bytes)
        self._jobs.add(self._pid(), _WORD_OF[reads], size_bytes)

    def brought(self, origin: bytes, size_bytes: int) -> None:
        """As RowCounter."""
        self.read(READS_OF.get(origin, Column.CACHE_READS), size_bytes)

    def add(self, column: Column, amount: int) -> None:
        """As RowCounter; a job has opens alone."""
        self._row.add(column, amount)
        word = _OPENS.get(column)
        if word is not None:
            self._jobs.add(self._pid(), word, amount)
