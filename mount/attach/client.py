"""The attach socket, as those see it who want a mount of the node in their own namespace."""

from __future__ import annotations

import fcntl
import os
import socket
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import NamedTuple, Self

import msgspec

from lodefs.chunkstore.errors import InvalidInput
from lodefs.chunkstore.format.decoding import from_msgpack
from lodefs.chunkstore.format.names import Spec
from lodefs.chunkstore.nodeapi.wire import error_of
from lodefs.chunkstore.system.safe_open import PLACE, closing, open_plain
from lodefs.mount.attach import wire
from lodefs.mount.attach.wire import AttachAnswer, AttachCall
from lodefs.mount.kernel import detached_mounts

TIMEOUT_S = 8.0  # for a mount; then the caller mounts by itself


class Attached(NamedTuple):
    """A mount of the node as a descriptor, and the commit that it is of."""

    fd: int
    commit: str

    def put(self, directory: str) -> None:
        """Mount it on a directory, an absolute path without symlinks, in this process's mount
        namespace. InvalidInput, Unsupported."""
        try:
            with closing(open_plain(directory, PLACE)) as directory_fd:
                detached_mounts.put(self.fd, directory_fd, directory)
        except OSError as error:
            raise InvalidInput(f"{directory}: {error.strerror}") from error


class AttachClient:
    """One connection, to be closed when what came over it is mounted. ``proxy`` and ``store``:
    what the caller's settings name, "" for nothing. ``say`` is told once why the service is of
    no use; nothing is said where there is none."""

    def __init__(
        self,
        path: Path,
        *,
        proxy: str = "",
        store: str = "",
        say: Callable[[str], None] = lambda _line: None,
        timeout_s: float = TIMEOUT_S,
    ) -> None:
        self._path = path
        self._proxy, self._store = proxy, store
        self._say = say
        self._timeout_s = timeout_s
        self._socket: socket.socket | None = None
        self._is_useless = False
        self._fds: list[int] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Let go of the connection, and of descriptors."""
        for fd in self._fds:
            os.close(fd)
        self._fds.clear()
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    def attach(self, spec: Spec) -> Attached | None:
        """A mount; None where the caller has to mount by itself.

        NotFound, InvalidInput, Denied: so it would be by itself, too.
        """
        if self._is_useless:
            return None
        attached, why = self._try(spec)
        if attached is None:
            self._is_useless = True
            if why:
                self._say(f"the node's mount service is of no use now; mounting without it: {why}")
        return attached

    def _try(self, spec: Spec) -> tuple[Attached | None, str]:
        """A mount; or why the service is of no use, "" where there is nothing to say."""
        try:
            answer, fds = self._ask(spec)
        except (FileNotFoundError, ConnectionRefusedError, PermissionError):
            return None, ""
        except TimeoutError:
            return None, f"it did not answer within {self._timeout_s:g} s"
        except (OSError, InvalidInput) as error:
            return None, str(error)
        self._fds += fds
        if answer is None:
            return None, "it was ended"
        if answer.failure is not None:
            raise error_of(answer.failure)
        if answer.is_other_store or not fds:
            return None, answer.declined
        return Attached(fds[0], answer.commit), ""

    def _ask(self, spec: Spec) -> tuple[AttachAnswer | None, list[int]]:
        call = AttachCall(
            repo=spec.repo, rev=spec.rev, path=spec.path, proxy=self._proxy, store=self._store,
            timeout_s=self._timeout_s,
        )  # fmt: skip
        ends_s = time.monotonic() + self._timeout_s
        if self._socket is None:
            self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            self._socket.settimeout(self._timeout_s)
            self._socket.connect(str(self._path))
        with suppress(BrokenPipeError):  # a service that is busy says so without being asked
            self._socket.send(msgspec.msgpack.encode(call))
        self._socket.settimeout(max(ends_s - time.monotonic(), 0.001))
        data, fds, _, _ = socket.recv_fds(self._socket, wire.PACKET_BYTES_MAX, 1)
        for fd in fds:
            fcntl.fcntl(fd, fcntl.F_SETFD, fcntl.FD_CLOEXEC)
        return (from_msgpack(data, AttachAnswer) if data else None), fds
