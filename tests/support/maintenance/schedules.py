"""Random schedules of pushes, changes, copies, tags, deletions, purges, repairs, gc runs,
compactions and reads with the real code over a store in memory, and what must always hold.

``play(seed, directory)`` plays one. Every object that a ref leads to, and every chunk in it, is
looked for after every delete, every write of a pack, and every move of a ref.
"""

from __future__ import annotations

import collections
import contextlib
import shutil
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from random import Random
from typing import TypeVar
from unittest import mock

from lodefs.chunkstore.errors import Changed, Corrupt, NotFound, Purged
from lodefs.chunkstore.format import keys
from lodefs.chunkstore.format.composite import COMPOSITES, TABLES
from lodefs.chunkstore.format.journal import RefName
from lodefs.chunkstore.format.names import PackId
from lodefs.chunkstore.format.repo_settings import Retention
from lodefs.chunkstore.format.tree import Kind
from lodefs.chunkstore.journal.deletion import delete_repo, free_name, undelete_repo
from lodefs.chunkstore.journal.existing_commit import point_ref
from lodefs.chunkstore.journal.journal import StoreJournal
from lodefs.chunkstore.maintenance.collect import CollectOptions, collect
from lodefs.chunkstore.maintenance.purge import plan_again, plan_path, purge
from lodefs.chunkstore.objects.pack_locations import PackLocations
from lodefs.chunkstore.push.changes.change import Put
from lodefs.chunkstore.push.changes.commit_changes import commit_changes
from lodefs.chunkstore.push.push import PushOptions, push
from lodefs.chunkstore.repair.journal_repair import JournalRepair
from lodefs.chunkstore.repair.pack_repair import repair_packs
from lodefs.chunkstore.repair.packs import PackDamage
from lodefs.chunkstore.repair.sources.source import StoreSource
from lodefs.chunkstore.repo.refs import BRANCHES, TAGS
from lodefs.chunkstore.repo.store import Store, create_store, open_store
from lodefs.chunkstore.transfer.copy import CopyOptions, copy
from tests.support.chunkstore.handmade import Handmade
from tests.support.chunkstore.memory_objects import MemoryObjects
from tests.support.maintenance.baton import Actor, ActorObjects, Faults, InlineExecutor
from tests.support.maintenance.dry_runs import check_dry_runs
from tests.support.maintenance.needs import Needs

HOUR_S = 3600
GRACE_S = 24 * HOUR_S
REPO = "r"
NAMES = ("main", "dev")
MACHINES = 2
SOURCES = 4
ACTORS = 20
DRY_RUN_STEPS = 500
AT_ONCE_MAX = 4
_TELLING = (
    "put journal/",
    "put repos/",
    "put index/",
    "put composites/",
    "delete ",
)  # requests that others see
_REWRITERS = ("_collect", "_purge", "_repair")  # of packs

T = TypeVar("T")

POLICIES = (
    None,
    Retention(keep_last=1),
    Retention(keep_last=2),
    Retention(keep_tagged=True),
    Retention(keep_last=3, keep_within_s=30 * HOUR_S),
)


@dataclass(slots=True)
class Played:
    """What happened in a schedule."""

    steps: int = 0
    pushes: int = 0  # that made a commit
    stored_again: int = 0  # of these, that met packs which a gc run had deleted
    given_up: int = 0  # writers, that dry runs had said would be
    kept: int = 0  # entries of the journal whose garbage was kept: saved, or in use after all
    copies: int = 0  # that ended well
    changes: int = 0  # that made a commit
    collections: int = 0  # that ended well
    killed: int = 0
    purged: int = 0  # files
    purged_again: int = 0  # whether purged bytes had come back: of writers that had begun before
    repaired: int = 0  # packs
    removed: int = 0  # repositories
    restored: int = 0  # branches and tags of them
    expired: int = 0  # commits that retention policies have deleted
    failed: dict[str, int] = field(default_factory=dict)  # actors that ended with an error, by kind
    deleted: int = 0  # packs and commits
    merged: int = 0  # packs that were put into composites
    compacted: int = 0  # packs that were written again without some of their chunks
    read: int = 0  # snapshots that were read with indexes from before, while all this went on
    collections_to_clean: int = 0  # undisturbed ones, until all garbage was gone


