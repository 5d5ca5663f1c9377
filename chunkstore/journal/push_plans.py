"""The planned pushes of a store: their documents, and the writers that keep what their parts store.

All tasks of a plan share one writer in the journal (ref_write.py), so that no gc run deletes what
they have stored before the plan's commit names it. A gc run gives up a writer that no task has
used for its grace time. The next task then begins another one, and what was stored for the earlier
one must be checked.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator
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


@dataclass(frozen=True, slots=True)
class PlanWriter:
    """The newest writer of a plan: its number among them, its entry in the journal, and its end
    (None: it goes on)."""

    number: int
    entry: int
    end: End | None


class PushPlans:
    """All plans by their names. Methods raise what the store raises, and Corrupt, UnknownFormat for
    documents. Many threads may use it at once."""

    def __init__(self, objects: ObjectStore) -> None:
        self._objects = objects

    def names(self) -> Iterator[str]:
        """Yields the names of plans, also of incomplete ones, and of plans that were removed while
        a task put a document. Reads one list entry for each."""
        after = ""
        while (
            found := next(iter(self._objects.list(keys.PLANS, after=after, limit=1)), None)
        ) and (name := keys.plan_of(found.key)):
            yield name
            after = f"{keys.PLANS}{name}0"  # "0" follows "/"

    def begin(self, name: str, first: int) -> PlanDocuments:
        """Takes a name for the plan whose first writer is that entry of the journal. Raises:
        AlreadyExists."""
        data = documents.encode_writer(0, first)
        self._objects.put(keys.plan_name(name), [data], if_absent=True)
        return PlanDocuments(self._objects, name, first)

    def find(self, name: str) -> PlanDocuments:
        """Returns the documents of the plan that has a name now. Raises: InvalidInput, NotFound."""
        if (first := self._first(documents.check_plan_name(name))) is None:
            raise _no_plan(self._objects, name)
        return PlanDocuments(self._objects, name, first)

    def remove(self, name: str, first: int | None) -> None:
        """Deletes all documents of the plan with that first writer (None: of no plan), and what
        tasks of earlier plans have left under its name; nothing of a plan that has it now."""
        if first is not None:  # no task goes on with a part of the documents
            self._objects.delete(keys.plan(name, first, "plan"))
        found = [info.key for info in self._objects.list(f"{keys.PLANS}{name}/")]
        now = self._first(name)  # its documents come after this one
        kept = keys.plan(name, now) if now is not None and now != first else None
        for key in found:
            if key != keys.plan_name(name) and not (kept and key.startswith(kept)):
                self._objects.delete(key)
        if first is not None and self._first(name) == first:  # not that of a later plan meanwhile
            self._objects.delete(keys.plan_name(name))

    def _first(self, name: str) -> int | None:
        return _read(self._objects, keys.plan_name(name), 0, documents.decode_writer)


class PlanDocuments:
    """The documents of one plan. An earlier or later plan with its name has others: a document that
    a task puts after its plan is gone is never taken for one of another plan. Errors and threads
    are as for PushPlans."""

    def __init__(self, objects: ObjectStore, name: str, first: int) -> None:
        """``first`` is the entry in the journal of the plan's first writer."""
        self.name = name
        self.first = first
        self._objects = objects

    def plan(self) -> PushPlan:
        """Returns the plan. Raises: NotFound."""
        key = keys.plan(self.name, self.first, "plan")
        try:
            data = read_whole(self._objects, key, documents.PLAN_SIZE_BYTES_MAX).data
        except NotFound as error:
            raise _no_plan(self._objects, self.name) from error
        return documents.decode_plan(data, self.name, key)

    def put_plan(self, plan: PushPlan) -> None:
        """Puts a plan after all its parts: then it is complete."""
        key = keys.plan(self.name, self.first, "plan")
        self._objects.put(key, [documents.encode_plan(plan)])

    def part(self, number: int) -> PlannedPart:
        """Returns one part. Raises: NotFound."""
        key = self._key("parts", number)
        data = read_whole(self._objects, key, documents.PART_SIZE_BYTES_MAX).data
        return documents.decode_part(data, number, key)

    def put_part(self, part: PlannedPart) -> None:
        """Puts one part."""
        self._objects.put(self._key("parts", part.number), [documents.encode_part(part)])

    def result(self, number: int) -> PartResult | None:
        """Returns what a part has stored; None if it is not done."""
        key = self._key("results", number)
        return _read(self._objects, key, number, documents.decode_result)

    def put_result(self, result: PartResult) -> None:
        """Puts what a part has stored. The last one counts; any of them is right."""
        self._objects.put(self._key("results", result.number), [documents.encode_result(result)])

    def failure(self, number: int) -> PartFailure | None:
        """Returns why a part failed last, if it did."""
        key = self._key("failures", number)
        return _read(self._objects, key, number, documents.decode_failure)

    def put_failure(self, failure: PartFailure) -> None:
        """Puts why a part failed."""
        data = documents.encode_failure(failure)
        self._objects.put(self._key("failures", failure.number), [data])

    def put_writer(self, number: int, writer: int) -> None:
        """Puts the plan's writer of that number, from 1 on. Raises: AlreadyExists."""
        key = keys.plan_writer(self.name, self.first, number)
        self._objects.put(key, [documents.encode_writer(number, writer)], if_absent=True)

    def writer(self) -> tuple[int, int]:
        """Returns the number of the newest writer, and its entry in the journal. Raises: NotFound
        if the plan was removed."""
        if PushPlans(self._objects).find(self.name).first != self.first:
            raise NotFound(f"the plan {self.name} is gone, and another one has its name")
        found: dict[int, int] = {0: self.first}

        def has(number: int) -> bool:
            key = keys.plan_writer(self.name, self.first, number)
            entry = _read(self._objects, key, number, documents.decode_writer)
            if entry is not None:
                found[number] = entry
            return entry is not None

        number = last_of_row(has, 0)
        return number, found[number]

    def _key(self, what: str, number: int) -> str:
        return keys.plan_part(self.name, self.first, what, number)


