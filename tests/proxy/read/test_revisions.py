"""Repositories, branches and tags, some at a time and in S3's order."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lodefs.chunkstore.errors import InvalidInput
from lodefs.chunkstore.format.names import CommitId, check_repo
from lodefs.chunkstore.objects.interface import ObjectInfo, Part
from lodefs.chunkstore.repo.refs import BRANCHES, TAGS, Refs
from lodefs.chunkstore.repo.store import Store
from lodefs.proxy.node import NamePage
from lodefs.proxy.read.revisions import NAMES_MAX, PAGE_S, Revisions, repos_from
from lodefs.proxy.runtime.thread_pools import Pools
from lodefs.proxy.s3.buckets import S3Settings
from lodefs.proxy.s3.listing import KeyPage, Lister, Query
from tests.support.chunkstore.golden import settings as store_settings
from tests.support.chunkstore.memory_objects import MemoryObjects
from tests.support.proxy.fake_node import DictNode

CALL_S = 0.05  # what a call to the slow store takes, by the clock of the test
COMMIT = CommitId(b"c" * 32)
NAMES = st.text(st.sampled_from("ab-.0_/"), min_size=1, max_size=5)


class SlowObjects(MemoryObjects):
    """A store whose calls take their time, by ``now_s``."""

    def __init__(self) -> None:
        super().__init__()
        self.calls = 0

    def now_s(self) -> float:
        """The time that all calls took."""
        return self.calls * CALL_S

    def list(
        self, prefix: str, *, after: str = "", limit: int | None = None
    ) -> Iterator[ObjectInfo]:
        """See ObjectStore."""
        self.calls += 1
        return super().list(prefix, after=after, limit=limit)

    def get(self, key: str, *, offset: int = 0, size: int, if_match: str | None = None) -> Part:
        """See ObjectStore."""
        self.calls += 1
        return super().get(key, offset=offset, size=size, if_match=if_match)


def store_of(repos: list[str], branches: list[str], tags: list[str]) -> tuple[SlowObjects, Store]:
    """Repositories with the same branches and tags; those in capitals were deleted."""
    objects = SlowObjects()
    for repo in repos:
        refs = Refs(objects, repo, clock=lambda: 1.0)
        for kind, names in ((BRANCHES, branches), (TAGS, tags)):
            for name in names:
                refs.advance(kind, name.lower(), COMMIT, expected_sequence=None)
                if name.isupper():
                    refs.advance(kind, name.lower(), None, expected_sequence=0)
    return objects, Store(objects, store_settings(), probed=True)


def is_repo(name: str) -> bool:
    try:
        check_repo(name)
    except InvalidInput:
        return False
    return True


@settings(max_examples=200, deadline=None)
@given(
    st.lists(NAMES.filter(is_repo), max_size=8, unique=True),
    NAMES | st.just(""),
    st.text(st.sampled_from("ab-.0_/@~\xff"), max_size=6),
)
def test_repositories_are_in_the_order_of_keys(names: list[str], prefix: str, start: str) -> None:
    """From anywhere on, with any beginning."""
    _, store = store_of(names, ["main"], [])
    least = start.encode("latin-1")
    wanted = [
        key[:-1].decode()
        for key in sorted(f"{name}@".encode() for name in names if name.startswith(prefix))
        if key >= least or least.startswith(key)
    ]
    assert list(repos_from(store, prefix.encode(), least)) == wanted


async def all_of(lists: Revisions, repo: str, start: bytes) -> list[str]:
    """The names of all pages."""
    found: list[str] = []
    following: bytes | None = start
    while following is not None:
        page = await lists.revisions(repo, following)
        found += page.names
        following = page.following
    return found


def test_branches_and_tags() -> None:
    """They are merged by the bytes of NAME/; deleted ones are not there, and a name of both kinds
    is there once."""
    _, store = store_of(["x"], ["v1", "v1.0", "v1-b", "GONE", "both"], ["both", "v0", "v1a"])

    async def run() -> None:
        pools = Pools(fetch=1, disk=1)
        lists = Revisions(store, pools, deadline_s=60)
        wanted = ["both", "v0", "v1-b", "v1.0", "v1", "v1a"]
        assert await all_of(lists, "x", b"") == wanted
        assert await all_of(lists, "x", b"v1/") == ["v1", "v1a"]
        assert await all_of(lists, "x", b"\xff") == []
        assert await all_of(lists, "none", b"") == []
        await pools.close()

    asyncio.run(run())


@pytest.mark.parametrize("deleted", [False, True])
def test_a_page_ends_in_time(deleted: bool) -> None:
    """A page of a slow store ends after some calls, also where it found nothing, and the next one
    goes on behind it."""
    names = [f"b{n:04}" for n in range(300)]
    objects, store = store_of(["x"], [one.upper() if deleted else one for one in names], [])

    async def run() -> None:
        pools = Pools(fetch=1, disk=1)
        lists = Revisions(store, pools, deadline_s=60, clock_s=objects.now_s)
        found: list[str] = []
        following: bytes | None = b""
        pages = 0
        while following is not None:
            pages += 1
            begun_s = objects.now_s()
            page: NamePage = await lists.revisions("x", following)
            assert objects.now_s() - begun_s <= PAGE_S + 8 * CALL_S
            assert len(page.names) <= NAMES_MAX
            found += page.names
            following = page.following
        assert found == ([] if deleted else names)
        assert pages > 5
        await pools.close()

    asyncio.run(run())


class StoreNames(DictNode):
    """The names of a store, each revision with the same files."""

    def __init__(self, lists: Revisions) -> None:
        super().__init__({b"file": b""})
        self._lists = lists

    async def repos(self, prefix: bytes, start: bytes) -> NamePage:
        """See proxy.node.Names."""
        return await self._lists.repos(prefix, start)

    async def revisions(self, repo: str, start: bytes) -> NamePage:
        """See proxy.node.Names."""
        return await self._lists.revisions(repo, start)

    async def snapshot(self, repo: str, rev: str):  # type: ignore[no-untyped-def]
        """That of all."""
        return await super().snapshot("demo", "main")


def test_many_repositories() -> None:
    """A page of 1,200 repositories asks the store for what it shows: a group of them costs no more
    than its name, and those that may not be read cost no look at their branches."""
    repos = [f"team-{n % 12:02}/set-{n:04}" for n in range(1200)]
    objects, store = store_of(repos, ["main"], [])

    async def page(query: Query, allowed: str = "") -> tuple[KeyPage, int]:
        pools = Pools(fetch=2, disk=1)
        names = StoreNames(Revisions(store, pools, deadline_s=60, clock_s=objects.now_s))
        lister = Lister(names, S3Settings(), lambda repo: repo.startswith(allowed))
        before = objects.calls
        found = await lister.page(query)
        await pools.close()
        return found, objects.calls - before

    found, calls = asyncio.run(page(Query("lodefs", delimiter=b"/")))
    assert found.prefixes == [b"team-%02d/" % n for n in range(12)]
    assert calls <= 12 * 3 * NAMES_MAX
    found, calls = asyncio.run(page(Query("lodefs", b"team-03/set-0003@", b"/")))
    assert found.prefixes == [b"team-03/set-0003@main/"]
    assert calls <= 8
    found, calls = asyncio.run(page(Query("lodefs", keys_max=5)))
    assert [one.key for one in found.keys] == [
        f"{repo}@main/file".encode() for repo in sorted(repos)[:5]
    ]
    assert calls <= 100
    found, calls = asyncio.run(page(Query("lodefs"), "team-11/set-1199"))
    assert [one.key for one in found.keys] == [b"team-11/set-1199@main/file"]
    assert calls <= 3 * 1200
