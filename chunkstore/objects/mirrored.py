"""Several object stores with the same packs and commits, as one: reads fail over.

Objects that are named by their content (packs, commits) are right wherever they come from, since
readers check them: the first store is asked, then the others. All else (refs, lists, settings)
comes from the first store alone, unless it does not answer, refuses this node, or is gone (for
example, a directory whose file system is not mounted). Then it comes from the next store, which may
be out of date. Any store may supply the settings, which a node reads at its start. Writes go to the
first store only.
"""

from __future__ import annotations

import logging
import re
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import TypeVar

from lodefs.chunkstore.errors import Changed, Corrupt, Denied, LodefsError, NotFound, Unavailable
from lodefs.chunkstore.format import keys
from lodefs.chunkstore.format.names import digest_of
from lodefs.chunkstore.objects.interface import ObjectInfo, ObjectStore, Part
from lodefs.chunkstore.objects.open_connections import keep_open
from lodefs.chunkstore.objects.ranges.order import RangeOrder, range_order
from lodefs.chunkstore.system.circuit_breaker import CircuitBreaker
from lodefs.chunkstore.system.lru import Lru
from lodefs.chunkstore.types import Buffer

PAUSE_S_FIRST = 5.0  # before a store that failed is tried again
PAUSE_S_MAX = 60.0
DOUBTED_FOR_S = 300.0  # how long a store is asked last for an object that it has damaged
DOUBTS_MAX = 4096
SETTINGS_BYTES_MAX = 64 * 1024
_COMMIT = re.compile(rf"{keys.REPOS}.+/commits/[0-9a-f]{{64}}\Z")
_ETAG = re.compile(r"mirror(\d+):(.*)\Z", re.DOTALL)

T = TypeVar("T")


class _Gone(Unavailable):
    """A store is gone: it has no settings."""


class _Refused(Unavailable):
    """A store refuses everything, even its settings, which counts as not answering."""


log = logging.getLogger("lodefs.store")


def _in_thread(call: Callable[[], None]) -> None:
    threading.Thread(target=call, name="lodefs-mirror", daemon=True).start()


