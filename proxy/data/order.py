"""What the proxy and a data process say to each other, over a socket for each of its threads.

Packets (chunkstore.protocol.rpc) of MessagePack arrays. An order comes with open files: first the
one to read from, if it is no HTTP order, then those to write to. Both ends are of one version of
lodefs: they are one program.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager

import msgspec

from lodefs.chunkstore.format.decoding import msgpack_decoder
from lodefs.chunkstore.objects.range_order import HttpOrder
from lodefs.chunkstore.protocol import rpc

FILES_MAX = 32  # of one order; the kernel takes 253

READY = b"r"  # of a process that has started, on its control socket
PING = b"?"  # answered by PONG
PONG = b"!"
STUCK = b"~"  # instead of PONG: the disk keeps a write

DONE = "done"
WRONG = "wrong"  # ``number`` is the first chunk that is not what its id says
CHANGED = "changed"  # the pack was written again
DAMAGED = "harmed"  # the file ``number`` to write to was cut or removed: nothing in it is sure
SLOW = "slow"  # the disk to write to does not keep up
FAILED = "failed"  # anything else: not done, and perhaps done elsewhere


class WriteTarget(msgspec.Struct, frozen=True, array_like=True):
    """Where the raw bytes of chunks [first, end) of an order go, one after the other: from
    ``offset`` of the file ``file`` on, counted among those to write to."""

    first: int
    end: int
    file: int
    offset: int


class FetchTask(msgspec.Struct, frozen=True, array_like=True, tag="fetch"):
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


class LongOrder(msgspec.Struct, frozen=True, array_like=True, tag="long"):
    """A FetchTask too long for a packet lies in the memory file that is the first descriptor."""


@contextmanager
def packed(order: FetchTask) -> Iterator[tuple[bytes, list[int]]]:
    """A packet for an order, and the descriptors that are to come first with it, within the block.
    Raises: OSError."""
    data = msgspec.msgpack.encode(order)
    if len(data) <= rpc.PACKET_BYTES_MAX:
        yield data, []
        return
    with os.fdopen(os.memfd_create("lodefs-order", os.MFD_CLOEXEC), "wb") as memory:
        memory.write(data)
        memory.flush()
        yield msgspec.msgpack.encode(LongOrder()), [memory.fileno()]


def receive(sock: socket.socket) -> tuple[FetchTask, list[int]]:
    """The next order, and its files. Raises: ConnectionError if there is none any more; OSError,
    msgspec.MsgspecError, with every descriptor closed."""
    data, fds = rpc.receive(sock, fds_max=FILES_MAX + 1)
    try:
        order = _decoder.decode(data)
        if isinstance(order, FetchTask):
            return order, fds
        with os.fdopen(fds.pop(0), "rb") as memory:
            memory.seek(0)
            return msgpack_decoder(FetchTask).decode(memory.read()), fds
    except BaseException:
        rpc.close_all(fds)
        raise


_decoder = msgpack_decoder(FetchTask | LongOrder)
