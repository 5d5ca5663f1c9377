"""The messages between the proxy and a data process, over a socket for each of its threads.

Packets (chunkstore.protocol.rpc) are MessagePack arrays. An order comes with open files: first the
one to read from, unless it is an HTTP order, then those to write to. Both ends run the same version
of lodefs, since they are one program.
"""

from __future__ import annotations

import os
import socket
from array import array
from collections.abc import Iterator
from contextlib import contextmanager

import msgspec

from lodefs.chunkstore.format.decoding import msgpack_decoder
from lodefs.chunkstore.format.pack import PackIndex
from lodefs.chunkstore.objects.ranges.order import HttpOrder
from lodefs.chunkstore.protocol import rpc

FILES_MAX = 32  # in one order; the kernel accepts 253

READY = b"r"  # a process sends it on its control socket once it has started
PING = b"?"  # PONG is the answer
PONG = b"!"
STUCK = b"~"  # instead of PONG: a write to the disk is stuck

DONE = "done"
WRONG = "wrong"  # ``number`` is the first chunk that does not match its id
CHANGED = "changed"  # the pack was rewritten
DAMAGED = "harmed"  # the target file ``number`` was truncated or removed: nothing in it is certain
SLOW = "slow"  # the target's disk does not keep up
FAILED = "failed"  # anything else: not done; another way may work


class WriteTarget(msgspec.Struct, frozen=True, array_like=True):
    """The destination of the raw bytes of chunks [first, end) of an order, one after the other:
    from ``offset`` on in the target file with the number ``file``."""

    first: int
    end: int
    file: int
    offset: int


class FetchTask(msgspec.Struct, frozen=True, array_like=True, tag="fetch"):
    """Consecutive chunks of a pack: where to read them (None: from ``offset`` of the first file),
    their columns of the pack's index (sizes are arrays of u32), and where to write them: to files
    with at least ``lengths_bytes``, unless somebody truncated them."""

    http: HttpOrder | None
    offset: int
    ids: bytes
    stored_sizes: bytes
    raw_sizes: bytes
    codecs: bytes
    targets: tuple[WriteTarget, ...]
    lengths_bytes: tuple[int, ...]

    def index(self) -> PackIndex:
        """Returns the index of a pack of these chunks alone."""
        stored_sizes, raw_sizes = array("I", self.stored_sizes), array("I", self.raw_sizes)
        return PackIndex(self.ids, raw_sizes, stored_sizes, self.codecs)


class FetchReport(msgspec.Struct, frozen=True, array_like=True):
    """The result of an order. ``received_bytes``, as stored, took ``seconds`` to arrive."""

    outcome: str
    number: int = 0
    why: str = ""
    received_bytes: int = 0
    seconds: float = 0.0


class LongOrder(msgspec.Struct, frozen=True, array_like=True, tag="long"):
    """A FetchTask that is too long for a packet. It is in the memory file of the first
    descriptor."""


@contextmanager
def packed(order: FetchTask) -> Iterator[tuple[bytes, list[int]]]:
    """Yields, for a block, a packet for an order, and the descriptors that must come first with it.
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
    """Returns the next order, and its files. Raises: ConnectionError if there are no more; OSError,
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
