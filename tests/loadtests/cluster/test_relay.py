"""The relay in front of a server: what passes, what is counted, what goes wrong when it should."""

from __future__ import annotations

import http.client
import socket
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from loadtests.cluster.relays import RunningRelay
from loadtests.services import HOST, free_port
from tests.support.chunkstore.child_process import Child

BODY = bytes(range(256)) * 2000
SOON_S = 0.3


class _Upstream(BaseHTTPRequestHandler):
    """Answers BODY to everything: in chunks below /chunked, with a 404 below /missing."""

    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        self.send_response(404 if self.path.startswith("/missing") else 200)
        if self.path.startswith("/chunked"):
            self.send_header("Transfer-Encoding", "chunked")
            self.end_headers()
            for first in range(0, len(BODY), 100_000):
                piece = BODY[first : first + 100_000]
                self.wfile.write(b"%x\r\n%b\r\n" % (len(piece), piece))
            self.wfile.write(b"0\r\n\r\n")
            return
        self.send_header("Content-Length", str(len(BODY)))
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(BODY)

    def do_HEAD(self) -> None:
        self.do_GET()

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def upstream() -> Iterator[int]:
    """The port of a server."""
    server = ThreadingHTTPServer((HOST, 0), _Upstream)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    yield server.server_address[1]
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.fixture
def port() -> int:
    """Where the relay listens."""
    return free_port()


@pytest.fixture
def relay(tmp_path: Path, upstream: int, port: int) -> Iterator[RunningRelay]:
    """A relay in front of the server."""
    control = tmp_path / "c.sock"
    log = tmp_path / "c.log"
    words = [f"{HOST}:{port}", f"{HOST}:{upstream}", str(control), str(log)]
    with Child([sys.executable, "-m", "loadtests.cluster.relay", *words]) as child:
        child.wait_for("^ready$")
        yield RunningRelay(control, log)


@pytest.fixture
def client(relay: RunningRelay, port: int) -> Iterator[http.client.HTTPConnection]:
    """A connection of the relay."""
    connection = http.client.HTTPConnection(HOST, port, timeout=30)
    yield connection
    connection.close()


def ask(client: http.client.HTTPConnection, target: str, method: str = "GET") -> tuple[int, bytes]:
    """Status and body of one request."""
    client.request(method, target)
    answer = client.getresponse()
    return answer.status, answer.read()


def test_bodies_pass_and_are_counted(
    client: http.client.HTTPConnection, relay: RunningRelay
) -> None:
    """Bytes of bodies count by what they are of, however they are framed; headers do not."""
    assert ask(client, "/data/store/packs/ab/c") == (200, BODY)
    assert ask(client, "/chunked/store/index/c") == (200, BODY)
    assert ask(client, "/missing/store/packs/c") == (404, BODY)
    assert ask(client, "/data/store/packs/ab/c", "HEAD") == (200, b"")
    counts = relay.counts(reset=True)
    assert counts.size_bytes == {"packs": len(BODY), "index": len(BODY), "errors": len(BODY)}
    assert counts.requests == {"packs": 2, "index": 1, "errors": 1}
    assert relay.counts().total_bytes == 0
    bodies = relay.sent()
    assert [(sent.client, sent.kind, sent.size_bytes) for sent in bodies] == [
        (HOST, kind, len(BODY)) for kind in ("packs", "index", "errors")
    ]
    assert relay.sent() == []


def test_writes_are_refused(client: http.client.HTTPConnection) -> None:
    """A relay is for reads only."""
    assert ask(client, "/data/store/packs/ab/c", "PUT") == (501, b"")


def test_flipped_bits(client: http.client.HTTPConnection, relay: RunningRelay) -> None:
    """Below a path some bits are wrong and the length is right; elsewhere all is as it was."""
    relay.behave(fault="flip", fault_below="/peers/")
    status, body = ask(client, "/peers/packs/ab/chunks")
    differing = sum(mine != theirs for mine, theirs in zip(body, BODY, strict=True))
    assert status == 200 and 0 < differing < 100
    assert ask(client, "/readyz") == (200, BODY)


def test_outage_and_its_end(client: http.client.HTTPConnection, relay: RunningRelay) -> None:
    """While the service is out every request gets 503; afterwards it is as before."""
    relay.behave(outage="503")
    assert ask(client, "/data/store/packs/ab/c")[0] == 503
    relay.behave(outage="")
    assert ask(client, "/data/store/packs/ab/c") == (200, BODY)


@pytest.mark.parametrize("how", [{"outage": "blackhole"}, {"fault": "hang"}])
def test_no_answer(
    client: http.client.HTTPConnection, relay: RunningRelay, how: dict[str, str]
) -> None:
    """A request is taken and not answered; when that is over the connection ends."""
    relay.behave(**how)
    client.request("GET", "/peers/packs/ab/chunks")
    assert client.sock is not None
    client.sock.settimeout(SOON_S)
    with pytest.raises(TimeoutError):
        client.sock.recv(1)
    relay.behave(outage="", fault="")
    client.sock.settimeout(30)
    assert client.sock.recv(1) == b""


def test_one_byte_a_second(client: http.client.HTTPConnection, relay: RunningRelay) -> None:
    """The head comes at once, the first byte too, and the next ones not soon."""
    relay.behave(fault="slow")
    client.request("GET", "/peers/packs/ab/chunks")
    sock = client.sock
    assert isinstance(sock, socket.socket)
    answer = client.getresponse()
    assert answer.status == 200 and answer.read(1) == BODY[:1]
    sock.settimeout(SOON_S)
    # some may be there, where this process was held up
    with pytest.raises(TimeoutError):
        [sock.recv(1) for _ in range(100)]


def test_latency(client: http.client.HTTPConnection, relay: RunningRelay) -> None:
    """No byte of an answer comes before the latency is over."""
    relay.behave(latency_s=30)
    client.request("GET", "/data/store/packs/ab/c")
    assert client.sock is not None
    client.sock.settimeout(SOON_S)
    with pytest.raises(TimeoutError):
        client.sock.recv(1)
