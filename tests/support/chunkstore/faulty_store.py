"""An object store that fails as told, and counts: for tests of whatever stands on one."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from lodefs.chunkstore.errors import LodefsError
from lodefs.chunkstore.objects.interface import ObjectInfo, ObjectStore, Part
from lodefs.chunkstore.types import Buffer

BLOCK_TIMEOUT_S = 60.0

# Performs a call, or not, and gives (or spoils) its result
Effect = Callable[[Callable[[], Any]], Any]


@dataclass(slots=True)
class Call:
    """One call that was made. ``size_bytes``: sent by put, received by get; 0 where it failed."""

    operation: str  # get, head, put, list, delete
    key: str  # of list: the prefix
    size_bytes: int = 0


@dataclass(slots=True)
class Rule:
    """Which calls an effect is for: those of an operation (None: of any) whose key begins with
    ``prefix``, from the ``first`` of them (counted from 1) and then ``times`` (None: always)."""

    effect: Effect
    operation: str | None = None
    prefix: str = ""
    first: int = 1
    times: int | None = None
    seen: int = 0

    def applies(self, operation: str, key: str) -> bool:
        """Whether it is for this call, which is counted."""
        if self.operation not in (None, operation) or not key.startswith(self.prefix):
            return False
        self.seen += 1
        return self.seen >= self.first and (
            self.times is None or self.seen < self.first + self.times
        )


def fail(error: LodefsError) -> Effect:
    """The call does nothing and raises ``error``."""

    def effect(_perform: Callable[[], Any]) -> Any:
        raise error

    return effect


def fail_after(error: LodefsError) -> Effect:
    """The call does its work and then raises ``error``: its answer was lost."""

    def effect(perform: Callable[[], Any]) -> Any:
        perform()
        raise error

    return effect


def flip_byte(position: int = 0) -> Effect:
    """A get gives its bytes with one of them changed (counted from the part's beginning)."""

    def effect(perform: Callable[[], Any]) -> Any:
        part: Part = perform()
        spoiled = bytearray(part.data)
        spoiled[position] ^= 0xFF
        return msgspec.structs.replace(part, data=bytes(spoiled))

    return effect


def half_body() -> Effect:
    """A get gives the first half of its bytes, and no error."""

    def effect(perform: Callable[[], Any]) -> Any:
        part: Part = perform()
        return msgspec.structs.replace(part, data=bytes(part.data)[: len(part.data) // 2])

    return effect


def block_until(event: threading.Event, *, entered: threading.Event | None = None) -> Effect:
    """The call sets ``entered`` and waits for ``event``, BLOCK_TIMEOUT_S at most."""

    def effect(perform: Callable[[], Any]) -> Any:
        if entered is not None:
            entered.set()
        if not event.wait(BLOCK_TIMEOUT_S):
            raise AssertionError("nobody ended the fault that blocks")
        return perform()

    return effect


class FaultyObjects:
    """``inner`` with faults: the first rule that applies to a call has its effect on it.

    ``calls`` holds all calls, failed ones too. Rules may be added and cleared at any time.
    """

    def __init__(self, inner: ObjectStore, rules: Sequence[Rule] = ()) -> None:
        self.inner = inner
        self.rules = list(rules)
        self.calls: list[Call] = []
        self._lock = threading.Lock()  # guards calls and the rules' counters

    @property
    def url(self) -> str:
        return self.inner.url

    def add(
        self,
        effect: Effect,
        operation: str | None = None,
        prefix: str = "",
        *,
        first: int = 1,
        times: int | None = None,
    ) -> Rule:
        """Adds a rule and gives it; see Rule."""
        rule = Rule(effect, operation, prefix, first, times)
        with self._lock:
            self.rules.append(rule)
        return rule

    def count(self, operation: str | None = None, prefix: str = "") -> int:
        """How many such calls were made."""
        return len(self._of(operation, prefix))

    def size_bytes(self, operation: str, prefix: str = "") -> int:
        """How many bytes such calls moved."""
        return sum(call.size_bytes for call in self._of(operation, prefix))

    def forget(self) -> None:
        """Clears calls and rules."""
        with self._lock:
            self.calls.clear()
            self.rules.clear()

    def get(self, key: str, *, offset: int = 0, size: int, if_match: str | None = None) -> Part:
        part: Part = self._call(
            "get",
            key,
            lambda: self.inner.get(key, offset=offset, size=size, if_match=if_match),
            lambda part: len(part.data),
        )
        return part

    def head(self, key: str) -> ObjectInfo:
        info: ObjectInfo = self._call("head", key, lambda: self.inner.head(key))
        return info

    def put(self, key: str, data: Sequence[Buffer], *, if_absent: bool = False) -> str:
        etag: str = self._call(
            "put",
            key,
            lambda: self.inner.put(key, data, if_absent=if_absent),
            lambda _: sum(memoryview(buffer).nbytes for buffer in data),
        )
        return etag

    def list(
        self, prefix: str, *, after: str = "", limit: int | None = None
    ) -> Iterator[ObjectInfo]:
        # the whole list at once, so that its effect comes where it is asked for
        found: list[ObjectInfo] = self._call(
            "list", prefix, lambda: [*self.inner.list(prefix, after=after, limit=limit)]
        )
        return iter(found)

    def delete(self, key: str) -> None:
        self._call("delete", key, lambda: self.inner.delete(key))

    def close(self) -> None:
        self.inner.close()

    def _call(
        self,
        operation: str,
        key: str,
        perform: Callable[[], Any],
        size_bytes_of: Callable[[Any], int] = lambda _: 0,
    ) -> Any:
        call = Call(operation, key)
        with self._lock:
            self.calls.append(call)
            # every rule counts every call
            effects = [rule.effect for rule in self.rules if rule.applies(operation, key)]
        result = effects[0](perform) if effects else perform()
        call.size_bytes = size_bytes_of(result)
        return result

    def _of(self, operation: str | None, prefix: str) -> Sequence[Call]:
        with self._lock:
            return [
                call
                for call in self.calls
                if operation in (None, call.operation) and call.key.startswith(prefix)
            ]
