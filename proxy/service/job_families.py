"""Metrics of what the jobs of this node read, from the files in which its mounts count."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from lodefs.chunkstore.protocol.figures.job_counts import (
    OTHERS,
    JobReads,
    Jobs,
    add_all,
    read_files,
)
from lodefs.proxy.metrics import metric_names as names
from lodefs.proxy.metrics.bounded_labels import IDLE_S, OTHER, BoundedLabels
from lodefs.proxy.metrics.exposition import Family, labelled

JOBS_MAX = 200  # with their own series
SOURCES = ("direct", "cache", "peers", "store")
_OPENS = (names.JOB_PASSTHROUGH_OPENS, names.JOB_PASSTHROUGH_BYTES)  # columns after the bytes


class JobFamilies:
    """The jobs of the mounts that count in a directory. A job keeps its counters when a mount has
    ended or has given up the job's row, until it has read nothing for IDLE_S; ``now_s`` is Unix
    time."""

    def __init__(
        self, directory: Path, jobs_max: int = JOBS_MAX, now_s: Callable[[], float] = time.time
    ) -> None:
        self._directory = directory
        self._now_s = now_s
        self._labels = BoundedLabels(jobs_max)
        self._mounts: dict[str, Jobs] = {}  # from the last scrape
        self._ended: Jobs = {}  # counters that no mount has any more

    def __call__(self) -> Iterator[Family]:
        mounts = {one.name: one.jobs for one in read_files(self._directory)}
        for name, before in self._mounts.items():
            now = mounts.get(name, {})
            lost = {job: old.beyond(now.get(job, JobReads())) for job, old in before.items()}
            add_all(self._ended, {job: reads for job, reads in lost.items() if any(reads.figures)})
        self._mounts = mounts
        yield from _families(self._labels.show(self._recent(), self._now_s()))

    def _recent(self) -> dict[str, tuple[int, ...]]:
        """Returns counters by label, for jobs that read something in the last IDLE_S."""
        found = dict(self._ended)
        for jobs in self._mounts.values():
            add_all(found, jobs)
        since_s = self._now_s() - IDLE_S
        recent = {job for job, reads in found.items() if job == OTHERS or reads.last_s > since_s}
        self._ended = {job: reads for job, reads in self._ended.items() if job in recent}
        return {str(job) if job != OTHERS else OTHER: found[job].figures for job in recent}


def _families(shown: Mapping[str, tuple[int, ...]]) -> Iterator[Family]:
    sources = len(SOURCES)
    by_source = {
        (job, source): value
        for job, figures in shown.items()
        for source, value in zip(SOURCES, figures[:sources], strict=True)
    }
    yield labelled(names.JOB_READ_BYTES, by_source)
    for at, definition in enumerate(_OPENS, start=sources):
        yield labelled(definition, {(job,): figures[at] for job, figures in shown.items()})
