"""MountService of another process, over its socket."""

from __future__ import annotations

import socket
from pathlib import Path

import msgspec

from lodefs.chunkstore.errors import DeadlineExceeded, InvalidInput, Unavailable, UnknownFormat
from lodefs.chunkstore.format.decoding import from_msgpack
from lodefs.chunkstore.nodeapi.wire import error_of
from lodefs.mount.node.interface import ResolvedCommit
from lodefs.mount.service import wire
from lodefs.mount.service.interface import Health, Held, User, Wanted
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


class RemoteMounts:
    """See MountService. Each call has a connection of its own, so that none waits for another.
    Unavailable where no service listens at ``path``."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def resolve(self, wanted: Wanted, token: str | None, timeout_s: float) -> ResolvedCommit:
        """See MountService."""
        answer = self._ask(ResolveCall(wanted, token, timeout_s))
        assert answer.resolved is not None
        return answer.resolved

    def acquire(self, user: User, wanted: Wanted, token: str | None, timeout_s: float) -> Held:
        """See MountService."""
        answer = self._ask(AcquireCall(user, wanted, token, timeout_s))
        assert answer.held is not None
        return answer.held

    def release(self, user: User, timeout_s: float) -> None:
        """See MountService."""
        self._ask(ReleaseCall(user, timeout_s))

    def health(self, volume: str, timeout_s: float) -> Health:
        """See MountService."""
        answer = self._ask(HealthCall(volume, timeout_s))
        assert answer.health is not None
        return answer.health

    def ping(self, timeout_s: float) -> None:
        """See MountService."""
        self._ask(PingCall(timeout_s))

    def retire(self, timeout_s: float) -> None:
        """Have the service leave its mounts to this process; they are served meanwhile."""
        self._ask(RetireCall(timeout_s))

    def _ask(self, call: Call) -> Answered:
        data = msgspec.msgpack.encode(call)
        if len(data) > wire.PACKET_BYTES_MAX:
            raise InvalidInput(f"{type(call).__name__}: the request is too long")
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as client:
                client.settimeout(call.timeout_s + wire.MARGIN_S)
                client.connect(str(self._path))
                client.send(data)
                told = client.recv(wire.PACKET_BYTES_MAX)
        except TimeoutError as error:
            raise DeadlineExceeded(f"the mount service at {self._path} does not answer") from error
        except OSError as error:
            raise Unavailable(
                f"the mount service at {self._path} cannot be reached; does `lodefs mounter` run? "
                f"({error.strerror or error})"
            ) from error
        if not told:
            raise Unavailable(f"the mount service at {self._path} was ended; try again")
        try:
            answer = from_msgpack(told, Answered)
        except InvalidInput as error:
            raise UnknownFormat(f"{self._path}: an answer that cannot be read: {error}") from error
        if answer.version != wire.VERSION:
            raise UnknownFormat(
                f"the mount service at {self._path} speaks version {answer.version}, and this "
                f"lodefs {wire.VERSION}: upgrade both"
            )
        if answer.failure is not None:
            raise error_of(answer.failure)
        return answer
