"""A store that answers otherwise than a store in memory is found out."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from lodefs.chunkstore.errors import AlreadyExists, Changed, NotFound
from tests.support.chunkstore.memory_objects import MemoryObjects
from tests.support.maintenance.compared_objects import ComparedObjects


def test_the_same_answers() -> None:
    """Those of a good store are handed on, its refusals too."""
    objects = ComparedObjects(MemoryObjects())
    etag = objects.put("a/b", [b"12", b"34"], if_absent=True)
    assert objects.get("a/b", offset=1, size=2, if_match=etag).data == b"23"
    assert [info.key for info in objects.list("a/")] == ["a/b"]
    with pytest.raises(AlreadyExists):
        objects.put("a/b", [b""], if_absent=True)
    objects.put("a/b", [b"5"])
    with pytest.raises(Changed):
        objects.get("a/b", size=1, if_match=etag)
    objects.check()
    objects.delete("a/b")
    with pytest.raises(NotFound):
        objects.head("a/b")


@pytest.mark.parametrize(
    "ask",
    [
        lambda objects: objects.get("a", size=9),
        lambda objects: objects.head("a"),
        lambda objects: list(objects.list("")),
        lambda objects: objects.check(),
    ],
)
@pytest.mark.parametrize("found", [None, b"other"])
def test_another_answer(ask: Callable[[ComparedObjects], object], found: bytes | None) -> None:
    """Where an object that was put is gone, or another one: each request says so."""
    real = MemoryObjects()
    objects = ComparedObjects(real)
    objects.put("a", [b"data!"])
    if found is None:
        del real.objects["a"]
    else:
        real.objects["a"] = found
    with pytest.raises(AssertionError):
        ask(objects)


def test_a_condition_that_is_ignored() -> None:
    """Two clients would both think that they were first."""
    real = MemoryObjects()
    objects = ComparedObjects(real)
    objects.put("a", [b"data!"])
    del real.objects["a"]
    with pytest.raises(AssertionError, match="if absent"):
        objects.put("a", [b"more"], if_absent=True)
