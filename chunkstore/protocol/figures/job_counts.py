"""What the jobs of a node read, in files that its mounts share with who wants to know.

A mount has one file (figure_files). Its head has the magic, the mount's device, and then a word for
each of PROCESSES processes of the mount: how many of its rows were ever used; then one for each,
and for all others together: until when it could not count. Each process has PROCESS_ROWS rows of
ROW_WORDS words of 8 bytes, in which it alone writes. Its first row counts what found no row of its
own, or whose job could not be known any more; each other one a job. Only the space of processes
that there have been is taken.
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
DEVICE_WORD = 1  # of the head: major and minor number, of 4 bytes each; 0: not told
USED_WORD = 8  # the first process's
GAP_WORD = USED_WORD + PROCESSES  # the first process's: whole seconds, Unix
GAPS = PROCESSES + 1  # the last is that of all processes without rows
GAP_NOW = (1 << 64) - 1  # it does not count
RECORDS = Path("/run/lodefs/jobs")  # has JOB.json until the figures of a job were told (slurm)
OTHERS = 0  # stands for jobs without rows of their own; Slurm's numbers begin at 1
JOB_MAX = (1 << 32) - 1
_DEVICE = struct.Struct("=II")


class JobColumn(IntEnum):
    """A word of a row. Bytes are by where they came from, as mount_counts.Column has them."""

    JOB = 0  # OTHERS in the first row of a process
    LAST = 1  # when it counted last: whole seconds, Unix; 0: the row is nobody's
    DIRECT_BYTES = 2
    CACHE_BYTES = 3
    PEERS_BYTES = 4
    STORE_BYTES = 5
    KERNEL_OPENS = 6
    KERNEL_OPENED_BYTES = 7


FIGURES = tuple(JobColumn)[JobColumn.DIRECT_BYTES :]


class JobReads(NamedTuple):
    """What a job read through mounts: bytes by where they came from; how many files it opened that
    the kernel then read by itself, and their sizes. ``last_s``: when it read last (Unix), give or
    take some seconds."""

    direct_bytes: int = 0
    cache_bytes: int = 0
    peers_bytes: int = 0
    store_bytes: int = 0
    kernel_opens: int = 0
    kernel_opened_bytes: int = 0
    last_s: int = 0

    @property
    def figures(self) -> tuple[int, ...]:
        """All that only grows."""
        return self[:-1]

    def plus(self, other: JobReads) -> JobReads:
        """Of both together."""
        sums = (one + two for one, two in zip(self.figures, other.figures, strict=True))
        return JobReads._make((*sums, max(self.last_s, other.last_s)))

    def beyond(self, before: JobReads) -> JobReads:
        """What was counted since; of a figure that is smaller than before, nothing."""
        more = (max(0, one - two) for one, two in zip(self.figures, before.figures, strict=True))
        return JobReads._make((*more, self.last_s))


Jobs = dict[int, JobReads]
"""What each job read through one mount, by its number; and OTHERS."""


class MountJobs(NamedTuple):
    """What the file of one mount tells. ``name``: no other mount ever has it; ``device``:
    MAJOR:MINOR, "" where that is not told; ``gap_s``: until when (Unix) one of its processes could
    not count, GAP_NOW where one cannot, 0 where all always could."""

    name: str
    jobs: Jobs
    device: str
    gap_s: int


def encode_head(device: str = "") -> bytes:
    """The head of a new file, of a mount with the device MAJOR:MINOR."""
    major, _, minor = device.partition(":")
    return (MAGIC + _DEVICE.pack(int(major or 0), int(minor or 0))).ljust(HEAD_BYTES, b"\0")


def device_of(head: bytes) -> str:
    """The device in the head of such a file; "" where it is not told."""
    major, minor = _DEVICE.unpack_from(head, 8 * DEVICE_WORD)
    return f"{major}:{minor}" if major or minor else ""


def gap_of(head: bytes) -> int:
    """Until when one of the processes could not count, as ``MountJobs`` has it."""
    return max(array.array("Q", head)[GAP_WORD : GAP_WORD + GAPS])


def rows_used(head: bytes) -> list[int]:
    """Rows in use, by process. Raises: UnknownFormat if this is not the head of such a file."""
    if len(head) < HEAD_BYTES or not head.startswith(MAGIC):
        raise UnknownFormat("no figures of jobs that this lodefs knows")
    words = array.array("Q", head)
    return [min(used, PROCESS_ROWS) for used in words[USED_WORD : USED_WORD + PROCESSES]]


def decode(rows: bytes) -> Jobs:
    """What each job read, of the used rows of one process."""
    words = array.array("Q", rows[: len(rows) // (8 * ROW_WORDS) * 8 * ROW_WORDS])
    found: Jobs = {}
    for at in range(0, len(words), ROW_WORDS):
        job, last_s = words[at + JobColumn.JOB], words[at + JobColumn.LAST]
        if last_s and (job == OTHERS) == (at == 0):
            reads = JobReads._make((*(words[at + word] for word in FIGURES), last_s))
            found[job] = found.get(job, JobReads()).plus(reads)
    return found


def read_files(directory: Path) -> Iterator[MountJobs]:
    """Of each living mount of root that counts in a directory. Other users' files could say
    anything of any job."""
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
    """Add what jobs read to ``sums``."""
    for job, reads in more.items():
        sums[job] = sums.get(job, JobReads()).plus(reads)
