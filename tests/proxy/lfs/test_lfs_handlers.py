"""The API of Git LFS over HTTP: requests that no good client sends, and rights."""

from __future__ import annotations

import asyncio
import hashlib
import io
import json
import random
from base64 import b64encode
from collections.abc import Iterator
from contextlib import ExitStack, closing, suppress
from http.client import HTTPConnection
from pathlib import Path

import pytest

from lodefs.chunkstore.errors import LodefsError, Unavailable
from lodefs.chunkstore.format.chunking import ChunkingParams
from lodefs.chunkstore.protocol.lfs_recipe import KNOWN, MAGIC, Piece, encode
from lodefs.chunkstore.protocol.orders.lfs_orders import Order, Outcome, PutObjects
from lodefs.chunkstore.push.changes.change import Put
from lodefs.chunkstore.push.changes.commit_changes import commit_changes
from lodefs.chunkstore.push.lfs.writer import LfsWriter
from lodefs.chunkstore.push.session import PushOptions
from lodefs.chunkstore.transfer.rename import RenameOptions, rename
from lodefs.lfs.sending import cut_file
from lodefs.proxy.http.tokens import create_token, delete_token
from lodefs.proxy.lfs import group_commits
from lodefs.proxy.lfs.group_commits import GroupCommits
from tests.support.mount.mounts import until
from tests.support.proxy.fake_node import RunningProxy
from tests.support.proxy.rig import REPO, Rig, serve_rig
from tests.support.proxy.scrape import labels_of, samples

DATA = bytes(range(256)) * 4096
OID = hashlib.sha256(DATA).hexdigest()


class ThreadOrders:
    """Implements Orders without a process. ``fault`` is the error of the next ones."""

    def __init__(self, rig: Rig, folder: Path) -> None:
        self.store = rig.store
        self.index_dir = folder / "index"
        self._writer = LfsWriter(rig.store, self.index_dir)
        self.fault: LodefsError | None = None
        self.orders: list[PutObjects] = []

    async def carry_out(self, order: Order) -> Outcome:
        if self.fault is not None:
            raise self.fault
        if isinstance(order, PutObjects):
            self.orders.append(order)
        return await asyncio.to_thread(self._writer.carry_out, order)

    async def close(self) -> None:
        """As of LfsProcess."""


class Server:
    """A server with tokens; requests to it as a user of one."""

    def __init__(
        self, proxy: RunningProxy, tokens: dict[str, str], writer: ThreadOrders, folder: Path
    ) -> None:
        self._tokens_file = folder.parent / "tokens"
        self._proxy = proxy
        self._port = proxy.port
        self._metrics = proxy.server.metrics
        self._tokens = tokens
        self._folder = folder
        self.writer = writer

    def ask(
        self, method: str, path: str, body: object = None, *, user: str = "writer", range_: str = ""
    ) -> tuple[int, bytes]:
        """Status and body of the answer; ``body`` is bytes, or becomes JSON."""
        with closing(self.connection()) as connection:
            return self.ask_over(connection, method, path, body, user=user, range_=range_)

    def connection(self) -> HTTPConnection:
        return HTTPConnection("127.0.0.1", self._port, timeout=60)

    def ask_over(
        self,
        connection: HTTPConnection,
        method: str,
        path: str,
        body: object = None,
        *,
        user: str = "writer",
        range_: str = "",
    ) -> tuple[int, bytes]:
        """Does what ``ask`` does over a connection that is kept."""
        data = body if isinstance(body, bytes) or body is None else json.dumps(body).encode()
        pair = b64encode(f"any:{self._tokens.get(user, '')}".encode()).decode()
        headers = {"Authorization": f"Basic {pair}"} if user else {}
        if range_:
            headers["Range"] = range_
        with suppress(BrokenPipeError, ConnectionResetError):  # a refusal comes early
            connection.request(method, f"/lfs/{REPO}/{path}", data, headers)
        answer = connection.getresponse()
        if answer.status == 401:
            assert (answer.getheader("LFS-Authenticate") or "").startswith("Basic ")
        return answer.status, answer.read()

    def delete_token(self, user: str) -> None:
        """Deletes a token; the proxy looks at once, not only after a second."""
        delete_token(self._tokens_file, user)
        looked = self._proxy.server.tokens.look()
        asyncio.run_coroutine_threadsafe(looked, self._proxy.loop).result(60)

    def batch(
        self, operation: str, *objects: object, user: str = "writer", **more: object
    ) -> tuple[int, bytes]:
        asked = {"operation": operation, "objects": objects, **more}
        return self.ask("POST", "objects/batch", asked, user=user)

    def places(self, *datas: bytes) -> list[str]:
        """Where a batch of objects is to be put."""
        named = [{"oid": hashlib.sha256(one).hexdigest(), "size": len(one)} for one in datas]
        status, body = self.batch("upload", *named)
        assert status == 200
        hrefs = [one["actions"]["upload"]["href"] for one in json.loads(body)["objects"]]
        return [href.partition(f"/lfs/{REPO}/")[2] for href in hrefs]

    def received_bytes(self) -> float:
        """The bytes that came in bodies, as the metrics have it."""
        found = samples(self._metrics.text()[0])
        return found["lodefs_http_received_bytes_total", labels_of(route="lfs")]

    def files(self) -> list[Path]:
        """Objects on the disk of the node."""
        return [one for one in self._folder.rglob("*") if one.is_file() and one.name != "owner"]

    def code(self, operation: str, oid: str, size: int) -> object:
        """The code of the error about one object; or its actions."""
        status, body = self.batch(operation, {"oid": oid, "size": size})
        assert status == 200
        [one] = json.loads(body)["objects"]
        return one["error"]["code"] if "error" in one else sorted(one.get("actions", ()))


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    rig, file = Rig(tmp_path, {b"x": b"x"}), tmp_path / "tokens"
    tokens = {
        "writer": create_token(file, "writer", [REPO], now_s=0, write=[REPO]),
        "reader": create_token(file, "reader", [REPO], now_s=0),
        "all": create_token(file, "all", ["*"], now_s=0, write=["*"]),
        "foreign": create_token(file, "foreign", ["other/*"], now_s=0, write=["*"]),
    }
    with serve_rig(rig, tokens_file=file) as (proxy, node):
        orders = ThreadOrders(rig, tmp_path)
        node._lfs = GroupCommits(orders, tmp_path / "lfs")
        yield Server(proxy, tokens, orders, tmp_path / "lfs")


