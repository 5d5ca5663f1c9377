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
# The connection was unmounted (ENODEV) or aborted (ECONNABORTED); nothing comes any more.
_ENDED = frozenset({errno.ENODEV, errno.ECONNABORTED})
# The request was taken back before it was read, or there is none now.
_AGAIN = frozenset({errno.ENOENT, errno.EAGAIN, errno.EINTR})


def open_device() -> int:
    """A new descriptor of /dev/fuse. Unsupported without FUSE, Denied without the right to it."""
    try:
        fd = os.open(PATH, os.O_RDWR | os.O_CLOEXEC)
    except PermissionError as error:
        raise Denied(
            f"{PATH} may not be opened: {error.strerror}; users can mount where it has mode 0666, "
            "as udev makes it: ask your administrator (`lodefs doctor` tells more)"
        ) from error
    except OSError as error:
        raise Unsupported(f"{PATH}: {error.strerror}; is the fuse module loaded?") from error
    if os.fstat(fd).st_rdev != NUMBER:
        os.close(fd)
        raise Unsupported(f"{PATH}: it is another device; is the fuse module loaded?")
    return fd


def check_device() -> None:
    """Raises: Unsupported without FUSE, Denied without the right to it."""
    os.close(open_device())


def open_clone(device: int) -> int:
    """Another descriptor of a mounted connection (FUSE_DEV_IOC_CLONE).

    A request belongs to the descriptor that it was read from. Unsupported, Denied.
    """
    fd = open_device()
    try:
        fcntl.ioctl(fd, fuse_abi.IOC_CLONE, struct.pack("=I", device))
    except OSError as error:
        os.close(fd)
        raise Unsupported(f"{PATH} cannot be cloned: {error.strerror}") from error
    return fd


def is_readable(device: int) -> bool:
    """Whether there is something to read, the end of the connection too."""
    poll = select.poll()
    poll.register(device, select.POLLIN)
    return bool(poll.poll(0))


def read_request(device: int, buffer: bytearray | memoryview) -> int | None:
    """The size of the next message, now in ``buffer``; None once the connection has ended."""
    while True:
        try:
            return os.readv(device, [buffer]) or None
        except OSError as error:
            if error.errno in _ENDED:
                return None
            if error.errno not in _AGAIN:
                raise


def write_answer(device: int, header: bytes, body: Buffer) -> None:
    """Answer a request. One that nobody waits for any more (interrupted, sent again) is no error.

    An answer that the kernel refuses as malformed becomes EIO: its reader must not wait forever.
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
    """Answer the next request with EIO; False where none waits, or the connection has ended."""
    buffer = bytearray(fuse_abi.REQUEST_BYTES_MIN + 4096)
    size = read_request(device, buffer) if is_readable(device) else None
    if size is None:
        return False
    _, opcode, unique, *_ = fuse_abi.IN_HEADER.unpack_from(buffer)
    if opcode not in fuse_abi.UNANSWERED:
        write_answer(device, fuse_abi.failure(unique, errno.EIO), b"")
    return True


def open_backing(device: int, fd: int) -> int:
    """Let the kernel read the file ``fd`` for a file of the mount: its id. OSError.

    ``fd`` may be closed then, and the file unlinked.
    """
    request = bytearray(fuse_abi.BACKING_MAP.pack(fd, 0, 0))
    return int(fcntl.ioctl(device, fuse_abi.IOC_BACKING_OPEN, request))


def close_backing(device: int, backing: int) -> None:
    """Give up the id of a backing file; files that are open with it can be read on."""
    with contextlib.suppress(OSError):  # the connection has ended, or is about to
        fcntl.ioctl(device, fuse_abi.IOC_BACKING_CLOSE, struct.pack("=I", backing))


def handshake(
    device: int, *, passthrough: bool = False, without: frozenset[Feature] = frozenset()
) -> Session:
    """Answer INIT, which must be the first message. Unsupported for a kernel that is too old.

    ``passthrough``: ask for it, where the kernel offers it. ``without``: as of ``negotiate``.
    """
    buffer = bytearray(fuse_abi.REQUEST_BYTES_MIN)
    size = read_request(device, buffer)
    if size is None:
        raise Unsupported("the mount ended before it began")
    _, opcode, unique, *_ = fuse_abi.IN_HEADER.unpack_from(buffer)
    if opcode != fuse_abi.Opcode.INIT:
        raise Unsupported(f"the kernel began with request {opcode}, not with INIT")
    offer = fuse_abi.decode_init(buffer[fuse_abi.IN_HEADER_BYTES : size])
    out, session = negotiate(offer, passthrough=passthrough, without=without)
    body = fuse_abi.encode_init(out)
    write_answer(
        device, fuse_abi.OUT_HEADER.pack(fuse_abi.OUT_HEADER_BYTES + len(body), 0, unique), body
    )
    return session


def notify(device: int, code: int) -> bool:
    """Send a notification without a body; False where the connection has ended or refuses it."""
    try:
        os.write(device, fuse_abi.notification(code))
    except OSError:
        return False
    return True


def store(device: int, node: int, first: int, data: Buffer) -> bool:
    """Put bytes of a file into the kernel's page cache (FUSE_NOTIFY_STORE); False where it does
    not know the node, has no room, or the connection has ended.

    It waits, and cannot be killed meanwhile, for pages that are just being read.
    """
    try:
        os.writev(device, [fuse_abi.store(node, first, len(data)), data])
    except OSError:
        return False
    return True
