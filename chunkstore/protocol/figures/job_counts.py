"""Counters of what the jobs of a node read, in files that its mounts share with readers.

Each mount has one file (figure_files). Its head has the magic and the mount's device. Then comes a
word for each of PROCESSES processes of the mount: the number of its rows that were ever used. Then
comes a word for each process, and one for all others together: the time until which it could not
count. Each process has PROCESS_ROWS rows of ROW_WORDS words of 8 bytes, to which it alone writes.
Its first row counts reads without a row of their own, or of unknown jobs; each other row counts one
job. Only the rows of processes that have existed take space.
"""

from __future__ import annotations

import array
import os
import struct
from collections.abc import Iterator
from contextlib import suppress
from enum import IntEnum
from pathlib import Path
from typing import NamedTuple

from lodefs.chunkstore.errors import UnknownFormat
from lodefs.chunkstore.protocol.figures.figure_files import FigureFile, living

ENDING = ".jobs"
MAGIC = b"lodefsJ2"
HEAD_BYTES = 4096
PROCESSES = 64
PROCESS_ROWS = 256
ROW_WORDS = 8
PROCESS_WORDS = PROCESS_ROWS * ROW_WORDS
FILE_BYTES = HEAD_BYTES + 8 * PROCESSES * PROCESS_WORDS
DEVICE_WORD = 1  # of the head: major and minor number, 4 bytes each; 0: unknown
USED_WORD = 8  # the first process's
GAP_WORD = USED_WORD + PROCESSES  # the first process's: whole seconds, Unix time
GAPS = PROCESSES + 1  # the last word is for all processes without rows
GAP_NOW = (1 << 64) - 1  # the process cannot count now
RECORDS = Path("/run/lodefs/jobs")  # has JOB.json until the counters of a job were reported (slurm)
OTHERS = 0  # stands for jobs without rows of their own; Slurm's numbers begin at 1
JOB_MAX = (1 << 32) - 1
_DEVICE = struct.Struct("=II")


class JobColumn(IntEnum):
    """A word of a row. Bytes are by their origin, as in mount_counts.Column."""

    JOB = 0  # OTHERS in the first row of a process
    LAST = 1  # when it last counted: whole seconds, Unix time; 0: the row is unused
    DIRECT_BYTES = 2
    CACHE_BYTES = 3
    PEERS_BYTES = 4
    STORE_BYTES = 5
    KERNEL_OPENS = 6
    KERNEL_OPENED_BYTES = 7


FIGURES = tuple(JobColumn)[JobColumn.DIRECT_BYTES :]


class JobReads(NamedTuple):
    """Counts of a job's reads through mounts: bytes by their origin; how many files it opened that
    the kernel then read by itself, and their sizes. ``last_s`` is when it last read (Unix time,
    accurate to a few seconds)."""

    direct_bytes: int = 0
    cache_bytes: int = 0
    peers_bytes: int = 0
    store_bytes: int = 0
    kernel_opens: int = 0
    kernel_opened_bytes: int = 0
    last_s: int = 0

    @property
    def figures(self) -> tuple[int, ...]:
        """Returns all fields that only grow."""
        return self[:-1]

    def plus(self, other: JobReads) -> JobReads:
        """Returns the sum of both."""
        sums = (one + two for one, two in zip(self.figures, other.figures, strict=True))
        return JobReads._make((*sums, max(self.last_s, other.last_s)))

    def beyond(self, before: JobReads) -> JobReads:
        """Returns what was counted since ``before``; 0 for a field that has become smaller."""
        more = (max(0, one - two) for one, two in zip(self.figures, before.figures, strict=True))
        return JobReads._make((*more, self.last_s))


Jobs = dict[int, JobReads]
"""The reads of each job through one mount, by job number; and OTHERS."""


class MountJobs(NamedTuple):
    """The content of one mount's file. ``name`` belongs to no other mount ever. ``device`` is
    MAJOR:MINOR, or "" if unknown. ``gap_s`` is the Unix time until which some process could not
    count: GAP_NOW if one cannot now, 0 if all always could."""

    name: str
    jobs: Jobs
    device: str
    gap_s: int


def encode_head(device: str = "") -> bytes:
    """Returns the head of a new file, for a mount with the device MAJOR:MINOR."""
    major, _, minor = device.partition(":")
    return (MAGIC + _DEVICE.pack(int(major or 0), int(minor or 0))).ljust(HEAD_BYTES, b"\0")


def device_of(head: bytes) -> str:
    """Returns the device in the head of such a file; "" if unknown."""
    major, minor = _DEVICE.unpack_from(head, 8 * DEVICE_WORD)
    return f"{major}:{minor}" if major or minor else ""


def gap_of(head: bytes) -> int:
    """Returns until when some process could not count, as in ``MountJobs``."""
    return max(array.array("Q", head)[GAP_WORD : GAP_WORD + GAPS])


def rows_used(head: bytes) -> list[int]:
    """Returns the rows in use, by process. Raises: UnknownFormat if this is not such a head."""
    if len(head) < HEAD_BYTES or not head.startswith(MAGIC):
        raise UnknownFormat("unknown counters of jobs")
    words = array.array("Q", head)
    return [min(used, PROCESS_ROWS) for used in words[USED_WORD : USED_WORD + PROCESSES]]


def decode(rows: bytes) -> Jobs:
    """Returns the reads of each job, from the used rows of one process."""
    words = array.array("Q", rows[: len(rows) // (8 * ROW_WORDS) * 8 * ROW_WORDS])
    found: Jobs = {}
    for at in range(0, len(words), ROW_WORDS):
        job, last_s = words[at + JobColumn.JOB], words[at + JobColumn.LAST]
        if last_s and (job == OTHERS) == (at == 0):
            reads = JobReads._make((*(words[at + word] for word in FIGURES), last_s))
            found[job] = found.get(job, JobReads()).plus(reads)
    return found


def read_files(directory: Path) -> Iterator[MountJobs]:
    """Yields the counters of each living mount of root in a directory. Files of other users could
    claim anything about any job."""
    for file in living(directory, ENDING, sweep=True):
        if file.uid in (0, os.geteuid()):
            with suppress(OSError, UnknownFormat):
                yield _read(file)


def _read(file: FigureFile) -> MountJobs:
    head = os.pread(file.fd, HEAD_BYTES, 0)
    found: Jobs = {}
    for slot, used in enumerate(rows_used(head)):
        if used:
            rows = os.pread(file.fd, 8 * ROW_WORDS * used, HEAD_BYTES + 8 * slot * PROCESS_WORDS)
            add_all(found, decode(rows))
    return MountJobs(file.name, found, device_of(head), gap_of(head))


def add_all(sums: Jobs, more: Jobs) -> None:
    """Adds the reads of jobs to ``sums``."""
    for job, reads in more.items():
        sums[job] = sums.get(job, JobReads()).plus(reads)
