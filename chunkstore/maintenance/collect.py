"""gc: one run tombstones what no ref leads to, and a later one deletes it.

It works beside writers and other gc runs, on any number of machines: docs/decisions/0036. Each run
first deletes the garbage that is ripe, then tombstones what it has found. It may end anywhere and
be repeated.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from dataclasses import dataclass, field

from lodefs.chunkstore.errors import InvalidInput
from lodefs.chunkstore.format.journal import (
    CHUNK_PACKS_MAX,
    DeadChunks,
    DeletionOutcome,
    Garbage,
    JournalEntry,
    LastHeartbeat,
    Ledger,
    RefName,
)
from lodefs.chunkstore.format.names import CommitId, PackId
from lodefs.chunkstore.format.pack import DROPPED
from lodefs.chunkstore.journal.journal import StoreJournal
from lodefs.chunkstore.journal.push_plans import PushPlans, abandoned
from lodefs.chunkstore.maintenance import decisions
from lodefs.chunkstore.maintenance.compact import (
    drop_all,
    smaller_by,
    sparse_packs,
    union_of,
)
from lodefs.chunkstore.maintenance.inventory import PackList, Repositories
from lodefs.chunkstore.maintenance.late_writes import drop_purged, find_purged
from lodefs.chunkstore.maintenance.mark import Marked, Marking
from lodefs.chunkstore.maintenance.merge import BELOW_BYTES_MAX, Merged, Merging, Unused
from lodefs.chunkstore.maintenance.overlay import OverlayObjects
from lodefs.chunkstore.maintenance.sweep import check_deletes, sweep
from lodefs.chunkstore.maintenance.tree_groups import ReadGroups
from lodefs.chunkstore.maintenance.writers import (
    WriterCheck,
    Writers,
    newest_entry,
    newest_of,
)
from lodefs.chunkstore.objects.pack_locations import PackLocations, locations_of
from lodefs.chunkstore.repo.store import Store, require_there
from lodefs.chunkstore.system.progress import Progress
from lodefs.chunkstore.system.rate import Rate

WORKERS = 16
GRACE_S = 24 * 3600


@dataclass(frozen=True, slots=True)
class CollectOptions:
    """The options of a gc run."""

    grace_s: int = GRACE_S  # from a tombstone to the deletion, and until a silent writer is dead
    dry_run: bool = False
    clock: Callable[[], float] = time.time
    workers: int = WORKERS  # concurrent requests
    # packs whose share of used bytes is smaller than this are compacted; None: no packs
    min_used: float | None = None
    rate_bytes_s: float | None = None  # limit for reads and writes of compaction and merging
    merge_below_bytes: int | None = None  # smaller packs are merged; None: no packs
    read_groups: ReadGroups | None = None  # reads trees by many machines; None: this process does


@dataclass(slots=True)
class Amount:
    """A number of packs and commits. ``size_bytes`` counts the packs that exist."""

    packs: int = 0
    commits: int = 0
    size_bytes: int = 0


@dataclass(slots=True)
class CollectResult:
    """The result of a gc run: its findings and its actions, or with ``dry_run`` those it would
    take."""

    packs: int = 0  # packs of the store when the gc run began
    size_bytes: int = 0
    combined_packs: int = 0  # those of them that lie in ``combined_objects``
    combined_objects: int = 0
    used_commits: int = 0
    used_packs: int = 0
    expired_commits: int = 0  # branches lead to them, but retention policies do not keep them
    garbage: Amount = field(default_factory=Amount)  # all that no ref leads to
    deleted: Amount = field(default_factory=Amount)
    tombstoned: Amount = field(default_factory=Amount)  # tombstoned by this gc run
    waiting: Amount = field(default_factory=Amount)  # tombstoned earlier, and not ripe yet
    # packs whose unused chunks were dropped, and the bytes of these chunks; some of the packs
    # were tombstoned by this gc run, and all earlier
    compacted: Amount = field(default_factory=Amount)
    sparse: Amount = field(default_factory=Amount)
    sparse_waiting: Amount = field(default_factory=Amount)
    # Merged small packs; with dry_run, those to merge
    merged: Merged = field(default_factory=Merged)
    # deleted and compacted chunks that lay beside merged packs, or still do
    unused: Unused = field(default_factory=Unused)
    ripe_at_s: int | None = None  # when the waiting or new tombstones may be deleted
    writers: int = 0  # writers that the tombstones wait for
    dead_writers: int = 0  # writers that were given up
    plans: int = 0  # planned pushes, finished or abandoned, whose documents were removed


def collect(
    store: Store, options: CollectOptions, progress: Progress | None = None
) -> CollectResult:
    """Deletes the garbage that is ripe, and tombstones the other garbage that it finds.

    Raises: InvalidInput for invalid options; Corrupt if a ref leads to something that is missing or
    damaged; what the store raises. After an error, a repeated run continues.
    """
    if options.grace_s < 0:
        raise InvalidInput(f"the grace time must be 0 s or more, not {options.grace_s} s")
    if options.min_used is not None and not 0 < options.min_used <= 1:
        raise InvalidInput(
            f"the share of a pack must be more than 0 and at most 1, not {options.min_used}"
        )
    below = options.merge_below_bytes
    if below is not None and not 0 < below <= BELOW_BYTES_MAX:
        raise InvalidInput(
            f"packs of less than {below} bytes cannot be merged: the size must be more than 0 and "
            f"at most {BELOW_BYTES_MAX >> 20} MiB"
        )
    require_there(store.objects)
    if options.dry_run:  # later steps see moved packs at their new places
        over = OverlayObjects(locations_of(store.objects).inner)
        store = Store(PackLocations(over), store.settings)
    else:
        store.ensure_writable()
    progress = progress or Progress()
    with (
        ThreadPoolExecutor(options.workers, "lodefs-gc") as executor,
        Marked() as marked,
        PackList() as packs,
    ):
        return _Collection(store, options, executor, progress, marked, packs).run()


class _Collection:
    """One gc run."""

    def __init__(
        self,
        store: Store,
        options: CollectOptions,
        executor: Executor,
        progress: Progress,
        marked: Marked,
        packs: PackList,
    ) -> None:
        self._store = store
        self._options = options
        self._executor = executor
        self._progress = progress
        self._marked = marked
        self._packs = packs
        self._journal = StoreJournal(store.objects, options.clock)
        self._repos = Repositories()
        now_s = int(options.clock())
        self._marking = Marking(store, executor, progress, now_s, options.read_groups)
        rate = Rate(options.rate_bytes_s)
        self._merging = Merging(store.objects, executor, rate, dry_run=options.dry_run)
        self._early: Mapping[int, LastHeartbeat] = {}  # entries with a time in the future
        self._handled: Sequence[Garbage] = ()  # garbage that was deleted
        self._dropped: Mapping[PackId, int] = {}  # chunks that a dry run would have dropped
        self._result = CollectResult()

    def run(self) -> CollectResult:
        """Runs writers, lists, mark, sweep and tombstones. Decisions 0036 and 0040 give the
        order."""
        options = self._options
        self._progress.phase = "reading the journal"
        ledger = self._journal.ledger()
        newest, tombstoning = newest_of(self._journal)
        undone = self._journal.undone(tombstoning)
        writers = self._writers(ledger, newest, tombstoning)
        self._merging.begin()
        self._list()
        if options.min_used is None:
            packs = [
                dead.pack for one in undone if one.tombstoned for dead in one.tombstoned.chunks
            ]
            self._marked.watched = set(packs)
        else:
            self._marked.watched = None
        refs = {**ledger.refs, **writers.refs, **self._repos.refs}
        self._mark(refs, writers)
        sizes, commits = self._garbage()
        now_s = int(options.clock())
        self._early = decisions.from_the_future(undone, ledger.last_heartbeats, now_s)
        if undone and ledger == Ledger() and not options.dry_run:
            self._journal.put_ledger(ledger)  # it must exist once outcomes were carried out
        left = self._sweep(undone, writers, sizes)
        self._result.waiting = _amount([entry.tombstoned for entry in left], sizes)
        before = self._tombstoned_before(left)
        self._tombstone(sizes, commits, before)
        self._tombstone_chunks(before)
        self._merge()
        early = {one.number: self._early[one.number] for one in left if one.number in self._early}
        self._forget_plans(writers.dead)
        after = decisions.next_ledger(ledger, refs, writers.last_heartbeats, newest, early)
        if after != ledger and not self._options.dry_run:
            self._journal.put_ledger(after, ledger)
        return self._result

    def _writers(self, ledger: Ledger, newest: int, tombstoning: int | None) -> Writers:
        options = self._options
        check = WriterCheck(self._store, self._journal, self._executor)
        found = check.look(ledger, newest, tombstoning)
        now_s = int(options.clock())
        check.give_up(found, ledger, now_s, options.grace_s, dry=options.dry_run)
        self._result.dead_writers = len(found.dead)
        self._result.writers = sum(writer.intent is None for writer in found.waiting.values())
        return found

    def _list(self) -> None:
        """Lists packs first: packs that are put later are not garbage of this gc run."""
        self._progress.phase = "listing packs"
        self._packs.fill(self._store.objects)
        self._progress.phase = "listing commits and refs"
        self._repos.fill(self._store.objects)
        self._result.packs, self._result.size_bytes = self._packs.count, self._packs.size_bytes
        self._result.combined_packs, self._result.combined_objects = self._merging.combined()

    def _mark(self, refs: Mapping[RefName, int], writers: Writers) -> None:
        self._progress.phase = "reading refs"
        roots = [(intent.ref, intent.commit) for intent in writers.intents]
        roots += [head for head in self._executor.map(self._head, refs.items()) if head]
        self._marking.mark(roots, self._marked)
        self._result.used_commits = len(self._marked.commits)
        self._result.used_packs = self._marked.packs
        self._result.expired_commits = len(self._marked.expired)

    def _head(self, ref: tuple[RefName, int]) -> tuple[RefName, CommitId] | None:
        name, sequence = ref
        entry = newest_entry(self._store.refs(name.repo), name, sequence)
        if entry is None or entry.commit is None:
            return None
        return name, entry.commit

    def _garbage(self) -> tuple[dict[PackId, int], list[tuple[str, CommitId]]]:
        """Returns unused packs with their sizes, and unused commits."""
        self._progress.phase = "comparing"
        sizes = {pack: size_bytes for pack, size_bytes in self._packs if pack not in self._marked}
        used = self._marked.commits | self._marked.renamed
        listed = (at for at in self._repos.all_commits() if at not in used)
        unkept = sorted(self._marked.expired | self._marked.returned)
        commits = list(dict.fromkeys((*unkept, *listed)))
        self._result.garbage = Amount(len(sizes), len(commits), sum(sizes.values()))
        return sizes, commits

    def _sweep(
        self,
        undone: Sequence[JournalEntry],
        writers: Writers,
        sizes: dict[PackId, int],
    ) -> Sequence[JournalEntry]:
        """Deletes the garbage of the entries that are ripe; returns the other entries. It goes in
        their order, so that those that are not done are always the newest."""
        ripe = list(itertools.takewhile(lambda entry: self._is_ripe(entry, writers), undone))
        if ripe and not self._options.dry_run:
            # Otherwise it would decide outcomes and fail to carry them out
            check_deletes(self._store.objects)
        outcomes = self._outcomes(ripe)
        garbage = [outcome.deleted for outcome in outcomes if outcome.deleted is not None]
        self._result.deleted = _amount(garbage, sizes)
        if ripe and not self._options.dry_run:
            gc_number = ripe[-1].number
            reached = self._marked.expired | self._marked.commits
            sweep(self._store, garbage, reached, gc_number, self._executor, self._progress)
        smaller_by = self._compact(garbage)
        self._merging.forget({pack for one in garbage for pack in one.packs}, smaller_by)
        for entry in () if self._options.dry_run else ripe:
            self._journal.put_done(entry.number)
        self._handled = garbage
        return undone[len(ripe) :]

    def _is_ripe(self, entry: JournalEntry, writers: Writers) -> bool:
        """Whether an entry's outcome is decided, or may be decided now."""
        if self._journal.outcome(entry.number) is not None:
            return True
        seen = self._early.get(entry.number)
        ripe_at_s = decisions.ripe_at_s(entry, self._options.grace_s, seen)
        if int(self._options.clock()) < ripe_at_s:
            self._result.ripe_at_s = self._result.ripe_at_s or ripe_at_s
            return False
        return writers.have_ended_before(entry.number)

    def _outcomes(self, ripe: Sequence[JournalEntry]) -> list[DeletionOutcome]:
        """Decides the outcomes of the entries' garbage. Commits come first: an expired commit that
        stays, because a writer has saved it, keeps its packs."""
        of_commits = [e for e in ripe if e.tombstoned is not None and e.tombstoned.commits]
        outcomes = {entry.number: self._outcome(entry, self._marked) for entry in of_commits}
        gone = {
            one
            for outcome in outcomes.values()
            if outcome.deleted
            for one in outcome.deleted.commits
        }
        with Marked(self._marked) as needed:
            if len(of_commits) < len(ripe):
                self._marking.mark_commits(self._marked.expired - gone, needed)
            for entry in ripe:
                if entry.number not in outcomes:
                    outcomes[entry.number] = self._outcome(entry, needed)
        return [outcomes[entry.number] for entry in ripe]

    def _outcome(self, entry: JournalEntry, needed: Marked) -> DeletionOutcome:
        """Puts the outcome, and returns the one that counts: another gc run or a writer may have
        put one before."""
        if (outcome := self._journal.outcome(entry.number)) is not None:
            return outcome
        used = self._marked.commits | self._marked.renamed
        outcome = decisions.outcome_of(entry, needed, used, needed.chunks)
        return outcome if self._options.dry_run else self._journal.put_outcome(outcome)

    def _compact(self, garbage: Sequence[Garbage]) -> Mapping[PackId, int]:
        """Drops chunks of packs, except of packs that are unused as a whole. Returns by how much
        each pack gets smaller; a dry run only computes that."""
        found = union_of(one for part in garbage for one in part.chunks)
        dead = [DeadChunks(*one) for one in found.items() if one[0] in self._marked]
        if not dead:
            return {}
        progress, dry, objects = self._progress, self._options.dry_run, self._store.objects
        rate = Rate(self._options.rate_bytes_s)
        progress.phase = f"compacting {len(dead)} packs"
        progress.files_done, progress.files_total = 0, len(dead)
        sizes = list(smaller_by(objects, dead, self._executor)) if dry else []
        for size_bytes in sizes if dry else drop_all(objects, dead, DROPPED, self._executor, rate):
            self._result.compacted.packs += size_bytes > 0
            self._result.compacted.size_bytes += size_bytes
            progress.files_done += 1
        if dry:
            purged = find_purged(objects, [one.pack for one in dead], self._executor)
            self._dropped = union_of([*map(DeadChunks._make, found.items()), *purged])
            return {one.pack: size for one, size in zip(dead, sizes, strict=True) if size}
        drop_purged(objects, [one.pack for one in dead], self._executor, rate)
        return {}

    def _tombstone_chunks(self, before: Sequence[Garbage]) -> None:
        """Tombstones the unused chunks of sparse packs, unless they are tombstoned already."""
        min_used, result, objects = self._options.min_used, self._result, self._store.objects
        if min_used is None:
            return
        self._progress.phase = "looking for packs with many unused chunks"
        known = union_of(dead for one in before for dead in one.chunks)
        found: list[DeadChunks] = []
        limit = decisions.ENTRIES_MAX * CHUNK_PACKS_MAX
        packs = self._packs
        for dead, size_bytes in sparse_packs(
            objects, packs, self._marked, min_used, self._executor, self._dropped
        ):
            new = dead.chunks & ~known.get(dead.pack, 0)
            amount = result.sparse if new else result.sparse_waiting
            amount.packs += 1
            amount.size_bytes += size_bytes
            if new:
                found.append(DeadChunks(dead.pack, new))
            if len(found) == limit:
                break
        self._append(decisions.entries_of(Garbage(chunks=tuple(found))))

    def _merge(self) -> None:
        """Merges small packs that are in use, and removes what no longer counts beside them."""
        below = self._options.merge_below_bytes
        if below is not None:
            small = [one for one in self._packs if one[1] < below and one[0] in self._marked]
            self._result.merged = self._merging.merge(small, self._progress)
        self._result.unused = self._merging.rewrite(self._options.min_used)

    def _forget_plans(self, dead: Collection[int]) -> None:
        """Removes the documents of planned pushes that are finished or abandoned: also of writers
        that are ``dead``, which a dry run does not end."""
        self._progress.phase = "looking for planned pushes"
        for name, first in abandoned(self._store, self._journal, dead):
            self._result.plans += 1
            if not self._options.dry_run:
                PushPlans(self._store.objects).remove(name, first)

    def _tombstone(
        self,
        sizes: Mapping[PackId, int],
        commits: Sequence[tuple[str, CommitId]],
        before: Sequence[Garbage],
    ) -> None:
        """Tombstones garbage that is neither deleted nor tombstoned already. It tombstones again
        what a writer has saved."""
        known = [*self._handled, *before]
        packs_known = {pack for one in known for pack in one.packs}
        commits_known = {commit for one in known for commit in one.commits}
        garbage = Garbage(
            tuple(pack for pack in sizes if pack not in packs_known),
            tuple(commit for commit in commits if commit not in commits_known),
        )
        parts = decisions.entries_of(garbage)
        self._result.tombstoned = _amount(parts, sizes)
        self._append(parts)

    def _tombstoned_before(self, left: Sequence[JournalEntry]) -> list[Garbage]:
        """Returns the garbage of those entries that is to be deleted by their outcomes, or may be,
        since they have none yet."""
        outcomes = self._executor.map(lambda entry: self._journal.outcome(entry.number), left)
        found = (
            entry.tombstoned if outcome is None else outcome.deleted
            for entry, outcome in zip(left, outcomes, strict=True)
        )
        return [one for one in found if one is not None]

    def _append(self, parts: Sequence[Garbage]) -> None:
        """Puts entries with tombstones into the journal."""
        if not parts:
            return
        self._progress.phase = "tombstoning unused packs and commits"
        now_s = int(self._options.clock())
        for part in () if self._options.dry_run else parts:
            now_s = self._journal.append(part).time_s
        last = JournalEntry(0, None, now_s, "")
        ripe_at_s = decisions.ripe_at_s(last, self._options.grace_s)
        self._result.ripe_at_s = self._result.ripe_at_s or ripe_at_s


def _amount(garbage: Sequence[Garbage | None], sizes: Mapping[PackId, int]) -> Amount:
    amount = Amount()
    for one in garbage:
        if one is not None:
            amount.packs += len(one.packs)
            amount.commits += len(one.commits)
            amount.size_bytes += sum(sizes.get(pack, 0) for pack in one.packs)
    return amount
