"""Calls over Unix sockets: packets, descriptors, and a server that callers cannot exhaust."""

from __future__ import annotations

import errno
import os
import resource
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec
import pytest

from lodefs.chunkstore.errors import Corrupt, InvalidInput, NotFound, Unavailable, UnknownFormat
from lodefs.chunkstore.protocol import rpc
from lodefs.chunkstore.protocol.wire import Failure, error_of, failure_of
from lodefs.chunkstore.repo.pack_reader import LostPack
from lodefs.chunkstore.system.sockets import Peer

WAIT_S = 60.0


class Said(msgspec.Struct, frozen=True):
    """A message of these tests."""

    text: str = ""
    failure: Failure | None = None


@contextmanager
def pair() -> Iterator[tuple[socket.socket, socket.socket]]:
    """Two ends of a connection."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    for end in (ours, theirs):
        end.settimeout(WAIT_S)
    with ours, theirs:
        yield ours, theirs


@contextmanager
def served(
    path: Path, serve: Callable[[socket.socket, Peer], None], busy: bytes = b"", most: int = 2
) -> Iterator[rpc.PacketServer]:
    """A server."""
    listener = rpc.listen(path, replace=False)
    server = rpc.PacketServer(listener, serve, user_connections_max=most, busy=busy)
    server.start()
    try:
        yield server
    finally:
        server.stop()
        assert server.wait_idle(WAIT_S)


def echo(client: socket.socket, _peer: Peer) -> None:
    """Answers one call by itself."""
    client.settimeout(WAIT_S)
    rpc.send(client, rpc.receive(client).data)


def asked(path: Path, said: Said) -> Said:
    """The answer to one call."""
    with rpc.connect(path, WAIT_S) as client:
        return rpc.ask(client, said, Said)[0]


def test_an_answer_and_an_error(tmp_path: Path) -> None:
    """A call gets its answer; a failure is raised as the error that it names, one of ours by its
    class alone, and what cannot be read is an error, too."""
    with served(tmp_path / "s", echo):
        assert asked(tmp_path / "s", Said("hello")) == Said("hello")
        with pytest.raises(NotFound, match="no such thing"):
            asked(tmp_path / "s", Said(failure=failure_of(NotFound("no such thing"))))
        with pytest.raises(Unavailable, match="KeyError"):
            asked(tmp_path / "s", Said(failure=failure_of(KeyError("a secret"))))
        with rpc.connect(tmp_path / "s", WAIT_S) as client, pytest.raises(UnknownFormat):
            rpc.ask(client, b"\xc1", Said)
    assert "secret" not in failure_of(KeyError("a secret")).message
    with pytest.raises(OSError, match="refused"):
        rpc.connect(tmp_path / "s", WAIT_S)


def test_an_error_that_others_do_not_know_is_one_that_they_know() -> None:
    """A subclass of a module is told as the class of errors.py that it extends: the other side took
    it for an outage, and asked again and again."""
    told = failure_of(LostPack("it is missing"))
    assert told.error == "Corrupt"
    assert type(error_of(told)) is Corrupt


def test_a_server_that_ends(tmp_path: Path) -> None:
    """Who gets no answer is told so."""
    with (
        served(tmp_path / "s", lambda _client, _peer: None),
        pytest.raises(ConnectionError),
    ):
        asked(tmp_path / "s", Said("hello"))


def test_sizes() -> None:
    """A message that no packet holds is refused before it is sent; one that is longer than is asked
    for is cut, and what came with it is closed."""
    with pair() as (ours, theirs):
        rpc.send(ours, b"x" * rpc.PACKET_BYTES_MAX)
        assert len(rpc.receive(theirs).data) == rpc.PACKET_BYTES_MAX
        with pytest.raises(InvalidInput, match="too long"):
            rpc.send(ours, b"x" * (rpc.PACKET_BYTES_MAX + 1))
        rpc.send(ours, b"x" * 100, [ours.fileno()])
        before = len(os.listdir("/proc/self/fd"))
        assert rpc.receive(theirs, 10) == (b"x" * 10, [])
        assert len(os.listdir("/proc/self/fd")) == before


def test_descriptors() -> None:
    """They come as the receiver's own, and no program that it starts has them; a caller that gives
    more than is asked for, or that the process may open, has none of them opened."""
    with pair() as (ours, theirs):
        rpc.send(ours, b"one", [ours.fileno()])
        data, (fd,) = rpc.receive(theirs, fds_max=1)
        assert (data, os.get_inheritable(fd)) == (b"one", False)
        os.close(fd)
        before = len(os.listdir("/proc/self/fd"))
        rpc.send(ours, b"three", [ours.fileno()] * 3)
        with pytest.raises(OSError, match="not all descriptors"):
            rpc.receive(theirs, fds_max=2)
        limits = resource.getrlimit(resource.RLIMIT_NOFILE)
        rpc.send(ours, b"two", [ours.fileno()] * 2)
        lowest = os.dup(0)
        os.close(lowest)
        resource.setrlimit(resource.RLIMIT_NOFILE, (lowest, limits[1]))
        try:
            with pytest.raises(OSError, match="not all descriptors"):
                rpc.receive(theirs, fds_max=2)
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, limits)
        assert len(os.listdir("/proc/self/fd")) == before


@pytest.mark.parametrize("busy", [b"", b"busy"])
def test_no_more_than_so_many_at_once(tmp_path: Path, busy: bytes) -> None:
    """A user has so many connections at once: the next one is told so, or waits for its turn."""
    begun, go = threading.Semaphore(0), threading.Event()

    def serve(client: socket.socket, peer: Peer) -> None:
        assert peer.uid == os.geteuid()
        begun.release()
        assert go.wait(WAIT_S)
        echo(client, peer)

    with served(tmp_path / "s", serve, busy) as server:
        clients = [rpc.connect(tmp_path / "s", WAIT_S) for _ in range(3)]
        for client in clients:
            rpc.send(client, b"hello")
        if busy:
            assert rpc.receive(clients.pop()).data == busy
        assert begun.acquire(timeout=WAIT_S)
        assert begun.acquire(timeout=WAIT_S)
        assert not server.wait_idle(0, connections=1)
        assert not begun.acquire(blocking=False)
        go.set()
        for client in clients:
            assert rpc.receive(client).data == b"hello"
            client.close()


def test_a_server_outlives_a_failed_accept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without free descriptors nobody is served, and then they are again."""
    accept, errors = socket.socket.accept, [OSError(errno.EMFILE, "too many open files")]

    def failing(listener: socket.socket) -> tuple[socket.socket, object]:
        if errors:
            raise errors.pop()
        return accept(listener)

    monkeypatch.setattr(socket.socket, "accept", failing)
    with served(tmp_path / "s", echo):
        assert asked(tmp_path / "s", Said("hello")) == Said("hello")
    assert not errors
