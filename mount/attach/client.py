"""A client of the attach socket, for processes that want a node's mount in their own namespace."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple, Self

from lodefs.chunkstore.errors import InvalidInput, Unavailable, UnknownFormat
from lodefs.chunkstore.format.names import Spec
from lodefs.chunkstore.protocol import rpc
from lodefs.chunkstore.system.safe_open import PLACE, closing, open_plain
from lodefs.mount.attach.wire import AttachAnswer, AttachCall
from lodefs.mount.helper.deadline_calls import left_s
from lodefs.mount.kernel import detached_mounts

TIMEOUT_S = 8.0  # for a mount; after that the caller mounts by itself


class Attached(NamedTuple):
    """A mount of the node as a descriptor, and its commit."""

    fd: int
    commit: str

    def put(self, directory: str) -> None:
        """Mounts it on a directory, an absolute path without symlinks, in this process's mount
        namespace. Raises: InvalidInput, Unsupported."""
        try:
            with closing(open_plain(directory, PLACE)) as directory_fd:
                detached_mounts.put(self.fd, directory_fd, directory)
        except OSError as error:
            raise InvalidInput(f"{directory}: {error.strerror}") from error


class AttachClient:
    """One connection, to be closed when everything from it is mounted. ``proxy`` and ``store``: as
    in the caller's settings, "" for none. ``say`` is called once with the reason if the service
    cannot be used, but not if there is none."""

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

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Closes the connection, and the descriptors."""
        rpc.close_all(self._fds)
        self._fds.clear()
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    def attach(self, spec: Spec) -> Attached | None:
        """Returns a mount; None if the caller must mount by itself.

        Raises: NotFound, InvalidInput, Denied, which mounting by itself would raise, too.
        """
        if self._is_useless:
            return None
        attached, why = self._try(spec)
        if attached is None:
            self._is_useless = True
            if why:
                self._say(
                    f"the node's mount service cannot be used now; mounting without it: {why}"
                )
        return attached

    def _try(self, spec: Spec) -> tuple[Attached | None, str]:
        """Returns a mount, or the reason why the service cannot be used; "" for no reason to
        report."""
        try:
            answer, fds = self._ask(spec)
        except (FileNotFoundError, ConnectionRefusedError, PermissionError):
            return None, ""
        except TimeoutError:
            return None, f"it did not answer within {self._timeout_s:g} s"
        except (OSError, Unavailable, UnknownFormat) as error:
            return None, str(error)
        self._fds += fds
        if answer.is_other_store or not fds:
            return None, answer.declined
        return Attached(fds[0], answer.commit), ""

    def _ask(self, spec: Spec) -> tuple[AttachAnswer, list[int]]:
        call = AttachCall(
            repo=spec.repo, rev=spec.rev, path=spec.path, proxy=self._proxy, store=self._store,
            timeout_s=self._timeout_s,
        )  # fmt: skip
        ends_s = time.monotonic() + self._timeout_s
        if self._socket is None:
            self._socket = rpc.connect(self._path, self._timeout_s)
        self._socket.settimeout(left_s(ends_s))
        return rpc.ask(self._socket, call, AttachAnswer, fds_max=1)
