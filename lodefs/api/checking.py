"""Checks of a store with any executor: its tasks read packs and files, and one process reports."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING

from lodefs.api.part_tasks import map_tasks
from lodefs.chunkstore.format.names import PackId
from lodefs.chunkstore.system.parallel_map import grouped
from lodefs.settings.session import opened

if TYPE_CHECKING:
    from lodefs.chunkstore.repair.packs import PackDamage
    from lodefs.chunkstore.repair.scrub import ExaminePacks, SizedPack
    from lodefs.chunkstore.repo.data_check import CheckData, Checked, DataJob

TASK_BYTES = 256 << 20  # as much as a task reads: seconds of work
TASK_ITEMS_MAX = 1000  # packs or jobs of a task


def examine_with(executor: Executor, store_url: str, workers: int) -> ExaminePacks:
    """Returns what examines packs by tasks of an executor, each with ``workers`` threads."""
    task = PackTask(store_url, workers)

    def examine(packs: Iterable[SizedPack]) -> Iterator[PackDamage | None]:
        groups = grouped(packs, lambda one: one[1], TASK_BYTES, TASK_ITEMS_MAX)
        ids = ([pack for pack, _ in group] for group in groups)
        return chain.from_iterable(map_tasks(executor, task, ids))

    return examine


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
        from lodefs.chunkstore.repo.data_check import check_group

        with opened(None, store=self.store_url) as settings:
            return check_group(settings.store.packs, jobs, self.workers)
