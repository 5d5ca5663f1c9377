"""What clients have said that they will upload, and what became of it. Pure; waits for nothing.

A client asks about up to a hundred objects in one batch, and uploads those that are missing. All
but the last upload of a batch may be answered before they are committed, since the client takes its
push for done only after the last one. So that one must not succeed if an earlier one was lost.
"""

from __future__ import annotations

import secrets
from collections.abc import Collection
from dataclasses import dataclass, field

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


@dataclass(slots=True)
class _Batch:
    """The objects of a batch: those that did not come yet, those that were answered before their
    commit, and those of them that could not be stored."""

    pusher: Pusher
    missing: set[str]
    answered: set[str] = field(default_factory=set)
    lost: set[str] = field(default_factory=set)


class Pushes:
    """The batches of one node. ``now_s`` is any clock that only goes forward."""

    def __init__(self) -> None:
        self._batches: Lru[str, _Batch] = Lru(BATCHES_MAX)
        self._lost: dict[tuple[Pusher, str], float] = {}  # the time when each is forgotten

    def begin(self, pusher: Pusher, asked: Collection[str], missing: Collection[str]) -> str:
        """Notes a batch. Returns the key that its uploads bring."""
        batch = _Batch(pusher, set(missing))
        for older in self._batches.values():  # a client that repeats an upload asks again
            if older.pusher == pusher and not older.missing.isdisjoint(batch.missing):
                batch.lost |= older.lost.difference(asked)
        for oid in asked:
            self._lost.pop((pusher, oid), None)  # the client has learned that it is not there
        self.stored(pusher.repo, set(asked).difference(missing))
        key = secrets.token_urlsafe(9)
        self._batches.put(key, batch)
        return key

    def is_followed(self, key: str, pusher: Pusher, oid: str) -> bool:
        """Notes that the bytes of an object have come. Returns whether others of its batch will
        follow; False if that is not known."""
        batch = self._batches.get(key)
        if batch is None or batch.pusher != pusher or oid not in batch.missing:
            return False
        batch.missing.remove(oid)
        if batch.missing:
            batch.answered.add(oid)
        return bool(batch.missing)

    def lose(self, pusher: Pusher, oid: str, now_s: float) -> None:
        """Notes that an object whose upload was answered could not be stored."""
        self._lost.pop((pusher, oid), None)
        while len(self._lost) >= LOST_MAX:
            del self._lost[next(iter(self._lost))]
        self._lost[pusher, oid] = now_s + LOST_S
        for batch in self._batches.values():
            if batch.pusher == pusher and oid in batch.answered:
                batch.lost.add(oid)

    def stored(self, repo: str, oids: Collection[str]) -> None:
        """Notes that the store has objects, whoever has sent them."""
        for pusher, oid in [*self._lost]:
            if pusher.repo == repo and oid in oids:
                del self._lost[pusher, oid]
        for batch in self._batches.values():
            if batch.lost and batch.pusher.repo == repo:
                batch.lost.difference_update(oids)

    def check(self, key: str, pusher: Pusher, now_s: float) -> None:
        """Raises: InvalidInput if an object of the batch was lost, however long ago, or lately one
        of this pusher that was not asked for since."""
        self._lost = {one: until_s for one, until_s in self._lost.items() if until_s > now_s}
        batch = self._batches.get(key)
        of_batch = batch.lost if batch is not None and batch.pusher == pusher else set()
        lost = sorted(of_batch.union(oid for of, oid in self._lost if of == pusher))
        if lost:
            raise InvalidInput(
                f"{len(lost)} objects that were sent before could not be stored, such as "
                f"{lost[0]}: the proxy's log says why; push again to send them again"
            )
