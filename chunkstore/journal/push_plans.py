"""The planned pushes of a store: their documents, and the writers that keep what their parts store.

All tasks of a plan share one writer in the journal (ref_write.py), so that no gc run deletes what
they have stored before the plan's commit names it. A gc run gives up a writer that no task has
used for its grace time. The next task then begins another one, and what was stored for the earlier
one must be checked.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass
from typing import TypeVar

from lodefs.chunkstore.errors import AlreadyExists, NotFound, Unavailable
from lodefs.chunkstore.format import keys
from lodefs.chunkstore.format import push_plan as documents
from lodefs.chunkstore.format.journal import End
from lodefs.chunkstore.format.names import CommitId
from lodefs.chunkstore.format.push_plan import PartFailure, PartResult, PlannedPart, PushPlan
from lodefs.chunkstore.journal.journal import StoreJournal
from lodefs.chunkstore.journal.ref_write import RefWrite
from lodefs.chunkstore.objects.interface import ObjectStore, read_whole
from lodefs.chunkstore.repo.gallop import last_of_row
from lodefs.chunkstore.repo.refs import BRANCHES
from lodefs.chunkstore.repo.store import Store
from lodefs.chunkstore.types import Buffer

T = TypeVar("T")

_JOINS_MAX = 100  # each one fails since another task has begun a writer at the same time
_WRITER_SIZE_BYTES_MAX = 64 * 1024


@dataclass(frozen=True, slots=True)
class PlanWriter:
    """The newest writer of a plan: its number among them, its entry in the journal, and its end
    (None: it goes on). ``first`` is the entry of the first one, which no other plan has, whatever
    its name."""

    number: int
    entry: int
    first: int
    end: End | None


class PushPlans:
    """The documents of all plans. Methods raise what the store raises, and Corrupt, UnknownFormat
    for documents. Many threads may use it at once."""

    def __init__(self, objects: ObjectStore) -> None:
        self._objects = objects

    def names(self) -> Iterator[str]:
        """Yields the names of plans, also of incomplete ones. Reads one list entry for each."""
        after = ""
        while (
            found := next(iter(self._objects.list(keys.PLANS, after=after, limit=1)), None)
        ) and (name := keys.plan_of(found.key)):
            yield name
            after = f"{keys.PLANS}{name}0"  # "0" follows "/"

    def plan(self, name: str) -> PushPlan:
        """Returns a plan. Raises: NotFound."""
        key = keys.plan(documents.check_plan_name(name), "plan")
        try:
            data = read_whole(self._objects, key, documents.PLAN_SIZE_BYTES_MAX).data
        except NotFound as error:
            raise self._no_plan(name) from error
        return documents.decode_plan(data, name, key)

    def put_plan(self, plan: PushPlan) -> None:
        """Puts a plan after all its parts: then it is complete."""
        self._objects.put(keys.plan(plan.name, "plan"), [documents.encode_plan(plan)])

    def part(self, name: str, number: int) -> PlannedPart:
        """Returns one part. Raises: NotFound."""
        key = keys.plan_part(name, "parts", number)
        data = read_whole(self._objects, key, documents.PART_SIZE_BYTES_MAX).data
        return documents.decode_part(data, number, key)

    def put_part(self, name: str, part: PlannedPart) -> None:
        """Puts one part."""
        data = documents.encode_part(part)
        self._objects.put(keys.plan_part(name, "parts", part.number), [data])

    def result(self, name: str, number: int, first: int) -> PartResult | None:
        """Returns what a part has stored; None if it is not done. ``first`` is the plan's first
        writer: a result for an earlier one is of another plan, which had this name before."""
        found = self._found(name, "results", number, documents.decode_result)
        return None if found is None or found.writer < first else found

    def put_result(self, name: str, result: PartResult) -> None:
        """Puts what a part has stored. The last one counts; any of them is right."""
        data = documents.encode_result(result)
        self._objects.put(keys.plan_part(name, "results", result.number), [data])

    def failure(self, name: str, number: int) -> PartFailure | None:
        """Returns why a part failed last, if it did."""
        return self._found(name, "failures", number, documents.decode_failure)

    def put_failure(self, name: str, failure: PartFailure) -> None:
        """Puts why a part failed."""
        data = documents.encode_failure(failure)
        self._objects.put(keys.plan_part(name, "failures", failure.number), [data])

    def put_writer(self, name: str, number: int, writer: int) -> None:
        """Puts the plan's writer of that number; the first one makes the plan. Raises:
        AlreadyExists."""
        data = documents.encode_writer(number, writer)
        self._objects.put(keys.plan_writer(name, number), [data], if_absent=True)

    def writer(self, name: str) -> tuple[int, int, int]:
        """Returns the number of the newest writer, its entry in the journal, and that of the first
        one. Raises: NotFound."""
        found: dict[int, int | None] = {}

        def has(number: int) -> bool:
            found[number] = self._writer(name, number)
            return found[number] is not None

        number = last_of_row(has, -1)
        writer, first = found.get(number), found.get(0)
        if writer is None or first is None:
            raise self._no_plan(name)
        return number, writer, first

    def remove(self, name: str) -> None:
        """Deletes all documents, the plan first, so that no task goes on with a part of them."""
        self._objects.delete(keys.plan(name, "plan"))
        for info in list(self._objects.list(keys.plan(name))):
            self._objects.delete(info.key)

    def _no_plan(self, name: str) -> NotFound:
        return NotFound(
            f"{self._objects.url} has no plan {name} (lodefs plan create makes one): perhaps it is "
            "still being made, or a gc run has removed it after its commit or grace time"
        )

    def _writer(self, name: str, number: int) -> int | None:
        key = keys.plan_writer(name, number)
        try:
            data = read_whole(self._objects, key, _WRITER_SIZE_BYTES_MAX).data
        except NotFound:
            return None
        return documents.decode_writer(data, number, key)

    def _found(
        self, name: str, what: str, number: int, decode: Callable[[Buffer, int, str], T]
    ) -> T | None:
        key = keys.plan_part(name, what, number)
        try:
            data = read_whole(self._objects, key, documents.RESULT_SIZE_BYTES_MAX).data
        except NotFound:
            return None
        return decode(data, number, key)


def begin_plan(store: Store, name: str, clock: Callable[[], float] = time.time) -> RefWrite:
    """Takes the name of a new plan, and returns the write that its tasks share. Raises:
    AlreadyExists."""
    journal = StoreJournal(store.objects, clock)
    entry = journal.append()
    try:
        PushPlans(store.objects).put_writer(name, 0, entry.number)
    except AlreadyExists as error:
        journal.put_end(End(entry.number, None))
        raise AlreadyExists(
            f"there is a plan {name} already (lodefs plan status {name} shows it): choose another "
            f"name, or remove it with lodefs plan discard {name}"
        ) from error
    return RefWrite(store, clock, shared=entry)


def writer_of(store: Store, name: str) -> PlanWriter:
    """Returns the newest writer of a plan. Raises: NotFound."""
    number, entry, first = PushPlans(store.objects).writer(name)
    return PlanWriter(number, entry, first, StoreJournal(store.objects).end(entry))


def join_plan(
    store: Store, name: str, writer: PlanWriter, clock: Callable[[], float] = time.time
) -> RefWrite:
    """Returns the write that all tasks of a plan share, after a heartbeat; another one if
    ``writer``, its newest one, has ended. Raises: NotFound."""
    plans, journal = PushPlans(store.objects), StoreJournal(store.objects, clock)
    for _ in range(_JOINS_MAX):
        if writer.end is None:
            write = RefWrite(store, clock, shared=journal.entry(writer.entry))
            write.beat()
            return write
        entry = journal.append()
        try:
            plans.put_writer(name, writer.number + 1, entry.number)
        except AlreadyExists:
            journal.put_end(End(entry.number, None))
            writer = writer_of(store, name)
            continue
        return RefWrite(store, clock, shared=entry)
    raise Unavailable(f"the writers of the plan {name} end at once, again and again: try later")


def commit_of(store: Store, writer: PlanWriter) -> CommitId | None:
    """Returns the commit that the plan of a writer became; None if it is not finished."""
    end = writer.end
    if end is None or end.intent is None:
        return None
    ref, sequence, commit = end.intent.ref, end.intent.sequence, end.intent.commit
    refs = store.refs(ref.repo)
    if not refs.has(BRANCHES, ref.name, sequence):
        return None
    is_ours = refs.entry(BRANCHES, ref.name, sequence).commit == commit
    return commit if is_ours else None


def abandoned(store: Store, journal: StoreJournal, dead: Collection[int]) -> Iterable[str]:
    """Yields the plans whose writer has ended (finished, discarded, or given up by a gc run), or is
    among the ``dead``."""
    plans = PushPlans(store.objects)
    for name in plans.names():
        try:
            _, writer, _ = plans.writer(name)
        except NotFound:  # what is left of a plan that was removed
            yield name
            continue
        if writer in dead or journal.end(writer) is not None:
            yield name
