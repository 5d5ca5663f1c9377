"""The writers in the journal, as a gc run finds them: those that have ended, those that may still
write a ref, and those that are dead."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable
from concurrent.futures import Executor, ThreadPoolExecutor
from dataclasses import dataclass, field

from lodefs.chunkstore.errors import Conflict, NotFound
from lodefs.chunkstore.format.journal import End, Intent, LastHeartbeat, Ledger, RefName
from lodefs.chunkstore.journal.journal import StoreJournal, newest_tombstoning
from lodefs.chunkstore.maintenance.decisions import Writer, dead, last_heartbeats
from lodefs.chunkstore.repo.refs import RefEntry, Refs
from lodefs.chunkstore.repo.store import Store, require_there

WORKERS = 16


@dataclass(slots=True)
class Writers:
    """``refs`` are those that writers have written, with the sequence. ``waiting`` are writers that
    may still write, with or without an intent. ``dead`` are those that were given up now."""

    refs: dict[RefName, int] = field(default_factory=dict)
    waiting: dict[int, Writer] = field(default_factory=dict)
    last_heartbeats: dict[int, LastHeartbeat] = field(default_factory=dict)
    dead: Collection[int] = ()

    def have_ended_before(self, number: int) -> bool:
        """Whether all writers before an entry have ended."""
        return all(w.intent for w in self.waiting.values() if w.number < number)

    @property
    def intents(self) -> list[Intent]:
        """The intents of ended writers that may still be written."""
        return [writer.intent for writer in self.waiting.values() if writer.intent]


class WriterCheck:
    """Checks all writers from the ledger's mark to an entry. It reads each by its number and needs
    no list."""

    def __init__(self, store: Store, journal: StoreJournal, executor: Executor) -> None:
        self._store = store
        self._journal = journal
        self._executor = executor

    def look(self, ledger: Ledger, newest: int, newest_tombstoning_: int | None) -> Writers:
        """Returns the writers up to ``newest``. Changes nothing."""
        tombstoning = set()
        for entry in self._journal.tombstoning(newest_tombstoning_):
            if entry.number < ledger.before:
                break
            tombstoning.add(entry.number)
        numbers = [n for n in range(ledger.before, newest + 1) if n not in tombstoning]
        found = Writers()
        ends = self._executor.map(self._journal.end, numbers)
        self._sort(zip(numbers, ends, strict=True), found)
        return found

    def give_up(
        self, found: Writers, ledger: Ledger, now_s: int, grace_s: int, *, dry: bool
    ) -> None:
        """Ends the writers that are dead. Once the place of an intent in the ref's log is taken,
        its writer cannot write it any more. ``dry`` ends none, but returns what ending them would
        show."""
        found.last_heartbeats = last_heartbeats(
            found.waiting.values(), ledger.last_heartbeats, now_s
        )
        gone = dead(found.last_heartbeats, ledger, now_s, grace_s)
        found.dead = gone
        ends: list[tuple[int, End | None]] = []
        for number in gone:
            intent = found.waiting.pop(number).intent
            if intent is not None:
                self._take_place(intent, dry=dry)
                ends.append((number, End(number, intent)))
            elif not dry:
                ends.append((number, self._journal.put_end(End(number, None))))
        self._sort(ends, found, are_written=dry)
        left = last_heartbeats(found.waiting.values(), found.last_heartbeats, now_s)
        found.last_heartbeats = left

    def _sort(
        self, ends: Iterable[tuple[int, End | None]], found: Writers, *, are_written: bool = False
    ) -> None:
        """``are_written`` treats the places of all intents as taken, right after the refs'
        entries."""
        waiting: list[tuple[int, Intent | None]] = []
        for number, end in ends:
            if end is None:
                waiting.append((number, None))
            elif end.intent is not None:
                ref, sequence = end.intent.ref, end.intent.sequence
                if are_written:
                    found.refs[ref] = max(sequence - 1, found.refs.get(ref, -1))
                elif self._is_written(end.intent):
                    found.refs[ref] = max(sequence, found.refs.get(ref, -1))
                else:
                    waiting.append((number, end.intent))
        for number, intent in waiting:
            found.waiting[number] = Writer(number, self._journal.beats(number), intent)

    def _is_written(self, intent: Intent) -> bool:
        """Whether the intent's place in the log is taken, by its writer or another one."""
        return self._store.refs(intent.ref.repo).has(
            intent.ref.kind, intent.ref.name, intent.sequence
        )

    def _take_place(self, intent: Intent, *, dry: bool) -> None:
        """Puts an entry that changes nothing into the ref's log, at the place of a dead writer."""
        ref, before = intent.ref, intent.sequence - 1
        refs = self._store.refs(ref.repo)
        now = newest_entry(refs, ref, before)
        if dry or (now is not None and now.sequence != before):
            return
        commit = None if now is None else now.commit
        expected = None if now is None else before
        try:
            refs.advance(ref.kind, ref.name, commit, expected_sequence=expected)
        except Conflict:  # another entry has the place
            return


def newest_entry(refs: Refs, ref: RefName, at_least: int) -> RefEntry | None:
    """Does what Refs.surely_newest does. Raises: NotFound, with the way out, if an entry that must
    exist is gone."""
    try:
        return refs.surely_newest(ref.kind, ref.name, at_least)
    except NotFound as error:
        raise NotFound(
            f"the log of {ref.repo}@{ref.name} is gone, which no command of lodefs causes; nothing "
            f"more is deleted ({error}). If somebody removed it by hand and it is to stay so: "
            f"`lodefs rm {ref.repo}@{ref.name}` (or `lodefs rm {ref.repo}` for all of it), then "
            f"repeat this. Otherwise restore repos/{ref.repo}/ from a backup or from the bucket's "
            "older versions"
        ) from error


def newest_of(journal: StoreJournal) -> tuple[int, int | None]:
    """Returns the numbers of the newest entry (-1: none), and of the newest one with tombstones."""
    newest = journal.newest()
    return (-1 if newest is None else newest.number), newest_tombstoning(newest)


def forget_removed(
    store: Store, repo: str, name: str | None = None, clock: Callable[[], float] = time.time
) -> list[RefName]:
    """Puts a deletion entry for each branch and tag of a repository (or of one name) whose log is
    gone, and returns these refs. It puts none if no gc run and no writer knows of any. Somebody
    removed the logs in the bucket itself. A gc run that knows them stops, since they may only be
    lost for now, until somebody confirms the removal in this way."""
    require_there(store.objects)
    store.ensure_writable()
    journal = StoreJournal(store.objects, clock)
    ledger = journal.ledger()
    with ThreadPoolExecutor(WORKERS, "lodefs-rm") as executor:
        found = WriterCheck(store, journal, executor).look(ledger, *newest_of(journal))
    known = {**ledger.refs, **found.refs}
    for intent in found.intents:
        known[intent.ref] = max(intent.sequence, known.get(intent.ref, -1))
    refs = store.refs(repo)
    gone: list[RefName] = []
    for ref, sequence in sorted(known.items()):
        is_meant = ref.repo == repo and name in (None, ref.name)
        if is_meant and not refs.has(ref.kind, ref.name, sequence):
            refs.delete_at(ref.kind, ref.name, sequence)
            gone.append(ref)
    return gone
