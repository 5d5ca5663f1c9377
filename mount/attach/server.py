"""The attach socket: a connection carries many calls, one after the other.

Any user may connect, so each has only a few connections at once, each with a time limit. Further
ones are told to mount without the service.
"""

from __future__ import annotations

import logging
import socket
import threading
import time
from collections.abc import Callable

import msgspec

from lodefs.chunkstore.errors import (
    InvalidInput,
    LodefsError,
    NoSpace,
    Unavailable,
    Unsupported,
)
from lodefs.chunkstore.format.decoding import from_msgpack
from lodefs.chunkstore.format.names import check_repo
from lodefs.chunkstore.protocol import rpc
from lodefs.chunkstore.protocol.access import NO_RULES, AccessRules
from lodefs.chunkstore.protocol.wire import failure_of
from lodefs.chunkstore.system.sockets import Peer
from lodefs.mount.attach import wire
from lodefs.mount.attach.attachments import Attachments
from lodefs.mount.attach.wire import AttachAnswer, AttachCall
from lodefs.mount.helper.interface import Source
from lodefs.mount.kernel import detached_mounts
from lodefs.mount.service.interface import User

USER_CONNECTIONS_MAX = 32
CALLS_MAX = 1024  # on one connection
IDLE_TIMEOUT_S = (
    30.0  # for the next call; a caller closes the connection when its mounts are in place
)
EMPTY_TIMEOUT_S = 2.0  # before anything was handed out: a caller asks as soon as it has connected
EMPTY_CALLS_MAX = 16
ATTACH_TIMEOUT_S_MAX = 15.0
SWEEP_S = 4.0
BUSY = AttachAnswer(declined="too many others are asking for mounts now")
_log = logging.getLogger("lodefs.mounter")

Serves = Callable[[str, str], bool]
"""Whether the node's proxy and its store are those of a caller's settings."""


class AttachServer(rpc.PacketServer):
    """Hands out mounts of ``attachments`` on ``listener``, and releases what is no longer held."""

    def __init__(
        self,
        listener: socket.socket,
        attachments: Attachments,
        serves: Serves,
        *,
        rules: Callable[[], AccessRules] = lambda: NO_RULES,
        empty_timeout_s: float = EMPTY_TIMEOUT_S,
        copied: Callable[[str], int] = detached_mounts.copied,
    ) -> None:
        super().__init__(
            listener,
            self._serve_calls,
            user_connections_max=USER_CONNECTIONS_MAX,
            busy=msgspec.msgpack.encode(BUSY),
        )
        self._attachments = attachments
        self._serves = serves
        self._rules = rules
        self._empty_timeout_s = empty_timeout_s
        self._copied = copied
        self._sweeper = threading.Thread(
            target=self._sweep, name="lodefs-attach-sweep", daemon=True
        )

    def start(self) -> None:
        """Begins to serve and to sweep."""
        super().start()
        self._sweeper.start()

    def _serve_calls(self, client: socket.socket, peer: Peer) -> None:
        handed: list[User] = []
        try:
            for call in range(CALLS_MAX):
                if call == EMPTY_CALLS_MAX and not handed:
                    return
                client.settimeout(IDLE_TIMEOUT_S if handed else self._empty_timeout_s)
                data = rpc.receive(client, wire.CALL_BYTES_MAX).data
                if self.is_ending():
                    return
                answer, fds = self._answer(data, peer, handed)
                try:
                    rpc.send(client, answer, fds)
                finally:
                    rpc.close_all(fds)
        finally:
            for user in handed:
                self._attachments.closed(user)

    def _answer(
        self, data: bytes, peer: Peer, handed: list[User]
    ) -> tuple[AttachAnswer, list[int]]:
        try:
            return self._carry_out(data, peer, handed)
        except (NoSpace, Unavailable, Unsupported) as error:
            return AttachAnswer(declined=str(error)), []
        except LodefsError as error:
            return AttachAnswer(failure=failure_of(error)), []
        except Exception as error:  # noqa: BLE001 - a bug must not end the service
            _log.exception("attach")
            return AttachAnswer(declined=failure_of(error).message), []

    def _carry_out(
        self, data: bytes, peer: Peer, handed: list[User]
    ) -> tuple[AttachAnswer, list[int]]:
        """Returns an answer, and the mount's descriptor with it; adds its user to ``handed``."""
        call = from_msgpack(data, AttachCall)
        if call.version != wire.VERSION:
            return AttachAnswer(declined=f"the node has version {wire.VERSION}"), []
        if "\0" in call.proxy + call.store:
            raise InvalidInput("a name contains NUL")
        if not self._serves(call.proxy, call.store):
            return AttachAnswer(is_other_store=True), []
        is_fit = 0 < call.timeout_s < ATTACH_TIMEOUT_S_MAX
        timeout_s = call.timeout_s if is_fit else ATTACH_TIMEOUT_S_MAX
        source = Source(repo=call.repo, path=call.path)
        begun_s = time.monotonic()
        check_repo(call.repo)
        self._rules().check(peer, call.repo)
        got = self._attachments.attach(peer.uid, source, call.rev, timeout_s)
        handed.append(got.user)
        fd = self._copied(got.place)
        took_s = time.monotonic() - begun_s
        _log.info("user %d got %s@%s in %.2f s", peer.uid, call.repo, got.commit[:12], took_s)
        return AttachAnswer(commit=got.commit), [fd]

    def _sweep(self) -> None:
        said = ""
        while not self.is_ending(SWEEP_S):
            try:
                self._attachments.sweep()
                said = ""
            except LodefsError as error:
                if str(error) != said:
                    said = str(error)
                    _log.warning("cannot see the mounts that users hold: %s", error)
            except Exception:  # noqa: BLE001 - a bug must not end all sweeping
                _log.exception("sweep")
