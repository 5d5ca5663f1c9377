"""Does parts of a planned push, one after the other, and leaves their results in the store.

Any machine may do any part, at any time, and again. Parts of one process share a session. The next
part is read while the last packs of the one before it are under way.
"""

from __future__ import annotations

import contextlib
import socket
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace

from lodefs.chunkstore.errors import InvalidInput, LodefsError, NotFound
from lodefs.chunkstore.format.journal import RefName
from lodefs.chunkstore.format.push_plan import (
    PartFailure,
    PartResult,
    PushPlan,
)
from lodefs.chunkstore.journal.named_packs import named_packs
from lodefs.chunkstore.journal.purges import Purges
from lodefs.chunkstore.journal.push_plans import (
    PlanDocuments,
    PlanWriter,
    commit_of,
    join_plan,
    writer_of,
)
from lodefs.chunkstore.journal.ref_write import Collected, RefWrite
from lodefs.chunkstore.journal.tombstoned import MemoryCondemned
from lodefs.chunkstore.push.committer import Committer
from lodefs.chunkstore.push.index.push_index import IndexBroken
from lodefs.chunkstore.push.pack_check import PacksLost, Relies, lacking_named, lost_in_place
from lodefs.chunkstore.push.parts.part import PartPacks, read_part
from lodefs.chunkstore.push.parts.plan import open_plan, options_of
from lodefs.chunkstore.push.session import AttemptResult, PushOptions, PushSession
from lodefs.chunkstore.repo.pack_reader import PackIndexVersion, PackReader
from lodefs.chunkstore.repo.refs import BRANCHES
from lodefs.chunkstore.repo.store import Store
from lodefs.chunkstore.system.progress import Progress

Outcome = PartResult | LodefsError
SourceOf = Callable[[PushPlan], bytes]


def planned_source(plan: PushPlan) -> bytes:
    """Returns the source of a plan as the plan names it."""
    return plan.source


def do_part(
    store: Store,
    name: str,
    number: int,
    options: PushOptions,
    progress: Progress | None = None,
) -> PartResult:
    """Does a part, unless its result is there already, and returns the result.

    Raises: what ``do_parts`` raises; SourceChanged, Denied, Unavailable for files that are no
    longer as planned, unless unreadable ones are skipped; what the store raises. After an error the
    plan's status shows it, and the part can be repeated.
    """
    found: list[Outcome] = []
    do_parts(store, name, [number], options, lambda _, outcome: found.append(outcome), progress)
    (outcome,) = found
    if isinstance(outcome, LodefsError):
        raise outcome
    return outcome


def do_parts(
    store: Store,
    name: str,
    numbers: Iterable[int],
    options: PushOptions,
    tell: Callable[[int, Outcome], None],
    progress: Progress | None = None,
    source_of: SourceOf = planned_source,
) -> None:
    """Does parts, and calls ``tell`` with the result of each, in any order, or with its error,
    which does not stop the others. ``source_of`` returns where this machine reads the source of the
    plan; it may raise.

    Raises: NotFound for a plan that is gone; InvalidInput for a number that it does not have;
    UnknownFormat for another version of lodefs; what ``source_of`` raises.
    """
    opened, todo = open_plan(store, name), deque(numbers)
    plan = opened.plan
    for number in todo:
        if not 0 <= number < plan.parts:
            raise InvalidInput(
                f"the plan {name} has no part {number}: it has {plan.parts}, from 0 on"
            )
    options, root = options_of(plan, options), source_of(plan)
    row = _Row(store, *opened, options, root, tell, progress or Progress(), todo)
    while todo:
        row.run()


def is_kept(store: Store, write: RefWrite, result: PartResult, relies: Relies | None) -> bool:
    """Whether the store keeps all that a part has stored until ``write``, that of the plan, ends.
    If the part was done for an earlier writer, it looks for that and saves it; ``relies`` says on
    which chunks in place the plan must not rely (None: it may on all)."""
    if Purges(store.objects).newest(result.purges_seen) > result.purges_seen:
        return False
    if result.writer == write.begin().number:
        return True
    named = named_packs(PackReader(store.objects), result.root, None)
    tombstoned = MemoryCondemned()
    write.learn(tombstoned)
    try:
        write.save(tombstoned, named.found, named.found)
    except Collected:
        return False

    def in_place(version: PackIndexVersion) -> int:
        bits = named.found.get(version.index.pack_id, 0)
        return 0 if relies is None else relies(store.objects, version, bits)

    return not lacking_named(store.objects, named, (), in_place)


