"""Peers that mean harm: servers on loopback that speak badly, slowly, falsely or not at all."""

from __future__ import annotations

import random
import socket
import struct
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from urllib.parse import parse_qs, urlsplit

from msgspec.msgpack import encode

from lodefs.chunkstore.format.names import PackId
from lodefs.chunkstore.nodecache import layout as layout
from lodefs.chunkstore.protocol import wire
from lodefs.chunkstore.repo.pack_reader import read_index
from lodefs.proxy.fetch.known_damage import DamagedChunks
from lodefs.proxy.fetch.pack_source import StorePacks
from lodefs.proxy.metrics.counters import Counts
from tests.support.proxy.rig import Rig

GARBAGE = random.Random(0).randbytes(1 << 20)
DRIP_S = 0.2
LATE_S = 0.8
HALVED_SIZE_BYTES_MIN = 512 * 1024


@dataclass
class HostilePeer:
    """One that listens. ``requests``: how many it was sent; ``stopped`` ends what it does."""

    address: str
    requests: int = 0
    stopped: threading.Event = field(default_factory=threading.Event)

    def drip(self, connection: socket.socket, piece: bytes) -> None:
        """Sends the piece again and again, slowly."""
        while not self.stopped.wait(DRIP_S):
            connection.sendall(piece)

    def flood(self, connection: socket.socket, piece: bytes) -> None:
        """Sends the piece again and again, as fast as it is taken."""
        while not self.stopped.is_set():
            connection.sendall(piece)


Reply = Callable[[HostilePeer, socket.socket, str], None]  # to a request for a target


def drips_head(peer: HostilePeer, connection: socket.socket, _target: str) -> None:
    """A status line, then one header line now and then, for ever."""
    connection.sendall(b"HTTP/1.1 200 OK\r\n")
    peer.drip(connection, b"X-More: to come\r\n")


def drips_body(peer: HostilePeer, connection: socket.socket, _target: str) -> None:
    """A right head at once, then a byte of the body now and then."""
    connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 65536\r\n\r\n")
    peer.drip(connection, b"\0")


def drips_interim(peer: HostilePeer, connection: socket.socket, _target: str) -> None:
    """One "100 Continue" after the other."""
    peer.drip(connection, b"HTTP/1.1 100 Continue\r\n\r\n")


def floods_garbage(peer: HostilePeer, connection: socket.socket, _target: str) -> None:
    """Random bytes, as fast as they are taken."""
    peer.flood(connection, GARBAGE)


def floods_head(peer: HostilePeer, connection: socket.socket, _target: str) -> None:
    """A head without an end."""
    connection.sendall(b"HTTP/1.1 200 OK\r\n")
    peer.flood(connection, b"X-More: to come\r\n" * 4096)


def floods_lines(peer: HostilePeer, connection: socket.socket, _target: str) -> None:
    """A head of thousands of short lines, with an end."""
    head = b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n" + b"A:\r\n" * 3000 + b"\r\n"
    connection.sendall(head)
    peer.flood(connection, GARBAGE)


def floods_body(peer: HostilePeer, connection: socket.socket, _target: str) -> None:
    """A body that is longer than it says, without an end."""
    connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 65536\r\n\r\n")
    peer.flood(connection, GARBAGE)


def hangs(peer: HostilePeer, _connection: socket.socket, _target: str) -> None:
    """Takes the request and says nothing."""
    peer.stopped.wait()


def hangs_after_head(peer: HostilePeer, connection: socket.socket, _target: str) -> None:
    """A right head at once, and nothing else."""
    connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 65536\r\n\r\n")
    peer.stopped.wait()


def resets(_peer: HostilePeer, connection: socket.socket, _target: str) -> None:
    """Ends the connection with a reset."""
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))


def resets_body(_peer: HostilePeer, connection: socket.socket, _target: str) -> None:
    """Resets it in the middle of the body."""
    connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 65536\r\n\r\n" + bytes(1000))
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))


def refuses(_peer: HostilePeer, connection: socket.socket, _target: str) -> None:
    """Says 403 to everything."""
    _send(connection, b'{"error":"Denied","message":"not you"}', status=b"403 Forbidden")


def lacks_late(peer: HostilePeer, connection: socket.socket, _target: str) -> None:
    """Says after most of a second, sooner than silence is given up, that it has nothing."""
    peer.stopped.wait(LATE_S)
    _send(connection, b'{"error":"NotFound","message":"not here"}', status=b"404 Not Found")


def wrong_length(_peer: HostilePeer, connection: socket.socket, _target: str) -> None:
    """A body of a length that nobody asked for."""
    connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 99999999999\r\n\r\n")


def liar(rig: Rig) -> Reply:
    """One that answers at once, with zeros of exactly the right length, and with other packs'
    indexes."""
    packs = [PackId(bytes.fromhex(o.key.rpartition("/")[2])) for o in rig.objects.list("packs/")]
    loaded = {pack: read_index(rig.objects.below, pack) for pack in packs}

    def lie(_peer: HostilePeer, connection: socket.socket, target: str) -> None:
        parts = urlsplit(target)
        pack = PackId(bytes.fromhex(parts.path.split("/")[3]))
        if parts.path.endswith("/index"):
            other = next(found for other, found in loaded.items() if other != pack)
            _send(connection, layout.encode_pack_row(other.etag, other.index.encode()))
            return
        query = parse_qs(parts.query)
        first, count = int(query["first"][0]), int(query["count"][0])
        offsets = loaded[pack].index.raw_offsets
        _send(connection, bytes(offsets[first + count] - offsets[first]))

    return lie