def test_upload_and_download(server: Server) -> None:
    """An object is there once its upload was answered; a range of it is read alone."""
    assert server.code("upload", OID, len(DATA)) == ["upload"]
    assert server.code("download", OID, len(DATA)) == 404
    assert server.ask("POST", "objects/verify", {"oid": OID, "size": len(DATA)})[0] == 404
    assert server.ask("PUT", f"objects/{OID}", DATA)[0] == 200
    assert server.code("upload", OID, len(DATA)) == []
    assert server.code("download", OID, len(DATA)) == ["download"]
    assert server.code("download", OID, 1) == server.code("upload", OID, 1) == 422
    assert server.ask("GET", f"objects/{OID}", user="reader") == (200, DATA)
    assert server.ask("GET", f"objects/{OID}", range_="bytes=5-9") == (206, DATA[5:10])
    assert server.ask("POST", "objects/verify", {"oid": OID, "size": len(DATA)})[0] == 200
    assert server.ask("POST", "objects/verify", {"oid": OID, "size": 1})[0] == 422


@pytest.mark.parametrize("data", [DATA[:-1], DATA + b"x", b"other", b""])
def test_wrong_bytes(server: Server, data: bytes) -> None:
    """Bytes of another hash leave nothing, neither in the store nor on the disk."""
    status, body = server.ask("PUT", f"objects/{OID}", data)
    assert status == 422 and b"do not have the id" in body
    assert server.code("download", OID, len(DATA)) == 404
    until(lambda: not server.files())  # a thread removes the file beside the answer


