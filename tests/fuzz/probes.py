"""What is tried on clones of a store at some state: a push, a copy, a repair, a gc run, a
verification, each of which has to go as it would if somebody did it now."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from random import Random

from lodefs.chunkstore.errors import LodefsError
from lodefs.chunkstore.maintenance.collect import CollectOptions
from lodefs.chunkstore.push.push import push
from lodefs.chunkstore.repair.repair import RepairOptions, RepairResult, repair
from lodefs.chunkstore.repair.shards import repair_index
from lodefs.chunkstore.repair.sources.source import StoreSource
from lodefs.chunkstore.repair.state_check import check_state
from lodefs.chunkstore.repo.checks.verify import verify
from lodefs.chunkstore.repo.store import create_store, open_store
from lodefs.chunkstore.system.progress import Progress
from lodefs.chunkstore.transfer.copy import CopyOptions, copy
from tests.fuzz import commands as say
from tests.fuzz.model import Model
from tests.fuzz.reading import FreshMachine, Seen
from tests.fuzz.world import CHUNKING, World
from tests.support.chunkstore.memory_objects import MemoryObjects
from tests.support.maintenance.baton import InlineExecutor
from tests.support.maintenance.dry_runs import check_dry_run

FRESH = "fresh"  # a repository that is in no store


class Prober:
    """Tries things on clones of the stores of a world."""

    def __init__(self, world: World, model: Model, fresh: FreshMachine) -> None:
        self._world = world
        self._model = model
        self._fresh = fresh
        self._machines = 0

    def probe(self, random: Random, store: int, seen: Sequence[Seen]) -> Iterator[str]:
        """One of them, chosen by ``random``."""
        ways: tuple[Callable[[Random, int, Sequence[Seen]], Iterator[str]], ...] = (
            self._verify,
            self._push,
            self._push,
            self._repair,
            self._collect,
            self._copy,
        )
        way = random.choice(ways)
        for problem in way(random, store, seen):
            yield f"on a clone of store {store}, {way.__name__[1:]}: {problem}"

    def _clone(self, store: int) -> MemoryObjects:
        clone = MemoryObjects(f"memory:clone of {store}")
        clone.objects = dict(self._world.stores[store].objects)
        return clone

    def _verify(self, _random: Random, store: int, seen: Sequence[Seen]) -> Iterator[str]:
        """Names damage if, and only if, there is any."""
        found = open_store(self._world.located(self._clone(store)))
        try:
            result = verify(found, data=True, workers=1)
        except LodefsError as error:
            yield f"it ends with {error!r}"
            return
        problems = [*result.problems]
        problems += [
            str(one)
            for one in check_state(found.objects, lambda: self._world.now_s)
            if not self._model.may_be_announced(store, one.key, one.what)
        ]
        if problems and self._model.is_sound(store, seen[store]):
            yield f"a false alarm: {problems}"
        if seen[store].lost and not problems:
            yield f"nothing is told of {seen[store].lost}"

    def _push(self, random: Random, store: int, seen: Sequence[Seen]) -> Iterator[str]:
        """A machine that knows nothing pushes a directory to a new repository."""
        clone = self._clone(store)
        source = random.randrange(say.SOURCES)
        yield from self._pushed(clone, store, source)

    def _pushed(self, clone: MemoryObjects, store: int, source: int) -> Iterator[str]:
        self._machines += 1
        hand = self._world.hand(0, [])
        directory = self._world.directory / f"fresh{self._machines}"
        options = replace(hand.options(), index_dir=directory)
        path = self._world.material.root / f"source{source}"
        wanted = self._world.material.sources[source]
        try:
            result = push(open_store(self._world.located(clone)), path, FRESH, "main", options)
        except LodefsError as error:
            if self._model.may_refuse(store, wanted):
                return
            yield f"source {source} is refused: {error!r}"
            return
        found = self._fresh.look(clone)
        (head,) = (at for ref, at in found.heads.items() if ref.repo == FRESH)
        assert head is not None
        commit = found.commits[FRESH, head]
        if commit.files != wanted and not self._model.is_rotten(store):
            yield f"source {source} came (new {result.new_bytes} bytes) without {commit.lost}"

    def _repair(self, random: Random, store: int, seen: Sequence[Seen]) -> Iterator[str]:
        """With all other stores as sources, after a dry run, which changes nothing."""
        clone = self._clone(store)
        others = [n for n in range(len(seen)) if n != store]
        random.shuffle(others)
        sources = tuple(f"store:{n}" for n in others)
        before = dict(clone.objects)
        said = self._repaired(clone, others, dry_run=True)
        if clone.objects != before:
            yield "a dry run has changed something"
        if self._model.is_sound(store, seen[store]):
            yield from self._model.false_findings(store, said)
        result = self._repaired(clone, others, dry_run=False)
        after = self._fresh.look(clone)
        command = say.Repair(store, 0, sources)
        yield from self._model.not_worse(store, command, seen[store], after)
        yield from self._model.repaired(command, result, seen, after)
        if not result.left and not self._model.is_rotten(store):
            yield from self._pushed(clone, store, random.randrange(say.SOURCES))

    def _repaired(
        self, clone: MemoryObjects, sources: Sequence[int], *, dry_run: bool
    ) -> RepairResult:
        found = [StoreSource(self._world.located(self._world.stores[number])) for number in sources]
        options = RepairOptions(
            data=True, dry_run=dry_run, workers=1, clock=lambda: self._world.now_s
        )
        return repair(self._world.located(clone), found, options)

    def _collect(self, random: Random, store: int, seen: Sequence[Seen]) -> Iterator[str]:
        """Hours later, it does what its dry run has said."""
        clone = self._clone(store)
        now_s = self._world.now_s + random.choice((0, 30)) * 3600
        options = CollectOptions(
            clock=lambda: now_s,
            workers=1,
            min_used=random.choice((None, 0.5, 1.0)),
            merge_below_bytes=random.choice((None, 1 << 20)),
        )
        is_merging = options.merge_below_bytes is not None  # what it leaves unused is not foreseen
        is_foreseen = not self._model.ledgers[store].damaged and not is_merging
        locate = self._world.located
        outcome = check_dry_run(clone, options, is_foreseen=is_foreseen, locate=locate)
        if isinstance(outcome, type) and self._model.is_sound(store, seen[store]):
            yield f"it ends with {outcome}"
        after = self._fresh.look(clone)
        yield from self._model.not_worse(store, say.Collect(store, 0), seen[store], after)

    def _copy(self, random: Random, store: int, seen: Sequence[Seen]) -> Iterator[str]:
        """All of it to a new store, where shards are made, and a fresh machine pushes."""
        there = MemoryObjects("memory:new")
        create_store(there, CHUNKING)
        source, destination = (
            open_store(self._world.located(one)) for one in (self._clone(store), there)
        )
        options = CopyOptions(workers=1, clock=lambda: self._world.now_s)
        try:
            result = copy(source, destination, [*source.repos()], None, options)
        except LodefsError as error:
            if self._model.is_sound(store, seen[store]):
                yield f"it ends with {error!r}"
            return
        if result.refused and self._model.is_sound(store, seen[store]):
            yield f"it refuses {result.refused}"
        found = self._fresh.look(there)
        for at, commit in found.commits.items():
            known = seen[store].commits.get(at)
            if known is not None and (commit.files, commit.lost) != (known.files, known.lost):
                yield f"{at[1].hex()[:8]} differs there: {commit.lost}"
        if random.random() < 0.5:
            repair_index(self._world.located(there), InlineExecutor(), Progress())
        yield from self._pushed(there, store, random.randrange(say.SOURCES))
