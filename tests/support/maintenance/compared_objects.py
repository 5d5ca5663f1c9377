"""A real store, each of whose answers has to be that of a model in memory."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from typing import TypeVar
from unittest import mock

from lodefs.chunkstore.errors import AlreadyExists, Changed, LodefsError, NotFound
from lodefs.chunkstore.objects.interface import ObjectInfo, ObjectStore, Part
from lodefs.chunkstore.types import Buffer
from tests.support.chunkstore.memory_objects import MemoryObjects

T = TypeVar("T")
_urandom = os.urandom  # a schedule's own is for what it tests, and not for clients of S3
_SIZE_BYTES_MAX = 1 << 26


class ComparedObjects(MemoryObjects):
    """``real``, which is empty at first, and which nobody else writes to; ``objects`` is the model.
    Used by one thread at a time. Every method raises AssertionError where the two differ."""

    def __init__(self, real: ObjectStore, tear: Callable[[str, bytes], None] | None = None) -> None:
        """``tear``: begins to put an object (key, bytes), and goes before all of it was sent."""
        super().__init__(real.url)
        self._real = real
        self._tear = tear
        self._etags: dict[str, str] = {}

    def get(self, key: str, *, offset: int = 0, size: int, if_match: str | None = None) -> Part:
        part = self._asked(
            lambda: self._real.get(key, offset=offset, size=size, if_match=if_match),
            f"get {key} of {if_match}",
            self._refusal_of(key, if_match),
        )
        wanted = super().get(key, offset=offset, size=size)
        found = bytes(part.data), part.object_size_bytes, part.etag
        assert found == (wanted.data, wanted.object_size_bytes, self._etags[key]), key
        return part

    def head(self, key: str) -> ObjectInfo:
        refusal = self._refusal_of(key, None)
        info = self._asked(lambda: self._real.head(key), f"head {key}", refusal)
        assert info == ObjectInfo(key, len(self.objects[key]), self._etags[key])
        return info

    def put(self, key: str, data: Sequence[Buffer], *, if_absent: bool = False) -> str:
        is_taken = if_absent and key in self.objects
        self._etags[key] = self._asked(
            lambda: self._real.put(key, data, if_absent=if_absent),
            f"put {key}, if absent: {if_absent}",
            AlreadyExists if is_taken else None,
        )
        super().put(key, data)
        return self._etags[key]

    def list(
        self, prefix: str, *, after: str = "", limit: int | None = None
    ) -> Iterator[ObjectInfo]:
        found = self._asked(
            lambda: list(self._real.list(prefix, after=after, limit=limit)), f"list {prefix}", None
        )
        keys = sorted(key for key in self.objects if key.startswith(prefix) and key > after)
        wanted = [ObjectInfo(key, len(self.objects[key]), self._etags[key]) for key in keys]
        assert found == list(islice(wanted, limit)), f"a list of {prefix} after {after!r}"
        return iter(found)

    def delete(self, key: str) -> None:
        self._asked(lambda: self._real.delete(key), f"delete {key}", None)
        super().delete(key)

    def tear(self, key: str, data: Sequence[Buffer]) -> None:
        """The client of a put is gone half way: nothing comes of it."""
        if self._tear is not None:
            with mock.patch("os.urandom", _urandom):
                self._tear(key, b"".join(data))

    def check(self) -> None:
        """Reads the real store from end to end. Raises: AssertionError if it is not the model."""
        for info in self.list(""):
            self.get(info.key, size=_SIZE_BYTES_MAX)

    def _refusal_of(self, key: str, if_match: str | None) -> type[LodefsError] | None:
        if key not in self.objects:
            return NotFound
        return Changed if if_match not in (None, self._etags[key]) else None

    @staticmethod
    def _asked(ask: Callable[[], T], what: str, refusal: type[LodefsError] | None) -> T:
        """The answer of the real store, which has to be that refusal, if there is one."""
        with mock.patch("os.urandom", _urandom):
            try:
                answer = ask()
            except (NotFound, AlreadyExists, Changed) as error:
                if refusal is None or not isinstance(error, refusal):
                    raise AssertionError(f"{what}: {error!r}, not {refusal}") from error
                raise
        assert refusal is None, f"{what}: an answer, not {refusal}"
        return answer
