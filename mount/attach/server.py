"""The attach socket: a thread for each connection, which carries many calls, one after the other.

Anybody may connect, so each user has a few connections at once, each with a time limit; whoever
comes beyond that is told to try again.
"""

from __future__ import annotations

import logging
import os
import socket
import threading
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress

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
from lodefs.chunkstore.nodeapi.access import NO_RULES, AccessRules
from lodefs.chunkstore.nodeapi.wire import Failure
from lodefs.chunkstore.system.sockets import Peer, peer_of
from lodefs.mount.attach import wire
from lodefs.mount.attach.attachments import Attachments
from lodefs.mount.attach.wire import AttachAnswer, AttachCall
from lodefs.mount.kernel import detached_mounts
from lodefs.mount.node.interface import Source
from lodefs.mount.service.interface import User

CONNECTIONS_MAX = 256
USER_CONNECTIONS_MAX = 32
CALLS_MAX = 1024  # on one connection
IDLE_TIMEOUT_S = 30.0  # for the next call; a caller closes when its mounts are in their places
EMPTY_TIMEOUT_S = 2.0  # likewise while nothing was handed out: a caller asks when it has connected
EMPTY_CALLS_MAX = 16
ATTACH_TIMEOUT_S_MAX = 15.0
SWEEP_S = 4.0
BUSY = AttachAnswer(declined="too many others ask for mounts just now")
_log = logging.getLogger("lodefs.mounter")

Serves = Callable[[str, str], bool]
"""Whether the node's proxy is the proxy, and has the store, that a caller's settings name."""


class AttachServer:
    """Hands out mounts of ``attachments`` on ``listener``, and sweeps what is held no more."""

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
        self._listener = listener
        self._attachments = attachments
        self._serves = serves
        self._rules = rules
        self._empty_timeout_s = empty_timeout_s
        self._copied = copied
        self._lock = threading.Lock()
        self._connections: Counter[int] = Counter()  # by user
        self._ended = threading.Event()
        self._threads = [
            threading.Thread(target=self._run, name="lodefs-attach", daemon=True),
            threading.Thread(target=self._sweep, name="lodefs-attach-sweep", daemon=True),
        ]

    def start(self) -> None:
        """Begin to answer."""
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """Take no more connections; calls under way go on."""
        self._ended.set()
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()

    def _run(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                if self._ended.is_set():
                    return
                self._ended.wait(0.1)  # no more descriptors, it may be
                continue
            try:
                self._begin(client)
            except (OSError, RuntimeError):  # no more threads: who asked mounts by itself
                client.close()

    def _begin(self, client: socket.socket) -> None:
        peer = peer_of(client)
        with self._lock:
            many = self._connections.total() >= CONNECTIONS_MAX
            if many or self._connections[peer.uid] >= USER_CONNECTIONS_MAX:
                _refuse(client)
                return
            self._connections[peer.uid] += 1
        try:
            threading.Thread(target=self._serve, args=(client, peer), daemon=True).start()
        except RuntimeError:
            self._done(peer.uid)
            raise

    def _done(self, uid: int) -> None:
        with self._lock:
            self._connections[uid] -= 1
            if not self._connections[uid]:
                del self._connections[uid]

    def _serve(self, client: socket.socket, peer: Peer) -> None:
        handed: list[User] = []
        try:
            with client, suppress(OSError):
                for call in range(CALLS_MAX):
                    if call == EMPTY_CALLS_MAX and not handed:
                        return
                    client.settimeout(IDLE_TIMEOUT_S if handed else self._empty_timeout_s)
                    data = client.recv(wire.PACKET_BYTES_MAX)
                    if not data or self._ended.is_set():
                        return
                    self._answer(client, data, peer, handed)
        finally:
            for user in handed:
                self._attachments.closed(user)
            self._done(peer.uid)

    def _answer(self, client: socket.socket, data: bytes, peer: Peer, handed: list[User]) -> None:
        fds: list[int] = []
        try:
            answer = self._carry_out(data, peer, handed, fds)
        except (NoSpace, Unavailable, Unsupported) as error:
            answer = AttachAnswer(declined=str(error))
        except LodefsError as error:
            answer = AttachAnswer(failure=Failure(type(error).__name__, str(error)))
        except Exception as error:  # noqa: BLE001 - a mistake of ours must not end the service
            _log.exception("attach")
            answer = AttachAnswer(declined=f"{type(error).__name__} (a fault of lodefs)")
        try:
            socket.send_fds(client, [msgspec.msgpack.encode(answer)], fds)
        finally:
            for fd in fds:
                os.close(fd)

    def _carry_out(
        self, data: bytes, peer: Peer, handed: list[User], fds: list[int]
    ) -> AttachAnswer:
        call = from_msgpack(data, AttachCall)
        if call.version != wire.VERSION:
            return AttachAnswer(declined=f"the node speaks version {wire.VERSION}")
        if "\0" in call.proxy + call.store:
            raise InvalidInput("a name with NUL")
        if not self._serves(call.proxy, call.store):
            return AttachAnswer(is_other_store=True)
        is_fit = 0 < call.timeout_s < ATTACH_TIMEOUT_S_MAX
        timeout_s = call.timeout_s if is_fit else ATTACH_TIMEOUT_S_MAX
        source = Source(repo=call.repo, path=call.path)
        begun_s = time.monotonic()
        check_repo(call.repo)
        self._rules().check(peer, call.repo)
        got = self._attachments.attach(peer.uid, source, call.rev, timeout_s)
        handed.append(got.user)
        fds.append(self._copied(got.place))
        took_s = time.monotonic() - begun_s
        _log.info("user %d got %s@%s in %.2f s", peer.uid, call.repo, got.commit[:12], took_s)
        return AttachAnswer(commit=got.commit)

    def _sweep(self) -> None:
        said = ""
        while not self._ended.wait(SWEEP_S):
            try:
                self._attachments.sweep()
                said = ""
            except LodefsError as error:
                if str(error) != said:
                    said = str(error)
                    _log.warning("what users hold cannot be seen: %s", error)
            except Exception:  # noqa: BLE001 - a mistake of ours must not end all sweeping
                _log.exception("sweep")


def _refuse(client: socket.socket) -> None:
    """Say so without being asked. What was asked already is read: what is left unread at the end
    takes the answer with it (ECONNRESET)."""
    with client:
        client.settimeout(0)
        client.shutdown(socket.SHUT_RD)
        with suppress(BlockingIOError):
            while client.recv(wire.PACKET_BYTES_MAX):
                pass
        client.send(msgspec.msgpack.encode(BUSY))
