"""Writes that stay in memory, over a store that is only read."""

from __future__ import annotations

import pytest

from lodefs.chunkstore.errors import NotFound
from lodefs.chunkstore.maintenance.overlay import OverlayObjects
from tests.support.chunkstore.memory_objects import MemoryObjects


def test_the_store_below_stays_as_it_is() -> None:
    """What was put over an object, and what was deleted, is seen in reads and lists, and there
    alone; the rest is that of the store below."""
    below = MemoryObjects()
    for key in ("a", "b", "c"):
        below.put(key, [key.encode()])
    before = dict(below.objects)
    over = OverlayObjects(below)
    over.put("b", [b"other"])
    over.put("bb", [b"new"], if_absent=True)
    over.delete("c")
    over.put("c", [b"again"], if_absent=True)
    over.delete("a")
    assert [(one.key, one.size_bytes) for one in over.list("")] == [("b", 5), ("bb", 3), ("c", 5)]
    assert [one.key for one in over.list("b", after="b", limit=1)] == ["bb"]
    assert over.get("b", size=9, offset=-2).data == b"er"
    with pytest.raises(NotFound):
        over.get("a", size=1)
    assert below.objects == before
