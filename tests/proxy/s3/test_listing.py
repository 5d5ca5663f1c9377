"""Pages of listings, against what S3's rules make of all keys at once."""

from __future__ import annotations

import asyncio
from urllib.parse import quote

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lodefs.chunkstore.format.names import Spec
from lodefs.proxy.s3 import listing as pages_module
from lodefs.proxy.s3.bucket_answers import query_of
from lodefs.proxy.s3.buckets import S3Settings
from lodefs.proxy.s3.errors import S3Error
from lodefs.proxy.s3.listing import (
    KeyPage,
    Lister,
    Query,
    common_prefix,
    decode_token,
    encode_token,
    start_after,
)
from lodefs.proxy.s3.request import parse_request
from tests.proxy.s3.test_key_walk import PARTS, tree_of
from tests.support.proxy.fake_node import DictNode

SETTINGS = S3Settings(aliases={"alias": Spec("demo", "main", b"")})


def shown(keys: list[bytes], prefix: bytes, delimiter: bytes) -> list[bytes]:
    """All keys and common prefixes of a listing, in their order."""
    found = [common_prefix(key, prefix, delimiter) or key for key in keys if key.startswith(prefix)]
    return sorted(set(found))


async def pages(node: DictNode, bucket: str, target: str) -> list[KeyPage]:
    """All pages of a listing."""
    lister = Lister(node, SETTINGS, lambda _repo: True)
    found: list[KeyPage] = []
    token = ""
    while len(found) < 1000:
        query = query_of(parse_request("GET", f"/{bucket}?list-type=2&{target}{token}", {}))
        page = await lister.page(query)
        found.append(page)
        assert len(page) <= query.keys_max
        if page.following is None:
            return found
        token = "&continuation-token=" + encode_token(page.following)
    raise AssertionError("the listing has no end")


def listed(files: dict[bytes, bytes], bucket: str, target: str, branches: list[str]) -> list[bytes]:
    node = DictNode(files, branches=branches)
    found = asyncio.run(pages(node, bucket, target))
    return [one for page in found for one in sorted([*[k.key for k in page.keys], *page.prefixes])]


@settings(max_examples=120, deadline=None)
@given(
    st.lists(PARTS, max_size=12),
    PARTS | st.just(""),
    st.sampled_from(["", "/", "-", "a/", "b", "./"]),
    st.sampled_from([1, 2, 7, 1000]),
)
def test_pages(paths: list[str], prefix: str, delimiter: str, keys_max: int) -> None:
    """Pages of any size show each key and common prefix once, in the order of their bytes."""
    files = tree_of(paths)
    target = f"prefix={quote(prefix)}&delimiter={quote(delimiter)}&max-keys={keys_max}"
    wanted = shown(sorted(files), prefix.encode(), delimiter.encode())
    assert listed(files, "alias", target, ["main"]) == wanted


@settings(max_examples=50, deadline=None)
@given(
    st.lists(PARTS, min_size=1, max_size=6),
    st.sampled_from(["", "d", "demo@", "demo@main/", "demo@v1", "demo@v1.0/a", "x"]),
    st.sampled_from(["", "/", "@", "1"]),
    st.sampled_from([1, 3, 1000]),
)
def test_revisions(paths: list[str], prefix: str, delimiter: str, keys_max: int) -> None:
    """The bucket of the store lists all revisions, whose names may begin alike."""
    files = tree_of(paths)
    branches = ["main", "v1", "v1.0", "v1-b"]
    keys = sorted(f"demo@{one}/".encode() + key for one in branches for key in files)
    target = f"prefix={quote(prefix)}&delimiter={quote(delimiter)}&max-keys={keys_max}"
    wanted = shown(keys, prefix.encode(), delimiter.encode()) if files else []
    found = listed(files, "lodefs", target, branches)
    if not files:  # an empty revision is shown where it is not opened
        return
    assert found == wanted


@settings(max_examples=80, deadline=None)
@given(st.lists(PARTS, min_size=1, max_size=12), PARTS, st.sampled_from(["", "/", "-"]))
def test_start_after(paths: list[str], after: str, delimiter: str) -> None:
    """A listing begins after a key; within a common prefix it begins after all of it."""
    files, marker = tree_of(paths), after.encode()
    wanted = [
        one
        for one in shown(sorted(files), b"", delimiter.encode())
        if one > marker
        and not (delimiter and marker.startswith(one) and one.endswith(delimiter.encode()))
    ]
    target = f"delimiter={quote(delimiter)}&start-after={quote(after)}"
    assert listed(files, "alias", target, ["main"]) == wanted


