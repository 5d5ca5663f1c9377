"""A place that lacks something that a store needs is found out, each time by the check that is
meant for it; nothing is left there."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pytest

from lodefs.chunkstore.errors import Denied, Unsupported
from lodefs.chunkstore.objects.delegating import DelegatingStore
from lodefs.chunkstore.objects.interface import ObjectInfo, Part
from lodefs.chunkstore.repo.checks.place_check import REQUIREMENTS, check_place, require_place
from lodefs.chunkstore.types import Buffer
from tests.support.chunkstore.memory_objects import MemoryObjects


def test_memory_can_hold_a_store() -> None:
    """The reference does all that is needed, and has no objects afterwards."""
    objects = MemoryObjects()
    results = list(check_place(objects))
    assert [one.requirement for one in results] == [one.name for one in REQUIREMENTS]
    assert all(one.holds and not one.problem for one in results)
    require_place(objects)
    assert not objects.objects


class _IgnoresIfAbsent(DelegatingStore):
    def put(self, key: str, data: Sequence[Buffer], *, if_absent: bool = False) -> str:
        return self.inner.put(key, data)


class _ChecksBeforeItWrites(DelegatingStore):
    """As a gateway does that looks first: each of many writers at once finds nothing there."""

    def put(self, key: str, data: Sequence[Buffer], *, if_absent: bool = False) -> str:
        is_race = bytes(data[0]).startswith(b"writer")
        return self.inner.put(key, data, if_absent=if_absent and not is_race)


class _KeepsEtags(DelegatingStore):
    def get(self, key: str, *, offset: int = 0, size: int, if_match: str | None = None) -> Part:
        part = self.inner.get(key, offset=offset, size=size)
        return Part(part.data, part.object_size_bytes, "same")

    def head(self, key: str) -> ObjectInfo:
        info = self.inner.head(key)
        return ObjectInfo(key, info.size_bytes, "same")

    def put(self, key: str, data: Sequence[Buffer], *, if_absent: bool = False) -> str:
        self.inner.put(key, data, if_absent=if_absent)
        return "same"


class _IgnoresRanges(DelegatingStore):
    def get(self, key: str, *, offset: int = 0, size: int, if_match: str | None = None) -> Part:
        if offset:
            raise Unsupported("the server ignores ranges")
        return self.inner.get(key, size=size, if_match=if_match)


class _IgnoresIfMatch(DelegatingStore):
    def get(self, key: str, *, offset: int = 0, size: int, if_match: str | None = None) -> Part:
        return self.inner.get(key, offset=offset, size=size)


class _ListsDirectories(DelegatingStore):
    """As accounts with a hierarchical namespace do."""

    def list(
        self, prefix: str, *, after: str = "", limit: int | None = None
    ) -> Iterator[ObjectInfo]:
        found = list(self.inner.list(prefix))
        folders = {one.key.rpartition("/")[0] for one in found} - {""}
        more = [ObjectInfo(key, 0, "x") for key in folders if key.startswith(prefix)]
        listed = sorted([*found, *more], key=lambda one: one.key.split("/"))
        yield from [one for one in listed if one.key > after][:limit]


class _ListsFolderByFolder(DelegatingStore):
    """As SeaweedFS does: nothing is missing, but ``a/x`` comes before ``a-b``."""

    def list(
        self, prefix: str, *, after: str = "", limit: int | None = None
    ) -> Iterator[ObjectInfo]:
        found = [one for one in self.inner.list(prefix) if one.key.split("/") > after.split("/")]
        yield from sorted(found, key=lambda one: one.key.split("/"))[:limit]


@pytest.mark.parametrize(
    ("place", "lacking"),
    [
        (_IgnoresIfAbsent, {"put if absent", "one of many writers wins"}),
        (_ChecksBeforeItWrites, {"one of many writers wins"}),
        (_KeepsEtags, {"read after write", "read if unchanged"}),
        (_IgnoresRanges, {"ranges"}),
        (_IgnoresIfMatch, {"read if unchanged"}),
        (_ListsDirectories, {"list after write, in order"}),
        (_ListsFolderByFolder, {"list after write, in order"}),
    ],
)
def test_what_a_place_lacks(place: type[DelegatingStore], lacking: set[str]) -> None:
    """Just that is named, with what happens instead; a store there is refused."""
    memory = MemoryObjects()
    results = list(check_place(place(memory)))
    assert {one.requirement for one in results if not one.holds} == lacking
    assert all(one.problem for one in results if not one.holds)
    with pytest.raises(Unsupported, match="memory: cannot hold a store"):
        require_place(place(memory))
    assert not memory.objects


def test_no_rights_are_another_error() -> None:
    """Credentials that may not write say nothing about the place."""

    class ReadOnly(DelegatingStore):
        def put(self, key: str, data: Sequence[Buffer], *, if_absent: bool = False) -> str:
            raise Denied("no")

    with pytest.raises(Denied):
        require_place(ReadOnly(MemoryObjects()))
