"""Plays histories, checks what must hold after each command, and shortens those that fail."""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path
from random import Random

from lodefs.chunkstore.format import keys
from lodefs.chunkstore.format.chunking import cut
from lodefs.chunkstore.format.names import ChunkId, digest_of
from lodefs.chunkstore.maintenance.adopt import AdoptResult
from lodefs.chunkstore.repair.purge_repair import known_purged
from lodefs.chunkstore.repair.repair import RepairResult
from tests.fuzz import commands as say
from tests.fuzz.model import Model, Wrong
from tests.fuzz.probes import Prober
from tests.fuzz.reading import FreshMachine, Seen, is_away, is_rotten
from tests.fuzz.world import (
    CHUNKING,
    Material,
    Outcome,
    World,
    one_process,
    without_buckets,
)
from tests.support.chunkstore.memory_objects import MemoryObjects
from tests.support.maintenance.needs import Needs

MakeStore = Callable[[str], MemoryObjects]


@dataclass
class Played:
    """What happened in histories."""

    histories: int = 0
    done: Counter[str] = field(default_factory=Counter)


def chunks_of(material: Material) -> dict[bytes, frozenset[ChunkId]]:
    """The ids of the chunks of each content, cut as by a push."""
    found = {}
    for blob in material.blobs:
        ends = pairwise([0, *cut(blob, CHUNKING)])
        found[blob] = frozenset(ChunkId(digest_of(blob[a:b])) for a, b in ends)
    return found


class Player:
    """Plays one history in a world of its own. Raises: Wrong, and whatever ends a command that
    should never do that."""

    def __init__(
        self, seed: int, directory: Path, material: Material, make: MakeStore, played: Played
    ) -> None:
        self._random = Random(seed)
        stores = [make(f"memory:{n}") for n in range(say.STORES)]
        self._world = world = World(directory, material, stores)
        self._model = Model(
            say.STORES,
            material.sources,
            chunks_of(material),
            lambda n: is_rotten(world.located(stores[n])),
            world.contents,
        )
        self._fresh = FreshMachine(CHUNKING, world.located, world.foreign_reads)
        self._prober = Prober(self._world, self._model, self._fresh)
        self._needs = [Needs(objects) for objects in stores]
        self._seen = self._look()
        self._played = played

    def play(self, commands: Sequence[say.Command]) -> None:
        """All of them."""
        with self._world.reached():
            for number, command in enumerate(commands):
                if problems := list(self._step(command)):
                    told = "; ".join(problems)
                    raise Wrong(f"{told} (command {number + 1}, {say.shown(command)})")

    def _step(self, command: say.Command) -> Iterator[str]:
        objects = [dict(store.objects) for store in self._world.stores]
        before = self._seen
        done = self._world.perform(command)
        for one, outcome in done:
            self._count(one, outcome)
        stores = self._world.stores
        changed = {n for n, store in enumerate(stores) if store.objects != objects[n]}
        is_foreign = isinstance(command, say.ChangeObject)
        if is_foreign:
            self._fresh.forget()
        self._seen = [
            self._fresh.look(store) if is_foreign or n in changed else before[n]
            for n, store in enumerate(stores)
        ]
        if isinstance(command, say.Damage):
            self._note_damage(command.store, objects[command.store])
        for one, _ in done:
            if isinstance(one, say.Purge):
                self._model.ledgers[one.store].purged |= known_purged(stores[one.store])
        yield from self._model.judge(done, before, self._seen)
        if len(done) == 1:
            yield from self._judge_repair(*done[0], before)
            yield from self._judge_adoption(*done[0])
        allowed = {getattr(one, "store", None) for one, _ in done}
        for number in sorted(changed):
            self._model.ledgers[number].forget_changed(stores[number].objects)
            if number not in allowed:
                yield f"store {number} was written to"
            yield from self._purged(number)
            yield from self._prober.probe(self._random, number, self._seen)

    def _judge_repair(
        self, command: say.Command, outcome: Outcome, before: Sequence[Seen]
    ) -> Iterator[str]:
        result = outcome.result
        if not isinstance(command, say.Repair) or not isinstance(result, RepairResult):
            return
        if command.fault is None:
            yield from self._model.repaired(command, result, before, self._seen[command.store])
            if command.data and not result.left:
                self._model.ledgers[command.store].repair()

    def _judge_adoption(self, command: say.Command, outcome: Outcome) -> Iterator[str]:
        """Once all was adopted, every file can be read without the buckets."""
        result = outcome.result
        if not isinstance(command, say.Adopt) or not isinstance(result, AdoptResult) or result.lost:
            return
        machine = FreshMachine(CHUNKING, without_buckets)
        seen = machine.look(self._world.stores[command.store])
        ledger = self._model.ledgers[command.store]
        for at, commit in seen.commits.items():
            heads = {ref for ref, head in seen.heads.items() if head == at[1]}
            if command.rev is None or any(
                ledger.is_same(ref.repo, command.repo) and ref.name == command.rev for ref in heads
            ):
                for path, why in commit.lost.items():
                    if is_away(why):
                        yield f"{at[0]}@{at[1].hex()[:8]}:{path.decode()} is not adopted: {why}"

    def _look(self) -> list[Seen]:
        return [self._fresh.look(store) for store in self._world.stores]

    def _note_damage(self, number: int, was: dict[str, bytes]) -> None:
        ledger, now = self._model.ledgers[number], self._world.stores[number].objects
        changed = {key for key in was if now.get(key) is not was[key]}
        ledger.damaged |= {key: now.get(key) for key in changed}
        ledger.was_damaged = True
        if any(key.startswith(keys.PURGES) for key in changed):
            ledger.gone.clear()

    def _purged(self, number: int) -> Iterator[str]:
        """No pack has bytes that were purged."""
        ledger = self._model.ledgers[number]
        if ledger.gone and not ledger.damaged:
            for key in self._needs[number].holding(ledger.gone):
                yield f"purged bytes are in {key} of store {number}"

    def _count(self, command: say.Command, outcome: Outcome) -> None:
        name = type(command).__name__
        how = "killed" if outcome.was_killed else "refused" if outcome.error else "done"
        self._played.done[f"{name} {how}"] += 1


def play(
    seed: int,
    commands: Sequence[say.Command],
    directory: Path,
    material: Material,
    *,
    make: MakeStore = MemoryObjects,
    played: Played | None = None,
) -> None:
    """Plays one history; ``directory`` is gone afterwards. Raises as Player."""
    try:
        with one_process(seed):
            Player(seed, directory, material, make, played or Played()).play(commands)
    finally:
        shutil.rmtree(directory, ignore_errors=True)


def shorten(
    commands: Sequence[say.Command], fails: Callable[[Sequence[say.Command]], bool]
) -> list[say.Command]:
    """A history that still fails, and from which no command, nor its fault, can be dropped."""
    left = list(commands)
    size = max(1, len(left) // 2)
    while size:
        at = 0
        while at < len(left):
            fewer = left[:at] + left[at + size :]
            if fewer and fails(fewer):
                left = fewer
            else:
                at += size
        size //= 2
    return _plainer(left, fails)


def _plainer(
    left: list[say.Command], fails: Callable[[Sequence[say.Command]], bool]
) -> list[say.Command]:
    for at, command in enumerate(left):
        plainer: list[say.Command] = []
        if isinstance(command, say.Both):
            plainer = [command.one, command.other]
        elif getattr(command, "fault", None) is not None:
            plainer = [replace(command, fault=None)]  # type: ignore[arg-type]
        for one in plainer:
            changed = [*left[:at], one, *left[at + 1 :]]
            if fails(changed):
                left = changed
                break
    return left
