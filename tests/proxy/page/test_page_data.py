"""What the page is told: repositories, versions, changes, paths, the node's figures."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from lodefs.chunkstore.errors import Unavailable
from lodefs.chunkstore.protocol.cache_control import WarmRequest
from lodefs.chunkstore.repo.refs import BRANCHES
from lodefs.proxy.api.request import Reader
from lodefs.proxy.page import directory_view, live_feed
from lodefs.proxy.page.live_feed import LISTENERS_MAX, LiveFeed, Sample
from lodefs.proxy.read import store_catalog
from lodefs.proxy.read.store_catalog import GROUP_NAMES, RepositoryNames
from tests.support.proxy.fake_cache_control import MemoryCacheControl
from tests.support.proxy.fake_node import DictNode, RunningProxy, start_proxy
from tests.support.proxy.rig import REPO, Rig

FIRST = {b"a": b"1", b"d/b": b"22", b"gone": b"333"}
SECOND = {b"a": b"1", b"d/b": b"4444", b"d/new": b"55555"}


@pytest.fixture
def proxy(tmp_path: Path) -> Iterator[RunningProxy]:
    """A proxy over a repository with two versions."""
    rig = Rig(tmp_path, FIRST)
    rig.maker.commit(REPO, SECOND)
    with start_proxy(rig.node) as running:
        yield running


def test_a_repository_and_its_versions(proxy: RunningProxy) -> None:
    """Names, branches, versions newest first, a page at a time, and what the newest changed."""
    with proxy.client() as client:
        assert client.get("/page/repositories").json()["names"] == [REPO]
        assert client.get("/page/repositories?match=SET").json()["names"] == [REPO]
        assert client.get("/page/repositories?match=x").json()["names"] == []
        [main] = client.get(f"/page/repository/{REPO}").json()["refs"]
        log = client.get(f"/page/history/{REPO}@main?limit=1").json()
        assert [one["commit"] for one in log["commits"]] == [main["commit"]]
        older = client.get(f"/page/history/{REPO}@{log['next']}").json()
        assert (len(older["commits"]), older["next"]) == (1, None)
        found = client.get(f"/page/changes/{REPO}@main").json()
        assert {one["path"]: one["what"] for one in found["changes"]} == {
            "d/b": "changed", "d/new": "added", "gone": "removed"}  # fmt: skip
        assert (found["added_bytes"], found["removed_bytes"], found["is_complete"]) == (9, 5, True)
        first = client.get(f"/page/changes/{REPO}@{log['next']}").json()
        assert (first["parent"], first["added"], first["added_bytes"]) == (None, 3, 6)


def test_two_versions_are_compared(proxy: RunningProxy) -> None:
    """In either direction, and line by line, also what is in one of them alone."""
    with proxy.client() as client:
        log = client.get(f"/page/history/{REPO}@main").json()["commits"]
        new, old = (one["commit"] for one in log)
        back = client.get(f"/page/changes/{REPO}@{old}?since=main").json()
        assert {one["path"]: one["what"] for one in back["changes"]} == {
            "d/b": "changed", "d/new": "removed", "gone": "added"}  # fmt: skip
        assert (back["commit"], back["parent"]) == (old, new)
        same = client.get(f"/page/changes/{REPO}@main?since=main").json()
        assert (same["changes"], same["is_complete"]) == ([], True)
        patch = client.get(f"/page/preview/{REPO}@main/d/b?since={old}").json()
        assert (patch["kind"], patch["text"].splitlines()[1]) == ("patch", "-22")
        gone = client.get(f"/page/preview/{REPO}@main/gone?since={old}").json()
        assert gone["text"].splitlines()[1] == "-333"


def test_a_directory_has_directories_first(tmp_path: Path) -> None:
    """They are before the files on all pages; the file that says what it is comes with the first,
    and of each entry the version that changed it last."""
    files = {b"a": b"1", b"README.md": b"# x", b"z?/f": b"2", b"y/f": b"3"}
    rig = Rig(tmp_path, files)
    last = rig.maker.commit(REPO, {**files, b"z?/f": b"4"}, message="z")
    with start_proxy(rig.node) as running, running.client() as client:
        url = f"/page/directory/{REPO}@main/"
        first = client.get(f"{url}?limit=3").json()
        assert [one["name"] for one in first["entries"]] == ["y", "z?", "README.md"]
        assert (first["total"], first["is_ordered"], first["readme"]["name"]) == (
            4, True, "README.md")  # fmt: skip
        second = client.get(f"{url}?{first['next']}").json()
        assert [one["name"] for one in second["entries"]] == ["a"]
        assert (second["next"], second["readme"]) == (None, None)
        dates = client.get(f"/page/dates/{REPO}@main/").json()
        assert dates["is_complete"]
        number = dates["entries"].pop("z%3F")
        assert (dates["commits"][number]["commit"], dates["commits"][number]["message"]) == (
            last.hex(), "z")  # fmt: skip
        assert {dates["commits"][n]["message"] for n in dates["entries"].values()} == {"by hand"}
        assert list(client.get(f"/page/dates/{REPO}@main/z%3F/f").json()["entries"]) == ["f"]


def test_a_large_directory_is_shown_by_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where there are more entries than are put in order, pages are by name, and of what history
    is not looked through for it is said that the answer is not complete."""
    monkeypatch.setattr(directory_view, "ORDERED_MAX", 2)
    monkeypatch.setattr(directory_view, "CHILDREN_MAX", 1)
    monkeypatch.setattr(store_catalog, "DATED_TREE_BYTES_MAX", 10)
    rig = Rig(tmp_path, {b"a": b"1", b"b": b"2", b"z/f": b"3"})
    with start_proxy(rig.node) as running, running.client() as client:
        url = f"/page/directory/{REPO}@main/"
        first = client.get(f"{url}?limit=2").json()
        assert [one["name"] for one in first["entries"]] == ["a", "b"]
        assert (first["total"], first["is_ordered"]) == (None, False)
        second = client.get(f"{url}?{first['next']}").json()
        assert [one["name"] for one in second["entries"]] == ["z"]
        dates = client.get(f"/page/dates/{REPO}@main/").json()
        assert dates == {"commits": [], "entries": {}, "is_complete": False}


