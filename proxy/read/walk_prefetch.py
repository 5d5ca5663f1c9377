"""Walks through directories: which one will be listed next. Pure; knows no clock, no input."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable, Sequence

WALKS_MAX = 256  # directories whose children are being walked


class _Walk:
    """``places`` of the directories in their order; ``at``: of the one listed last, or -1."""

    def __init__(self, directories: Sequence[int]) -> None:
        self.order = directories
        self.places = {ino: place for place, ino in enumerate(self.order)}
        self.at = -1


class Walks:
    """Sees listings, and tells the next. Walks go through a directory's children forwards or
    backwards (a stack turns the order around); anything else is no walk."""

    def __init__(self) -> None:
        self._walks: OrderedDict[Hashable, _Walk] = OrderedDict()

    def knows(self, parent: Hashable) -> bool:
        """Whether the children of ``parent`` are being walked."""
        return parent in self._walks

    def begin(self, parent: Hashable, directories: Sequence[int]) -> None:
        """A walk through the ``directories`` among a parent's children, their numbers in order."""
        self._walks[parent] = _Walk(directories)
        if len(self._walks) > WALKS_MAX:
            self._walks.popitem(last=False)

    def listed(self, parent: Hashable, ino: int) -> int | None:
        """A child of ``parent``, which is being walked, was listed; which directory is next if the
        last listing was of its other neighbour."""
        walk = self._walks[parent]
        self._walks.move_to_end(parent)
        place = walk.places.get(ino, -1)
        step = place - walk.at if place >= 0 and walk.at >= 0 else 0
        walk.at = place
        following = place + step
        return (
            walk.order[following] if abs(step) == 1 and 0 <= following < len(walk.order) else None
        )
