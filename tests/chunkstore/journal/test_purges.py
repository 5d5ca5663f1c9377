"""The row of purges: read side by side, and none is missed, whatever a list lacks."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

from lodefs.chunkstore.errors import Unavailable
from lodefs.chunkstore.format.names import ChunkId, digest_of
from lodefs.chunkstore.journal.purges import READERS, Purges
from lodefs.chunkstore.objects.interface import ObjectInfo, Part
from tests.support.chunkstore.memory_objects import MemoryObjects

WAIT_S = 60


class _Slow(MemoryObjects):
    """Answers the first reads of a row only when four of them wait; its lists lack keys."""

    def __init__(self) -> None:
        super().__init__()
        self.gets = 0
        self.lists = 0
        self.lacking = 0
        self.fails = False
        self.together: threading.Barrier | None = None

    def get(self, key: str, *, offset: int = 0, size: int, if_match: str | None = None) -> Part:
        self.gets += 1
        if self.fails and self.gets > 3:
            raise Unavailable("no")
        if self.together is not None and self.gets > 1:
            self.together.wait(WAIT_S)
        return super().get(key, offset=offset, size=size, if_match=if_match)

    def list(
        self, prefix: str, *, after: str = "", limit: int | None = None
    ) -> Iterator[ObjectInfo]:
        self.lists += 1
        found = list(super().list(prefix, after=after, limit=limit))
        return iter(found[: len(found) - self.lacking])


def _with(count: int) -> _Slow:
    objects = _Slow()
    for number in range(count):
        Purges(objects).append([ChunkId(digest_of(b"%d" % number))], f"a/b:{number}", number)
    objects.gets = 0
    return objects


def test_one_request_where_nothing_is_new() -> None:
    """Who knows all purges asks once, and lists nothing."""
    objects = _with(3)
    assert list(Purges(objects).after(2)) == []
    assert (objects.gets, objects.lists) == (1, 0)


def test_side_by_side() -> None:
    """Purges after the first new one are read at once, in one list's time, and come in order."""
    objects = _with(6)
    objects.together = threading.Barrier(4)  # three of the row, and never one alone
    numbers = []
    for purge in Purges(objects).after(0):
        numbers.append(purge.number)
        if len(numbers) == 5:
            objects.together = None  # the end of the row is looked for alone
    assert numbers == [1, 2, 3, 4, 5]
    assert objects.lists == 1


@pytest.mark.parametrize("lacking", [0, 1, 2 * READERS + 1])
def test_a_list_that_lacks_some(lacking: int) -> None:
    """A list that lacks purges, all of them even, only makes it slower."""
    count = 2 * READERS + 2
    objects = _with(count)
    objects.lacking = lacking
    assert [purge.number for purge in Purges(objects).after(-1)] == list(range(count))
    assert objects.gets == count + 1


def test_errors_come_through() -> None:
    """A store that fails in the middle is no end of the row."""
    objects = _with(9)
    objects.fails = True
    with pytest.raises(Unavailable):
        list(Purges(objects).after(-1))