def _read(
    objects: ObjectStore, key: str, number: int, decode: Callable[[Buffer, int, str], T]
) -> T | None:
    try:
        data = read_whole(objects, key, documents.RESULT_SIZE_BYTES_MAX).data
    except NotFound:
        return None
    return decode(data, number, key)


def _no_plan(objects: ObjectStore, name: str) -> NotFound:
    return NotFound(
        f"{objects.url} has no plan {name} (lodefs plan create makes one): perhaps it is still "
        "being made, or a gc run has removed it after its commit or grace time"
    )


def begin_plan(
    store: Store, name: str, clock: Callable[[], float] = time.time
) -> tuple[PlanDocuments, RefWrite]:
    """Takes the name of a new plan, and returns its documents and the write that its tasks share.
    Raises: AlreadyExists."""
    journal = StoreJournal(store.objects, clock)
    entry = journal.append()
    try:
        begun = PushPlans(store.objects).begin(name, entry.number)
    except AlreadyExists as error:
        journal.put_end(End(entry.number, None))
        raise AlreadyExists(
            f"there is a plan {name} already (lodefs plan status {name} shows it): choose another "
            f"name, or remove it with lodefs plan discard {name}"
        ) from error
    return begun, RefWrite(store, clock, shared=entry)


def end_plan(store: Store, plan: PlanDocuments) -> None:
    """Ends the writer of a plan, and removes its documents. Raises: NotFound."""
    _, writer = plan.writer()
    StoreJournal(store.objects).put_end(End(writer, None))
    PushPlans(store.objects).remove(plan.name, plan.first)


def writer_of(store: Store, plan: PlanDocuments) -> PlanWriter:
    """Returns the newest writer of a plan. Raises: NotFound."""
    number, entry = plan.writer()
    return PlanWriter(number, entry, StoreJournal(store.objects).end(entry))


def join_plan(
    store: Store, plan: PlanDocuments, writer: PlanWriter, clock: Callable[[], float] = time.time
) -> RefWrite:
    """Returns the write that all tasks of a plan share, after a heartbeat; another one if
    ``writer``, its newest one, has ended. Raises: NotFound."""
    journal = StoreJournal(store.objects, clock)
    for _ in range(_JOINS_MAX):
        if writer.end is None:
            write = RefWrite(store, clock, shared=journal.entry(writer.entry))
            write.beat()
            return write
        entry = journal.append()
        try:
            plan.put_writer(writer.number + 1, entry.number)
        except AlreadyExists:
            journal.put_end(End(entry.number, None))
            writer = writer_of(store, plan)
            continue
        return RefWrite(store, clock, shared=entry)
    raise Unavailable(f"the writers of plan {plan.name} end at once, again and again: try later")


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


def abandoned(
    store: Store, journal: StoreJournal, dead: Collection[int]
) -> Iterator[tuple[str, int | None]]:
    """Yields the names and first writers of plans whose writer has ended (finished, discarded, or
    given up by a gc run), or is among the ``dead``; None for what is left of a removed plan."""
    plans = PushPlans(store.objects)
    for name in plans.names():
        try:
            plan = plans.find(name)
            _, writer = plan.writer()
        except NotFound:
            yield name, None
            continue
        if writer in dead or journal.end(writer) is not None:
            yield name, plan.first
