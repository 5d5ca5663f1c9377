"""The line that the epilog logs of a job: what it read on this node, and where that came from."""

from __future__ import annotations

import syslog
from pathlib import Path

from lodefs.chunkstore.nodeapi.figures.job_counts import JobReads, read_files, reads_of
from lodefs.slurm.job_record import JobRecord


def report_of(record: JobRecord, figures: Path) -> str:
    """The line, while the mounts of the job are there, which count in the directory ``figures``.
    "" where nothing was mounted for it."""
    if not record.datasets or record.problem:
        return ""
    return line(record, reads_of(record.job, read_files(figures)))


def line(record: JobRecord, reads: JobReads) -> str:
    """What the record's job read, in words that programs can take apart."""
    figures = {
        "uid": record.uid,
        "cache_bytes": reads.direct_bytes + reads.cache_bytes,
        "peers_bytes": reads.peers_bytes,
        "store_bytes": reads.store_bytes,
        "passthrough_opens": reads.kernel_opens,
        "passthrough_opened_bytes": reads.kernel_opened_bytes,
    }
    return f"job {record.job} read: {' '.join(f'{name}={n}' for name, n in figures.items())}"


def log(text: str) -> None:
    """To the system's log: what an epilog writes may go nowhere."""
    syslog.openlog("lodefs", syslog.LOG_PID, syslog.LOG_DAEMON)
    syslog.syslog(syslog.LOG_INFO, text)
