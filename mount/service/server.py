"""The mount service's socket: a thread for each connection, one call on each."""

from __future__ import annotations

import logging
import os
import socket
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import msgspec

from lodefs.chunkstore.errors import InUse, InvalidInput, LodefsError, Unavailable
from lodefs.chunkstore.format.decoding import from_msgpack
from lodefs.chunkstore.nodeapi.figures.component_counts import ComponentCounts
from lodefs.chunkstore.nodeapi.wire import Failure
from lodefs.mount.lifecycle import control_socket
from lodefs.mount.service import wire
from lodefs.mount.service.interface import MountService
from lodefs.mount.service.wire import (
    AcquireCall,
    Answered,
    Call,
    HealthCall,
    PingCall,
    ReleaseCall,
    ResolveCall,
    RetireCall,
)

CONNECTIONS_MAX = 256  # further ones wait
BACKLOG = 256
ASK_TIMEOUT_S = 5.0  # for one who connects to say what
TIMEOUT_S_MAX = 120.0
OPERATIONS: dict[type[Call], str] = {
    ResolveCall: "Resolve",
    AcquireCall: "Acquire",
    ReleaseCall: "Release",
    HealthCall: "Health",
    PingCall: "Ping",
    RetireCall: "Retire",
}
"""As metrics name them."""
_log = logging.getLogger("lodefs.mounter")


def listen(path: Path, *, replace: bool, mode: int = 0o600, gid: int = -1) -> socket.socket:
    """The socket, for root alone unless ``mode`` and group say another. InUse where another service
    listens and not ``replace``."""
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    fresh = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        path.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
        if not replace:
            _refuse_living(path)
        with suppress(FileNotFoundError):
            fresh.unlink()
        listener.bind(str(fresh))
        os.chown(fresh, -1, gid)
        fresh.chmod(mode)
        listener.listen(BACKLOG)
        fresh.rename(path)
    except (OSError, LodefsError) as error:
        listener.close()
        if isinstance(error, LodefsError):
            raise
        raise Unavailable(f"socket {path}: {error.strerror or error}") from error
    return listener


def _refuse_living(path: Path) -> None:
    with (
        socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as probe,
        suppress(ConnectionRefusedError, FileNotFoundError),
    ):
        probe.connect(str(path))
        raise InUse(f"another mount service serves on {path}: stop it, or choose another")


class ServiceServer:
    """Answers calls on ``listener`` in threads of its own. ``retire`` is called for who wants to
    take the mounts over, and returns when nothing is written any more."""

    def __init__(
        self,
        listener: socket.socket,
        service: MountService,
        retire: Callable[[float], None],
        counts: ComponentCounts | None = None,
    ) -> None:
        self._counts = counts or ComponentCounts("mounter")
        self._listener = listener
        self._service = service
        self._retire = retire
        self._free = threading.BoundedSemaphore(CONNECTIONS_MAX)
        self._thread = threading.Thread(target=self._run, name="lodefs-service", daemon=True)

    def start(self) -> None:
        """Begin to answer."""
        self._thread.start()

    def stop(self) -> None:
        """Take no more calls; those under way go on."""
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()

    def wait_idle(self, timeout_s: float, calls: int = 0) -> bool:
        """Wait until no calls are under way but so many; False where more still are."""
        ends_s, taken = time.monotonic() + timeout_s, 0
        while taken < CONNECTIONS_MAX - calls:
            if not self._free.acquire(timeout=max(ends_s - time.monotonic(), 0)):
                break
            taken += 1
        for _ in range(taken):
            self._free.release()
        return taken == CONNECTIONS_MAX - calls

    def _run(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            self._free.acquire()
            try:
                threading.Thread(target=self._serve, args=(client,), daemon=True).start()
            except RuntimeError:  # no more threads: who asked tries again
                client.close()
                self._free.release()

    def _serve(self, client: socket.socket) -> None:
        try:
            with client, suppress(OSError):
                client.settimeout(ASK_TIMEOUT_S)
                if control_socket.peer(client)[1] in (0, os.geteuid()):
                    data = client.recv(wire.PACKET_BYTES_MAX)
                    client.send(msgspec.msgpack.encode(self._answer(data)))
        finally:
            self._free.release()

    def _answer(self, data: bytes) -> Answered:
        try:
            call: Call = from_msgpack(data, Call)  # type: ignore[arg-type]  # a union
        except InvalidInput as error:
            return Answered(failure=Failure("InvalidInput", f"a call that is none: {error}"))
        try:
            with self._counts.call(OPERATIONS[type(call)]):
                return self._carry_out(call, min(max(call.timeout_s, 0.001), TIMEOUT_S_MAX))
        except LodefsError as error:
            return Answered(failure=Failure(type(error).__name__, str(error)))
        except Exception as error:  # noqa: BLE001 - a mistake of ours must not end the service
            _log.exception("%s", type(call).__name__)
            text = f"{type(error).__name__} (a fault of lodefs)"
            return Answered(failure=Failure("Unavailable", text))

    def _carry_out(self, call: Call, timeout_s: float) -> Answered:
        service = self._service
        match call:
            case ResolveCall(wanted, token):
                return Answered(resolved=service.resolve(wanted, token, timeout_s))
            case AcquireCall(user, wanted, token):
                return Answered(held=service.acquire(user, wanted, token, timeout_s))
            case ReleaseCall(user):
                service.release(user, timeout_s)
            case HealthCall(volume):
                return Answered(health=service.health(volume, timeout_s))
            case PingCall():
                service.ping(timeout_s)
            case _:
                self._retire(timeout_s)
        return Answered()
