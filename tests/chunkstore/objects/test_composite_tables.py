"""The log of tables of composites: what was put is never lost, whatever answers and tables are."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from lodefs.chunkstore.errors import AlreadyExists, NotFound
from lodefs.chunkstore.format import keys
from lodefs.chunkstore.format.composite import COMPOSITES, TABLES
from lodefs.chunkstore.format.names import PackId
from lodefs.chunkstore.objects.composite_tables import MARK_EVERY
from lodefs.chunkstore.objects.interface import Part
from lodefs.chunkstore.objects.pack_locations import PackBatch, PackLocations
from lodefs.chunkstore.types import Buffer
from tests.support.chunkstore.memory_objects import MemoryObjects

PACKS = [PackId(bytes([n]) * 32) for n in range(5)]


class LostAnswers(MemoryObjects):
    """The first table that is put while ``hidden_gets`` is not 0 is put twice, as a client does
    that got no answer; so many reads do not see it yet."""

    hidden_gets = 0
    _hidden = ""

    def put(self, key: str, data: Sequence[Buffer], *, if_absent: bool = False) -> str:
        etag = super().put(key, data, if_absent=if_absent)
        if key.startswith(TABLES) and self.hidden_gets and not self._hidden:
            self._hidden = key
            raise AlreadyExists(f"{key} exists already")
        return etag

    def get(self, key: str, **which: Any) -> Part:
        if key == self._hidden and self.hidden_gets:
            self.hidden_gets -= 1
            raise NotFound(f"{key} is missing")
        return super().get(key, **which)


def lose_tables(memory: MemoryObjects) -> None:
    """All of them."""
    for key in [key for key in memory.objects if key.startswith(TABLES)]:
        del memory.objects[key]


@pytest.mark.parametrize("hidden_gets", [1, 2])
@pytest.mark.parametrize("is_seen", [False, True])
def test_a_composite_stays_while_a_table_may_name_it(hidden_gets: int, is_seen: bool) -> None:
    """Whose table was put, and not seen at once, has put its packs, and takes none of them away."""
    memory = LostAnswers()
    tables = PackLocations(memory).tables
    tables.admit()
    tables.put_packs({PACKS[0]: b"x" * 100})
    memory.hidden_gets = hidden_gets
    seen = tables.newest().places if is_seen else None
    assert tables.put_packs({PACKS[0]: b"y" * 100, PACKS[1]: b"z" * 100}, seen) == set(PACKS[:2])
    assert memory.hidden_gets == 0
    objects = PackLocations(memory)
    assert objects.get(keys.pack(PACKS[0]), size=100).data == b"y" * 100
    objects.tables.sweep()
    assert objects.get(keys.pack(PACKS[1]), size=100).data == b"z" * 100
    assert sum(key.startswith(COMPOSITES) for key in memory.objects) == 1


def test_what_stayed_keeps_its_own_object() -> None:
    """A pack that was moved since it was seen is not put, so its own object is not deleted."""
    memory = MemoryObjects()
    objects, other = PackLocations(memory), PackLocations(memory)
    objects.tables.admit()
    objects.tables.put_packs(dict.fromkeys(PACKS, b"x" * 100))
    for pack in PACKS:
        objects.inner.put(keys.pack(pack), [b"own"])
    batch = PackBatch(objects)
    assert all(batch.take(pack, [b"z" * 100]) for pack in PACKS[:2])
    other.tables.put_packs({PACKS[0]: b"y" * 100})
    batch.flush()
    assert batch.stayed == {PACKS[0]}
    left = {key for key in map(keys.pack, PACKS[:2]) if key in memory.objects}
    assert left == {keys.pack(PACKS[0])}


@pytest.mark.parametrize("losses", [1, 2])
@pytest.mark.parametrize("fences", [3, MARK_EVERY, 2 * MARK_EVERY - 3])
def test_a_restored_table_is_newer_than_all_that_were_lost(losses: int, fences: int) -> None:
    """However far they went without a composite, and again after another loss: who knows a table
    that was lost learns of what was put since, and puts nothing over it."""
    memory = MemoryObjects()
    old = PackLocations(memory).tables
    old.admit()
    old.put_packs({PACKS[0]: b"x" * 100})
    for _ in range(losses):
        for _ in range(fences):
            old.fence()
        tables = PackLocations(memory).tables
        tables.sweep()
        lost = old.newest().number
        lose_tables(memory)
        assert tables.restore()
        assert tables.newest().number > lost
    tables.put_packs({PACKS[0]: b"y" * 100})
    old.put_packs({PACKS[1]: b"z" * 100})
    objects = PackLocations(memory)
    assert objects.get(keys.pack(PACKS[0]), size=100).data == b"y" * 100
    assert objects.get(keys.pack(PACKS[1]), size=100).data == b"z" * 100
    objects.tables.sweep()
    assert objects.get(keys.pack(PACKS[0]), size=100).data == b"y" * 100


def test_few_marks_stay() -> None:
    """A sweep keeps the newest composite without packs."""
    memory = MemoryObjects()
    tables = PackLocations(memory).tables
    tables.admit()
    for _ in range(3 * MARK_EVERY + 5):
        tables.fence()
    tables.sweep()
    [mark] = [key for key in memory.objects if key.startswith(COMPOSITES)]
    assert f"{3 * MARK_EVERY:010d}" in mark
