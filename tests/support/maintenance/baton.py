"""Actors that share a store and run one at a time: each gives up control before every request.

Whoever holds the baton runs to its next request, so one seed gives one order of all requests. An
actor may be killed at any of them, and may stand still for as long as the schedule wants.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor, Future
from itertools import islice
from random import Random
from typing import Any, TypeVar

from lodefs.chunkstore.errors import Denied, LodefsError, Unavailable
from lodefs.chunkstore.format import keys
from lodefs.chunkstore.objects.interface import ObjectInfo, ObjectStore, Part
from lodefs.chunkstore.types import Buffer
from tests.support.maintenance.compared_objects import ComparedObjects

T = TypeVar("T")
TIMEOUT_S = 60.0


class Killed(BaseException):
    """The process of an actor is gone; nothing that it does afterwards reaches the store."""


class Actor:
    """Something that happens to a store, in a thread of its own."""

    def __init__(self, name: str, act: Callable[[Actor], None]) -> None:
        self.name = name
        self.stalled_until = 0  # a step of the schedule
        self.at = ""  # the request that it stands before: operation and key
        self.number = -1  # of its entry in the journal
        self.is_killed = False
        self.has_ended = False
        self.error: LodefsError | None = None
        self.failure: BaseException | None = None  # a fault of the code, or of the simulation
        self._kill_after = False
        self._turn = threading.Semaphore(0)
        self._back = threading.Semaphore(0)
        self._thread = threading.Thread(target=self._run, args=(act,), name=name, daemon=True)
        self._thread.start()

    def step(self) -> None:
        """Lets it run to its next request, or its end."""
        self._turn.release()
        if not self._back.acquire(timeout=TIMEOUT_S):
            raise AssertionError(f"{self.name} does not come back")

    def kill(self, *, after_request: bool) -> None:
        """Kills it at the request that it stands before, or right after that is done."""
        self._kill_after = after_request
        self.is_killed = not after_request
        self.step()

    def request(
        self, what: str, perform: Callable[[], T], tear: Callable[[], None] = lambda: None
    ) -> T:
        """Gives up control, then does one request. ``tear``: begins it, for who is killed at it."""
        if self.is_killed:
            raise Killed
        self.at = what
        self._back.release()
        self._turn.acquire()
        if self.is_killed:
            tear()
            raise Killed
        try:
            return perform()
        finally:
            if self._kill_after:
                self.is_killed = True
                raise Killed

    def _run(self, act: Callable[[Actor], None]) -> None:
        self._turn.acquire()
        try:
            act(self)
        except Killed:
            pass
        except LodefsError as error:
            self.error = error
        except BaseException as error:  # noqa: BLE001 - told in the schedule's own thread
            self.failure = error
        self.has_ended = True
        self._back.release()


class Faults:
    """What is wrong with a store, as chances of each call. ``hidden``: keys that no list shows."""

    def __init__(self, random: Random) -> None:
        self.random = random
        self.lacking = 0.0  # a list lacks one object
        self.refused = 0.0  # a delete is refused
        self.unanswered = 0.0  # a request fails, done or not
        self.hiding = 0.0  # an object is put that no list ever shows
        self.hidden: set[str] = set()

    def clear(self) -> None:
        """All is well from now on, but what is hidden stays so."""
        self.lacking = self.refused = self.unanswered = self.hiding = 0.0


class ActorObjects:
    """``inner`` as one actor has it, with faults. ``watch`` is told of each key put or deleted."""

    url = "memory:"

    def __init__(
        self, inner: ObjectStore, actor: Actor, faults: Faults, watch: Callable[[str, str], None]
    ) -> None:
        self._inner = inner
        self._actor = actor
        self._faults = faults
        self._watch = watch

    def get(self, key: str, *, offset: int = 0, size: int, if_match: str | None = None) -> Part:
        return self._do(
            f"get {key}",
            lambda: self._inner.get(key, offset=offset, size=size, if_match=if_match),
        )

    def head(self, key: str) -> ObjectInfo:
        return self._do(f"head {key}", lambda: self._inner.head(key))

    def put(self, key: str, data: Sequence[Buffer], *, if_absent: bool = False) -> str:
        def put() -> str:
            etag = self._inner.put(key, data, if_absent=if_absent)
            if key.startswith(keys.ENTRIES):
                self._actor.number = keys.journal_number(key)
            if self._faults.random.random() < self._faults.hiding:
                self._faults.hidden.add(key)
            self._watch("put", key)
            return etag

        def tear() -> None:
            if isinstance(self._inner, ComparedObjects):
                self._inner.tear(key, data)

        return self._do(f"put {key}", put, tear)

    def list(
        self, prefix: str, *, after: str = "", limit: int | None = None
    ) -> Iterator[ObjectInfo]:
        return islice(self._do(f"list {prefix}", lambda: self._listed(prefix, after)), limit)

    def delete(self, key: str) -> None:
        def delete() -> None:
            if self._faults.random.random() < self._faults.refused:
                raise Denied(f"{key} may not be deleted now")
            self._inner.delete(key)
            self._watch("delete", key)

        self._do(f"delete {key}", delete)

    def close(self) -> None:
        """Nothing to free."""

    def _listed(self, prefix: str, after: str) -> Iterator[ObjectInfo]:
        found = self._inner.list(prefix, after=after)
        shown = [info for info in found if info.key not in self._faults.hidden]
        if shown and self._faults.random.random() < self._faults.lacking:
            del shown[self._faults.random.choice((0, self._faults.random.randrange(len(shown))))]
        return iter(shown)

    def _do(
        self, what: str, perform: Callable[[], T], tear: Callable[[], None] = lambda: None
    ) -> T:
        def answered() -> T:
            chance = self._faults.random.random()
            if chance < self._faults.unanswered / 2:
                raise Unavailable("the request did not come through")
            result = perform()
            if chance < self._faults.unanswered:
                raise Unavailable("the answer did not come through")
            return result

        return self._actor.request(what, answered, tear)


class InlineExecutor(Executor):
    """An executor that does everything at once, in the caller's thread."""

    def __init__(self, *_: object, **__: object) -> None:
        pass

    def submit(self, fn: Callable[..., T], /, *args: Any, **kwargs: Any) -> Future[T]:
        future: Future[T] = Future()
        try:
            future.set_result(fn(*args, **kwargs))
        except Exception as error:  # noqa: BLE001 - of the work, as an executor does it
            future.set_exception(error)
        return future