def test_one_listing_sees_one_commit() -> None:
    """The pages of a listing are of the commit that the first one was of."""
    asked: list[str] = []

    class Moving(DictNode):
        async def snapshot(self, repo: str, rev: str):  # type: ignore[no-untyped-def]
            asked.append(rev)
            return await super().snapshot(repo, "main" if rev == "main" else rev)

    node = Moving({b"a": b"", b"b": b"", b"c": b""})
    asyncio.run(pages(node, "alias", "max-keys=1"))
    assert asked == ["main", node.commit, node.commit]


def test_a_token_of_another_listing() -> None:
    """A token of another revision, or of another bucket, is refused."""
    node = DictNode({b"a": b"", b"b": b""}, branches=["main", "other"])
    lister = Lister(node, SETTINGS, lambda _repo: True)
    first = asyncio.run(lister.page(Query("lodefs", b"demo@main/", keys_max=1)))
    assert first.following is not None
    other = Query("lodefs", b"demo@other/", start=first.following.start, token=first.following)
    with pytest.raises(S3Error, match="belongs to another list"):
        asyncio.run(lister.page(other))
    token = encode_token(first.following)
    with pytest.raises(S3Error, match="of another bucket"):
        query_of(parse_request("GET", f"/alias?list-type=2&continuation-token={token}", {}))


@pytest.mark.parametrize("text", ["", "x", "AAAA", "é", "A" * 9000, "%%%%"])
def test_tokens_that_are_none(text: str) -> None:
    """What this proxy has not made is refused."""
    with pytest.raises(S3Error, match="incorrect"):
        decode_token(text)


def test_repositories_that_may_not_be_read() -> None:
    """They are not listed."""
    node = DictNode({b"a": b""})
    lister = Lister(node, SETTINGS, lambda _repo: False)
    assert not len(asyncio.run(lister.page(Query("lodefs"))))


def test_what_is_left_out_is_counted() -> None:
    """Names that are not UTF-8 are counted, and the page says so."""
    node = DictNode({b"\xff": b"", b"\xfe": b"", b"ok": b""})
    page = asyncio.run(Lister(node, SETTINGS, lambda _repo: True).page(Query("alias")))
    assert ([one.key for one in page.keys], page.left_out) == ([b"ok"], 2)


@pytest.mark.parametrize("delimiter", ["", "/"])
def test_a_page_costs_what_is_on_it(delimiter: str) -> None:
    """A page far behind asks for no more of the directory than it shows."""
    asked: list[int] = []

    class Counting(DictNode):
        async def children(self, snapshot, ino, *, after=b"", limit):  # type: ignore[no-untyped-def]
            page = await super().children(snapshot, ino, after=after, limit=limit)
            asked.append(len(page.nodes))
            return page

    node = Counting({b"many/%05d.bin" % n: b"" for n in range(3000)})
    lister = Lister(node, SETTINGS, lambda _repo: True)
    start = b"many/02699.bin\0"
    prefix = b"many/" if delimiter else b""
    query = Query("alias", prefix, delimiter.encode(), keys_max=10, start=start)
    page = asyncio.run(lister.page(query))
    assert [one.key for one in page.keys] == [b"many/%05d.bin" % n for n in range(2700, 2710)]
    assert sum(asked) <= 40


def test_a_page_that_ends_before_its_first_key(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where too much was passed without a key, the page says a marker all the same, and the next
    one goes on behind it."""
    monkeypatch.setattr(pages_module, "STEPS_MAX", 10)
    node = DictNode({**{b"a/%02d/" % n: b"" for n in range(25)}, b"b": b"", b"c": b""})
    lister = Lister(node, SETTINGS, lambda _repo: True)
    marker, found = b"", []
    for _ in range(20):
        page = asyncio.run(lister.page(Query("alias", start=start_after(marker, b"", b""))))
        found += [one.key for one in page.keys]
        if page.following is None:
            break
        assert page.last > marker
        marker = page.last
    assert found == [b"b", b"c"]
