"""Entries over HTTP: stat, listings, snapshots, and the paths that mounts use."""

from __future__ import annotations

from collections.abc import Iterator
from urllib.parse import quote_from_bytes

import msgspec
import pytest

from lodefs.chunkstore.errors import Unavailable
from lodefs.chunkstore.format.inodes import ROOT_INO, child_ino
from lodefs.chunkstore.format.names import digest_of
from lodefs.chunkstore.format.tree import Kind
from lodefs.chunkstore.protocol import wire
from lodefs.proxy.api.views import LIST_BYTES_MAX
from tests.support.proxy.fake_node import (
    COMMIT_TIME_S,
    Client,
    DictNode,
    Executable,
    RunningProxy,
    Symlink,
    start_proxy,
)

NAMES = [b"name%03d" % i for i in range(25)] + [b"caf\xe9", b"a\nb", b"q?&=+#%2F", b"n" * 255]
FILES: dict[bytes, bytes | Executable | Symlink] = {
    b"a.txt": b"hello",
    b"run": Executable(b"#!/bin/sh\n"),
    b"link": Symlink(b"/outside/\xff"),
    b"void/": b"",
    **{b"dir/" + name: name for name in NAMES},
}
NODE = DictNode(FILES)
AT = f"demo@{NODE.commit}"
DIR_INO = child_ino(ROOT_INO, b"dir")
FILE_INO = child_ino(ROOT_INO, b"a.txt")


@pytest.fixture(scope="module")
def proxy() -> Iterator[RunningProxy]:
    with start_proxy(NODE) as running:
        yield running


@pytest.fixture
def client(proxy: RunningProxy) -> Iterator[Client]:
    with proxy.client() as made:
        yield made


def node_of(client: Client, target: str) -> wire.Entry:
    reply = client.get(target)
    assert (reply.status, reply.header("Content-Type")) == (200, wire.MSGPACK), reply.body
    return msgspec.msgpack.decode(reply.body, type=wire.Entry)


def test_stat_of_a_file(client: Client) -> None:
    """A file's entry has its size, digest and where its bytes are."""
    assert client.get("/stat/demo@main/a.txt").json() == {
        "repo": "demo",
        "commit": NODE.commit,
        "path": "a.txt",
        "entry": {
            "name": "a.txt",
            "href": "/files/demo@main/a.txt",
            "kind": "file",
            "size_bytes": 5,
            "digest": digest_of(b"hello").hex(),
            "executable": False,
            "target": None,
        },
    }


@pytest.mark.parametrize(
    ("path", "key", "value"),
    [
        ("", "kind", "directory"),
        ("", "name", ""),
        ("run", "executable", True),
        ("link", "kind", "symlink"),
        ("link", "target", "/outside/\ufffd"),
        ("void", "href", "/list/demo@main/void"),
    ],
)
def test_stat_of_others(client: Client, path: str, key: str, value: object) -> None:
    """Directories, symlinks and executable files are told apart; symlinks are not followed."""
    assert client.get(f"/stat/demo@main/{path}").json()["entry"][key] == value


def test_pages_of_a_listing_make_the_directory(client: Client) -> None:
    """Following ``next`` fetches every name once, in order of bytes, and hrefs are exact."""
    target: str | None = "/list/demo@main/dir?limit=10"
    hrefs: list[str] = []
    while target is not None:
        page = client.get(target).json()
        assert page["commit"] == NODE.commit
        hrefs += [entry["href"] for entry in page["entries"]]
        target = page["next"]
    tails = [href.rpartition("/dir/")[2] for href in hrefs]
    assert tails == [quote_from_bytes(name) for name in sorted(NAMES)]
    assert all(client.get(href).status == 200 for href in hrefs)


def test_a_listing_names_no_page_after_the_last(client: Client) -> None:
    """A full last page has no next one, and an empty directory is an empty page."""
    assert client.get(f"/list/demo@main/dir?limit={len(NAMES)}").json()["next"] is None
    assert client.get("/list/demo@main/void").json()["entries"] == []


@pytest.mark.parametrize(
    ("target", "status", "error"),
    [
        ("/list/demo@main/a.txt", 404, "NotADirectory"),
        ("/list/demo@main/link", 404, "NotADirectory"),
        ("/trees/demo@main/a.txt", 404, "NotADirectory"),
        ("/list/demo@main?limit=0", 400, "InvalidInput"),
        ("/list/demo@main?limit=5&limit=6", 400, "InvalidInput"),
        ("/stat/demo@main/none", 404, "NotFound"),
        ("/stat/demo@main/a.txt/x", 404, "NotADirectory"),
        ("/snapshots/demo@none", 404, "NotFound"),
        ("/snapshots/none@main", 404, "NotFound"),
        (f"/nodes/{AT}/77", 404, "NotFound"),
        (f"/nodes/{AT}/{FILE_INO}/children", 404, "NotADirectory"),
        (f"/nodes/{AT}/{FILE_INO}/lookup?name=x", 404, "NotADirectory"),
        (f"/nodes/{AT}/{DIR_INO}/lookup", 400, "InvalidInput"),
        (f"/nodes/{AT}/{DIR_INO}/lookup?name=a%2Fb", 400, "InvalidInput"),
        (f"/nodes/{AT}/{DIR_INO}/data", 400, "InvalidInput"),
        ("/nodes/demo@main/1", 400, "InvalidInput"),
    ],
)
def test_failures(client: Client, target: str, status: int, error: str) -> None:
    """Each failure names the class of its error."""
    reply = client.get(target)
    assert (reply.status, reply.json()["error"]) == (status, error)


