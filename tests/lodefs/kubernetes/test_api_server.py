"""Calls of the API server."""

from __future__ import annotations

import json
import ssl
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

from lodefs.chunkstore.errors import Denied, InvalidInput, NotFound, Unavailable
from lodefs.kubernetes import ApiServer
from tests.support.chunkstore.certificates import certificate

NODE = {"metadata": {"labels": {"kubernetes.io/os": "linux"}}}


class Seen:
    """What a server was asked, and what it answers."""

    def __init__(self) -> None:
        self.requests: list[tuple[str, str, dict[str, str], bytes]] = []
        self.status, self.answer = 200, json.dumps(NODE).encode()


@pytest.fixture
def seen() -> Seen:
    return Seen()


@pytest.fixture
def server(tmp_path: Path, seen: Seen) -> Iterator[ApiServer]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            seen.requests.append((self.command, self.path, dict(self.headers), body))
            self.send_response(seen.status)
            self.send_header("Content-Length", str(len(seen.answer)))
            self.end_headers()
            self.wfile.write(seen.answer)

        def do_PATCH(self) -> None:
            self.do_GET()

        def log_message(self, *_: object) -> None:
            pass

    pem = certificate(tmp_path)
    account = tmp_path / "account"
    account.mkdir()
    (account / "token").write_text("first\n")
    text = pem.read_text()
    (account / "ca.crt").write_text(text[text.index("-----BEGIN CERTIFICATE") :])
    http = HTTPServer(("127.0.0.1", 0), Handler)
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(pem)
    http.socket = tls.wrap_socket(http.socket, server_side=True)
    thread = threading.Thread(target=http.serve_forever, daemon=True)
    thread.start()
    port = str(http.server_address[1])
    environ = {"KUBERNETES_SERVICE_HOST": "127.0.0.1", "KUBERNETES_SERVICE_PORT": port}
    yield ApiServer(environ, account)
    http.shutdown()
    http.server_close()
    thread.join()


def test_labels_are_read_with_the_token_of_now(
    server: ApiServer, seen: Seen, tmp_path: Path
) -> None:
    """Each call carries the token that the file has at that moment."""
    assert server.node_labels("node1") == {"kubernetes.io/os": "linux"}
    (tmp_path / "account/token").write_text("second\n")
    server.node_labels("node1")
    tokens = [headers["Authorization"] for _, _, headers, _ in seen.requests]
    assert tokens == ["Bearer first", "Bearer second"]
    assert seen.requests[0][:2] == ("GET", "/api/v1/nodes/node1")


def test_a_patch_removes_with_null(server: ApiServer, seen: Seen) -> None:
    """A patch is a merge patch, in which None removes a label."""
    server.patch_node_labels("node1", {"a": "1", "b": None})
    method, path, headers, body = seen.requests[0]
    assert (method, path) == ("PATCH", "/api/v1/nodes/node1")
    assert headers["Content-Type"] == "application/merge-patch+json"
    assert json.loads(body) == {"metadata": {"labels": {"a": "1", "b": None}}}


@pytest.mark.parametrize(
    ("status", "kind"), [(403, Denied), (404, NotFound), (409, Unavailable), (500, Unavailable)]
)
def test_a_refusal_has_the_servers_words(
    server: ApiServer, seen: Seen, status: int, kind: type[Exception]
) -> None:
    """A refusal is an error of its kind, which tells what the server said."""
    seen.status, seen.answer = status, b'{"message": "nodes node1 is forbidden"}'
    with pytest.raises(kind, match="forbidden"):
        server.node_labels("node1")


def test_outside_of_a_pod(tmp_path: Path) -> None:
    """Where there is no service account, the error says what is missing."""
    with pytest.raises(InvalidInput, match="automountServiceAccountToken"):
        ApiServer({}, tmp_path)
