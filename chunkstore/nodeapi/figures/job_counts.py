"""What the jobs of a node read, in files that its mounts share with who wants to know.

A mount has one file (figure_files). After a head, which has the magic and how many rows were ever
used, come ROWS rows of ROW_WORDS words of 8 bytes. A row counts one job for one process of the
mount, which alone writes there; the first PROCESSES rows count what found no row of its own.
"""

from __future__ import annotations

import array
import os
import struct
from collections.abc import Iterable, Iterator
from contextlib import suppress
from enum import IntEnum
from pathlib import Path
from typing import NamedTuple

from lodefs.chunkstore.nodeapi.figures.figure_files import living

ENDING = ".jobs"
MAGIC = b"lodefsJ1"
HEAD_BYTES = 64
PROCESSES = 64
ROWS = 1024
ROW_WORDS = 8
FILE_BYTES = HEAD_BYTES + 8 * ROWS * ROW_WORDS
USED_WORD = 1  # of the head: how many rows after the first PROCESSES were ever used
OTHERS = 0  # stands for jobs without rows of their own; Slurm's numbers begin at 1
JOB_MAX = (1 << 32) - 1
_HEAD = struct.Struct("=8sQ")


class Word(IntEnum):
    """A word of a row. Bytes are by where they came from, as mount_counts.Column has them."""

    KEY = 0  # the job in the lower half, the process's slot and 1 in the upper; 0: nobody's
    LAST = 1  # when it counted last: whole seconds, Unix
    DIRECT_BYTES = 2
    CACHE_BYTES = 3
    PEERS_BYTES = 4
    STORE_BYTES = 5
    KERNEL_OPENS = 6
    KERNEL_OPENED_BYTES = 7


FIGURES = tuple(Word)[Word.DIRECT_BYTES :]


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


def encode_head() -> bytes:
    """The head of a new file."""
    return _HEAD.pack(MAGIC, 0).ljust(HEAD_BYTES, b"\0")


def decode(data: bytes) -> dict[int, JobReads]:
    """What each job read, by its number, of the beginning of a file; nothing where that is none."""
    if data[: len(MAGIC)] != MAGIC:
        return {}
    words = array.array("Q")
    body = data[HEAD_BYTES:FILE_BYTES]
    words.frombytes(body[: len(body) // (8 * ROW_WORDS) * 8 * ROW_WORDS])
    found: dict[int, JobReads] = {}
    for nth in range(len(words) // ROW_WORDS):
        row = words[nth * ROW_WORDS : (nth + 1) * ROW_WORDS]
        job, last_s = row[Word.KEY] & JOB_MAX, row[Word.LAST]
        if last_s and (job == OTHERS) == (nth < PROCESSES):
            reads = JobReads._make((*(row[word] for word in FIGURES), last_s))
            found[job] = found.get(job, JobReads()).plus(reads)
    return found


def read_files(directory: Path) -> Iterator[tuple[int, dict[int, JobReads]]]:
    """Of each living mount of root in a directory: a number that no other file there has
    meanwhile, and what its jobs read. Other users' files could say anything of any job."""
    for file in living(directory, ENDING, sweep=True):
        if file.uid in (0, os.geteuid()):
            with suppress(OSError, struct.error):
                head = os.pread(file.fd, HEAD_BYTES, 0)
                _, used = _HEAD.unpack_from(head)
                rows = PROCESSES + min(used, ROWS - PROCESSES)
                body = os.pread(file.fd, 8 * ROW_WORDS * rows, HEAD_BYTES)
                yield os.fstat(file.fd).st_ino, decode(head + body)


def reads_of(job: int, files: Iterable[tuple[int, dict[int, JobReads]]]) -> JobReads:
    """What a job read through all these mounts."""
    found = JobReads()
    for _, jobs in files:
        found = found.plus(jobs.get(job, JobReads()))
    return found