def test_snapshot_in_both_forms(client: Client) -> None:
    """JSON for people, MessagePack for mounts."""
    plain = client.get("/snapshots/demo@main")
    packed = client.get("/snapshots/demo@main", Accept=wire.MSGPACK)
    snapshot = msgspec.msgpack.decode(packed.body, type=wire.Snapshot)
    assert plain.header("Vary") == packed.header("Vary") == "Accept"
    assert snapshot.root.ino == ROOT_INO
    assert plain.json() == {
        "repo": "demo",
        "commit": snapshot.commit,
        "root_digest": snapshot.root.digest.hex(),
        "time_s": COMMIT_TIME_S,
        "files": snapshot.files,
        "directories": snapshot.directories,
        "size_bytes": snapshot.size_bytes,
    }


def test_nodes_by_number_and_name(client: Client) -> None:
    """A mount gets entries by inode number and by name, whatever bytes the name has."""
    assert node_of(client, f"/nodes/{AT}/1").kind == Kind.DIRECTORY
    link = node_of(client, f"/nodes/{AT}/1/lookup?name=link")
    assert (link.kind, link.target) == (Kind.SYMLINK, b"/outside/\xff")
    for name in NAMES:
        quoted = quote_from_bytes(name, safe="")
        found = node_of(client, f"/nodes/{AT}/{DIR_INO}/lookup?name={quoted}")
        assert (found.name, found.parent, found.size_bytes) == (name, DIR_INO, len(name))
        assert node_of(client, f"/nodes/{AT}/{found.ino}") == found


def test_children_in_pages(client: Client) -> None:
    """Pages of a directory follow each other by name."""
    found: list[bytes] = []
    more = True
    while more:
        after = quote_from_bytes(found[-1], safe="") if found else ""
        reply = client.get(f"/nodes/{AT}/{DIR_INO}/children?after={after}&limit=7")
        page = msgspec.msgpack.decode(reply.body, type=wire.Page)
        found += [node.name for node in page.nodes]
        more = page.more
    assert found == sorted(NAMES)


def test_a_listing_is_bounded_by_its_bytes() -> None:
    """Every entry repeats the path of its directory: under a long one pages are shorter, and all
    entries still come."""
    deep = b"/".join([b"\xff" * 255] * 8)
    node = DictNode({deep + b"/%03d" % n: Symlink(b"\1" * 1000) for n in range(200)})
    target: str | None = f"/list/demo@main/{quote_from_bytes(deep)}?limit=4096"
    found: list[str] = []
    with start_proxy(node) as running, running.client() as client:
        while target:
            reply = client.get(target)
            assert len(reply.body) <= LIST_BYTES_MAX + 32768  # the directory's own path, twice
            page = reply.json()
            found += [entry["name"] for entry in page["entries"]]
            target = page["next"]
    assert found == [f"{n:03}" for n in range(200)]


def test_data_of_a_node(client: Client) -> None:
    """A FUSE read is a range of a file's octets; beyond the end it is 416."""
    target = f"/nodes/{AT}/{FILE_INO}/data"
    part = client.get(target, Range="bytes=1-3")
    assert (part.status, part.body) == (206, b"ell")
    assert part.header("Content-Type") == "application/octet-stream"
    assert client.get(target, Range="bytes=3-4095").body == b"lo"
    assert client.get(target, Range="bytes=5-4095").status == 416


def test_only_a_sure_absence_names_the_commit(client: Client) -> None:
    """404 for a name of a known directory carries the commit; for an unknown directory it does
    not, so that a mount never remembers a name as missing which is only not known yet."""
    sure = client.get(f"/nodes/{AT}/{DIR_INO}/lookup?name=none")
    unsure = client.get(f"/nodes/{AT}/77/lookup?name=none")
    assert (sure.status, sure.header(wire.COMMIT_HEADER)) == (404, NODE.commit)
    assert (unsure.status, unsure.header(wire.COMMIT_HEADER)) == (404, None)


def test_health_and_status(client: Client) -> None:
    """The proxy says that it lives, is ready, and what it has done."""
    assert client.get("/healthz").json() == {"status": "ok"}
    assert client.get("/readyz").json() == {"status": "ready"}
    status = client.get("/status").json()
    assert (status["version"], status["connections"]) == ("test", 1)
    assert status["node"]["store"] == "memory:"


def test_readiness_follows_the_node() -> None:
    """A node that cannot serve is not ready, but alive."""
    node = DictNode({})
    node.figures["ready"] = False
    with start_proxy(node) as running, running.client() as client:
        refused = client.get("/readyz")
        assert (refused.status, refused.json()["error"]) == (503, "Unavailable")
        assert refused.header("Retry-After")
        assert client.get("/healthz").status == 200


def test_retry_after_is_the_stores() -> None:
    """How long the store wants to be left alone is passed on."""
    node = DictNode({b"a": b"x"})
    node.failures[b"a"] = (0, Unavailable("the store is busy", retry_after_s=17.2))
    with start_proxy(node) as running, running.client() as client:
        reply = client.get("/files/demo@main/a")
        assert (reply.status, reply.header("Retry-After")) == (503, "17")
