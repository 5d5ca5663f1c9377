"""/dev/fuse: opening, cloning, reading requests and writing answers. One call, one message."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import select
import struct

from lodefs.chunkstore.errors import Denied, Unsupported
from lodefs.chunkstore.types import Buffer
from lodefs.mount.kernel import fuse_abi
from lodefs.mount.kernel.features import Feature
from lodefs.mount.kernel.session import Session, negotiate

PATH = "/dev/fuse"
NUMBER = os.makedev(10, 229)  # devices.txt of the kernel
# The connection was unmounted (ENODEV) or aborted (ECONNABORTED): there are no more messages.
_ENDED = frozenset({errno.ENODEV, errno.ECONNABORTED})
# The request was taken back before it was read, or there is none now.
_AGAIN = frozenset({errno.ENOENT, errno.EAGAIN, errno.EINTR})


def open_device() -> int:
    """Returns a new descriptor of /dev/fuse. Raises: Unsupported without FUSE, Denied without the
    right."""
    try:
        fd = os.open(PATH, os.O_RDWR | os.O_CLOEXEC)
    except PermissionError as error:
        raise Denied(
            f"{PATH} cannot be opened: {error.strerror}; users can mount if it has mode 0666, "
            "as udev creates it: ask your administrator (`lodefs doctor` says more)"
        ) from error
    except OSError as error:
        raise Unsupported(f"{PATH}: {error.strerror}; load the module: modprobe fuse") from error
    if os.fstat(fd).st_rdev != NUMBER:
        os.close(fd)
        raise Unsupported(f"{PATH}: it is another device; load the module: modprobe fuse")
    return fd


def check_device() -> None:
    """Raises: Unsupported without FUSE, Denied without the right to open it."""
    os.close(open_device())


def open_clone(device: int) -> int:
    """Opens another descriptor of a mounted connection (FUSE_DEV_IOC_CLONE).

    A request belongs to the descriptor that it was read from. Raises: Unsupported, Denied.
    """
    fd = open_device()
    try:
        fcntl.ioctl(fd, fuse_abi.IOC_CLONE, struct.pack("=I", device))
    except OSError as error:
        os.close(fd)
        raise Unsupported(f"{PATH} cannot be cloned: {error.strerror}") from error
    return fd


def is_readable(device: int) -> bool:
    """Whether there is something to read; the end of the connection counts, too."""
    poll = select.poll()
    poll.register(device, select.POLLIN)
    return bool(poll.poll(0))


def read_request(device: int, buffer: bytearray | memoryview) -> int | None:
    """Reads the next message into ``buffer``. Returns its size; None at the end of the
    connection."""
    while True:
        try:
            return os.readv(device, [buffer]) or None
        except OSError as error:
            if error.errno in _ENDED:
                return None
            if error.errno not in _AGAIN:
                raise


class Requests:
    """The requests of a connection, for the threads of one process, one thread at a time.

    Processes that wait in readv(2) get requests in turns. So each would run with cold caches of the
    processor, and would not know what another one has just looked up. Of the processes that wait in
    epoll(7), the kernel wakes the one that registered first: always the same one while that is
    idle.
    """

    def __init__(self, device: int) -> None:
        self._device = device
        self._epoll = select.epoll()
        self._epoll.register(device, select.EPOLLIN | select.EPOLLEXCLUSIVE)

    def fileno(self) -> int:
        """Returns the descriptor that the process waits for."""
        return self._epoll.fileno()

    def read(self, buffer: bytearray | memoryview) -> int | None:
        """Waits for the next message and reads it, as ``read_request`` does."""
        self._epoll.poll(-1, 1)
        return read_request(self._device, buffer)


def write_answer(device: int, header: bytes, body: Buffer) -> None:
    """Answers a request. It is no error if nobody waits for it (interrupted, or sent again).

    If the kernel rejects an answer as malformed, sends EIO: the reader must not wait for ever.
    """
    try:
        os.writev(device, [header, body])
    except OSError as error:
        if error.errno == errno.ENOENT or error.errno in _ENDED:
            return
        _, _, unique = fuse_abi.OUT_HEADER.unpack(header)
        try:
            os.write(device, fuse_abi.failure(unique, errno.EIO))
        except OSError as again:
            if again.errno != errno.ENOENT and again.errno not in _ENDED:
                raise


def fail_request(device: int) -> bool:
    """Answers the next request with EIO; False if none waits, or the connection has ended."""
    buffer = bytearray(fuse_abi.REQUEST_BYTES_MIN + 4096)
    size = read_request(device, buffer) if is_readable(device) else None
    if size is None:
        return False
    _, opcode, unique, *_ = fuse_abi.IN_HEADER.unpack_from(buffer)
    if opcode not in fuse_abi.UNANSWERED:
        write_answer(device, fuse_abi.failure(unique, errno.EIO), b"")
    return True


def open_backing(device: int, fd: int) -> int:
    """Lets the kernel read the file ``fd`` for a file of the mount. Returns an id. Raises: OSError.

    Afterwards ``fd`` may be closed, and the file unlinked.
    """
    request = bytearray(fuse_abi.BACKING_MAP.pack(fd, 0, 0))
    return int(fcntl.ioctl(device, fuse_abi.IOC_BACKING_OPEN, request))


def close_backing(device: int, backing: int) -> None:
    """Gives up the id of a backing file; files that are open with it stay readable."""
    with contextlib.suppress(OSError):  # the connection has ended, or is ending
        fcntl.ioctl(device, fuse_abi.IOC_BACKING_CLOSE, struct.pack("=I", backing))


def handshake(
    device: int, *, passthrough: bool = False, without: frozenset[Feature] = frozenset()
) -> Session:
    """Answers INIT, which must be the first message. Raises: Unsupported for an old kernel.

    ``passthrough``: ask for it, if the kernel offers it. ``without``: as for ``negotiate``.
    """
    buffer = bytearray(fuse_abi.REQUEST_BYTES_MIN)
    size = read_request(device, buffer)
    if size is None:
        raise Unsupported("the mount ended before it began")
    _, opcode, unique, *_ = fuse_abi.IN_HEADER.unpack_from(buffer)
    if opcode != fuse_abi.Opcode.INIT:
        raise Unsupported(f"the first request of the kernel was {opcode}, not INIT")
    offer = fuse_abi.decode_init(buffer[fuse_abi.IN_HEADER_BYTES : size])
    out, session = negotiate(offer, passthrough=passthrough, without=without)
    body = fuse_abi.encode_init(out)
    write_answer(
        device, fuse_abi.OUT_HEADER.pack(fuse_abi.OUT_HEADER_BYTES + len(body), 0, unique), body
    )
    return session


def notify(device: int, code: int) -> bool:
    """Sends a notification without a body; False if the connection has ended or refuses it."""
    try:
        os.write(device, fuse_abi.notification(code))
    except OSError:
        return False
    return True


def store(device: int, node: int, first: int, data: Buffer) -> bool:
    """Puts bytes of a file into the kernel's page cache (FUSE_NOTIFY_STORE). False if the kernel
    does not know the node, has no room, or the connection has ended.

    It waits, and cannot be killed meanwhile, for pages that are being read.
    """
    try:
        os.writev(device, [fuse_abi.store(node, first, len(data)), data])
    except OSError:
        return False
    return True