def test_a_batch_is_one_commit(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """Uploads that others follow are answered early, and the last one when all are stored."""
    monkeypatch.setattr(group_commits, "GROUP_S_MAX", 600.0)  # no machine is too slow
    datas = [b"%d" % number for number in range(20)]
    for place, data in zip(server.places(*datas), datas, strict=True):
        assert len(server.writer.orders) == 0
        assert server.ask("PUT", place, data)[0] == 200
    assert sum(len(order.files) for order in server.writer.orders) == len(datas)
    assert len(server.writer.orders) <= 2 and not server.files()
    for data in datas:
        assert server.code("download", hashlib.sha256(data).hexdigest(), len(data)) == ["download"]


def test_a_lost_object_fails_the_push(server: Server) -> None:
    """If an object that was answered early cannot be stored, uploads of the same user fail until
    the client has learned that it is missing."""
    first, second = server.places(b"1", b"2")
    assert server.ask("PUT", first, b"1")[0] == 200
    server.writer.fault = Unavailable("no store")
    oid = hashlib.sha256(b"1").hexdigest()
    assert server.ask("POST", "objects/verify", {"oid": oid, "size": 1})[0] == 404
    server.writer.fault = None
    for place in (second, *server.places(b"3")):
        status, body = server.ask("PUT", place, b"2" if place == second else b"3")
        assert status == 422 and b"push again" in body
    [again] = server.places(b"1")
    assert server.ask("PUT", again, b"1")[0] == 200
    until(lambda: not server.files())  # those that were refused, too


def test_pieces(server: Server) -> None:
    """An agent gets its credentials back, learns which chunks this repository has, and sends the
    others; what is put together is checked as a whole."""
    wanted = {"oid": OID, "size": len(DATA)}
    status, body = server.batch("upload", wanted, transfers=["lodefs", "basic"])
    told = json.loads(body)
    action = told["objects"][0]["actions"]["upload"]
    assert told["transfer"] == "lodefs" and action["header"]["Authorization"].startswith("Basic ")
    assert server.batch("upload", wanted, transfers=["basic"])[1].find(b"Authorization") == -1
    assert server.ask("PUT", f"objects/{OID}", DATA)[0] == 200
    sizes = json.loads(server.ask("POST", "objects/chunks", b"")[1])["sizes_bytes"]
    parts = list(cut_file(io.BytesIO(DATA), ChunkingParams(*sizes)))
    ids = b"".join(part.id for part in parts)
    status, body = server.ask("POST", "objects/chunks", ids + bytes(32))
    assert (status, json.loads(body)["known"]) == (200, "1" * len(parts) + "0")
    pieces = [Piece(KNOWN, part.size_bytes, part.id) for part in parts]
    new = DATA + b"new"
    oid = hashlib.sha256(new).hexdigest()
    sent = MAGIC + b"".join(map(encode, [*pieces, Piece(0, 3, b"new")]))
    before_bytes = server.received_bytes()
    assert server.ask("PUT", f"objects/{oid}?form=pieces", sent)[0] == 200
    assert server.received_bytes() - before_bytes == len(sent)
    assert server.ask("POST", "objects/chunks", ids)[0] == 200
    assert server.received_bytes() - before_bytes == len(sent) + len(ids)
    assert server.ask("GET", f"objects/{oid}") == (200, new)
    other = MAGIC + b"".join(map(encode, [*pieces, Piece(0, 3, b"now")]))
    gone = MAGIC + encode(Piece(KNOWN, 3, bytes(32)))
    for body, expected in [
        (other, 422),
        (gone, 409),
        (b"LFSR\x02", 422),
        (MAGIC + b"x", 422),
        (b"", 422),
        (MAGIC + encode(Piece(1, 9, b"no zstd")), 422),
        (MAGIC + encode(Piece(7, 1, b"x")), 422),
    ]:
        assert server.ask("PUT", f"objects/{'0' * 64}?form=pieces", body)[0] == expected
    assert server.ask("POST", "objects/chunks", b"short")[0] == 422
    assert server.ask("POST", "objects/chunks", ids, user="reader")[0] == 403
    until(lambda: not server.files())


def test_chunks_of_other_repositories(server: Server) -> None:
    """What lies in another repository, or on another branch, is as unknown as what lies nowhere."""
    content = random.Random(3).randbytes(300_000)
    for repo, branch in (("other/secret", "lfs-objects"), (REPO, "main")):
        put = [Put("a", content)]
        options = PushOptions(message="m", author="a", time_s=1, index_dir=server.writer.index_dir)
        commit_changes(server.writer.store, repo, branch, put, options)
    sizes = json.loads(server.ask("POST", "objects/chunks", b"")[1])["sizes_bytes"]
    parts = list(cut_file(io.BytesIO(content), ChunkingParams(*sizes)))
    assert server.ask("PUT", f"objects/{OID}", DATA)[0] == 200
    ids = b"".join(part.id for part in parts)
    assert set(json.loads(server.ask("POST", "objects/chunks", ids)[1])["known"]) == {"0"}
    sent = MAGIC + b"".join(encode(Piece(KNOWN, part.size_bytes, part.id)) for part in parts)
    oid = hashlib.sha256(content).hexdigest()
    assert server.ask("PUT", f"objects/{oid}?form=pieces", sent)[0] == 409


def test_bad_requests(server: Server) -> None:
    """Ids, sizes, operations, transfers and numbers that cannot be are refused by what they are."""
    for oid, size in [("a345cde", 9), (OID + "00", 9), ("G" * 64, 9), (OID.upper(), 9), (OID, -1)]:
        assert server.code("upload", oid, size) == 422
    one = {"oid": OID, "size": 1}
    assert server.batch("delete", one)[0] == 422
    assert server.batch("upload", one, transfers=["tus"])[0] == 422
    assert server.batch("upload", one, hash_algo="sha512")[0] == 422
    assert server.batch("upload", *[one] * 1001)[0] == 413
    assert server.ask("POST", "objects/batch", b"{")[0] == 422
    assert server.ask("GET", "objects/abc")[0] == 422
    assert server.ask("PUT", f"objects/{OID[:-1]}", DATA)[0] == 422
    assert server.ask("PUT", "locks", DATA)[0] == 405
    assert server.ask("POST", "locks", {"path": ""})[0] == 422


def test_rights(server: Server) -> None:
    """A token that may read cannot write; others learn nothing."""
    upload = {"operation": "upload", "objects": [{"oid": OID, "size": len(DATA)}]}
    for path, body in [("objects/batch", upload), ("locks", {"path": "a"}), ("locks/verify", {})]:
        status, told = server.ask("POST", path, body, user="reader")
        assert status == 403 and b"may not write" in told and b'"Denied"' in told
        assert server.ask("POST", path, body, user="foreign")[0] == 403
        assert server.ask("POST", path, body, user="nobody")[0] == 401
        assert server.ask("POST", path, body, user="")[0] == 401
    assert server.ask("PUT", f"objects/{OID}", DATA, user="reader")[0] == 403
    assert server.code("download", OID, len(DATA)) == 404


def test_a_token_that_is_deleted_in_a_push(server: Server) -> None:
    """It reads and writes nothing more, over a connection that it was admitted on either, and the
    client is told to ask for another one."""
    [place] = server.places(DATA)
    wanted = {"operation": "upload", "objects": [{"oid": OID, "size": len(DATA)}]}
    requests: list[tuple[str, str, object]] = [
        ("POST", "objects/batch", wanted),
        ("POST", "objects/chunks", b""),
        ("GET", f"objects/{OID}", None),
        ("PUT", place, DATA),
    ]
    with ExitStack() as stack:
        kept = [stack.enter_context(closing(server.connection())) for _ in requests]
        for connection in kept:
            assert server.ask_over(connection, "POST", "objects/batch", wanted)[0] == 200
        assert all(connection.sock for connection in kept)
        server.delete_token("writer")
        for connection, request in zip(kept, requests, strict=True):
            assert server.ask_over(connection, *request)[0] == 401
    assert not server.files()


def test_locks(server: Server) -> None:
    """A lock is told to all, in pages, and its owner removes it."""
    created = [server.ask("POST", "locks", {"path": path}) for path in ("a", "b", "c")]
    assert [status for status, _ in created] == [201] * 3
    assert server.ask("POST", "locks", {"path": "a"})[0] == 409
    first = json.loads(server.ask("GET", "locks?limit=2", user="reader")[1])
    rest = json.loads(server.ask("GET", f"locks?cursor={first['next_cursor']}", user="reader")[1])
    assert {one["path"] for one in first["locks"] + rest["locks"]} == {"a", "b", "c"}
    assert len(json.loads(server.ask("GET", "locks?path=b")[1])["locks"]) == 1
    both = json.loads(server.ask("POST", "locks/verify", {})[1])
    assert (len(both["ours"]), both["theirs"]) == (3, [])
    number = json.loads(created[0][1])["lock"]["id"]
    assert server.ask("POST", f"locks/{number}/unlock", {})[0] == 200
    assert server.ask("POST", f"locks/{number}/unlock", {})[0] == 404


def test_a_renamed_repository(server: Server) -> None:
    """Clients go on under the new name if their token may, and learn nothing of it if not."""
    assert server.ask("PUT", f"objects/{OID}", DATA)[0] == 200
    assert server.ask("POST", "locks", {"path": "a"})[0] == 201
    rename(server.writer.store, REPO, "data/new", RenameOptions("me", 1 << 40))
    status, body = server.batch("download", {"oid": OID, "size": len(DATA)}, user="all")
    assert status == 200 and b"/lfs/data/new/objects/" in body
    assert len(json.loads(server.ask("GET", "locks", user="all")[1])["locks"]) == 1
    assert server.ask("GET", f"objects/{OID}", user="all") == (200, DATA)
    for method, path, sent in [("PUT", f"objects/{OID}", DATA), ("POST", "locks", {"path": "b"})]:
        status, body = server.ask(method, path, sent)
        assert status == 404 and b"new" not in body
