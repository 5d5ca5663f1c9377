"""The line that the epilog logs of a job: what it read on this node, and where that came from."""

from __future__ import annotations

import os
import socket
import time
from contextlib import suppress
from pathlib import Path

from lodefs.chunkstore.nodeapi.figures.job_counts import OTHERS, JobReads, Jobs, read_files
from lodefs.slurm.job_record import JobRecord

SYSLOG = "/dev/log"
SYSLOG_TIMEOUT_S = 1.0
_DAEMON_INFO = 30  # syslog(3)


def figures_of(job: int, figures: Path) -> dict[str, Jobs]:
    """What a job read through each mount that counts in the directory ``figures``, and what is not
    known whose it is."""
    return {
        name: {one: reads for one, reads in jobs.items() if one in (job, OTHERS)}
        for name, jobs in read_files(figures)
    }


def report_of(record: JobRecord, figures: Path) -> str:
    """The line, while the mounts of the job are there, which count in the directory ``figures``.
    "" where nothing was mounted for it."""
    if not record.datasets or record.problem:
        return ""
    found: Jobs = {}
    for name, jobs in figures_of(record.job, figures).items():
        before = record.before.get(name, {})
        for job, reads in jobs.items():
            more = reads.beyond(before.get(job, JobReads()))
            found[job] = found.get(job, JobReads()).plus(more)
    is_whole = not any(found.get(OTHERS, JobReads()).figures)
    return line(record, found.get(record.job, JobReads()), is_whole=is_whole)


def line(record: JobRecord, reads: JobReads, *, is_whole: bool = True) -> str:
    """What the record's job read, in words that programs can take apart. ``is_whole``: nothing was
    read meanwhile that may be this job's too."""
    figures = {
        "uid": record.uid,
        "cache_bytes": reads.direct_bytes + reads.cache_bytes,
        "peers_bytes": reads.peers_bytes,
        "store_bytes": reads.store_bytes,
        "passthrough_opens": reads.kernel_opens,
        "passthrough_opened_bytes": reads.kernel_opened_bytes,
    }
    read = "read" if is_whole else "read at least"
    return f"job {record.job} {read}: {' '.join(f'{name}={n}' for name, n in figures.items())}"


def log(text: str, address: str = SYSLOG) -> None:
    """To the system's log: what an epilog writes may go nowhere. A log that takes nothing is left
    alone, for which syslog(3) would wait."""
    now = time.strftime("%b %e %H:%M:%S")
    message = f"<{_DAEMON_INFO}>{now} lodefs[{os.getpid()}]: {text}"
    with suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
        sender.settimeout(SYSLOG_TIMEOUT_S)
        sender.connect(address)
        sender.send(message.encode())
