"""Calls between processes of one machine: packets over Unix sockets (unix(7), SOCK_SEQPACKET).

A packet is one message, with descriptors (SCM_RIGHTS): a structure in MessagePack, or a tagged
union of several. The answer to a call has a ``failure``, which names the error to raise. The kernel
tells who is at the other end (system.sockets.peer_of).
"""

from __future__ import annotations

import errno
import os
import socket
import threading
from array import array
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple, Protocol, TypeVar

import msgspec

from lodefs.chunkstore.errors import InvalidInput, UnknownFormat
from lodefs.chunkstore.format.decoding import from_msgpack
from lodefs.chunkstore.protocol.wire import Failure, error_of
from lodefs.chunkstore.system.sockets import Peer, listen_unix, peer_of

PACKET_BYTES_MAX = 131072  # a little less than a socket takes at once (net.core.wmem_default)
CONNECTIONS_MAX = 256
ACCEPT_PAUSE_S = 0.1  # after an error
_FD_BYTES = 4


class Answer(Protocol):
    """The answer to any call."""

    @property
    def failure(self) -> Failure | None:
        """The reason of a failure, or None."""
        ...


T = TypeVar("T", bound=Answer)


class Packet(NamedTuple):
    """A message and its descriptors, which the receiver must close."""

    data: bytes
    fds: list[int]


def send(
    sock: socket.socket, message: msgspec.Struct | bytes, fds: Sequence[int] = (), flags: int = 0
) -> None:
    """Sends a message, or its bytes. Raises: InvalidInput if it does not fit into a packet;
    OSError."""
    data = message if isinstance(message, bytes) else msgspec.msgpack.encode(message)
    if len(data) > PACKET_BYTES_MAX:
        raise InvalidInput(f"a message of {len(data)} bytes is too long")
    if fds:
        socket.send_fds(sock, [data], fds, flags)
    else:
        sock.send(data, flags)


