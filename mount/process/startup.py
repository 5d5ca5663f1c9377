"""The socket between a process that asks for a mount and the process that becomes the mount.

The mount process answers on the socket when its root can be read, and waits for one byte (ACK).
Only then is the mount complete: from then on workers outlive their supervisor, and the requester
reads SETTLED. End of file instead of ACK, or no reader for SETTLED, means that nobody wants the
mount, and it unmounts itself.
"""

from __future__ import annotations

import contextlib
import os
import socket

from lodefs.chunkstore.errors import LodefsError, Unavailable
from lodefs.chunkstore.protocol import rpc
from lodefs.chunkstore.protocol.wire import failure_of
from lodefs.chunkstore.system.processes import is_over
from lodefs.mount.mount_spec import Reply

ACK, SETTLED = b"a", b"s"


class Requester:
    """The requester, as the mount process sees it.

    ``done_fd``: an eventfd (eventfd(2)) that becomes readable for all processes that have it, once
    the requester has its answer and a new mount was acknowledged.
    """

    def __init__(self, channel: socket.socket, done_fd: int) -> None:
        self._channel = channel
        self.done_fd = done_fd

    def fileno(self) -> int:
        """Returns a descriptor that is readable when the requester has acknowledged, or has
        gone."""
        return self._channel.fileno()

    def answer(self, reply: Reply) -> None:
        """Sends a reply, if the requester is still there."""
        with contextlib.suppress(OSError):
            rpc.send(self._channel, reply, flags=socket.MSG_DONTWAIT)

    def finish(self, reply: Reply) -> None:
        """Sends a reply that needs no acknowledgement."""
        self.answer(reply)
        self.done()
        self.close()

    def fail(self, error: Exception) -> None:
        """Sends an error as the reply."""
        if not isinstance(error, LodefsError):
            error = Unavailable(f"{type(error).__name__}: {error}")
        self.finish(Reply(failure=failure_of(error)))

    def acknowledged(self) -> bool:
        """Whether an acknowledgement has made the socket readable."""
        try:
            return self._channel.recv(len(ACK)) == ACK
        except OSError:
            return False

    def done(self) -> None:
        """Makes ``done_fd`` readable."""
        os.eventfd_write(self.done_fd, 1)

    def settle(self) -> bool:
        """Tells the requester that its acknowledgement has arrived; False if it has gone."""
        try:
            self._channel.send(SETTLED, socket.MSG_DONTWAIT)
        except OSError:
            return False
        finally:
            self.close()
        return True

    def close(self) -> None:
        """Closes this end of the socket."""
        self._channel.close()


def acknowledge(channel: socket.socket) -> bool:
    """Acknowledges a mount that is ready, on the requester's end. Returns whether it stays.

    Raises: TimeoutError, by the socket's time limit.
    """
    try:
        channel.send(ACK)
        return channel.recv(len(SETTLED)) == SETTLED
    except TimeoutError:
        raise
    except OSError:
        return False


def withdraw(channel: socket.socket) -> bool:
    """Stops waiting for a mount, on the requester's end. Returns whether the mount had settled. A
    mount that has not settled never will, and unmounts itself."""
    with contextlib.suppress(OSError):
        channel.shutdown(socket.SHUT_RDWR)
        while data := channel.recv(rpc.PACKET_BYTES_MAX):
            if data == SETTLED:
                return True
    return False


def is_done(done_fd: int) -> bool:
    """Whether an eventfd is readable."""
    return is_over(done_fd)


def new_done_fd(*, done: bool = False) -> int:
    """Returns an eventfd for a Requester, or one that is readable from the start."""
    return os.eventfd(int(done), os.EFD_CLOEXEC | os.EFD_NONBLOCK)
