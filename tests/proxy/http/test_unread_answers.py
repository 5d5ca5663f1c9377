"""Clients with many answers that they do not read: little is kept for each, others are served."""

from __future__ import annotations

import random
import socket
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple

import pytest

from lodefs.proxy.http.connection import UNSENT_BYTES_MAX, Connection
from lodefs.proxy.http.server import OWNER_ANSWERS_MANY
from lodefs.proxy.http.tokens import create_token
from lodefs.proxy.runtime.thread_pools import remote_owner
from lodefs.proxy.service.store_node import StoreNode
from tests.support.proxy.fake_node import RunningProxy
from tests.support.proxy.rig import REPO, Rig, serve_rig

FILE = random.Random(3).randbytes(5_000_000)
UNREAD = OWNER_ANSWERS_MANY + 12


class Served(NamedTuple):
    """A proxy, its node, and two tokens."""

    proxy: RunningProxy
    node: StoreNode
    tokens: tuple[str, str]


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Served]:
    rig = Rig(tmp_path, {b"big": FILE}, chunk_size_bytes=100_000)
    path = tmp_path / "tokens"
    one, other = (create_token(path, name, ["*"], now_s=1) for name in ("one", "other"))
    with serve_rig(rig, tokens_file=path) as (proxy, node):
        yield Served(proxy, node, (one, other))


def asking(proxy: RunningProxy, token: str) -> socket.socket:
    """A connection that has asked for the file, and takes next to nothing of it by itself."""
    sock = socket.socket()
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    sock.settimeout(60)
    sock.connect(("127.0.0.1", proxy.port))
    head = f"GET /files/{REPO}@main/big HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n"
    sock.sendall(f"{head}Authorization: Bearer {token}\r\n\r\n".encode())
    return sock


def body(sock: socket.socket) -> bytes:
    """All that comes, without the head."""
    found = b"".join(iter(lambda: sock.recv(1 << 20), b""))
    return found.partition(b"\r\n\r\n")[2]


def waiting(proxy: RunningProxy) -> list[Connection]:
    """The connections whose clients do not read."""
    return [one for one in proxy.server.connections if one.paused_tick >= 0]


def test_what_is_not_read_is_little(served: Served) -> None:
    """Beyond a few unread answers of one token each holds some KiB; another token's answers are
    its own, and all bytes come when they are read."""
    proxy, (token, other) = served.proxy, served.tokens
    with ExitStack() as stack:
        socks = [stack.enter_context(asking(proxy, token)) for _ in range(UNREAD)]
        proxy.until(lambda: len(waiting(proxy)) == UNREAD)
        bounded = proxy.call(lambda: [one for one in waiting(proxy) if one.is_bounded])
        assert len(bounded) >= UNREAD - OWNER_ANSWERS_MANY
        held = sorted(proxy.call(lambda: [_held_bytes(one) for one in waiting(proxy)]))
        assert held[-OWNER_ANSWERS_MANY - 1] <= 3 * UNSENT_BYTES_MAX
        readers = proxy.call(lambda: dict(served.node.files._readers_of))
        assert readers == {remote_owner("one"): UNREAD}
        with asking(proxy, other) as sock:
            assert body(sock) == FILE
        assert proxy.call(lambda: [one for one in waiting(proxy) if one.is_bounded]) == bounded
        for sock in (socks[0], socks[-1]):
            assert body(sock) == FILE
    proxy.until(lambda: not served.node.files._readers_of and not proxy.server._sending)


def _held_bytes(connection: Connection) -> int:
    assert connection._wire is not None
    return connection._wire.get_write_buffer_size()