def receive(sock: socket.socket, bytes_max: int = PACKET_BYTES_MAX, fds_max: int = 0) -> Packet:
    """Receives the next packet, cut to ``bytes_max``. The kernel closes descriptors beyond
    ``fds_max``.

    Raises: ConnectionError if no more will come; OSError, also if this process cannot open all
    descriptors: then none stays open.
    """
    # socket.recv_fds (Python 3.11) ignores its flags, so child processes would inherit descriptors
    room = socket.CMSG_LEN(fds_max * _FD_BYTES) if fds_max else 0
    data, control, flags, _ = sock.recvmsg(bytes_max, room, socket.MSG_CMSG_CLOEXEC)
    fds = array("i")
    for _, _, rights in control:  # always SCM_RIGHTS
        fds.frombytes(rights[: len(rights) // _FD_BYTES * _FD_BYTES])
    if fds_max and flags & socket.MSG_CTRUNC:
        close_all(fds)
        why = "not all descriptors came; is the limit on open files too low?"
        raise OSError(errno.EMFILE, why)
    if not data and not fds:
        raise ConnectionResetError("the other process has ended")
    return Packet(data, list(fds))


def connect(path: Path, timeout_s: float) -> socket.socket:
    """Connects. Each later step takes at most ``timeout_s``. Raises: OSError."""
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    try:
        sock.settimeout(timeout_s)
        sock.connect(os.fsencode(path))
    except BaseException:
        sock.close()
        raise
    return sock


def ask(
    sock: socket.socket,
    call: msgspec.Struct | bytes,
    kind: type[T],
    *,
    bytes_max: int = PACKET_BYTES_MAX,
    fds_max: int = 0,
) -> tuple[T, list[int]]:
    """Returns the answer to a call, and its descriptors.

    Raises: the error that the answer names; UnknownFormat if it cannot be read; what ``receive``
    raises.
    """
    with suppress(BrokenPipeError):  # a busy server answers without reading the call
        send(sock, call)
    packet = receive(sock, bytes_max, fds_max)
    try:
        answer = from_msgpack(packet.data, kind)
        failure = None if answer.failure is None else error_of(answer.failure)
    except InvalidInput as error:
        failure = UnknownFormat(f"an answer cannot be read: {error}")
    if failure is not None:
        close_all(packet.fds)
        raise failure
    return answer, packet.fds


def close_all(fds: Sequence[int]) -> None:
    """Closes descriptors."""
    for fd in fds:
        with suppress(OSError):
            os.close(fd)


def listen(
    path: Path, *, replace: bool, mode: int = 0o600, gid: int | None = None
) -> socket.socket:
    """Returns a socket for a PacketServer, as listen_unix does."""
    return listen_unix(
        path, mode=mode, group=gid, kind=socket.SOCK_SEQPACKET, backlog=CONNECTIONS_MAX,
        replace=replace,
    )  # fmt: skip


class PacketServer:
    """Serves each connection of a listening socket in a thread of its own."""

    def __init__(
        self,
        listener: socket.socket,
        serve: Callable[[socket.socket, Peer], None],
        *,
        user_connections_max: int = CONNECTIONS_MAX,
        busy: bytes = b"",
    ) -> None:
        """``serve`` is called with a connection, which is closed when it returns or raises OSError.
        ``busy`` is sent to clients that connect while CONNECTIONS_MAX connections, or
        ``user_connections_max`` of their user, are being served; b"" makes them wait."""
        self._listener = listener
        self._serve = serve
        self._user_connections_max = user_connections_max
        self._busy = busy
        self._ended = threading.Event()
        self._changed = threading.Condition()  # guards the fields below
        self._connections: Counter[int] = Counter()  # by user
        self._thread = threading.Thread(target=self._accept, name="lodefs-accept", daemon=True)

    def start(self) -> None:
        """Begins to serve."""
        self._listener.settimeout(None)
        self._thread.start()

    def stop(self) -> None:
        """Stops taking connections. Those that are being served continue."""
        self._ended.set()
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()

    def is_ending(self, timeout_s: float = 0) -> bool:
        """Whether it was stopped; waits for that for at most ``timeout_s``."""
        return self._ended.wait(timeout_s)

    def wait_idle(self, timeout_s: float, connections: int = 0) -> bool:
        """Waits until at most ``connections`` are being served. Returns False if more still are."""
        with self._changed:
            return self._changed.wait_for(
                lambda: self._connections.total() <= connections, timeout_s
            )

    def _accept(self) -> None:
        while not self._ended.is_set():
            try:
                client, _ = self._listener.accept()
            except OSError:
                self._ended.wait(ACCEPT_PAUSE_S)  # perhaps out of descriptors
                continue
            try:
                self._begin(client)
            except (OSError, RuntimeError):  # out of threads: the other side tries again
                client.close()

    def _begin(self, client: socket.socket) -> None:
        peer = peer_of(client)
        with self._changed:
            if self._busy and self._is_full(peer.uid):
                _refuse(client, self._busy)
                return
            self._changed.wait_for(lambda: not self._is_full(peer.uid))
            self._connections[peer.uid] += 1
        try:
            threading.Thread(target=self._run, args=(client, peer), daemon=True).start()
        except RuntimeError:
            self._done(peer.uid)
            raise

    def _is_full(self, uid: int) -> bool:
        return (
            self._connections.total() >= CONNECTIONS_MAX
            or self._connections[uid] >= self._user_connections_max
        )

    def _run(self, client: socket.socket, peer: Peer) -> None:
        try:
            with client, suppress(OSError):
                self._serve(client, peer)
        finally:
            self._done(peer.uid)

    def _done(self, uid: int) -> None:
        with self._changed:
            self._connections[uid] -= 1
            if not self._connections[uid]:
                del self._connections[uid]
            self._changed.notify_all()


def _refuse(client: socket.socket, busy: bytes) -> None:
    """Sends the busy answer. It first reads the call, since closing a socket with unread data would
    drop the answer (ECONNRESET)."""
    with client:
        client.settimeout(0)
        client.shutdown(socket.SHUT_RD)
        with suppress(BlockingIOError):
            while client.recv(PACKET_BYTES_MAX):
                pass
        client.send(busy)
