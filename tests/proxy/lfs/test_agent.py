"""The transfer agent, run by git-lfs as users have it, and alone against servers that fail."""

from __future__ import annotations

import hashlib
import io
import json
import random
import socket
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from http.client import HTTPConnection
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from lodefs.chunkstore.errors import NotFound
from lodefs.chunkstore.format.chunking import ChunkingParams
from lodefs.chunkstore.format.foreign.lfs import Action
from lodefs.chunkstore.protocol.lfs_recipe import MAGIC, Decoder
from lodefs.chunkstore.system.retry_policy import RetryPolicy
from lodefs.lfs import sending, transfers
from lodefs.lfs.agent import Event, serve
from lodefs.lfs.sending import Chunk, cut_file
from lodefs.lfs.server import COMMIT_TIMEOUT_S, LfsServer, place_of
from lodefs.lfs.transfers import ServerTransfers
from tests.support.proxy.lfs_site import LfsSite, lfs_site

AT_ONCE = RetryPolicy(attempts_max=3, pause_s_first=0.0)
DATA = random.Random(1).randbytes(3_000_000)
COUNT = len(list(cut_file(io.BytesIO(DATA), ChunkingParams())))


def oid_of(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def test_git_lfs_uses_the_agent(tmp_path: Path) -> None:
    """A client that has the agent is told to use it; a new version of an object, whose old one is
    in the store, is put together there; a client without the agent reads it."""
    with lfs_site(tmp_path) as site:
        remote, work = tmp_path / "remote.git", tmp_path / "work"
        site.git(tmp_path, "init", "-q", "--bare", "-b", "main", remote)
        site.git(tmp_path, "init", "-q", "-b", "main", work)
        site.git(work, "remote", "add", "origin", remote)
        use_agent(site, work, site.writer)
        site.git(work, "lfs", "track", "*.bin")
        for data in (DATA, DATA[:1_000_000] + b"new" + DATA[1_000_000:]):
            (work / "0.bin").write_bytes(data)
            (work / "1.bin").write_bytes(data[:9])
            site.git(work, "add", ".")
            site.git(work, "commit", "-qm", "version")
            site.git(work, "push", "-q", "origin", "main")
        for name, use in (("by-agent", use_agent), ("by-basic", LfsSite.use)):
            clone = tmp_path / name
            site.git(tmp_path, "clone", "-q", remote, clone)
            use(site, clone, site.reader)
            site.git(clone, "lfs", "pull")
            assert (clone / "0.bin").read_bytes() == (work / "0.bin").read_bytes()


def use_agent(site: LfsSite, folder: Path, token: str) -> None:
    site.use(folder, token)
    site.git(folder, "config", "lfs.customtransfer.lodefs.path", sys.executable)
    site.git(folder, "config", "lfs.customtransfer.lodefs.args", "-m lodefs.main lfs agent")


class LfsStub(BaseHTTPRequestHandler):
    """A server whose answers a test gives: (status, body) for each request, in order."""

    answers: list[tuple[int, bytes]]
    asked: list[tuple[str, str, bytes]]
    ended: threading.Semaphore  # counts connections that have ended
    is_ending = False  # after each answer, which does not say so
    protocol_version = "HTTP/1.1"

    def do_any(self) -> None:
        self.asked.append(
            (f"{self.command} {self.path}", self.headers.get("Range", ""), self._body())
        )
        status, body = self.answers.pop(0)
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
        self.close_connection = self.close_connection or self.is_ending

    def finish(self) -> None:
        super().finish()
        with suppress(OSError):
            self.connection.shutdown(socket.SHUT_RDWR)
        self.ended.release()

    do_GET = do_PUT = do_POST = do_any  # noqa: N815 - names of the library

    def _body(self) -> bytes:
        if self.headers.get("Transfer-Encoding") != "chunked":
            return self.rfile.read(int(self.headers.get("Content-Length", "0")))
        body = b""
        while size := int(self.rfile.readline(), 16):
            body += self.rfile.read(size)
            self.rfile.readline()
        self.rfile.readline()
        return body

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the library's name
        """Says nothing."""


@contextmanager
def stub(*answers: tuple[int, bytes]) -> Iterator[tuple[str, type[LfsStub]]]:
    kind = type(
        "Stub", (LfsStub,), {"answers": list(answers), "asked": [], "ended": threading.Semaphore(0)}
    )
    server = ThreadingHTTPServer(("127.0.0.1", 0), kind)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/lfs/r/objects", kind
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def run(folder: Path, *events: object) -> list[dict[str, object]]:
    """What an agent answers to events."""
    out = io.BytesIO()
    lines = [one if isinstance(one, bytes) else json.dumps(one).encode() for one in events]
    serve(lines, out, ServerTransfers("", folder / "tmp", AT_ONCE))
    return [json.loads(line) for line in out.getvalue().splitlines()]


def upload(url: str, folder: Path, data: bytes) -> dict[str, object]:
    (folder / "object").write_bytes(data)
    oid = oid_of(data)
    action = {"href": f"{url}/{oid}?batch=k", "header": {"Authorization": "Basic x"}}
    path = str(folder / "object")
    return {"event": "upload", "oid": oid, "size": len(data), "path": path, "action": action}


def download(url: str, data: bytes) -> dict[str, object]:
    oid = oid_of(data)
    return {"event": "download", "oid": oid, "size": len(data), "action": {"href": f"{url}/{oid}"}}


def chunks(known: str = "") -> tuple[int, bytes]:
    return 200, json.dumps({"sizes_bytes": [16384, 65536, 262144], "known": known}).encode()


def test_only_new_chunks_are_sent(tmp_path: Path) -> None:
    """What the server has is sent as ids; progress ends with the size."""
    known = "1" * 20 + "0" * (COUNT - 20)
    with stub(chunks(), chunks(known), (200, b"")) as (url, server):
        event = upload(url, tmp_path, DATA)
        answers = run(tmp_path, {"event": "init", "operation": "upload"}, event)
    assert len(server.asked[1][2]) == 32 * COUNT
    pieces = list(Decoder().feed(server.asked[2][2]))
    assert server.asked[2][0].endswith("?batch=k&form=pieces")
    assert server.asked[2][2].startswith(MAGIC)
    assert [piece.codec == 2 for piece in pieces] == [True] * 20 + [False] * (COUNT - 20)
    assert sum(piece.size_bytes for piece in pieces) == len(DATA)
    assert answers[0] == {}
    assert answers[-1] == {"event": "complete", "oid": oid_of(DATA)}
    assert answers[-2]["bytesSoFar"] == len(DATA)
    assert sum(int(str(one["bytesSinceLast"])) for one in answers[1:-1]) == len(DATA)


def test_chunks_that_have_gone(tmp_path: Path) -> None:
    """If the server has lost chunks meanwhile, the whole object is sent."""
    with stub(chunks(), chunks("1" * COUNT), (409, b"gone"), (200, b"")) as (url, server):
        [answer] = run(tmp_path, upload(url, tmp_path, DATA))[-1:]
    assert answer == {"event": "complete", "oid": oid_of(DATA)}
    assert server.asked[-1][2] == DATA


def test_a_server_that_fails(tmp_path: Path) -> None:
    """What may pass is tried again; a refusal is told to git lfs, and the next object goes on."""
    refused = (403, b"may not write")
    with stub((503, b""), (200, b""), refused, (200, b"")) as (url, _):
        events = [upload(url, tmp_path, data) for data in (b"1", b"1", b"1")]
        answers = run(tmp_path, *events, {"event": "terminate"}, b"{")
    ends = [one for one in answers if one["event"] == "complete"]
    assert ["error" in one for one in ends] == [False, True, False]
    assert "may not write" in str(ends[1]["error"])


def test_a_connection_that_the_server_ended(tmp_path: Path) -> None:
    """A server may end a connection while an object is cut, which can take minutes: the next
    request has a new one, and does not fail."""
    with stub((200, b"1"), (200, b"2")) as (url, kind):
        kind.is_ending = True
        place, target = place_of(url)
        server = LfsServer(place)
        for expected in (b"1", b"2"):
            with server.ask("POST", target, {}, [b"x"], size_bytes=1) as answer:
                assert answer.read() == expected
            assert kind.ended.acquire(timeout=60)
        server.close()


def test_a_server_that_has_no_room_yet(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A server may let an upload wait until others have ended: sending has as much time as the
    commit."""
    timeouts_s = set()
    send = HTTPConnection.send

    def noted(connection: HTTPConnection, data: Any) -> None:
        send(connection, data)
        timeouts_s.add(connection.sock.gettimeout())

    monkeypatch.setattr(HTTPConnection, "send", noted)
    with stub(chunks(), chunks("0" * COUNT), (200, b"")) as (url, _):
        run(tmp_path, upload(url, tmp_path, DATA))
    assert timeouts_s == {COMMIT_TIMEOUT_S}


def test_an_object_is_cut_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """If the server fails after an object was cut, which is most of the work, it is not cut
    again."""
    cuts: list[object] = []

    def counted(*given: Any) -> Iterator[Chunk]:
        cuts.append(given)
        return cut_file(*given)

    monkeypatch.setattr(sending, "cut_file", counted)
    with stub(chunks(), (503, b""), chunks("0" * COUNT), (200, b"")) as (url, server):
        [answer] = run(tmp_path, upload(url, tmp_path, DATA))[-1:]
    assert answer == {"event": "complete", "oid": oid_of(DATA)}
    assert len(cuts) == 1
    assert len(server.asked) == 4


def test_a_download_goes_on(tmp_path: Path) -> None:
    """A download begins where an earlier one ended; wrong bytes are fetched again."""
    oid, folder = oid_of(DATA), tmp_path / "tmp"
    folder.mkdir()
    (folder / f"lodefs-{oid}.part").write_bytes(DATA[:1000])
    with stub((206, DATA[1000:])) as (url, server):
        [answer] = run(tmp_path, download(url, DATA))[-1:]
    assert server.asked[0][1] == "bytes=1000-"
    assert Path(str(answer["path"])).read_bytes() == DATA
    (folder / f"lodefs-{oid}.part").write_bytes(b"x" * 1000)
    with stub((206, DATA[1000:]), (200, DATA)) as (url, _):
        [answer] = run(tmp_path, download(url, DATA))[-1:]
    assert Path(str(answer["path"])).read_bytes() == DATA


def test_what_the_node_is_asked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The target is the server's choice: the node is asked for objects of Git LFS alone."""
    asked: list[tuple[object, str]] = []

    def fetch(server: object, target: str, *_: object) -> Path:
        asked.append((server, target))
        raise NotFound("not there")

    monkeypatch.setattr(transfers, "fetch", fetch)
    for path in ("/snapshots/r", "/lfs/r/objects/1"):
        moving = ServerTransfers(str(tmp_path / "socket"), tmp_path, AT_ONCE)
        action = Action(f"http://server{path}")
        with pytest.raises(NotFound):
            moving.download(Event("download"), action, lambda _: None)
    assert [target for _, target in asked] == ["/snapshots/r", *["/lfs/r/objects/1"] * 2]


def test_wrong_bytes_are_not_handed_over(tmp_path: Path) -> None:
    """A server that keeps sending other bytes is an error."""
    with stub(*[(200, b"other")] * 3) as (url, _):
        [answer] = run(tmp_path, download(url, b"right"))
    assert "other bytes" in str(answer["error"])
    assert [one.name for one in (tmp_path / "tmp").iterdir()] == [f"lodefs-{oid_of(b'right')}.part"]


@pytest.mark.parametrize(
    "event",
    [
        b"{",
        b"[]",
        {"event": "upload", "oid": "a", "size": 1, "path": "/missing"},
        {"event": "dance", "oid": "a", "action": {"href": "http://127.0.0.1:1/lfs/r/objects/a"}},
        {"event": "upload", "oid": "a", "path": "/missing", "action": {"href": "file:///etc"}},
        {"event": "download", "oid": "a", "size": 1, "action": {"href": "http://127.0.0.1:1/a"}},
        {"event": "init", "operation": "dance"},
    ],
)
def test_bad_events(tmp_path: Path, event: object) -> None:
    """What no git lfs says is an error, and the agent goes on."""
    answers = run(tmp_path, event, {"event": "init", "operation": "upload"})
    assert "error" in answers[0] and answers[1] == {}
