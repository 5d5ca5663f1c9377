"""What clients have said that they will upload, and what became of it. Pure; waits for nothing.

A client asks about up to a hundred objects in one batch, and uploads those that are missing. All
but the last upload of a batch may be answered before they are committed, since the client takes its
push for done only after the last one. So that one must not succeed if an earlier one was lost.
"""

from __future__ import annotations

import secrets
from collections.abc import Collection
from dataclasses import dataclass

from lodefs.chunkstore.errors import InvalidInput
from lodefs.chunkstore.system.lru import Lru

BATCHES_MAX = 1000  # an upload of a batch that was forgotten waits for its commit
LOST_S = 180.0  # longer than clients repeat a failed upload by themselves
LOST_MAX = 10_000  # objects


@dataclass(frozen=True, slots=True)
class Pusher:
    """The source of uploads: the name of a token, and the repository."""

    repo: str
    name: str


class Pushes:
    """The batches of one node. ``now_s`` is any clock that only goes forward."""

    def __init__(self) -> None:
        self._missing: Lru[str, tuple[Pusher, set[str]]] = Lru(BATCHES_MAX)
        self._lost: dict[tuple[Pusher, str], float] = {}  # the time when each is forgotten

    def begin(self, pusher: Pusher, asked: Collection[str], missing: Collection[str]) -> str:
        """Notes a batch. Returns the key that its uploads bring."""
        for oid in asked:
            self._lost.pop((pusher, oid), None)  # the client has learned that it is not there
        key = secrets.token_urlsafe(9)
        self._missing.put(key, (pusher, set(missing)))
        return key

    def is_followed(self, key: str, pusher: Pusher, oid: str) -> bool:
        """Notes that the bytes of an object have come. Returns whether others of its batch will
        follow; False if that is not known."""
        of, missing = self._missing.get(key) or (pusher, set())
        if of != pusher or oid not in missing:
            return False
        missing.remove(oid)
        return bool(missing)

    def lose(self, pusher: Pusher, oid: str, now_s: float) -> None:
        """Notes that an object whose upload was answered could not be stored."""
        self._lost.pop((pusher, oid), None)
        while len(self._lost) >= LOST_MAX:
            del self._lost[next(iter(self._lost))]
        self._lost[pusher, oid] = now_s + LOST_S

    def check(self, pusher: Pusher, now_s: float) -> None:
        """Raises: InvalidInput if an object of this pusher was lost, and not asked for since."""
        self._lost = {one: until_s for one, until_s in self._lost.items() if until_s > now_s}
        lost = sorted(oid for of, oid in self._lost if of == pusher)
        if lost:
            raise InvalidInput(
                f"{len(lost)} objects that were sent before could not be stored, such as "
                f"{lost[0]}: the proxy's log says why; push again to send them again"
            )
