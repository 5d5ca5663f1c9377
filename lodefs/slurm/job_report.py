"""The epilog's report on a job: what it read on this node, and from which source."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import msgspec

from lodefs.chunkstore.protocol.figures.job_counts import (
    OTHERS,
    JobReads,
    Jobs,
    MountJobs,
    read_files,
)
from lodefs.mount.kernel import mount_table
from lodefs.slurm.job_record import JobRecord, JobRecords

SYSLOG = "/dev/log"
SYSLOG_TIMEOUT_S = 1.0
_DAEMON_INFO = 30  # syslog(3)


class JobReport(msgspec.Struct, frozen=True):
    """Counts of a job's reads on this node; None: unknown. ``whole``: each read during the job is
    known to be its own or another's."""

    job: int
    uid: int
    whole: bool
    cache_bytes: int | None = None
    peers_bytes: int | None = None
    store_bytes: int | None = None
    passthrough_opens: int | None = None
    passthrough_opened_bytes: int | None = None

    @property
    def line(self) -> str:
        """One line that programs can parse."""
        _, _, _, *figures = self.__struct_fields__
        if self.cache_bytes is None:
            return f"job {self.job} read: not known: uid={self.uid}"
        read = "read" if self.whole else "read at least"
        words = (f"{name}={getattr(self, name)}" for name in ("uid", *figures))
        return f"job {self.job} {read}: {' '.join(words)}"


def figures_of(job: int, figures: Path) -> dict[str, Jobs]:
    """Returns the counters of a job, and those without a known job, for each mount that counts in
    the directory ``figures``."""
    return {one.name: _of_job(job, one.jobs) for one in read_files(figures)}


def _of_job(job: int, jobs: Jobs) -> Jobs:
    return {one: reads for one, reads in jobs.items() if one in (job, OTHERS)}


def devices_of(record: JobRecord, records: JobRecords) -> list[str]:
    """Returns the devices (MAJOR:MINOR) of a job's present mounts; "" for one that is gone."""
    mounted = {
        one.mountpoint: one.lower_device if one.is_writable else one.device
        for one in mount_table.read_table()
        if one.is_lodefs or one.is_writable
    }
    root = JobRecords(Path(os.path.realpath(records.root)))
    return [mounted.get(str(root.place(record.job, one)), "") for one in record.datasets]


def report_of(record: JobRecord, figures: Path | None, devices: Sequence[str]) -> JobReport | None:
    """Returns the report, while the mounts of the job exist. They have ``devices``, and count in
    the directory ``figures`` (None: nowhere). None if nothing was mounted for the job."""
    if not record.datasets or record.problem:
        return None
    mounts = list(read_files(figures)) if figures is not None else []
    found: Jobs = {}
    for mount in mounts:
        before = record.before.get(mount.name, {})
        for job, reads in _of_job(record.job, mount.jobs).items():
            more = reads.beyond(before.get(job, JobReads()))
            found[job] = found.get(job, JobReads()).plus(more)
    unknown = any(found.get(OTHERS, JobReads()).figures)
    whole = not unknown and _counted(record, mounts, devices)
    return _report(record, found.get(record.job, JobReads()), whole=whole)


def _counted(record: JobRecord, mounts: Sequence[MountJobs], devices: Sequence[str]) -> bool:
    """Whether all processes of the job's mounts have counted since it began."""
    gaps = {mount.device: mount.gap_s for mount in mounts if mount.device}
    return all(one in gaps and gaps[one] <= record.begun_s for one in devices)


def _report(record: JobRecord, reads: JobReads, *, whole: bool) -> JobReport:
    """Returns the report; incomplete counters that are all 0 are left out."""
    if not whole and not any(reads.figures):
        return JobReport(record.job, record.uid, whole)
    return JobReport(
        record.job,
        record.uid,
        whole,
        cache_bytes=reads.direct_bytes + reads.cache_bytes,
        peers_bytes=reads.peers_bytes,
        store_bytes=reads.store_bytes,
        passthrough_opens=reads.kernel_opens,
        passthrough_opened_bytes=reads.kernel_opened_bytes,
    )


def log(text: str, address: str = SYSLOG) -> None:
    """Writes to the system's log, since the output of an epilog may go nowhere. It gives up on a
    log that takes nothing, for which syslog(3) would wait."""
    now = time.strftime("%b %e %H:%M:%S")
    message = f"<{_DAEMON_INFO}>{now} lodefs[{os.getpid()}]: {text}"
    with suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
        sender.settimeout(SYSLOG_TIMEOUT_S)
        sender.connect(address)
        sender.send(message.encode())
