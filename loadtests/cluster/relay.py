"""An HTTP/1.1 relay that counts, limits, delays and misbehaves: what is put in front of the origin,
and in front of the peer door of a node that is to be a bad one.

``python -m loadtests.cluster.relay HOST:PORT UPSTREAM_HOST:PORT CONTROL LOG`` relays GET and HEAD
until it is killed, and writes a line into the file LOG for each body (counting.Sent). At the Unix
socket CONTROL it takes lines of JSON, ``{"set": {FIELD: VALUE}}`` of a Behaviour or
``{"reset": true}``, and answers each with what it counted.

Counted are the bytes of response bodies that were written to the client's socket (headers are not;
what a client that went away did not read is). Bodies move by splice(2), so that a relay costs next
to no processor time.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import select
import socket
import struct
import sys
import threading
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from time import monotonic
from typing import TextIO

from loadtests.cluster.counting import Counts, Sent, Throttle, kind_of
from loadtests.cluster.heads import BadHttp, Head, receive_head, receive_line

PIECE_BYTES = 128 << 10
PIPE_BYTES = 1 << 20
TIMEOUT_S = 600  # without a byte; longer than any run waits
LOOK_S = 0.2  # how often a held client is looked at
_OUT = b"<?xml version='1.0'?><Error><Code>ServiceUnavailable</Code></Error>"
_UNAVAILABLE = (
    b"HTTP/1.1 503 Service Unavailable\r\nContent-Type: application/xml\r\nRetry-After: 1\r\n"
    b"Content-Length: %d\r\n\r\n%b" % (len(_OUT), _OUT)
)
_NOT_HERE = b"HTTP/1.1 501 Not Implemented\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"


@dataclass(frozen=True, slots=True)
class Behaviour:
    """How a relay is. ``outage`` is of all requests, ``fault`` of those below ``fault_below``.

    ``flip``: one bit of each piece of a body is wrong; ``slow``: one byte a second of a body;
    ``hang``: taken and never answered. ``503`` and ``blackhole``: the same for a whole service.
    """

    latency_s: float = 0.0  # added before an answer's first byte
    bytes_per_s_max: float = 0.0  # of all bodies together; 0: no limit
    connection_bytes_per_s_max: float = 0.0  # of each body
    outage: str = ""
    fault: str = ""
    fault_below: str = "/"

    def fault_of(self, target: str) -> str:
        """The fault for an answer to ``target``."""
        return self.fault if target.startswith(self.fault_below) else ""


class Gone(Exception):
    """One of the two sides has gone, or the exchange was abandoned."""


class Relay:
    """Passes exchanges on to ``upstream``; a thread for each connection."""

    def __init__(self, upstream: tuple[str, int], log: TextIO) -> None:
        """``log`` takes the lines of what was sent."""
        self._upstream = upstream
        self._log = log
        self._changed = threading.Condition()  # guards all that follows
        self._behaviour = Behaviour()
        self._throttle = Throttle(0)
        self._counts = Counts()

    def serve(self, listener: socket.socket) -> None:
        """Accepts clients until the process ends."""
        while True:
            client, _ = listener.accept()
            threading.Thread(target=self._connection, args=(client,), daemon=True).start()

    def command(self, line: str) -> str:
        """Carries out one line of the control socket. Returns the answer."""
        asked = json.loads(line)
        with self._changed:
            if "set" in asked:
                self._behaviour = replace(self._behaviour, **asked["set"])
                self._throttle = Throttle(self._behaviour.bytes_per_s_max)
                self._changed.notify_all()
            counted = self._counts
            if asked.get("reset"):
                self._counts = Counts()
            return json.dumps(counted.as_dict())

    def _connection(self, client: socket.socket) -> None:
        upstream = socket.socket()
        pipe = os.pipe()
        try:
            for end in (client, upstream):
                _make_bounded(end)
            with suppress(OSError):
                fcntl.fcntl(pipe[0], fcntl.F_SETPIPE_SZ, PIPE_BYTES)
            upstream.connect(self._upstream)
            while self._exchange(Ends(client, upstream, pipe)):
                pass
        except (OSError, Gone, BadHttp):
            pass  # a broken connection is all that the other side is to see
        finally:
            for end in (client, upstream):
                end.close()
            for fd in pipe:
                os.close(fd)

    def _exchange(self, ends: Ends) -> bool:
        """Passes on one request and its answer. Returns whether another may follow."""
        request = receive_head(ends.client)
        if request is None:
            return False
        behaviour = self._behaviour
        if request.method not in ("GET", "HEAD"):
            ends.client.sendall(_NOT_HERE)
            return False
        if behaviour.outage == "503":
            self._count("errors", 1, 0)
            ends.client.sendall(_UNAVAILABLE)
            return True
        fault = behaviour.fault_of(request.target)
        if behaviour.outage == "blackhole" or fault == "hang":
            self._hold(ends.client)
        ends.upstream.sendall(request.raw)
        answer = receive_head(ends.upstream)
        if answer is None:
            raise Gone
        if behaviour.latency_s:
            threading.Event().wait(behaviour.latency_s)
        kind = kind_of(request.target, answer.status)
        self._count(kind, 1, 0)
        ends.client.sendall(answer.raw)
        if request.method == "HEAD" or answer.status in (204, 304) or answer.status < 200:
            return True
        sent = Sent(ends.client.getpeername()[0], kind, request.target,
                    answer.headers.get("content-range", ""))  # fmt: skip
        fault = fault if answer.status in (200, 206) else ""
        try:
            return self._body(ends, answer, sent, fault)
        finally:
            with self._changed:
                self._log.write(sent.line() + "\n")

    def _body(self, ends: Ends, answer: Head, sent: Sent, fault: str) -> bool:
        """Passes a body on, framed as it is. Returns whether the connection stays open."""
        if "chunked" in answer.headers.get("transfer-encoding", ""):
            while (size := int(line := receive_line(ends.upstream), 16)) > 0:
                ends.client.sendall(line)
                self._bytes(ends, size, sent, fault)
                ends.client.sendall(receive_line(ends.upstream))
            ends.client.sendall(line + receive_line(ends.upstream))
            return True
        length = answer.headers.get("content-length")
        if length is None:  # the body ends with the connection
            self._bytes(ends, sys.maxsize, sent, fault)
            return False
        self._bytes(ends, int(length), sent, fault)
        return answer.headers.get("connection", "").lower() != "close"

    def _bytes(self, ends: Ends, size_bytes: int, sent: Sent, fault: str) -> None:
        left = size_bytes
        own = Throttle(self._behaviour.connection_bytes_per_s_max)
        while left:
            piece = 1 if fault == "slow" else min(left, PIECE_BYTES)
            self._wait_turn(ends.client, piece, own)
            moved = _move_badly(ends, piece, fault) if fault else ends.move(piece)
            if not moved:
                if size_bytes == sys.maxsize:
                    return
                raise Gone
            self._count(sent.kind, 0, moved)
            sent.size_bytes += moved
            left -= moved
            if fault == "slow":
                self._linger(ends.client, 1.0)

    def _wait_turn(self, client: socket.socket, size_bytes: int, own: Throttle) -> None:
        """Waits until ``size_bytes`` are within the limits of the relay and its ``own``; for ever
        during an outage."""
        with self._changed:
            if self._behaviour.outage == "blackhole":
                is_out = True
                wait_s = 0.0
            else:
                is_out = False
                now_s = monotonic()
                waits_s = (one.reserve(size_bytes, now_s) for one in (self._throttle, own))
                wait_s = max(waits_s)
        if is_out:
            self._hold(client)
        if wait_s > 0:
            threading.Event().wait(wait_s)

    def _hold(self, client: socket.socket) -> None:
        """Stays silent until the behaviour changes or the client goes; then raises Gone."""
        held = self._behaviour
        while self._behaviour is held and not _is_closed(client):
            with self._changed:
                if self._behaviour is held:
                    self._changed.wait(LOOK_S)
        raise Gone

    def _linger(self, client: socket.socket, seconds: float) -> None:
        """Waits. Raises: Gone if the client goes."""
        end = monotonic() + seconds
        while (left := end - monotonic()) > 0:
            if _is_closed(client):
                raise Gone
            threading.Event().wait(min(left, LOOK_S))

    def _count(self, kind: str, requests: int, size_bytes: int) -> None:
        with self._changed:
            self._counts.add(kind, requests, size_bytes)


@dataclass(frozen=True, slots=True)
class Ends:
    """The two sockets of a connection, and the pipe between them."""

    client: socket.socket
    upstream: socket.socket
    pipe: tuple[int, int]

    def move(self, size_bytes: int) -> int:
        """Passes on up to so many bytes without looking at them; how many, 0 at the end."""
        out, into = self.pipe
        got = os.splice(self.upstream.fileno(), into, size_bytes)
        left = got
        while left:
            left -= os.splice(out, self.client.fileno(), left)
        return got


def _move_badly(ends: Ends, size_bytes: int, fault: str) -> int:
    """As ``Ends.move``; with ``flip`` one bit of what passes is wrong."""
    data = bytearray(ends.upstream.recv(size_bytes))
    if data and fault == "flip":
        data[len(data) // 2] ^= 0x10
    ends.client.sendall(data)
    return len(data)


def _make_bounded(end: socket.socket) -> None:
    """No call on the socket waits for ever. (Not settimeout: splice wants a blocking socket.)"""
    limit = struct.pack("ll", TIMEOUT_S, 0)
    end.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, limit)
    end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, limit)
    end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)


def _is_closed(client: socket.socket) -> bool:
    """Whether the other side is known to have gone."""
    readable, _, _ = select.select([client], [], [], 0)
    if not readable:
        return False
    try:
        return not client.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT)
    except OSError as error:
        return error.errno not in (errno.EAGAIN, errno.EINTR)


def _control(path: str, relay: Relay) -> None:
    """Answers at the control socket, one client after the other."""
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(path)
        listener.listen()
        while True:
            client, _ = listener.accept()
            with client, client.makefile("rw") as lines:
                for line in lines:
                    lines.write(relay.command(line) + "\n")
                    lines.flush()


def main(own: str, upstream: str, control: str, log: str) -> None:
    """Relays until the process is killed; prints ``ready`` first."""
    threading.stack_size(256 << 10)
    with (
        open(log, "a", buffering=1) as lines,
        socket.create_server(_address(own), backlog=1024) as listener,
    ):
        relay = Relay(_address(upstream), lines)
        threading.Thread(target=_control, args=(control, relay), daemon=True).start()
        while not Path(control).exists():
            threading.Event().wait(0.005)
        print("ready", flush=True)
        relay.serve(listener)


def _address(text: str) -> tuple[str, int]:
    host, _, port = text.rpartition(":")
    return host, int(port)


if __name__ == "__main__":
    main(*sys.argv[1:])
