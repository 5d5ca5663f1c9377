"""Slots for answers: while several owners read, only one large answer of each is written at a time,
so that an owner with many connections does not keep the event loop from one with few.

A reader beside another one's many connections is slow because of the turns of the loop, not because
of the store or a lock: each of its few steps waits for a step of each of the other answers. A slot
is needed only to write existing bytes. Nobody waits for one before or while a store or a disk is
asked.
"""

from __future__ import annotations

import asyncio
from asyncio import Future, TimerHandle
from collections import Counter, deque
from typing import Generic, TypeVar

from lodefs.proxy.runtime.thread_pools import NOBODY

LOOKS_KEPT = 3  # after an owner's last request, until it counts as gone

T = TypeVar("T")


class FairQueue(Generic[T]):
    """The slots of all owners, and the queue for them in order of arrival: an owner that wants
    little never waits behind another owner. It only decides: no I/O, no clock. Only answers that
    arrive while ``is_shared`` need slots: an owner that is alone needs none."""

    def __init__(self, places: int) -> None:
        """``places`` is the number of slots for each owner."""
        self._places = places
        self._taken: Counter[str] = Counter()
        self._waiting: dict[str, deque[T]] = {}  # no empty ones
        self._seen: dict[str, int] = {}  # owners, and the number of looks before they count as gone
        self.is_shared = False

    def see(self, owner: str) -> None:
        if self._seen.get(owner) != LOOKS_KEPT:
            self._seen[owner] = LOOKS_KEPT
            self.is_shared = len(self._seen) > 1

    def enter(self, owner: str) -> bool:
        """Takes a slot of the owner. Returns False if none is left, or others wait for one
        already."""
        if owner in self._waiting or self._taken[owner] >= self._places:
            return False
        self._taken[owner] += 1
        return True

    def is_busy(self, owner: str) -> bool:
        """Whether a slot of the owner is taken. If none is, nothing waits for one."""
        return owner in self._taken

    def wait(self, owner: str, one: T) -> None:
        self._waiting.setdefault(owner, deque()).append(one)

    def leave(self, owner: str) -> list[T]:
        """Frees a slot. Returns what waited for it, and has it now."""
        self._taken[owner] -= 1
        if not self._taken[owner]:
            del self._taken[owner]
        return self._next(owner)

    def look(self) -> list[T]:
        """Forgets owners that made no request for LOOKS_KEPT looks. If one owner is left, returns
        everything that waited, which has slots now. Call it from time to time."""
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


PLACES = 1  # slots for each owner
HELD_S_MAX = 0.001  # a longer answer waits for something else: a store, a disk, a slow client
SMALL_SIZE_BYTES = 65536  # answers of this size are sent at once, whoever else reads


class ResponseSlots:
    """The slots of one event loop, for use on that loop only."""

    def __init__(self, places: int = PLACES, *, held_s_max: float = HELD_S_MAX) -> None:
        """``held_s_max``: an answer that is written for longer passes its slot on."""
        self.owners: FairQueue[Future[None]] = FairQueue(places)
        self.held_s_max = held_s_max

    @property
    def is_shared(self) -> bool:
        """Whether several owners have read recently: otherwise nobody needs a slot."""
        return self.owners.is_shared

    def see(self, owner: str) -> None:
        """Notes that an owner reads bytes of a file. The node itself does not count, since it reads
        for others."""
        if owner != NOBODY:
            self.owners.see(owner)

    def passes(self, owner: str, size_bytes: int) -> bool:
        """Whether an answer that takes one turn of the loop may be sent now: it is small, or no
        other answer of its owner has a slot or waits for one."""
        self.see(owner)
        owners = self.owners
        return size_bytes <= SMALL_SIZE_BYTES or not (owners.is_shared and owners.is_busy(owner))

    def look(self) -> None:
        """Forgets owners that no longer read. Call it about once a second."""
        self._let_in(self.owners.look())

    def give_back(self, owner: str) -> None:
        self._let_in(self.owners.leave(owner))

    def _let_in(self, found: list[Future[None]]) -> None:
        for came in found:
            came.set_result(None)


class AnswerPlace:
    """The slot of one answer, which it takes for each of its pieces."""

    __slots__ = ("_held", "_is_small", "_owner", "_places")

    def __init__(self, places: ResponseSlots, owner: str, size_bytes: int) -> None:
        """``size_bytes`` is the size of the whole answer."""
        self._places = places
        self._owner = owner
        self._is_small = size_bytes <= SMALL_SIZE_BYTES
        self._held: TimerHandle | None = None  # frees the slot when it was held for too long

    async def enter(self) -> None:
        """Returns when the answer, whose next piece is ready, has its slot; at once if it has one
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
            except asyncio.CancelledError:  # the slot is passed on when it comes
                came.add_done_callback(lambda _: self._places.give_back(self._owner))
                raise
        self._held = loop.call_later(self._places.held_s_max, self.leave)

    def leave(self) -> None:
        if self._held is not None:
            self._held.cancel()
            self._held = None
            self._places.give_back(self._owner)