def test_metadata_of_versions(tmp_path: Path) -> None:
    """The history has what a commit says besides, long values cut off."""
    rig = Rig(tmp_path, FIRST)
    refs = rig.store.refs(REPO)
    at = refs.latest(BRANCHES, "main")
    assert at is not None
    commit = replace(rig.store.commit(REPO, rig.commit), metadata=(("source", "x" * 9999),))
    refs.advance(
        BRANCHES, "main", rig.store.put_commit(REPO, commit), expected_sequence=at.sequence
    )
    with start_proxy(rig.node) as running, running.client() as client:
        [found] = client.get(f"/page/history/{REPO}@main").json()["commits"]
        assert found["metadata"] == {"source": "x" * 300}


@pytest.mark.parametrize(
    ("target", "status"),
    [
        ("/page/repository/none", 404),
        ("/page/history/none@main", 404),
        ("/page/changes/data/set@none", 404),
        ("/page/changes/data/set@" + "0" * 64, 404),
        ("/page/history/data/set@" + "0" * 64, 404),
        ("/page/preview/data/set@main/none", 404),
        ("/page/preview/data/set@main/d", 404),
        ("/page/image/data/set@main/a", 400),
        ("/page/find/data/set@main/", 400),
        ("/page/find/data/set@main/a?match=x", 404),
        ("/page/repositories?limit=0", 400),
        ("/page/repositories?limit=9999", 400),
        ("/page/repositories?match=" + "x" * 300, 400),
        ("/page/changes/data/set@main?since=none", 404),
        ("/page/changes/data/set@main?since=../x", 400),
        ("/page/preview/data/set@main/a?since=none", 404),
        ("/page/directory/data/set@main/a", 404),
        ("/page/directory/data/set@main/none", 404),
        ("/page/directory/data/set@main/?after=a/b", 400),
        ("/page/dates/data/set@main/none", 404),
        ("/page/repository/..", 400),
        ("/page/static/../index.html", 404),
        ("/page/static/none.js", 404),
    ],
)
def test_bad_questions(proxy: RunningProxy, target: str, status: int) -> None:
    """What is not there or makes no sense is said so, and never by a key of the store."""
    with proxy.client() as client:
        reply = client.get(target)
    assert reply.status == status
    assert reply.json()["message"]
    assert "repos/" not in reply.json()["message"]


