"""Requests to a server, each within its time: options, connections that other threads can end, and
errors that say how far a request came. All stores that are asked over HTTP use them."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from lodefs.chunkstore.errors import DeadlineExceeded, LodefsError, Unavailable
from lodefs.chunkstore.objects.ranges.transport import closer, is_plain
from lodefs.chunkstore.system.systemd.watchdog import Transfer, Watchdog
from lodefs.chunkstore.types import Buffer

ANSWER_SIZE_BYTES_MAX = 4 * 1024 * 1024  # a listing of 1000 keys of 1024 bytes, twice escaped
SEND_SIZE_BYTES = 1024 * 1024  # in one call; taking the GIL for each 16 KiB is slow
TLS_SEND_SIZE_BYTES = 128 * 1024  # TLS applies one timeout to all bytes of a call


@dataclass(frozen=True, slots=True)
class HttpOptions:
    """The options for reaching a server."""

    connections_max: int = 32
    connect_timeout_s: float = 10.0
    read_timeout_s: float = 30.0  # maximum time without a byte
    transfer_timeout_s: float = 120.0  # for a whole request and its answer
    first_timeout_s: float | None = None  # until anything has answered; None: transfer_timeout_s
    rate_bytes_s_min: float | None = None  # a slower answer is given up

    def answer_s(self, size_bytes: int) -> float:
        """Returns how long an answer of ``size_bytes`` may take."""
        if self.rate_bytes_s_min is None:
            return self.transfer_timeout_s
        least_s = self.read_timeout_s + size_bytes / self.rate_bytes_s_min
        return min(least_s, self.transfer_timeout_s)


class ThreadTransfer(threading.local):
    """The current request of one thread."""

    def __init__(self) -> None:
        self.transfer: Transfer | None = None  # receives the function that closes the connection


class TimedRequests:
    """Runs requests to one server within their time. For any thread."""

    def __init__(
        self,
        options: HttpOptions,
        current: ThreadTransfer,
        translated: Callable[[Exception, str], Exception],
        is_answer: Callable[[Exception], bool],
        check: str,
    ) -> None:
        """``translated`` returns the error of lodefs for one of the client's, given what failed;
        ``is_answer`` tells if the client's error is an answer of the server; ``check`` says what to
        check if there is none."""
        self._options = options
        self._current = current
        self._translated = translated
        self._is_answer = is_answer
        self._check = check
        self._watchdog = Watchdog(options.transfer_timeout_s)
        self.is_reached = False  # True once the server answers, even with an error

    @contextmanager
    def operation(self, what: str, answer_bytes: int | None = None) -> Iterator[Transfer]:
        """Runs one request within its time, and translates its errors. ``answer_bytes`` is the size
        of the answer, if the time depends on it."""
        timeout_s = None if self.is_reached else self._options.first_timeout_s
        if answer_bytes is not None:
            usual_s = self._options.answer_s(answer_bytes)
            timeout_s = usual_s if timeout_s is None else min(timeout_s, usual_s)
        with self._watchdog.watch(timeout_s) as transfer:
            self._current.transfer = transfer
            try:
                yield transfer
                if transfer.expired:  # http.client accepts a truncated head
                    raise TimeoutError
                self.is_reached = True
            except Exception as error:
                if isinstance(error, LodefsError) and not transfer.expired:
                    raise
                raise self._failure(error, what, is_late=transfer.expired) from error
            finally:
                self._current.transfer = None

    def close(self) -> None:
        """Ends the thread that watches the requests."""
        self._watchdog.close()

    def _failure(self, error: Exception, what: str, *, is_late: bool) -> Exception:
        """Returns the error of lodefs for a request that failed; marked if nothing ever
        answered."""
        if is_late:
            why = "the server's answer was not complete in time"
            failed: Exception = DeadlineExceeded(f"{what}: {why}; {self._check}")
        else:
            self.is_reached = self.is_reached or self._is_answer(error)
            failed = self._translated(error, what)
        if isinstance(failed, Unavailable):
            failed.is_unreached = not self.is_reached
        return failed


def watched(connection_class: Any, current: ThreadTransfer) -> type:
    """Returns a class of connections (of http.client's kind) that a thread's transfer can close,
    once it sends on them."""

    class Watched(connection_class):  # type: ignore[misc]
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            super().__init__(*args, **kwargs)
            self.blocksize = SEND_SIZE_BYTES

        def send(self, data: Any) -> None:
            if self.sock is None and self.auto_open:
                self.connect()
            if current.transfer is not None:
                current.transfer.cancel_by(closer(self.sock))
            is_answered = getattr(self, "_response_received", False)  # botocore's, to a 100
            if is_answered or not isinstance(data, bytes | bytearray | memoryview):
                super().send(data)
            else:
                send_all(self.sock, data)

    return Watched


def send_all(sock: Any, data: Buffer) -> None:
    """Does what ``sendall`` does, but restarts the timeout whenever the peer takes some bytes,
    since a slow connection is not dead. Raises what ``send`` raises."""
    size_bytes = SEND_SIZE_BYTES if is_plain(sock) else TLS_SEND_SIZE_BYTES
    view = memoryview(data).cast("B")
    while view:
        view = view[sock.send(view[:size_bytes]) :]
