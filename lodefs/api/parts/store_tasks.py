"""Work on whole stores with any executor: its tasks examine packs, check files, copy packs and read
trees, and one process decides what they do and reports."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING

from lodefs.api.parts.part_tasks import map_tasks
from lodefs.chunkstore.format.names import PackId
from lodefs.chunkstore.system.parallel_map import grouped
from lodefs.settings.session import opened

if TYPE_CHECKING:
    from lodefs.chunkstore.format.tree import TreeEntry
    from lodefs.chunkstore.maintenance.tree_groups import GroupNames, ReadGroups
    from lodefs.chunkstore.repair.packs import PackDamage
    from lodefs.chunkstore.repair.scrub import ExaminePacks, SizedPack
    from lodefs.chunkstore.repo.checks.data_check import CheckData, Checked, DataJob
    from lodefs.chunkstore.transfer.pack_copy import CopiedPack, SendPacks

TASK_BYTES = 256 << 20  # as much as a task reads: seconds of work
TASK_ITEMS_MAX = 1000  # packs or jobs of a task


def examine_with(executor: Executor, store_url: str, workers: int) -> ExaminePacks:
    """Returns what examines packs by tasks of an executor, each with ``workers`` threads."""
    task = PackTask(store_url, workers)

    def examine(packs: Iterable[SizedPack]) -> Iterator[PackDamage | None]:
        return chain.from_iterable(map_tasks(executor, task, _groups(packs)))

    return examine


def _groups(packs: Iterable[SizedPack]) -> Iterator[list[PackId]]:
    """Yields the packs of each task."""
    for group in grouped(packs, lambda one: one[1], TASK_BYTES, TASK_ITEMS_MAX):
        yield [pack for pack, _ in group]


@dataclass(frozen=True, slots=True)
class PackTask:
    """Examines packs, in any process that can open the store; it can be pickled."""

    store_url: str
    workers: int

    def __call__(self, packs: Sequence[PackId]) -> list[PackDamage | None]:
        from lodefs.chunkstore.repair.scrub import examine_group

        with opened(None, store=self.store_url) as settings:
            return examine_group(settings.store.objects, packs, self.workers)


def check_data_with(executor: Executor, store_url: str, workers: int) -> CheckData:
    """Returns what checks the bytes of files by tasks of an executor, each with ``workers``
    threads."""
    task = DataTask(store_url, workers)

    def check(jobs: Iterable[DataJob]) -> Iterator[Checked]:
        groups = grouped(jobs, lambda one: one.size_bytes, TASK_BYTES, TASK_ITEMS_MAX)
        return chain.from_iterable(map_tasks(executor, task, groups))

    return check


@dataclass(frozen=True, slots=True)
class DataTask:
    """Checks the bytes of files, in any process that can open the store; it can be pickled."""

    store_url: str
    workers: int

    def __call__(self, jobs: Sequence[DataJob]) -> list[Checked]:
        from lodefs.chunkstore.repo.checks.data_check import check_group

        with opened(None, store=self.store_url) as settings:
            return check_group(settings.store.packs, jobs, self.workers)


def copy_with(executor: Executor, source_url: str, destination_url: str, workers: int) -> SendPacks:
    """Returns what copies packs by tasks of an executor, each with ``workers`` threads."""
    task = CopyTask(source_url, destination_url, workers)

    def send(packs: Iterable[SizedPack]) -> Iterator[CopiedPack]:
        return chain.from_iterable(map_tasks(executor, task, _groups(packs)))

    return send


@dataclass(frozen=True, slots=True)
class CopyTask:
    """Copies packs, in any process that can open both stores; it can be pickled."""

    source_url: str
    destination_url: str
    workers: int

    def __call__(self, packs: Sequence[PackId]) -> list[CopiedPack]:
        from lodefs.chunkstore.transfer.pack_copy import copy_group

        with opened(None, store=self.destination_url) as settings:
            source = settings.store_at(self.source_url).objects
            return copy_group(source, settings.store.objects, packs, self.workers)


def read_trees_with(executor: Executor, store_url: str, workers: int) -> ReadGroups:
    """Returns what reads trees for a gc run by tasks of an executor, each with ``workers``
    threads."""
    task = TreeTask(store_url, workers)

    def read(groups: Iterable[Sequence[TreeEntry]]) -> Iterator[GroupNames]:
        return map_tasks(executor, task, groups)

    return read


@dataclass(frozen=True, slots=True)
class TreeTask:
    """Reads trees, in any process that can open the store; it can be pickled."""

    store_url: str
    workers: int

    def __call__(self, group: Sequence[TreeEntry]) -> GroupNames:
        from lodefs.chunkstore.maintenance.tree_groups import read_group

        with opened(None, store=self.store_url) as settings:
            return read_group(settings.store.packs, group, self.workers)
