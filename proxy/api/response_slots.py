"""Places for answers: while several owners read, one large answer of each at a time is written, so
that one with many connections does not keep the event loop from one with few.

What makes a reader slow beside another one's many is not the store and no lock, but the turns of
the loop: each of its few steps waits for a step of each of the others' answers. A place is only for
writing what is there. Nobody waits for one before a store or a disk is asked, or while it is.
"""

from __future__ import annotations

import asyncio
from asyncio import Future, TimerHandle
from collections import Counter, deque
from typing import Generic, TypeVar

from lodefs.proxy.runtime.thread_pools import NOBODY

LOOKS_KEPT = 3  # after an owner wanted something, until it counts as gone

T = TypeVar("T")


class FairQueue(Generic[T]):
    """The places of all owners, and what waits for one, in the order in which it came: an owner
    that wants little meets no queue of another. Decisions alone: no input or output, no clock.
    Places are for those alone who come while ``is_shared``: an owner that is alone needs none."""

    def __init__(self, places: int) -> None:
        """``places``: of each owner."""
        self._places = places
        self._taken: Counter[str] = Counter()
        self._waiting: dict[str, deque[T]] = {}  # none is empty
        self._seen: dict[str, int] = {}  # owners, and for how many more looks
        self.is_shared = False

    def see(self, owner: str) -> None:
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


PLACES = 1  # of each owner
HELD_S_MAX = 0.001  # what takes longer waits for something else: a store, a disk, a slow client
SMALL_SIZE_BYTES = 65536  # answers of this size are given at once, whoever else reads


class ResponseSlots:
    """The places of one event loop. Used from it alone."""

    def __init__(self, places: int = PLACES, *, held_s_max: float = HELD_S_MAX) -> None:
        """``held_s_max``: an answer that is written for longer gives its place to another."""
        self.owners: FairQueue[Future[None]] = FairQueue(places)
        self.held_s_max = held_s_max

    @property
    def is_shared(self) -> bool:
        """Whether several owners have read of late: else nobody needs a place."""
        return self.owners.is_shared

    def see(self, owner: str) -> None:
        """An owner reads bytes of a file. The node itself is none: it reads for the others."""
        if owner != NOBODY:
            self.owners.see(owner)

    def passes(self, owner: str, size_bytes: int) -> bool:
        """Whether an answer that takes one turn of the loop may be given now: if it is small, or
        no other answer of its owner's has a place or waits for one."""
        self.see(owner)
        owners = self.owners
        return size_bytes <= SMALL_SIZE_BYTES or not (owners.is_shared and owners.is_busy(owner))

    def look(self) -> None:
        """Forgets who reads no more. To be called about once a second."""
        self._let_in(self.owners.look())

    def give_back(self, owner: str) -> None:
        self._let_in(self.owners.leave(owner))

    def _let_in(self, found: list[Future[None]]) -> None:
        for came in found:
            came.set_result(None)


class AnswerPlace:
    """One answer's place, which it takes for each of its pieces."""

    __slots__ = ("_held", "_is_small", "_owner", "_places")

    def __init__(self, places: ResponseSlots, owner: str, size_bytes: int) -> None:
        """``size_bytes``: of the whole answer."""
        self._places = places
        self._owner = owner
        self._is_small = size_bytes <= SMALL_SIZE_BYTES
        self._held: TimerHandle | None = None  # gives it back when it has been held for long

    async def enter(self) -> None:
        """Returns when the answer, whose next piece is there, has its place; at once if it has one,
        or needs none."""
        owners = self._places.owners
        if self._held is not None or self._is_small or not owners.is_shared:
            return
        loop = asyncio.get_running_loop()
        if not owners.enter(self._owner):
            came: Future[None] = loop.create_future()
            owners.wait(self._owner, came)
            try:
                await asyncio.shield(came)
            except asyncio.CancelledError:  # then it is given on when it comes
                came.add_done_callback(lambda _: self._places.give_back(self._owner))
                raise
        self._held = loop.call_later(self._places.held_s_max, self.leave)

    def leave(self) -> None:
        if self._held is not None:
            self._held.cancel()
            self._held = None
            self._places.give_back(self._owner)
