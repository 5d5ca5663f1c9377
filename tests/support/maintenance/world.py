"""A store in memory, a clock, and what people do to it, step by step where a test wants."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from random import Random

from lodefs.chunkstore.format import keys
from lodefs.chunkstore.format.journal import RefName
from lodefs.chunkstore.format.names import CommitId
from lodefs.chunkstore.journal.existing_commit import point_ref
from lodefs.chunkstore.journal.journal import StoreJournal
from lodefs.chunkstore.maintenance.collect import CollectOptions, CollectResult, collect
from lodefs.chunkstore.objects.pack_locations import PackLocations
from lodefs.chunkstore.push.changes.branch_commits import ChangesResult
from lodefs.chunkstore.push.changes.change import Change
from lodefs.chunkstore.push.changes.commit_changes import commit_changes
from lodefs.chunkstore.push.push import PushOptions, PushResult, push
from lodefs.chunkstore.push.session import PushSession
from lodefs.chunkstore.repo.refs import BRANCHES
from lodefs.chunkstore.repo.store import Store, create_store, open_store
from tests.support.chunkstore.faulty_store import FaultyObjects
from tests.support.chunkstore.memory_objects import MemoryObjects
from tests.support.maintenance.baton import Actor, ActorObjects, Faults
from tests.support.maintenance.needs import Needs

HOUR_S = 3600
GRACE_S = 24 * HOUR_S
REPO = "r"


class World:
    """One repository. Times are hours since the beginning."""

    def __init__(self, directory: Path) -> None:
        self.memory = MemoryObjects()
        self.objects = FaultyObjects(self.memory)
        create_store(self.memory)
        self.needs = Needs(self.memory)
        self.hours = 0.0
        self._directory = directory

    @property
    def store(self) -> Store:
        """As a new process sees it."""
        return open_store(PackLocations(self.objects))

    def source(self, name: str, **files: bytes) -> Path:
        """A directory with those files."""
        folder = self._directory / name
        folder.mkdir(parents=True, exist_ok=True)
        for file, data in files.items():
            (folder / file).write_bytes(data)
        return folder

    def push(
        self,
        source: Path,
        branch: str = "main",
        machine: str = "one",
        store: Store | None = None,
        *,
        dry_run: bool = False,
        check: bool = False,
    ) -> PushResult:
        """Pushes it to a branch."""
        options = replace(self._options(machine), dry_run=dry_run, check_packs=check)
        return push(store or self.store, source, REPO, branch, options)

    def change(self, branch: str, base: CommitId, change: Change) -> ChangesResult:
        """Commits a change of a commit to a branch."""
        options = self._options("one")
        return commit_changes(self.store, REPO, branch, [change], options, base=base)

    def session(self, machine: str = "one", store: Store | None = None) -> PushSession:
        """A push session of main."""
        branch = RefName(REPO, BRANCHES, "main")
        return PushSession(store or self.store, branch, self._options(machine))

    def _options(self, machine: str) -> PushOptions:
        return PushOptions(
            message="",
            author="",
            time_s=int(self.hours),
            index_dir=self._directory / machine,
            workers=0,
            clock_ns=lambda: time.time_ns() + HOUR_S * 10**9,
            clock=self.clock,
        )

    def collect(
        self,
        grace_s: int = GRACE_S,
        *,
        dry_run: bool = False,
        store: Store | None = None,
        min_used: float | None = None,
        merge_below_bytes: int | None = None,
    ) -> CollectResult:
        """One gc run."""
        options = CollectOptions(
            grace_s,
            dry_run=dry_run,
            clock=self.clock,
            workers=1,
            min_used=min_used,
            merge_below_bytes=merge_below_bytes,
        )
        return collect(store or self.store, options)

    def collect_all(self) -> None:
        """Two gc runs, more than the grace time apart: garbage is gone."""
        for _ in range(2):
            self.collect()
            self.hours += 25

    def delete(self, branch: str = "main") -> CommitId:
        """Deletes a branch; gives where it was."""
        refs = self.store.refs(REPO)
        entry = refs.read(BRANCHES, branch)
        assert entry.commit is not None
        refs.advance(BRANCHES, branch, None, expected_sequence=entry.sequence)
        return entry.commit

    def point(self, branch: str, commit_id: CommitId, *, store: Store | None = None) -> None:
        """Points a branch to a commit."""
        latest = self.store.refs(REPO).latest(BRANCHES, branch)
        point_ref(
            store or self.store,
            RefName(REPO, BRANCHES, branch),
            commit_id,
            expected_sequence=None if latest is None else latest.sequence,
            clock=self.clock,
        )

    def beat(self, actor: Actor) -> None:
        """A writer says that it is alive, as a thread of its own does it."""
        journal = StoreJournal(self.memory)
        journal.put_beat(actor.number, journal.beats(actor.number) + 1)

    def garbage(self) -> set[str]:
        """Packs and commits that nothing needs, and that are there still."""
        return self.needs.garbage(set(), int(self.clock()))

    def packs(self) -> set[str]:
        """Their keys."""
        return {key for key in self.memory.objects if key.startswith(keys.PACKS)}

    def clock(self) -> float:
        """Seconds since 1970."""
        return 1_700_000_000 + self.hours * HOUR_S

    def actor(self, name: str, act: Callable[[Store], object]) -> Actor:
        """Somebody who does this, one request after the other."""
        return Actor(name, partial(self._act, act))

    def _act(self, act: Callable[[Store], object], actor: Actor) -> None:
        faults = Faults(Random(0))
        act(open_store(PackLocations(ActorObjects(self.memory, actor, faults, lambda *_: None))))


def go_on_to(actor: Actor, request: str) -> None:
    """Lets an actor run until it stands before a request (the beginning of operation and key)."""
    while not actor.at.startswith(request):
        assert not actor.has_ended, f"{actor.name} never came to {request}: {actor.error}"
        actor.step()


def finish(actor: Actor) -> None:
    """Lets an actor run to its end."""
    while not actor.has_ended:
        actor.step()
    assert actor.failure is None, actor.failure
