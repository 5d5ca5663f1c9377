"""The mount service's socket, with one call on each connection."""

from __future__ import annotations

import logging
import os
import socket
from collections.abc import Callable
from typing import get_args

from lodefs.chunkstore.errors import InvalidInput, LodefsError
from lodefs.chunkstore.format.decoding import from_msgpack
from lodefs.chunkstore.protocol import rpc
from lodefs.chunkstore.protocol.figures.component_counts import ComponentCounts
from lodefs.chunkstore.protocol.wire import Failure, failure_of
from lodefs.chunkstore.system.sockets import Peer
from lodefs.mount.service.interface import MountService
from lodefs.mount.service.wire import (
    HOLDINGS_MAX,
    AcquireCall,
    AdoptCall,
    Answered,
    Call,
    ForgetCall,
    HealthCall,
    HoldingsCall,
    PingCall,
    ReleaseCall,
    ResolveCall,
)

ASK_TIMEOUT_S = 5.0  # for a client to send its call
TIMEOUT_S_MAX = 120.0
OPERATIONS = {kind: kind.__name__.removesuffix("Call") for kind in get_args(Call)}
"""As metrics name them."""
_log = logging.getLogger("lodefs.mounter")


class ServiceServer(rpc.PacketServer):
    """Answers calls on ``listener`` from root and the service's own user. ``retire`` is called for
    a client that takes the mounts over, and returns when nothing is written any more."""

    def __init__(
        self,
        listener: socket.socket,
        service: MountService,
        retire: Callable[[float], None],
        counts: ComponentCounts | None = None,
    ) -> None:
        super().__init__(listener, self._serve_one)
        self._counts = counts or ComponentCounts("mounter")
        self._service = service
        self._retire = retire

    def _serve_one(self, client: socket.socket, peer: Peer) -> None:
        client.settimeout(ASK_TIMEOUT_S)
        if peer.uid in (0, os.geteuid()):
            rpc.send(client, self._answer(rpc.receive(client).data))

    def _answer(self, data: bytes) -> Answered:
        try:
            call: Call = from_msgpack(data, Call)  # type: ignore[arg-type]  # a union
        except InvalidInput as error:
            return Answered(failure=Failure("InvalidInput", f"malformed call: {error}"))
        try:
            with self._counts.call(OPERATIONS[type(call)]):
                return self._carry_out(call, min(max(call.timeout_s, 0.001), TIMEOUT_S_MAX))
        except Exception as error:  # noqa: BLE001 - a bug must not end the service
            if not isinstance(error, LodefsError):
                _log.exception("%s", type(call).__name__)
            return Answered(failure=failure_of(error))

    def _carry_out(self, call: Call, timeout_s: float) -> Answered:
        service = self._service
        match call:
            case ResolveCall(wanted, token):
                return Answered(resolved=service.resolve(wanted, token, timeout_s))
            case AcquireCall(user, wanted, token):
                return Answered(held=service.acquire(user, wanted, token, timeout_s))
            case AdoptCall(user, wanted, token, place, found):
                service.adopt(user, wanted, token, place, found, timeout_s)
            case ReleaseCall(user):
                service.release(user, timeout_s)
            case ForgetCall(driver, volume, older_s):
                return Answered(count=service.forget(driver, volume, older_s, timeout_s))
            case HoldingsCall(driver, volume, after):
                held = [h for h in service.holdings(driver, volume, timeout_s) if h.volume > after]
                return Answered(holdings=held[:HOLDINGS_MAX])
            case HealthCall(volume):
                return Answered(health=service.health(volume, timeout_s))
            case PingCall():
                service.ping(timeout_s)
            case _:
                self._retire(timeout_s)
        return Answered()