@contextlib.contextmanager
def one_at_a_time() -> Iterator[None]:
    """No thread of the code under test but the actors' own."""
    with contextlib.ExitStack() as stack:
        for name, module in sorted(sys.modules.items()):
            if name.startswith("lodefs.chunkstore.") and hasattr(module, "ThreadPoolExecutor"):
                patch = mock.patch.object(module, "ThreadPoolExecutor", InlineExecutor)
                stack.enter_context(patch)
        stack.enter_context(mock.patch("concurrent.futures.ThreadPoolExecutor", InlineExecutor))
        stack.enter_context(mock.patch("lodefs.chunkstore.journal.heartbeat.Heartbeat.start"))
        yield


def write_sources(directory: Path) -> list[Path]:
    """Small directories that share some of their files and subdirectories."""
    random = Random(1)
    blobs = [random.randbytes(random.choice((50, 900, 20_000))) for _ in range(9)]
    for n in range(SOURCES):
        for name in ("a", "b", "c/d", "e"):
            if name == "e" and n % 2:
                continue
            folder = directory / f"source{n}" / name
            folder.mkdir(parents=True, exist_ok=True)
            for file in range(random.randint(1, 2)):
                (folder / f"f{file}").write_bytes(random.choice(blobs))
    return [directory / f"source{n}" for n in range(SOURCES)]


def play(
    seed: int, directory: Path, sources: list[Path], objects: MemoryObjects | None = None
) -> Played:
    """One schedule. ``directory`` is for push indexes, and gone afterwards; ``objects``: where the
    store shall be, which is empty. Raises: AssertionError if a ref leads to something that is not
    there, or garbage stays."""
    schedule = Schedule(seed, directory, sources, objects or MemoryObjects())
    try:
        with mock.patch("os.urandom", schedule.random.randbytes):
            schedule.run()
    finally:
        shutil.rmtree(directory, ignore_errors=True)
    return schedule.played