class Mirrored:
    """An ObjectStore over others, the first of which is the store itself. An ETag tells which store
    an object came from. A range that must match an ETag is read from that store or not at all
    (Changed)."""

    def __init__(
        self,
        stores: Sequence[ObjectStore],
        *,
        clock: Callable[[], float] = time.monotonic,
        start: Callable[[Callable[[], None]], None] = _in_thread,
    ) -> None:
        self._stores = stores
        self._clock = clock
        self._start = start
        self._breakers = [CircuitBreaker(PAUSE_S_FIRST, PAUSE_S_MAX, clock) for _ in stores]
        self._doubts: Lru[tuple[str, int], float] = Lru(DOUBTS_MAX)
        self._read_from = [0] * len(stores)

    @property
    def url(self) -> str:
        return self._stores[0].url

    @property
    def stores(self) -> Sequence[tuple[str, bool, int]]:
        """Returns for each store its URL, whether it answers, and how many calls it has
        answered."""
        return [
            (store.url, breaker.is_closed, count)
            for store, breaker, count in zip(
                self._stores, self._breakers, self._read_from, strict=True
            )
        ]

    def is_up(self, number: int) -> bool:
        """Whether to ask a store."""
        return number < len(self._stores) and self._breakers[number].is_closed

    @property
    def is_replaced(self) -> bool:
        """Whether a mirror, which may be out of date, now supplies refs and lists."""
        return not self.is_up(0) and any(map(self.is_up, range(1, len(self._stores))))

    def report_corruption(self, key: str, etag: str | None) -> bool:
        """Reports that the bytes of an object were wrong. The store with this ETag (or the one that
        would be asked) is then asked last for the object for a while. Returns whether another store
        is asked now."""
        number = self._order(key)[0] if etag is None else split_etag(etag)[0]
        self._doubts.put((key, number), self._clock() + DOUBTED_FOR_S)
        log.warning("%s has damaged bytes of %s", self._stores[number].url, key)
        return self._order(key)[0] != number

    def get(self, key: str, *, offset: int = 0, size: int, if_match: str | None = None) -> Part:
        if if_match is not None:
            return self._get_matching(key, offset, size, if_match)

        def get(store: ObjectStore) -> Part:
            part = store.get(key, offset=offset, size=size)
            _check_commit(key, part)
            return part

        number, part = self._first_of(key, get)
        return Part(part.data, part.object_size_bytes, join_etag(number, part.etag))

    def head(self, key: str) -> ObjectInfo:
        number, info = self._first_of(key, lambda store: store.head(key))
        return ObjectInfo(info.key, info.size_bytes, join_etag(number, info.etag))

    def put(self, key: str, data: Sequence[Buffer], *, if_absent: bool = False) -> str:
        return self._stores[0].put(key, data, if_absent=if_absent)

    def list(
        self, prefix: str, *, after: str = "", limit: int | None = None
    ) -> Iterator[ObjectInfo]:
        numbers = self._reachable(is_content=False)
        are_gone = True
        for number in numbers:
            has_begun = False
            try:
                with self._asked(number):
                    for info in self._stores[number].list(prefix, after=after, limit=limit):
                        has_begun = True
                        etag = join_etag(number, info.etag)
                        yield ObjectInfo(info.key, info.size_bytes, etag)
                    if not has_begun:
                        self._require_there(number)
                return
            except Unavailable as error:
                are_gone = are_gone and isinstance(error, _Gone)
                if has_begun or not self._is_next_asked(number, numbers):
                    if are_gone and len(numbers) == len(self._stores):
                        return
                    raise  # a list comes from one store

    def delete(self, key: str) -> None:
        self._stores[0].delete(key)

    def close(self) -> None:
        for store in self._stores:
            store.close()

    def keep_open(self, connections: int) -> None:
        """Implements KeepsOpen for the first store that answers."""
        numbers = self._reachable(is_content=True)
        keep_open(self._stores[numbers[0]], connections)

    @contextmanager
    def range_order(
        self, key: str, offset: int, size_bytes: int, if_match: str
    ) -> Iterator[RangeOrder | None]:
        """Implements OrderSource for the store that the ETag names; yields None while that does not
        answer."""
        number, etag = split_etag(if_match)
        if not self.is_up(number):
            yield None
            return
        with range_order(self._stores[number], key, offset, size_bytes, etag) as order:
            if order is None:
                yield None
                return

            def done(size_bytes: int, seconds: float, error: type[LodefsError] | None) -> None:
                order.done(size_bytes, seconds, error)
                if error is Unavailable and self._breakers[number].failed():
                    log.warning("%s does not answer: trying the others", self._url(number))

            yield order._replace(done=done)

    def _get_matching(self, key: str, offset: int, size: int, if_match: str) -> Part:
        number, etag = split_etag(if_match)
        if number in self._reachable():
            try:
                with self._asked(number):
                    part = self._stores[number].get(key, offset=offset, size=size, if_match=etag)
                return Part(part.data, part.object_size_bytes, if_match)
            except (Unavailable, NotFound, Denied):
                if not is_content(key):
                    raise
        raise Changed(f"{key} cannot be read now from the store of its version {if_match}")

    def _first_of(self, key: str, ask: Callable[[ObjectStore], T]) -> tuple[int, T]:
        """Returns the first store that has an answer, and the answer."""
        if not is_content(key):
            return self._of_first_reachable(ask, is_anyones=key == keys.STORE)
        errors: list[LodefsError] = []
        for number in self._order(key):
            try:
                with self._asked(number):
                    return number, ask(self._stores[number])
            except (Unavailable, NotFound, Denied, Corrupt) as error:
                errors.append(error)
        worst = _worst(errors)
        if isinstance(worst, NotFound):
            self._require_all_there(key, worst)
        raise worst

    def _require_all_there(self, key: str, lacking: NotFound) -> None:
        """Raises: Unavailable if a store does not answer, since it may have what the others
        lack."""
        for number in self._reachable():
            with self._asked(number):
                self._require_there(number, lacking)
        if away := [self._url(n) for n, one in enumerate(self._breakers) if not one.is_closed]:
            message = f"{', '.join(away)} does not answer, and the other stores do not have {key}"
            raise Unavailable(message) from lacking

    def _of_first_reachable(
        self, ask: Callable[[ObjectStore], T], *, is_anyones: bool
    ) -> tuple[int, T]:
        """Asks the stores in turn. ``is_anyones``: a mirror may answer while the store only
        throttles."""
        numbers = self._reachable(is_content=False)
        errors: list[LodefsError] = []
        for number in numbers:
            try:
                with self._asked(number):
                    return number, self._surely(number, ask)
            except Unavailable as error:
                errors.append(error)
                if not (is_anyones or self._is_next_asked(number, numbers)):
                    break
        if len(errors) == len(self._stores) and all(isinstance(one, _Gone) for one in errors):
            # There is no store in any place
            raise NotFound(str(errors[0].__cause__)) from errors[0]
        if all(isinstance(one, _Refused) for one in errors):
            raise Denied(str(errors[0])) from errors[0]
        raise errors[-1]

    def _is_next_asked(self, number: int, numbers: Sequence[int]) -> bool:
        """Whether refs and lists come from the next store now. It may be out of date, so only if
        this one is known not to answer, and not if it has only throttled a call."""
        return number != numbers[-1] and not self._breakers[number].is_closed

    def _surely(self, number: int, ask: Callable[[ObjectStore], T]) -> T:
        """Returns the answer of a store. Raises NotFound only if the store itself exists."""
        try:
            return ask(self._stores[number])
        except NotFound as error:
            self._require_there(number, error)
            raise

    def _require_there(self, number: int, lacking: NotFound | None = None) -> None:
        """Raises: Unavailable if a store is gone, since its objects are then not missing."""
        try:
            self._stores[number].head(keys.STORE)
        except NotFound as error:
            message = f"the store {self._url(number)} is gone at present: {error}"
            raise _Gone(message) from (lacking or error)

    @contextmanager
    def _asked(self, number: int) -> Iterator[None]:
        """Runs one call of a store, which shows whether it answers."""
        try:
            yield
        except Unavailable as error:
            breaker = self._breakers[number]
            if breaker.throttled() if error.is_throttled else breaker.failed():
                log.warning("%s does not answer: trying the others: %s", self._url(number), error)
            raise
        except NotFound:
            raise  # a directory without its file system answers like that, too
        except Denied as error:
            if not self._refuses(number):
                self._answered(number)
                raise
            if self._breakers[number].failed():
                log.warning("%s refuses this node: trying the others: %s", self._url(number), error)
            raise _Refused(f"{self._url(number)} refuses this node: {error}") from error
        except LodefsError:
            self._answered(number)
            raise
        self._answered(number)
        self._read_from[number] += 1

    def _refuses(self, number: int) -> bool:
        """Whether a store refuses even to read its settings."""
        try:
            self._stores[number].head(keys.STORE)
        except Denied:
            return True
        except LodefsError:
            return False
        return False

    def _answered(self, number: int) -> None:
        if self._breakers[number].answered():
            log.info("%s answers again", self._url(number))

    def _reachable(self, *, is_content: bool = True) -> Sequence[int]:
        """Returns the stores that answer, in order; all of them if none does. A store that was not
        asked for long is tried before refs or lists come from another one, which may be out of
        date."""
        for number, breaker in enumerate(self._breakers):
            is_overdue = breaker.is_overdue and not is_content
            if not breaker.is_due():
                continue
            if is_overdue:
                self._try(number)
            else:
                self._start(lambda number=number: self._try(number))  # type: ignore[misc]
        numbers = range(len(self._stores))
        return [n for n in numbers if self._breakers[n].is_closed] or [*numbers]

    def _order(self, key: str) -> Sequence[int]:
        """Returns the stores that answer; those that have damaged the object come last."""
        now = self._clock()
        return sorted(self._reachable(), key=lambda n: (self._doubts.get((key, n)) or 0) > now)

    def _try(self, number: int) -> None:
        """Tries whether a store answers again, by reading bytes: one that is too slow fails
        that."""
        with suppress(LodefsError), self._asked(number):
            self._require_there(number)
            self._stores[number].get(keys.STORE, size=SETTINGS_BYTES_MAX)

    def _url(self, number: int) -> str:
        return self._stores[number].url


