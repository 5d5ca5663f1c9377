"""A kernel for tests without FUSE: speaks the protocol over a socket pair."""

from __future__ import annotations

import socket
from threading import Lock

from lodefs.mount.kernel import fuse_abi

ANSWER_BYTES_MAX = 2 << 20
TIMEOUT_S = 60


class FakeKernel:
    """Sends requests to ``device``, which stands for /dev/fuse, and receives answers."""

    def __init__(self) -> None:
        self._socket, self._theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        for end in (self._socket, self._theirs):
            end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, ANSWER_BYTES_MAX)
        self._socket.settimeout(TIMEOUT_S)
        self._unique = 0
        self._lock = Lock()

    @property
    def device(self) -> int:
        """The descriptor to serve."""
        return self._theirs.fileno()

    def end(self) -> None:
        """Unmount, as ``close``, while answers may still come."""
        self._socket.shutdown(socket.SHUT_WR)

    def close(self) -> None:
        """Unmount: whoever waits on the device reads nothing."""
        self._socket.close()

    def release(self) -> None:
        """Close the served descriptor; nobody may wait on it any more."""
        self._theirs.close()

    def send(self, opcode: int, node: int, body: bytes = b"") -> int:
        """Send a request; its unique number."""
        with self._lock:
            self._unique += 2
            unique = self._unique
        self.repeat(unique, opcode, node, body)
        return unique

    def repeat(self, unique: int, opcode: int, node: int, body: bytes = b"") -> None:
        """Send a request with a given number."""
        size = fuse_abi.IN_HEADER_BYTES + len(body)
        header = fuse_abi.IN_HEADER.pack(size, opcode, unique, node, 0, 0, 1, 0, 0)
        self._socket.send(header + body)

    def receive(self) -> tuple[int, int, bytes]:
        """The next message: unique number, errno (0: success) or code of a notification, body."""
        message = self._socket.recv(ANSWER_BYTES_MAX)
        size, error, unique = fuse_abi.OUT_HEADER.unpack_from(message)
        if size != len(message):
            raise AssertionError(f"a message of {len(message)} bytes says it has {size}")
        return unique, (-error if unique else error), message[fuse_abi.OUT_HEADER_BYTES :]

    def ask(self, opcode: int, node: int, body: bytes = b"") -> tuple[int, bytes]:
        """Send a request and wait for its answer, which must be the next: errno and body."""
        unique = self.send(opcode, node, body)
        answered, error, reply = self.receive()
        if answered != unique:
            raise AssertionError(f"request {unique} was answered as {answered}")
        return error, reply