class Schedule:
    """One world: a store, machines, a clock."""

    def __init__(
        self, seed: int, directory: Path, sources: list[Path], objects: MemoryObjects
    ) -> None:
        self.random = random = Random(seed)
        self.played = Played()
        self._seed = seed
        self._directory = directory
        self._sources = sources
        self._objects = objects
        create_store(self._objects)
        self._elsewhere = create_store(MemoryObjects("memory:elsewhere"))
        made = Handmade(self._elsewhere)
        for n in range(2):
            made.commit(REPO, {b"%d" % n: random.randbytes(900)}, branch="copied")
        self._now_s = 1_700_000_000.0
        self._needs = Needs(self._objects)
        self._actors: list[Actor] = []
        self._faults = Faults(random)
        faults = random.choice(("none", "lists", "hidden", "deletes", "requests", "all"))
        self._doubts = 0  # purges that told of others, and who died while they wrote packs again
        self._hides = faults in ("lists", "hidden", "all")
        self._faults.lacking = 0.1 * (faults in ("lists", "all"))
        self._faults.hiding = 0.03 * (faults in ("hidden", "all"))
        self._faults.refused = 0.2 * (faults in ("deletes", "all"))
        self._faults.unanswered = 0.02 * (faults in ("requests", "all"))
        self._beats = random.choice((True, False))  # or writers are silent while they live
        self._kills = random.choice((0.0, 0.0, 0.01, 0.03))
        self._stalls = random.choice((0.0, 0.01, 0.04))
        self._keeps_going = random.choice((0.0, 0.8, 0.95))  # an actor after its request

    def run(self) -> None:
        """Actors one after the other and at once, then peace, and all garbage goes."""
        left, current = ACTORS, None
        while left or self._actors:
            self.played.steps += 1
            if self.played.steps % DRY_RUN_STEPS == self._seed % DRY_RUN_STEPS:
                self._check_dry_runs()
            self._advance_clock()
            if left and len(self._actors) < AT_ONCE_MAX and self._chance(0.05 if current else 1):
                self._actors.append(self._start())
                left -= 1
            if current not in self._actors or not self._chance(self._keeps_going):
                current = self._choose()
            if current is not None:
                self._step(current)
        self._faults.clear()
        self._clean()

    def _check_dry_runs(self) -> None:
        """As things are, if all others stood still from now on."""
        min_used = (None, 0.5, 1.0)[self._seed % 3]
        self.played.given_up += check_dry_runs(self._objects.objects, self._now_s, min_used)

    def _choose(self) -> Actor | None:
        ready = [actor for actor in self._actors if actor.stalled_until <= self.played.steps]
        return self.random.choice(ready) if ready else None

    def _step(self, actor: Actor) -> None:
        often = 6 if actor.at.startswith(_TELLING) else 1
        if self._chance(self._stalls * often):
            actor.stalled_until = self.played.steps + self.random.choice((5, 50, 400))
        elif self._chance(self._kills * often):
            self.played.killed += 1
            actor.kill(after_request=self._chance(0.5))
            self._doubts += actor.name in _REWRITERS
        else:
            actor.step()
        if actor.has_ended:
            self._actors.remove(actor)
            if actor.failure is not None:
                raise AssertionError(f"seed {self._seed}: {actor.name}") from actor.failure
            if actor.error is not None:
                kind = f"{actor.name}: {type(actor.error).__name__}"
                self.played.failed[kind] = self.played.failed.get(kind, 0) + 1
                self._doubts += actor.name in _REWRITERS

    def _advance_clock(self) -> None:
        if self._chance(0.03):
            for actor in self._actors if self._beats else ():
                if actor.number >= 0:
                    self._beat(actor.number)
            self._now_s += self.random.choice((60, HOUR_S, 12 * HOUR_S, 30 * HOUR_S, 30 * HOUR_S))

    def _beat(self, number: int) -> None:
        """As the thread of its own does it, whatever the writer waits for."""
        journal = StoreJournal(self._objects)
        journal.put_beat(number, journal.beats(number) + 1)

    def _chance(self, chance: float) -> bool:
        return self.random.random() < chance

    def _start(self) -> Actor:
        act, weight = zip(*self._acts(), strict=True)
        chosen = self.random.choices(act, weight)[0]
        wrong_s = self.random.choice((0, 0, 0, -7, 5, 40)) * HOUR_S
        clock = lambda: self._now_s + wrong_s  # noqa: E731 - of the machine of this actor
        return Actor(getattr(chosen, "__name__", ""), partial(chosen, clock=clock))

    def _acts(self) -> list[tuple[Callable[..., None], int]]:
        return [
            (self._push, 6),
            (self._collect, 6),
            (self._delete, 4),
            (self._point, 3),
            (self._read, 4),
            (self._copy, 3),
            (self._change, 4),
            (self._remove, 1),
            (self._restore, 2),
            (self._retain, 2),
            (self._purge, 2),
            (self._repair, 1),
        ]

    def _store(self, actor: Actor) -> Store:
        own = ActorObjects(self._objects, actor, self._faults, self._watch)
        return open_store(PackLocations(own))

    def _push(self, actor: Actor, clock: Callable[[], float]) -> None:
        source, name = self.random.choice(self._sources), self.random.choice(NAMES)
        result = push(self._store(actor), source, REPO, name, self._options(clock))
        self.played.pushes += not result.unchanged
        self.played.stored_again += result.lost_packs > 0

    def _change(self, actor: Actor, clock: Callable[[], float]) -> None:
        """A file more or less than in any commit that ever was, on a branch that may not exist."""
        store, name = self._store(actor), self.random.choice((*NAMES, "new"))
        if not self._needs.commits:
            return
        base = self.random.choice(sorted(self._needs.commits))
        change = Put("changed", self.random.choice((b"", b"1" * 900, b"2" * 900)))
        options = self._options(clock)
        result = commit_changes(store, REPO, name, [change], options, base=base)
        self.played.changes += not result.unchanged

    def _options(self, clock: Callable[[], float]) -> PushOptions:
        return PushOptions(
            message="",
            author="",
            time_s=int(clock()) // (12 * HOUR_S),  # often the same
            index_dir=self._directory / f"machine{self.random.randrange(MACHINES)}",
            workers=0,
            clock_ns=lambda: time.time_ns() + HOUR_S * 10**9,
            clock=clock,
        )

    def _collect(self, actor: Actor, clock: Callable[[], float]) -> None:
        min_used = self.random.choice((None, 0.3, 0.7, 1.0))
        below = self.random.choice((None, 1000, 1 << 20))
        options = CollectOptions(GRACE_S, clock=clock, min_used=min_used, merge_below_bytes=below)
        self._collect_with(actor, options)

    def _collect_with(self, actor: Actor, options: CollectOptions) -> None:
        result = collect(self._store(actor), options)
        self.played.collections += 1
        self.played.merged += result.merged.packs

    def _read(self, actor: Actor, clock: Callable[[], float]) -> None:
        """Reads a snapshot again and again: with indexes of packs that were read long ago. What a
        ref leads to at the end has to be there, in one try."""
        store = self._store(actor)
        name = self.random.choice(self._needs.refs() or [self._any_ref()])
        commit_id = store.refs(REPO).read(*name).commit
        if commit_id is None:
            return
        for _ in range(4):
            try:
                root = store.commit(REPO, commit_id).root
                for _, entry in store.packs.walk(root):
                    if entry.kind is Kind.FILE:
                        collections.deque(store.packs.read_file(entry), 0)
            except Purged:
                assert self._needs.purged()
            except Changed as error:
                raise AssertionError("a reader met a pack that was written again") from error
            except (NotFound, Corrupt):
                assert not self._needs.is_living(commit_id), f"{commit_id.hex()} cannot be read"
                return
            self.played.read += 1
            actor.stalled_until = self.played.steps + self.random.choice((0, 50, 400))

    def _delete(self, actor: Actor, clock: Callable[[], float]) -> None:
        refs = self._store(actor).refs(REPO)
        kind, name = self.random.choice(self._needs.refs() or [self._any_ref()])
        entry = refs.read(kind, name)
        refs.advance(kind, name, None, expected_sequence=entry.sequence)

    def _point(self, actor: Actor, clock: Callable[[], float]) -> None:
        """A tag or branch at any commit that ever was."""
        kind, name = self._any_ref()
        store = self._store(actor)
        if not self._needs.commits:
            return
        commit_id = self.random.choice(sorted(self._needs.commits))
        store.commit(REPO, commit_id)
        latest = store.refs(REPO).latest(kind, name)
        sequence = None if latest is None else latest.sequence
        ref = RefName(REPO, kind, name)
        point_ref(store, ref, commit_id, expected_sequence=sequence, clock=clock)

    def _copy(self, actor: Actor, clock: Callable[[], float]) -> None:
        """A branch that only copies bring, from a store without faults."""
        options = CopyOptions(workers=1, step_size_bytes=1, clock=clock)
        copy(self._elsewhere, self._store(actor), [REPO], "copied", options)
        self.played.copies += 1

    def _remove(self, actor: Actor, clock: Callable[[], float]) -> None:
        """All of the repository."""
        delete_repo(self._store(actor), REPO, "me", clock)
        self.played.removed += 1

    def _restore(self, actor: Actor, clock: Callable[[], float]) -> None:
        """The repository, or only its name."""
        store = self._store(actor)
        if self._chance(0.2):
            free_name(store, REPO, clock)
        else:
            self.played.restored += len(undelete_repo(store, REPO, clock).refs)

    def _retain(self, actor: Actor, clock: Callable[[], float]) -> None:
        """Any policy, or none."""
        policy = self.random.choice(POLICIES)
        self._store(actor).settings_log(REPO, clock).change(
            lambda now: replace(now, retention=policy, may_lack_history=True)
        )

    def _purge(self, actor: Actor, clock: Callable[[], float]) -> None:
        """A file of any commit. Where no list lacks anything, nobody had begun before, and nobody
        else writes packs again, its bytes are gone at once."""
        if not self._needs.commits:
            return
        store = self._store(actor)
        root = store.commit(REPO, self.random.choice(sorted(self._needs.commits))).root
        files = [path for path, entry in store.packs.walk(root) if entry.kind is Kind.FILE]
        plan = plan_path(store, REPO, self.random.choice(sorted(files)))
        self._doubts += 1
        result = purge(store, plan, clock, also_shared=self._chance(0.8))
        self._doubts -= not (result.writers or result.left)
        self.played.purged += 1
        if not (result.writers or result.left or self._hides or self._rewriters(actor)):
            kept = self._needs.holding(plan.chunks)
            assert not kept, f"purged bytes are left in {kept}"

    def _repair(self, actor: Actor, clock: Callable[[], float]) -> None:
        """Packs that somebody has taken for lost, from a slow copy of the store as it was."""
        copied = MemoryObjects("memory:copied")
        copied.objects = dict(self._objects.objects)
        packs = sorted(key for key in copied.objects if key.startswith(keys.PACKS))
        lost = [
            PackDamage(PackId(bytes.fromhex(key.rpartition("/")[2])), is_lost=True, what="lost")
            for key in self.random.sample(packs, min(2, len(packs)))
        ]
        source = StoreSource(copied)
        with mock.patch.object(source, "pack", self._slowly(actor, source.pack)):
            repair_packs(
                self._store(actor).objects, lost, [source], InlineExecutor(), dry_run=False
            )
        self.played.repaired += len(lost)

    def _slowly(self, actor: Actor, act: Callable[[PackId], T]) -> Callable[[PackId], T]:
        def slow(pack_id: PackId) -> T:
            actor.stalled_until = self.played.steps + self.random.choice((0, 50, 400))
            return act(pack_id)

        return slow

    def _rewriters(self, own: Actor) -> int:
        """How many others may write a pack again."""
        return sum(one is not own and one.name in _REWRITERS for one in self._actors)

    def _any_ref(self) -> tuple[str, str]:
        kind = self.random.choice((BRANCHES, BRANCHES, TAGS))
        return kind, self.random.choice(NAMES if kind == BRANCHES else ("v1", "v2"))

    def _watch(self, what: str, key: str) -> None:
        """Looks for all that refs lead to, when that or what is there changes."""
        if what == "delete" and key.startswith((keys.PACKS, keys.REPOS)):
            self.played.deleted += 1
        elif key.startswith((COMPOSITES, TABLES)):
            pass
        elif what == "put" and key.startswith(keys.PACKS):
            if not self._needs.is_whole(key):
                self.played.compacted += 1
        elif not (what == "put" and keys.ref_of_entry(key)):
            self.played.expired += what == "put" and key.startswith(keys.expired(REPO))
            return
        self._needs.check(f"seed {self._seed}, step {self.played.steps}, after {what} of {key}")

    def _clean(self) -> None:
        """Gc runs that nothing disturbs, a day after each other."""
        self.played.kept = self._needs.kept()
        dangling = self._needs.dangling_intents()
        for count in range(1, 5):
            self._now_s += 50 * HOUR_S
            below = self.random.choice((None, 1 << 20))
            options = CollectOptions(
                GRACE_S, clock=lambda: self._now_s, min_used=1.0, merge_below_bytes=below
            )
            actor = Actor("collect", lambda actor: self._collect_with(actor, options))  # noqa: B023
            while not actor.has_ended:
                actor.step()
            assert not actor.error and not actor.failure, (self._seed, actor.error, actor.failure)
            hidden, now_s = self._faults.hidden, int(self._now_s)
            garbage = self._needs.garbage(hidden, now_s)
            garbage |= self._needs.unused_chunks(hidden, now_s)
            if not garbage:
                self.played.collections_to_clean = count
                break
        self._needs.read_all()
        self._purge_again()
        journal = JournalRepair(self._objects, dry_run=True)
        journal.look()
        assert not journal.problems, f"seed {self._seed}: {journal.problems}"
        limit = 3 if dangling else 2
        assert not garbage and count <= limit, f"seed {self._seed}: {sorted(garbage)} stays"

    def _purge_again(self) -> None:
        """What late writers have brought back is found, and purged."""
        store = open_store(PackLocations(self._objects))
        back = self._needs.holding(self._needs.purged())
        self.played.purged_again += bool(back)
        assert not back or self._doubts or self._hides, f"seed {self._seed}: {sorted(back)} is back"
        purge(store, plan_again(store), lambda: self._now_s)
        kept = self._needs.holding(self._needs.purged())
        assert not kept, f"seed {self._seed}: purged bytes are left in {sorted(kept)}"
        self._needs.check(f"seed {self._seed}, after all was purged")