@dataclass(frozen=True, slots=True)
class _Read:
    """A part that was read. It is stored when the packs of the first ``puts`` calls are."""

    result: PartResult
    puts: int


@dataclass(slots=True)
class _Row:
    """The parts that are left to do."""

    store: Store
    plan: PushPlan
    documents: PlanDocuments
    options: PushOptions
    root: bytes  # where the source is for this machine
    tell: Callable[[int, Outcome], None]
    progress: Progress
    todo: deque[int]
    _waiting: deque[_Read] = field(default_factory=deque)  # their last packs are under way
    _at: int = 0  # the part that is being read or ended
    _missing: int = -1  # a part that was found not to be done just now
    _sent_before_bytes: int = 0  # what was sent for the parts before

    def run(self) -> None:
        """Does parts with one session, until one fails or all are done. Then readers may be forked
        again, since no thread is left."""
        self._at, self._sent_before_bytes = self.todo[0], self.progress.bytes_sent
        try:
            writer = writer_of(self.store, self.documents)
            if self._tell_finished(writer):
                return
            write = join_plan(self.store, self.documents, writer, self.options.clock)
            while self.todo and (known := self._known(self.todo[0], write)):
                self._told(known)
            if not self.todo:
                return
            self._missing = self.todo[0]
            branch = RefName(self.plan.repo, BRANCHES, self.plan.branch)
            session = PushSession(self.store, branch, self.options, self.progress, write)
            session.run(lambda: self._attempt(session))
        except LodefsError as error:
            self._failed(self._at, error)

    def _attempt(self, session: PushSession) -> AttemptResult:
        self._waiting.clear()
        session.readers(self.plan.files, self.plan.size_bytes)  # no part may fork them later
        packs = PartPacks.of(session)
        try:
            for number in [*self.todo]:
                if not self._read(session, packs, number):
                    session.uploader.stop()  # and remember what is in the store
                    break
                if len(self._waiting) > 1:
                    self._end(session)
            while self._waiting:
                self._end(session)
        except BaseException:
            with contextlib.suppress(LodefsError):  # the first error is the one to report
                session.uploader.stop()
            raise
        return AttemptResult()

    def _read(self, session: PushSession, packs: PartPacks, number: int) -> bool:
        """Reads a part, unless it is done. Returns False if it failed; those before it are then
        ended."""
        self._at = number
        if number != self._missing and (known := self._known(number, session.write)):
            self._told(known)
            return True
        session.progress.phase = "reading files"
        try:
            part = self.documents.part(number)
            result = read_part(session, packs, self.root, part)
        except (PacksLost, IndexBroken):
            raise
        except LodefsError as error:
            while self._waiting:
                self._end(session)
            self._failed(number, error)
            return False
        self._waiting.append(_Read(result, session.uploader.puts))
        return True

    def _end(self, session: PushSession) -> None:
        """Waits until a part is stored, and leaves its result."""
        result = self._waiting[0].result
        self._at = result.number
        session.uploader.finish(self._waiting[0].puts)
        Committer(session).hand_over(result.root)
        session.index.forget_reused()
        sent = self.progress.bytes_sent
        result = replace(result, stored_bytes=sent - self._sent_before_bytes)
        self.documents.put_result(result)
        self._sent_before_bytes = sent
        self._waiting.popleft()
        self._told(result)

    def _tell_finished(self, writer: PlanWriter) -> bool:
        """Tells the results of all parts if the plan has become a commit. Returns whether it
        has."""
        if commit_of(self.store, writer) is None:
            return False
        for number in [*self.todo]:
            if (result := self.documents.result(number)) is not None:
                self._told(result)
            else:  # a gc run removes the documents now
                self._failed(number, NotFound(f"the plan {self.plan.name} is finished, and gone"))
        return True

    def _known(self, number: int, write: RefWrite) -> PartResult | None:
        """Returns the result of a part if it is done, and all that it stored is kept. ``write`` is
        that of the plan."""
        known = self.documents.result(number)
        relies = lost_in_place if self.options.in_place is not None else None
        if known is None or not is_kept(self.store, write, known, relies):
            return None
        result = replace(known, writer=write.begin().number)
        if result != known:
            self.documents.put_result(result)
        return result

    def _told(self, result: PartResult) -> None:
        self.todo.remove(result.number)
        self.tell(result.number, result)

    def _failed(self, number: int, error: LodefsError) -> None:
        failure = PartFailure(number, str(error), socket.gethostname())
        with contextlib.suppress(LodefsError):  # the first error is the one to report
            self.documents.put_failure(failure)
        self.todo.remove(number)
        self.tell(number, error)
