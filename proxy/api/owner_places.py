"""Who may go on, where what many owners want goes through one bottleneck.

While several owners want something, each has a few places, however much it asks for; what finds
none waits, in the order in which it came. So an owner that wants little meets no queue of another,
and one that wants much gets less only while others are there. Decisions alone: no input or output,
no clock.
"""

from __future__ import annotations

from collections import Counter, deque
from typing import Generic, TypeVar

LOOKS_KEPT = 3  # after an owner wanted something, until it counts as gone

T = TypeVar("T")


class OwnerPlaces(Generic[T]):
    """The places of all owners, and what waits for one. Places are for those alone who come while
    ``is_shared``: an owner that is alone needs none."""

    def __init__(self, places: int) -> None:
        """``places``: of each owner."""
        self._places = places
        self._taken: Counter[str] = Counter()
        self._waiting: dict[str, deque[T]] = {}  # none is empty
        self._seen: dict[str, int] = {}  # owners, and for how many more looks
        self.is_shared = False

    def see(self, owner: str) -> None:
        """An owner wants something."""
        if self._seen.get(owner) != LOOKS_KEPT:
            self._seen[owner] = LOOKS_KEPT
            self.is_shared = len(self._seen) > 1

    def enter(self, owner: str) -> bool:
        """Takes a place of the owner's; False if none is left, or others wait for one before."""
        if owner in self._waiting or self._taken[owner] >= self._places:
            return False
        self._taken[owner] += 1
        return True

    def is_busy(self, owner: str) -> bool:
        """Whether a place of the owner's is taken: where none is, nothing waits for one."""
        return owner in self._taken

    def wait(self, owner: str, one: T) -> None:
        """Adds what waits for a place of its owner's."""
        self._waiting.setdefault(owner, deque()).append(one)

    def leave(self, owner: str) -> list[T]:
        """Gives a place back. What waited for it, and has it now."""
        self._taken[owner] -= 1
        if not self._taken[owner]:
            del self._taken[owner]
        return self._next(owner)

    def look(self) -> list[T]:
        """Forgets owners that have wanted nothing for LOOKS_KEPT looks. If one is left alone, what
        waited and has a place now: all. To be called now and then."""
        busy = self._taken.keys() | self._waiting.keys()
        seen = {owner: left - (owner not in busy) for owner, left in self._seen.items()}
        self._seen = {owner: left for owner, left in seen.items() if left}
        self.is_shared = len(self._seen) > 1
        return [one for owner in list(self._waiting) for one in self._next(owner)]

    def _next(self, owner: str) -> list[T]:
        found: list[T] = []
        queue = self._waiting.get(owner)
        while queue and (not self.is_shared or self._taken[owner] < self._places):
            found.append(queue.popleft())
            self._taken[owner] += 1
        if queue is not None and not queue:
            del self._waiting[owner]
        return found
