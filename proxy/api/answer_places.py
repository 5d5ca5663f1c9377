"""Places for answers: while several owners read, each has one answer at a time under way, so that
one with many connections does not keep the event loop, and processors, from one with few.

What makes a reader slow beside another one's many is not the store and no lock, but the turns of
the loop: each of its few steps waits for a step of each of the others' answers.
"""

from __future__ import annotations

import asyncio
from asyncio import Future, TimerHandle
from contextvars import ContextVar

from lodefs.proxy.api.owner_places import OwnerPlaces
from lodefs.proxy.runtime.thread_pools import current_owner

PLACES = 1  # of each owner
HELD_S_MAX = 0.005  # what takes longer waits for something else: a store, a disk, a slow client


class AnswerPlaces:
    """The places of one event loop. Used from it alone."""

    def __init__(self, places: int = PLACES, *, held_s_max: float = HELD_S_MAX) -> None:
        """``held_s_max``: an answer that is under way for longer gives its place to another."""
        self.owners: OwnerPlaces[Future[None]] = OwnerPlaces(places)
        self.held_s_max = held_s_max

    @property
    def is_shared(self) -> bool:
        """Whether several owners have read of late: else nobody needs a place."""
        return self.owners.is_shared

    def see(self, owner: str) -> None:
        """An owner reads something that needs no place."""
        self.owners.see(owner)

    async def take(self) -> None:
        """Returns when an answer, which this task makes for the current owner, has its place."""
        owner = current_owner.get()
        self.owners.see(owner)
        place = _Place(self, owner)
        _current_place.set(place)
        await place.enter()

    def look(self) -> None:
        """Forgets who reads no more. To be called about once a second."""
        self._let_in(self.owners.look())

    def give_back(self, owner: str) -> None:
        """A place of an owner's is free again."""
        self._let_in(self.owners.leave(owner))

    def _let_in(self, found: list[Future[None]]) -> None:
        for came in found:
            came.set_result(None)


class _Place:
    """One answer's place, which it takes for each of its pieces."""

    __slots__ = ("_held", "_owner", "_places")

    def __init__(self, places: AnswerPlaces, owner: str) -> None:
        self._places = places
        self._owner = owner
        self._held: TimerHandle | None = None  # gives it back when it has been held for long

    async def enter(self) -> None:
        """Returns when the answer has its place; at once if it has one, or nobody needs any."""
        owners = self._places.owners
        if self._held is not None or not owners.is_shared:
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
        """Gives the place back, if the answer has one."""
        if self._held is not None:
            self._held.cancel()
            self._held = None
            self._places.give_back(self._owner)


_current_place: ContextVar[_Place | None] = ContextVar("current_place", default=None)


async def enter_place() -> None:
    """The answer that this task makes goes on: returns when that has its place again."""
    place = _current_place.get()
    if place is not None:
        await place.enter()


def leave_place() -> None:
    """The answer that this task made has been sent, or will never be."""
    place = _current_place.get()
    if place is not None:
        place.leave()
        _current_place.set(None)
