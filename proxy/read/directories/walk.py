"""Decides which directories to load ahead of a program that walks a tree. Pure.

A program that walks a tree needs every directory, soon, in its own order: depth first like find(1),
level by level, sorted or not. It will next list a directory that it has seen and not listed: one of
the frontier, taken from its end. A miss in the frontier is a step of a walk, and each step loads
four times as many directories as the step before. A step down into the directory that was loaded
last may also be a path lookup: it loads as many as before. A miss outside of the frontier begins
again with one.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable

GROWTH = 4
DIRECTORIES_MAX = 4096  # loaded after one miss
FRONTIER_MAX = 16 * 1024  # for one walk; further directories are found by their own misses


class Walk:
    """The walk through one snapshot, by inode numbers."""

    def __init__(self) -> None:
        self._frontier: OrderedDict[int, None] = OrderedDict()
        self._count = 1
        self._last = 0

    def __contains__(self, ino: int) -> bool:
        return ino in self._frontier

    def miss(self, ino: int, parent: int) -> int:
        """Notes that a directory is needed that is not loaded. Returns how many to load, including
        it."""
        if ino not in self._frontier:
            self._count = 1
        elif parent != self._last:
            self._count = min(self._count * GROWTH, DIRECTORIES_MAX)
        self._last = ino
        return self._count

    def loaded(self, ino: int, directories: Iterable[int]) -> None:
        """Notes that a directory was loaded: its subdirectories ``directories``, by name, come
        next."""
        self._frontier.pop(ino, None)
        self.put_first(directories)

    def put_first(self, directories: Iterable[int]) -> None:
        """Puts directories before the rest of the frontier, in their order."""
        for ino in reversed(list(directories)):
            self._frontier[ino] = None
            self._frontier.move_to_end(ino)
        while len(self._frontier) > FRONTIER_MAX:
            self._frontier.popitem(last=False)

    def take(self, count: int) -> list[int]:
        """Removes at most ``count`` next directories from the frontier and returns them."""
        return [self._frontier.popitem()[0] for _ in range(min(count, len(self._frontier)))]
