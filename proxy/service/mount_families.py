"""Metrics of this node's mounts, read from the files in which they count."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Sequence
from operator import add
from pathlib import Path

from lodefs.chunkstore.protocol.figures.mount_counts import (
    Column,
    MountCounts,
    MountDescription,
    Operation,
    read_all,
)
from lodefs.proxy.metrics import metric_names as names
from lodefs.proxy.metrics.bounded_labels import OTHER, BoundedLabels
from lodefs.proxy.metrics.exposition import Family, MetricLine, label_text, labelled, simple

MOUNTS_MAX = 200  # with their own series: for root and the proxy's user, and for all others
Words = dict[str, tuple[int, ...]]  # by mountpoint
READ_SOURCES = {
    "direct": Column.DIRECT_READS,
    "cache": Column.CACHE_READS,
    "peers": Column.PEERS_READS,
    "store": Column.STORE_READS,
}
_PLAIN = (
    (Column.AHEAD_BYTES, names.MOUNT_AHEAD_BYTES),
    (Column.KERNEL_OPENS, names.MOUNT_PASSTHROUGH_OPENS),
    (Column.KERNEL_OPENED_BYTES, names.MOUNT_PASSTHROUGH_BYTES),
    (Column.WORKER_RESTARTS, names.MOUNT_WORKER_RESTARTS),
    (Column.RESENDS, names.MOUNT_RESENDS),
)


class MountFamilies:
    """The mounts that count in directories. Several with one mountpoint count as one. Whatever
    other users' files say, mounts of root and the proxy's user have series."""

    def __init__(self, *directories: Path, mounts_max: int = MOUNTS_MAX) -> None:
        self._directories = directories
        self._trusted = {0, os.geteuid()}
        self._labels = {trusted: BoundedLabels(mounts_max) for trusted in (True, False)}

    def __call__(self) -> Iterator[Family]:
        """Yields the families now. Removes files of mounts that have ended."""
        mounts = list(read_all(*self._directories, sweep=True))
        words: dict[bool, Words] = {trusted: {} for trusted in self._labels}
        waiting: dict[str, int] = {}
        for mount in mounts:
            where = _place(mount)
            _add(words[mount.uid in self._trusted], where, _without_gauge(mount.words))
            waiting[where] = waiting.get(where, 0) + mount[Column.WAITING]
        shown: Words = {}
        for trusted, labels in self._labels.items():
            for where, counted in labels.show(words[trusted], time.monotonic()).items():
                _add(shown, where, counted)
        yield simple(names.MOUNTS, len(mounts))
        yield from _descriptions([one for one in mounts if _place(one) in shown])
        gauges: dict[tuple[str, ...], int] = {}
        for where, count in waiting.items():
            key = (where if where in shown else OTHER,)
            gauges[key] = gauges.get(key, 0) + count
        yield labelled(names.MOUNT_WAITING, gauges)
        yield from _counters(list(shown), list(shown.values()))


def _add(sums: Words, where: str, words: tuple[int, ...]) -> None:
    sums[where] = tuple(map(add, sums[where], words)) if where in sums else words


def _place(mount: MountCounts) -> str:
    return os.fsdecode(mount.description.mountpoint)


def _without_gauge(words: tuple[int, ...]) -> tuple[int, ...]:
    return (*words[: Column.WAITING], 0, *words[Column.WAITING + 1 :])


def _descriptions(mounts: Sequence[MountCounts]) -> Iterator[Family]:
    infos: dict[tuple[str, ...], int] = {}
    starts: dict[tuple[str, ...], float] = {}
    for mount in mounts:
        said, where = mount.description, _place(mount)
        infos[where, said.repo, said.commit, str(mount.uid), said.version] = 1
        starts[where,] = said.started_s
    yield labelled(names.MOUNT_INFO, infos)
    yield labelled(names.MOUNT_START, starts)


def _counters(places: Sequence[str], words: Sequence[tuple[int, ...]]) -> Iterator[Family]:
    heads = [label_text(("mountpoint",), (where,)) for where in places]
    yield Family(names.MOUNT_OPERATIONS, _operations(heads, words))
    errors = [
        MetricLine("", f'{head},operation="{one.label}"', row[3 * one + 2])
        for head, row in zip(heads, words, strict=True)
        for one in Operation
    ]
    yield Family(names.MOUNT_ERRORS, errors)
    for definition, after in ((names.MOUNT_READS, 0), (names.MOUNT_READ_BYTES, 1)):
        lines = [
            MetricLine("", f'{head},source="{source}"', row[column + after])
            for head, row in zip(heads, words, strict=True)
            for source, column in READ_SOURCES.items()
        ]
        yield Family(definition, lines)
    yield Family(names.MOUNT_WAITING_SECONDS, _waits(heads, words))
    for column, definition in _PLAIN:
        lines = [MetricLine("", head, row[column]) for head, row in zip(heads, words, strict=True)]
        yield Family(definition, lines)


def _operations(heads: Sequence[str], words: Sequence[tuple[int, ...]]) -> list[MetricLine]:
    lines: list[MetricLine] = []
    for head, row in zip(heads, words, strict=True):
        for one in Operation:
            labels = f'{head},operation="{one.label}"'
            lines.append(MetricLine("_count", labels, row[3 * one]))
            lines.append(MetricLine("_sum", labels, row[3 * one + 1] / 1e9))
    return lines


def _waits(heads: Sequence[str], words: Sequence[tuple[int, ...]]) -> list[MetricLine]:
    lines: list[MetricLine] = []
    nobody = MountDescription(b"", "", "", "", 0.0)
    for head, row in zip(heads, words, strict=True):
        wait = MountCounts(nobody, 0, row).waiting
        for layer, spent_s in (
            ("store", wait.store_s),
            ("peers", wait.peers_s),
            ("proxy", wait.proxy_s),
            ("cache_disk", wait.cache_disk_s),
            ("fuse", wait.fuse_s),
        ):
            lines.append(MetricLine("", f'{head},layer="{layer}"', spent_s))
    return lines
