"""Copies between stores that also grow, merge, tag, delete, retain, collect and compact, in random
orders: whatever was refused on the way, each store is whole after each step."""

from __future__ import annotations

import time
from collections import Counter
from dataclasses import replace
from pathlib import Path
from random import Random

from lodefs.chunkstore.errors import AlreadyExists, NotFound
from lodefs.chunkstore.format.journal import RefName
from lodefs.chunkstore.format.names import CommitId
from lodefs.chunkstore.format.repo_settings import Retention
from lodefs.chunkstore.journal.existing_commit import point_ref
from lodefs.chunkstore.maintenance.collect import CollectOptions, collect
from lodefs.chunkstore.push.changes.change import Put
from lodefs.chunkstore.push.changes.commit_changes import commit_changes
from lodefs.chunkstore.push.push import PushOptions
from lodefs.chunkstore.repo.refs import BRANCHES, TAGS
from lodefs.chunkstore.repo.store import Store, create_store, open_store
from lodefs.chunkstore.repo.verify import verify
from lodefs.chunkstore.transfer.copy import CopyOptions, copy
from tests.support.chunkstore.memory_objects import MemoryObjects
from tests.support.maintenance.schedules import one_at_a_time

SEEDS = 10
STEPS = 40
STORES = 3
HOUR_S = 3600
NAMES = ((BRANCHES, "main"), (BRANCHES, "dev"), (BRANCHES, "old"), (TAGS, "v1"), (TAGS, "v2"))
POLICIES = (None, Retention(keep_last=1), Retention(keep_last=2), Retention(keep_tagged=True))


class Stores:
    """One in which history grows, and others that it is copied to, and between."""

    def __init__(self, seed: int, directory: Path) -> None:
        self.random = Random(seed)
        self.done: Counter[str] = Counter()
        self._directory = directory
        self._now_s = 1_800_000_000.0
        self._commits: set[CommitId] = set()
        self._objects = [MemoryObjects(f"memory:{n}") for n in range(STORES)]
        for objects in self._objects:
            create_store(objects)

    def store(self, number: int) -> Store:
        """As a new process sees it."""
        return open_store(self._objects[number])

    def any_store(self) -> Store:
        return self.store(self.random.randrange(STORES))

    def step(self) -> str:
        """Something that somebody does. Gives what, and whether it was refused."""
        acts = (self.commit, self.merge, self.point, self.delete, self.retain, self.collect)
        (act,) = self.random.choices((*acts, self.copy), (6, 2, 3, 4, 1, 6, 10))
        self._now_s += 60
        try:
            act()
        except (AlreadyExists, NotFound):
            return f"{act.__name__}, refused"
        self.done[act.__name__] += 1
        return act.__name__

    def check(self) -> None:
        """All that branches and tags lead to is there, or has expired."""
        for number in range(STORES):
            assert verify(self.store(number), data=True).problems == []

    def commit(self) -> None:
        """Some of a few files, in one pack where they are new."""
        store, branch = self.store(0), self.random.choice(("main", "dev"))
        latest = store.refs("r").latest(BRANCHES, branch)
        names = self.random.sample(range(5), self.random.randint(1, 4))
        changes = [Put(f"{n}", b"%d" % self.random.randrange(4) * 500 * (n + 1)) for n in names]
        options = PushOptions(
            message="",
            author="",
            time_s=int(self._now_s),
            index_dir=self._directory,
            workers=0,
            clock_ns=lambda: time.time_ns() + HOUR_S * 10**9,
            clock=lambda: self._now_s,
        )
        base = None if latest is None else latest.commit
        made = commit_changes(store, "r", branch, changes, options, base=base)
        self._commits.add(CommitId(bytes.fromhex(made.commit)))

    def merge(self) -> None:
        """One branch into the other, as that is."""
        store = self.store(0)
        ours, theirs = (store.refs("r").read(BRANCHES, name) for name in ("main", "dev"))
        assert ours.commit is not None
        assert theirs.commit is not None
        commit = store.commit("r", theirs.commit)
        commit = replace(commit, parents=(ours.commit, theirs.commit), time_s=int(self._now_s))
        merged = store.put_commit("r", commit)
        self._commits.add(merged)
        store.refs("r").advance(BRANCHES, "main", merged, expected_sequence=ours.sequence)

    def point(self) -> None:
        """A new branch or tag at any commit that ever was, if the store has it."""
        store, (kind, name) = self.any_store(), self.random.choice(NAMES[2:])
        latest = store.refs("r").latest(kind, name)
        if not self._commits or (latest is not None and latest.commit is not None):
            return
        commit_id = self.random.choice(sorted(self._commits))
        sequence = None if latest is None else latest.sequence
        point_ref(store, RefName("r", kind, name), commit_id, expected_sequence=sequence)

    def delete(self) -> None:
        refs, (kind, name) = self.any_store().refs("r"), self.random.choice(NAMES)
        sequence = refs.read(kind, name).sequence
        refs.advance(kind, name, None, expected_sequence=sequence)

    def retain(self) -> None:
        policy = self.random.choice(POLICIES)
        self.any_store().settings_log("r", lambda: self._now_s).change(
            lambda now: replace(now, retention=policy, may_lack_history=True)
        )

    def collect(self) -> None:
        """Twice, so that what it condemns is gone, or once. That of one store lacks most."""
        number = self.random.choice((0, 1, 1, 1, 2))
        min_used = self.random.choice((None, 1.0, 1.0))
        for _ in range(self.random.choice((1, 2, 2))):
            self._now_s += 25 * HOUR_S
            clock = lambda: self._now_s  # noqa: E731
            collect(self.store(number), CollectOptions(clock=clock, workers=1, min_used=min_used))

    def copy(self) -> None:
        """All from one to another. What is not refused stands where it stands in the source."""
        source, destination = self.random.sample(range(STORES), 2)
        options = CopyOptions(workers=1, clock=lambda: self._now_s)
        result = copy(self.store(source), self.store(destination), ["r"], None, options)
        self.done["refused"] += len(result.refused)
        self.done["sent"] += result.packs
        for one in result.refs:
            repo, kind, name = one.ref
            assert self.store(destination).refs(repo).read(kind, name).commit == one.after


def test_copies_among_all_else(tmp_path: Path) -> None:
    """After each step of any schedule every store is whole, for a reader and for a collection."""
    done: Counter[str] = Counter()
    with one_at_a_time():
        for seed in range(SEEDS):
            stores = Stores(seed, tmp_path / f"{seed}")
            steps: list[str] = []
            for _ in range(STEPS):
                try:
                    steps.append(stores.step())
                    stores.check()
                except Exception as error:
                    raise AssertionError(f"seed {seed}, after {steps}") from error
            done += stores.done
    for what in ("commit", "merge", "point", "retain", "collect", "copy", "refused", "sent"):
        assert done[what] > SEEDS / 2, (what, done)
