"""Attempt and Connections: HTTP on sockets that never block, against servers of a few lines."""

from __future__ import annotations

import select
import socket
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import pytest

from lodefs.chunkstore.errors import Unavailable
from lodefs.proxy.peers.client.connection_pool import ConnectionPool
from lodefs.proxy.peers.client.http_attempt import HttpAttempt, PeerAnswer
from lodefs.proxy.peers.client.phases import Phase
from lodefs.proxy.peers.membership.addresses import SocketAddress


def request(_place: str) -> bytes:
    return b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"


@contextmanager
def server(*connections: Sequence[bytes]) -> Iterator[str]:
    """The address of a server that takes one connection after the other; on each it waits for a
    request before each of its answers, and closes it after the last."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.settimeout(60)

        def serve() -> None:
            for answers in connections:
                with listener.accept()[0] as accepted:
                    for answer in answers:
                        while not accepted.recv(65536).endswith(b"\r\n\r\n"):
                            pass
                        accepted.sendall(answer)

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield f"127.0.0.1:{listener.getsockname()[1]}"
        thread.join(60)
        assert not thread.is_alive()


def connections_to(idle_max: int = 256) -> ConnectionPool:
    """Connections to addresses whose host is an IP address."""

    def endpoints(address: str) -> list[SocketAddress]:
        host, _, port = address.rpartition(":")
        return [SocketAddress(socket.AF_INET, host, int(port))] if host == "127.0.0.1" else []

    return ConnectionPool(endpoints, idle_max=idle_max)


def finish(attempt: HttpAttempt) -> PeerAnswer:
    """Polls until the answer is there."""
    while attempt.answer is None:
        poll = select.poll()
        poll.register(attempt.fileno(), attempt.events)
        assert poll.poll(60_000), "nothing happened within a minute"
        attempt.advance()
    return attempt.answer


def ok(body: bytes, more: bytes = b"") -> bytes:
    return b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n%b\r\n" % (len(body), more) + body


def test_one_connection_serves_many_requests() -> None:
    """A connection that was answered is used again, and a large body comes whole."""
    body = bytes(range(256)) * 20_000
    with server([ok(b"one"), ok(body), ok(b"")]) as address:
        connections = connections_to()
        sockets = set()
        for expected in (b"one", body, b""):
            attempt = connections.begin(address, request, len(body))
            answer = finish(attempt)
            assert (answer.status, bytes(answer.body)) == (200, expected)
            sockets.add(attempt.sock)
            connections.end(attempt)
        connections.close()
    assert len(sockets) == 1


def test_no_more_connections_are_kept_than_may_be() -> None:
    """One kept connection is allowed: the one that was used last, whichever peer it leads to."""
    with server([ok(b"one")]) as first, server([ok(b"two")]) as second:
        connections = connections_to(idle_max=1)
        attempts = [connections.begin(address, request, 100) for address in (first, second)]
        for attempt in attempts:
            finish(attempt)
            connections.end(attempt)
        assert [attempt.sock.fileno() >= 0 for attempt in attempts] == [False, True]
        connections.close()


def test_a_connection_that_ended_meanwhile_is_made_anew() -> None:
    """The peer closed an idle connection: whoever takes it learns so before the first byte, and a
    fresh one works."""
    with server([ok(b"one")], [ok(b"two")]) as address:
        connections = connections_to()
        first = connections.begin(address, request, 100)
        finish(first)
        connections.end(first)
        again = connections.begin(address, request, 100)
        if again.is_reused:  # else the end was seen at once
            with pytest.raises(Unavailable):
                finish(again)
            assert not again.began
            connections.end(again)
            again = connections.begin(address, request, 100, fresh=True)
        assert bytes(finish(again).body) == b"two"
        connections.end(again)
        connections.close()


def test_a_peer_may_end_the_connection() -> None:
    """After "Connection: close" a connection is not kept."""
    with server([ok(b"one", b"Connection: close\r\n")]) as address:
        attempt = connections_to().begin(address, request, 100)
        finish(attempt)
        assert not attempt.is_reusable
        attempt.sock.close()


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (b"", "ended before the answer"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\n123", "7 bytes before its end"),
        (b"HTTP/1.1 200 OK\r\n\r\n123", "malformed"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 101\r\n\r\n", "more than were asked for"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\n", "malformed"),
        (b"HTTP/1.1 2O0 OK\r\nContent-Length: 1\r\n\r\n1", "malformed"),
        (b"220 mail.example ESMTP\r\n\r\n", "malformed"),
        (ok(b"one") + b"two", "more came"),
        (b"x" * 20_000, "does not end"),
        (
            b"HTTP/1.1 200 OK\r\nX: " + b"x" * 20_000 + b"\r\nContent-Length: 0\r\n\r\n",
            "does not end",
        ),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n" + b"a:\r\n" * 99 + b"\r\n", "64 lines"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\nContent-Length: 9\r\n\r\n1", "two lengths"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: " + b"9" * 5000 + b"\r\n\r\n", "malformed"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: \xb2\r\n\r\n", "malformed"),
    ],
)
def test_what_is_no_answer_is_unavailable(answer: bytes, words: str) -> None:
    """Whatever is not plain HTTP with a body of a size that was told: Unavailable, which says why
    and names the peer."""
    with server([answer]) as address:
        with pytest.raises(Unavailable, match=words) as raised:
            finish(connections_to().begin(address, request, 100))
        assert address in str(raised.value)


def test_nobody_there() -> None:
    """A port that nobody listens on, and a name without an address: Unavailable."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    with pytest.raises(Unavailable, match="refused"):
        finish(connections_to().begin(f"127.0.0.1:{port}", request, 100))
    with pytest.raises(Unavailable, match="no address"):
        connections_to().begin("no-such-host.invalid:1", request, 100)


def test_the_phases_of_a_request() -> None:
    """An attempt says what it waits for: the answer, the rest of its head, its body."""
    parts = [b"HTTP/1.1 200 OK\r\n", b"Content-Length: 3\r\n\r\n", b"abc"]
    going = threading.Semaphore(0)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        address = f"127.0.0.1:{listener.getsockname()[1]}"

        def serve() -> None:
            with listener.accept()[0] as accepted:
                for part in parts:
                    assert going.acquire(timeout=60)
                    accepted.sendall(part)

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        attempt = connections_to().begin(address, request, 100)
        seen = [attempt.phase]
        while attempt.answer is None:
            poll = select.poll()
            poll.register(attempt.fileno(), attempt.events)
            if not poll.poll(0) and attempt.phase in (Phase.ANSWER, Phase.HEAD, Phase.BODY):
                if seen[-1] != attempt.phase:
                    seen.append(attempt.phase)
                    going.release()
                poll.poll(60_000)
            attempt.advance()
        attempt.sock.close()
        thread.join(60)
    assert seen == [Phase.CONNECT, Phase.ANSWER, Phase.HEAD, Phase.BODY]