def is_content(key: str) -> bool:
    """Whether an object's name is derived from its content."""
    return key.startswith(keys.PACKS) or _COMMIT.match(key) is not None


def _check_commit(key: str, part: Part) -> None:
    """Raises: Corrupt if a whole commit does not match its key."""
    is_whole = len(part.data) == part.object_size_bytes
    if is_whole and _COMMIT.match(key) and not key.endswith(digest_of(part.data).hex()):
        raise Corrupt(f"{key} has the bytes of another commit, or is damaged")


def join_etag(number: int, etag: str) -> str:
    """Returns an ETag that names the store; that of the first store is unchanged."""
    return f"mirror{number}:{etag}" if number else etag


def split_etag(etag: str) -> tuple[int, str]:
    """Returns the number of the store, and the ETag there."""
    found = _ETAG.match(etag)
    return (int(found[1]), found[2]) if found else (0, etag)


def report_corruption(objects: object, key: str, etag: str | None = None) -> bool:
    """Reports to a store that the bytes of an object were wrong. Returns whether another store is
    asked now; a store without mirrors is asked again."""
    tell = getattr(objects, "report_corruption", None)
    return tell is not None and bool(tell(key, etag))


def is_replaced(objects: object) -> bool:
    """Whether a mirror answers in place of a store: then what it lacks may still exist."""
    return bool(getattr(objects, "is_replaced", False))


def _worst(errors: Sequence[LodefsError]) -> LodefsError:
    """Returns one error for all stores. That none has an object is certain only if all answered."""
    for kind in (Unavailable, Denied, Corrupt):
        for error in errors:
            if isinstance(error, kind):
                return error
    return errors[0]
