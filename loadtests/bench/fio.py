"""Jobs for fio: those that mountpoint-s3 uses to measure itself, and those of a training job.

Names and parameters are those of awslabs/mountpoint-s3, mountpoint-s3/scripts/fio/read: 256 KiB
pieces, one and four readers each with a file of its own, the sync engine, plain and direct I/O,
files of 100 GiB ("small": 5 MiB), 30 s. Here a file is 1 GiB, or 256 MiB for each of four readers,
and a job lasts some seconds.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any, Literal

from tests.support.chunkstore.child_process import run

KIB = 1 << 10
ENDING_S = 120.0  # fio is killed if it takes this much longer than its job

Pattern = Literal["read", "randread"]
Engine = Literal["sync", "mmap"]


@dataclass(frozen=True, slots=True)
class Job:
    """One job. Its readers' files are ``FOLDER/0.bin``, ``FOLDER/1.bin``, ... of the corpus, or
    ``FOLDER/0.bin`` for all of them when it is ``shared``."""

    name: str
    pattern: Pattern
    folder: str
    threads: int = 1
    direct: bool = False
    block_bytes: int = 256 * KIB
    engine: Engine = "sync"
    shared: bool = False

    @property
    def unit(self) -> str:
        """Small reads are counted, large ones measured in bytes."""
        return "MB/s" if self.block_bytes >= 64 * KIB else "/s"

    def text(self, root: Path, *, size_bytes: int, seconds: float, endless: bool) -> str:
        """The job file. ``endless`` begins anew until the time is over, as mountpoint-s3's jobs do;
        else every byte is read once at most, so that nothing read is in the page cache before."""
        lines = [
            "[global]",
            "name=fs_bench",
            f"bs={self.block_bytes}",
            f"runtime={seconds:g}s",
            *(["time_based"] if endless else []),
            "group_reporting",
            "invalidate=0",  # the page cache was dropped before, for all sides
            "allow_file_create=0",
            "",
            f"[{self.name}]",
            f"directory={escaped(root / self.folder)}",
            # of readers with one filename_format fio starts the first alone
            "filename=0.bin" if self.shared else "filename_format=$jobnum.bin",
            f"size={size_bytes}",
            f"rw={self.pattern}",
            f"ioengine={self.engine}",
            "fallocate=none",
            f"numjobs={self.threads}",
            *(["direct=1"] if self.direct else []),
            *(["fadvise_hint=0"] if self.engine == "mmap" else []),  # numpy gives no hint either
        ]
        return "\n".join(lines) + "\n"

    def run(self, root: Path, scratch: Path, *, seconds: float, again: bool) -> float:
        """Runs it on the corpus at ``root``; its figure in its unit. ``again``: the page cache may
        serve it. ChildError where it fails or does not end."""
        size_bytes = (root / self.folder / "0.bin").stat().st_size
        endless = again or self.folder == "small"
        job, answer = scratch / f"{self.name}.fio", scratch / f"{self.name}.json"
        job.write_text(
            self.text(root, size_bytes=size_bytes, seconds=seconds, endless=endless), "utf-8"
        )
        answer.unlink(missing_ok=True)
        command = ["fio", "--readonly", "--output-format=json", f"--output={answer}", str(job)]
        run(command, cwd=scratch, timeout_s=seconds + ENDING_S)
        figures = parse(answer.read_text("utf-8"))
        return figures.mb_per_s if self.unit == "MB/s" else figures.per_s


@dataclass(frozen=True, slots=True)
class Figures:
    """fio's result for a job: reads a second, megabytes (10^6) a second, slowest percent."""

    per_s: float
    mb_per_s: float
    p99_ms: float


def parse(answer: str) -> Figures:
    """fio's JSON (``--output-format=json``), which may follow lines of warning.

    ValueError where it is not the answer to one job without errors.
    """
    _, brace, text = answer.partition("{")
    jobs: Sequence[dict[str, Any]] = json.loads(brace + text).get("jobs", []) if brace else []
    if len(jobs) != 1:
        raise ValueError(f"fio: the answer has {len(jobs)} jobs, not one")
    (job,) = jobs
    if job["error"]:
        raise ValueError(f"fio: {job['jobname']}: error {job['error']}")
    read = job["read"]
    if not read["total_ios"]:
        raise ValueError(f"fio: {job['jobname']}: nothing was read")
    percentiles = read.get("clat_ns", {}).get("percentile", {})
    p99_ns = percentiles.get("99.000000", 0)
    return Figures(float(read["iops"]), read["bw_bytes"] / 1e6, p99_ns / 1e6)


def escaped(path: Path) -> str:
    """A path for a job file, in which fio takes ``:`` for the end of a name."""
    return str(path).replace("\\", "\\\\").replace(":", "\\:")


def _mountpoint_jobs() -> list[Job]:
    jobs = []
    patterns: dict[str, Pattern] = {"sequential_read": "read", "random_read": "randread"}
    for (name, pattern), small, four, direct in product(
        patterns.items(), (False, True), (False, True), (False, True)
    ):
        parts = [
            name,
            *(["four_threads"] if four else []),
            *(["direct_io"] if direct else []),
            *(["small_file"] if small else []),
        ]
        folder = "small" if small else "four" if four else "one"
        jobs.append(Job("_".join(parts), pattern, folder, 4 if four else 1, direct))
    return jobs


MOUNTPOINT_JOBS = tuple(_mountpoint_jobs())
RANDOM_4K = Job("random_read_4k", "randread", "one", block_bytes=4 * KIB)
MMAP_RANDOM_4K = Job("mmap_random_read_4k", "randread", "one", block_bytes=4 * KIB, engine="mmap")
EXTRA_JOBS = (RANDOM_4K, MMAP_RANDOM_4K)
RANDOM_4K_16 = Job(
    "random_read_4k_sixteen_threads", "randread", "one", 16, block_bytes=4 * KIB, shared=True
)
