"""The quota while the contents of changes are counted, before much of them is sent."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from functools import cached_property
from itertools import accumulate

from lodefs.chunkstore.errors import NotADirectory, NotFound
from lodefs.chunkstore.format.tree import Entry
from lodefs.chunkstore.push.changes.change import (
    Change,
    CopyFrom,
    Put,
    PutDirectory,
    Rename,
    names_of,
)
from lodefs.chunkstore.push.changes.overlay import Names, Overlay
from lodefs.chunkstore.push.changes.overlay_counts import count
from lodefs.chunkstore.push.changes.unstored_trees import TreeReader
from lodefs.chunkstore.push.quota import Quota


class EarlyQuota:
    """What a list of changes brings to the tree ``root`` (None: there is none) of ``size_bytes``.
    It counts too little rather than too much: the commit itself asks with the exact size. One
    thread. Raises: InvalidInput for a path of a change that is none."""

    def __init__(
        self,
        quota: Quota,
        trees: TreeReader,
        root: Entry | None,
        size_bytes: int,
        changes: Sequence[Change],
    ) -> None:
        self._quota = quota
        self._trees = trees
        self._root = root
        self._size_bytes = size_bytes
        self._places = [list(_places(change)) for change in changes]
        self._staying = _staying(changes, self._places)
        self._put_bytes = 0

    def count(self, number: int, more_bytes: int) -> None:
        """Bytes of the content of change ``number``, besides those counted so far. Raises:
        OverQuota."""
        if number in self._staying:
            self._put_bytes += more_bytes
            self._quota.check_put(self._put_bytes, lambda: self._kept_bytes)

    @cached_property
    def _kept_bytes(self) -> int:
        """What no change replaces or moves."""
        if self._root is None:
            return 0
        overlay = Overlay(self._trees.read_tree, self._root)
        for names in (names for places in self._places for names in places):
            if not names:
                return 0
            with suppress(NotFound, NotADirectory):
                overlay.remove(names)
        return self._size_bytes + count(self._trees, self._root, overlay.root).size_bytes


def _places(change: Change) -> Iterator[Names]:
    """The paths that a change replaces, removes or moves."""
    match change:
        case Rename(path, to):
            yield names_of(path)
            yield names_of(to)
        case CopyFrom(_, to):
            yield names_of(to, is_root_fine=True)
        case _:
            yield names_of(change.path, is_root_fine=isinstance(change, PutDirectory))


def _staying(changes: Sequence[Change], places: Sequence[Sequence[Names]]) -> set[int]:
    """The changes whose content no later one touches, as a whole or in part."""
    touched: set[Names] = set()
    above: set[Names] = set()  # directories in which something is touched
    staying = set()
    for number in reversed(range(len(changes))):
        for names in places[number]:
            ancestors = set(accumulate(((name,) for name in names), initial=()))
            if (
                isinstance(changes[number], Put | PutDirectory)
                and not ancestors & touched
                and names not in above
            ):
                staying.add(number)
            touched.add(names)
            above |= ancestors
    return staying
