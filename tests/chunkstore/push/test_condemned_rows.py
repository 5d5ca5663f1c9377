"""CondemnedIds in a push index."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from pathlib import Path

import pytest

from lodefs.chunkstore.journal.tombstoned import CondemnedIds
from lodefs.chunkstore.push.index.push_index import IndexBroken, PushIndex
from lodefs.chunkstore.push.index.tombstoned_rows import CondemnedRows
from tests.support.chunkstore.tombstoned_suite import PACKS, CondemnedSuite, entry


@pytest.fixture
def index(tmp_path: Path) -> Iterator[PushIndex]:
    index = PushIndex(tmp_path, "store")
    yield index
    index.close()


class TestRows(CondemnedSuite):
    """The suite."""

    @pytest.fixture
    def tombstoned(self, index: PushIndex) -> CondemnedIds:
        return CondemnedRows(index)


def test_they_stay(index: PushIndex, tmp_path: Path) -> None:
    """The next push of this machine knows them."""
    CondemnedRows(index).add([entry(3, PACKS[0])])
    again = PushIndex(tmp_path, "store")
    assert CondemnedRows(again).find(PACKS) == {3: {PACKS[0]}}
    again.close()


def test_damage_is_noticed(index: PushIndex) -> None:
    """Ids that do not match their checksum count as a broken index."""
    CondemnedRows(index).add([entry(3, PACKS[0])])
    with sqlite3.connect(index.path) as db:
        db.execute("UPDATE condemned SET ids = ?", (PACKS[1],))
    db.close()
    with pytest.raises(IndexBroken):
        CondemnedRows(index).find(PACKS)
