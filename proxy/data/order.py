"""What the proxy and a data process say to each other, over a socket for each of its threads.

A message is its length (u32, little-endian) and a MessagePack array. An order comes with open
files (SCM_RIGHTS, unix(7)): first the one to read from, if it is no HTTP order, then those to
write to. Both ends are of one version of lodefs: they are one program.
"""

from __future__ import annotations

import fcntl
import os
import socket
from collections.abc import Sequence
from contextlib import suppress
from typing import NamedTuple, TypeVar

import msgspec

from lodefs.chunkstore.format.decoding import msgpack_decoder
from lodefs.chunkstore.objects.range_order import HttpOrder

HEAD_SIZE_BYTES = 4
MESSAGE_SIZE_BYTES_MAX = 64 * 1024 * 1024
FILES_MAX = 32  # of one order; the kernel takes 253

READY = b"r"  # of a process that has started, on its control socket
PING = b"?"  # answered by PONG
PONG = b"!"
STUCK = b"~"  # instead of PONG: the disk keeps a write

DONE = "done"
WRONG = "wrong"  # ``number`` is the first chunk that is not what its id says
CHANGED = "changed"  # the pack was written again
HARMED = "harmed"  # the file ``number`` to write to was cut or removed: nothing in it is sure
SLOW = "slow"  # the disk to write to does not keep up
FAILED = "failed"  # anything else: not done, and perhaps done elsewhere

T = TypeVar("T")


class WriteTarget(msgspec.Struct, frozen=True, array_like=True):
    """Where the raw bytes of chunks [first, end) of an order go, one after the other: from
    ``offset`` of the file ``file`` on, counted among those to write to."""

    first: int
    end: int
    file: int
    offset: int


class FetchOrder(msgspec.Struct, frozen=True, array_like=True):
    """Consecutive chunks of a pack: where to read them (None: from ``offset`` of the file that
    comes first), what they are (ids; sizes as arrays of u32; codecs), and where to write them:
    to files that are at least so long (``lengths_bytes``), unless somebody cut them."""

    http: HttpOrder | None
    offset: int
    ids: bytes
    stored_sizes: bytes
    raw_sizes: bytes
    codecs: bytes
    targets: tuple[WriteTarget, ...]
    lengths_bytes: tuple[int, ...]


class FetchReport(msgspec.Struct, frozen=True, array_like=True):
    """What became of an order. ``received_bytes``, as stored, took ``seconds`` to come."""

    outcome: str
    number: int = 0
    why: str = ""
    received_bytes: int = 0
    seconds: float = 0.0


class Message(NamedTuple):
    """Bytes, and the descriptors that came with them."""

    data: bytearray
    fds: list[int]


def encode(message: msgspec.Struct) -> bytes:
    """A message with its length."""
    data = msgspec.msgpack.encode(message)
    return len(data).to_bytes(HEAD_SIZE_BYTES, "little") + data


def send(sock: socket.socket, data: bytes, fds: Sequence[int] = ()) -> None:
    """Sends an encoded message. Raises: OSError."""
    sent = socket.send_fds(sock, [data], fds) if fds else sock.send(data)
    if sent < len(data):
        sock.sendall(memoryview(data)[sent:])


def receive(sock: socket.socket) -> Message:
    """The next message. Raises: EOFError if there is none any more; OSError, with every descriptor
    closed, also if the process may open no more."""
    head, fds, flags, _ = socket.recv_fds(sock, HEAD_SIZE_BYTES, FILES_MAX)
    try:
        while 0 < len(head) < HEAD_SIZE_BYTES and (more := sock.recv(HEAD_SIZE_BYTES - len(head))):
            head += more
        if len(head) < HEAD_SIZE_BYTES:
            raise EOFError("the other end is closed")
        size_bytes = int.from_bytes(head, "little")
        if size_bytes > MESSAGE_SIZE_BYTES_MAX:
            raise EOFError(f"a message of {size_bytes} bytes is none")
        data = bytearray(size_bytes)
        view = memoryview(data)
        while view:
            count = sock.recv_into(view)
            if not count:
                raise EOFError("the other end was closed within a message")
            view = view[count:]
        if flags & socket.MSG_CTRUNC:
            raise OSError("no more files can be opened")
    except BaseException:
        close_all(fds)
        raise
    for fd in fds:
        fcntl.fcntl(fd, fcntl.F_SETFD, fcntl.FD_CLOEXEC)
    return Message(data, list(fds))


def decode(data: bytearray, kind: type[T]) -> T:
    """The message. Raises: msgspec.MsgspecError."""
    return msgpack_decoder(kind).decode(data)


def close_all(fds: Sequence[int]) -> None:
    """Closes descriptors."""
    for fd in fds:
        with suppress(OSError):
            os.close(fd)