def lies_later(rig: Rig) -> Reply:
    """One with right indexes, and zeros for chunks."""
    lie = liar(rig)

    def reply(peer: HostilePeer, connection: socket.socket, target: str) -> None:
        if urlsplit(target).path.endswith("/index"):
            pack = PackId(bytes.fromhex(target.split("/")[3]))
            right = read_index(rig.objects.below, pack)
            _send(connection, layout.encode_pack_row(right.etag, right.index.encode()))
        else:
            lie(peer, connection, target)

    return reply


End = Callable[[HostilePeer, socket.socket, int], None]  # of a body that lacks so many bytes


def resets_midway(_peer: HostilePeer, connection: socket.socket, _left_bytes: int) -> None:
    """Ends the connection with a reset."""
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    raise OSError("it is reset")


def lies_midway(_peer: HostilePeer, connection: socket.socket, left_bytes: int) -> None:
    """The rest is zeros."""
    connection.sendall(bytes(left_bytes))


def hangs_midway(peer: HostilePeer, _connection: socket.socket, _left_bytes: int) -> None:
    """Nothing more comes."""
    peer.stopped.wait()


def drips_midway(peer: HostilePeer, connection: socket.socket, _left_bytes: int) -> None:
    """A byte comes now and then."""
    peer.drip(connection, b"\0")


@dataclass
class HalfOwner:
    """An owner that sends one node the right first part of a unit, and refers all to ``members``
    meanwhile. When ``passed_on`` is set, it ends the unit badly, and others before their first
    byte."""

    rig: Rig
    end: End
    members: list[str] = field(default_factory=list)
    passed_on: threading.Event = field(default_factory=threading.Event)
    _has_begun: bool = False
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def reply(self, peer: HostilePeer, connection: socket.socket, target: str) -> None:
        """Implements Reply."""
        parts = urlsplit(target)
        pack = PackId(bytes.fromhex(parts.path.split("/")[3]))
        right = read_index(self.rig.objects.below, pack)
        if parts.path.endswith("/index"):
            _send(connection, layout.encode_pack_row(right.etag, right.index.encode()))
            return
        query = parse_qs(parts.query)
        first, count = int(query["first"][0]), int(query["count"][0])
        store = StorePacks(self.rig.objects.below, Counts(), DamagedChunks())
        body = b"".join(store.read(right, first, count).memory.values())
        if len(body) < HALVED_SIZE_BYTES_MIN:
            _send(connection, body)
            return
        head = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(body)
        with self._lock:
            is_next = self._has_begun
            self._has_begun = True
        if self.passed_on.is_set():
            connection.sendall(head)
            self.end(peer, connection, len(body))
            return
        if is_next:
            busy = encode(wire.Busy(0.05, self.members))
            _send(connection, busy, status=b"503 Busy\r\nContent-Type: " + wire.MSGPACK.encode())
            return
        sent = len(body) * 3 // 4
        connection.sendall(head + body[:sent])
        self.passed_on.wait()
        self.end(peer, connection, len(body) - sent)


def _send(connection: socket.socket, body: bytes, *, status: bytes = b"200 OK") -> None:
    connection.sendall(b"HTTP/1.1 %b\r\nContent-Length: %d\r\n\r\n" % (status, len(body)) + body)


@contextmanager
def hostile_peer(reply: Reply | None) -> Iterator[HostilePeer]:
    """A peer that replies so to each request; None: it listens, and accepts nobody."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        peer = HostilePeer(f"127.0.0.1:{listener.getsockname()[1]}")
        threads: list[threading.Thread] = []

        def accept() -> None:
            while reply is not None:
                try:
                    connection, _ = listener.accept()
                except OSError:
                    return
                threads.append(threading.Thread(target=talk, args=[connection], daemon=True))
                threads[-1].start()

        def talk(connection: socket.socket) -> None:
            assert reply is not None
            with suppress(OSError), connection:
                while not peer.stopped.is_set():
                    target = _target_of(connection)
                    peer.requests += 1
                    reply(peer, connection, target)
                    if reply in (resets, resets_body, wrong_length):
                        return

        accepting = threading.Thread(target=accept, daemon=True)
        accepting.start()
        try:
            yield peer
        finally:
            peer.stopped.set()
            listener.shutdown(socket.SHUT_RDWR)
            accepting.join(60)


@contextmanager
def dead_peers(count: int) -> Iterator[list[str]]:
    """Addresses that swallow every attempt to connect: listeners with queues that are full."""
    with ExitStack() as stack:
        addresses = []
        for _ in range(count):
            listener = stack.enter_context(socket.create_server(("127.0.0.1", 0), backlog=0))
            for _ in range(2):
                filler = stack.enter_context(socket.socket())
                filler.setblocking(False)
                filler.connect_ex(listener.getsockname())
            addresses.append(f"127.0.0.1:{listener.getsockname()[1]}")
        yield addresses


def _target_of(connection: socket.socket) -> str:
    """The target of the next request; OSError at the connection's end."""
    head = b""
    while not head.endswith(b"\r\n\r\n"):
        data = connection.recv(65536)
        if not data:
            raise OSError("the other side has gone")
        head += data
    return head.split(b" ", 2)[1].decode()