def test_finding_paths(proxy: RunningProxy) -> None:
    """Names anywhere below a directory, whatever their case; their links are exact."""
    with proxy.client() as client:
        found = client.get(f"/page/find/{REPO}@main/?match=NEW").json()
        assert [one["name"] for one in found["entries"]] == ["d/new"]
        assert found["is_complete"]
        assert client.get(found["entries"][0]["href"]).body == b"55555"
        assert client.get(f"/page/find/{REPO}@main/d?match=a").json()["entries"] == []


def test_names_come_as_soon_as_a_page_is_there() -> None:
    """The first page does not wait for the whole list; later pages, filters and a store that fails
    meanwhile work."""
    names = [f"r/{n:05}" for n in range(2 * GROUP_NAMES)]
    gate = asyncio.Event()

    async def read(after: str, limit: int) -> list[str]:
        if after:
            await gate.wait()
        return [name for name in names if name > after][:limit]

    async def run() -> None:
        listed = RepositoryNames(read)
        first = await listed.page("", 50, lambda _: True)
        assert (first.names, first.more, first.is_complete) == (names[:50], True, False)
        gate.set()
        last = await listed.page(names[-3], 50, lambda _: True)
        assert (last.names, last.more, last.is_complete) == (names[-2:], False, True)
        some = await listed.page("", 5, lambda name: name.endswith("7"))
        assert some.names == ["r/00007", "r/00017", "r/00027", "r/00037", "r/00047"]
        await listed.close()

    asyncio.run(run())


def test_a_store_that_fails_is_no_empty_one() -> None:
    """Where names cannot be listed, that is said."""

    async def fail(_after: str, _limit: int) -> list[str]:
        raise Unavailable("the store does not answer")

    async def run() -> None:
        listed = RepositoryNames(fail)
        with pytest.raises(Unavailable):
            await listed.page("", 50, lambda _: True)

    asyncio.run(run())


def feed_of(node: DictNode) -> LiveFeed:
    return LiveFeed(node, lambda: {"version": "test"})


def test_events_tell_what_the_token_may_read() -> None:
    """History first, then the node without others' repositories; it ends with the token."""

    async def run() -> list[bytes]:
        node = DictNode({b"a": b"x"})
        node.cache_control = control = MemoryCacheControl()
        for repo in ("mine", "theirs"):
            control.put(repo, WarmRequest(repo))
            node.counts.direct(1, 100, repo)
        good = [True]
        feed = feed_of(node)
        feed.tick()
        reader = Reader(may_read=lambda repo: repo == "mine", is_known=lambda: good[0])
        events = feed.listen(reader)
        found = [await anext(events) for _ in range(3)]
        good[0] = False
        rest = asyncio.ensure_future(anext(events))
        feed.close()
        with pytest.raises(StopAsyncIteration):
            await rest
        assert feed.listeners == 0
        return found

    retry, history, node = asyncio.run(run())
    assert retry.startswith(b"retry:")
    assert history.startswith(b"event: history\ndata: [[")
    assert b'"mine"' in node
    assert b"theirs" not in node


def test_listeners_are_bounded() -> None:
    """One page too many is told to come back later, and has room when another goes."""

    async def run() -> None:
        feed = feed_of(DictNode({b"a": b"x"}))
        listening = [feed.listen(Reader()) for _ in range(LISTENERS_MAX)]
        for one in listening:
            await anext(one)
        with pytest.raises(Unavailable) as caught:
            feed.listen(Reader())
        assert caught.value.retry_after_s
        await listening[0].aclose()
        await anext(feed.listen(Reader()))

    asyncio.run(run())


def test_samples_are_sums_by_source() -> None:
    """A sample has the sums of all repositories."""
    node = DictNode({b"a": b"x"})
    node.counts.direct(1, 100, "one")
    node.counts.direct(1, 20, "two")
    assert live_feed.sample_of(5.04, live_feed.reads_of(node.counts)) == Sample(5.0, 120, 0, 0, 0)
