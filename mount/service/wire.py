"""What goes over the mount service's socket: a packet asks, one answers (unix(7), MessagePack).

The socket is for root alone: a process that can use it can mount with any token that it knows.
"""

from __future__ import annotations

import msgspec

from lodefs.chunkstore.nodeapi.wire import Failure
from lodefs.mount.node.interface import ResolvedCommit
from lodefs.mount.service.interface import Health, Held, User, Wanted

VERSION = 1
MARGIN_S = 2.0  # for an answer to come after its time limit


class ResolveCall(msgspec.Struct, frozen=True, tag="resolve"):
    """MountService.resolve."""

    wanted: Wanted
    token: str | None
    timeout_s: float

    def __repr__(self) -> str:
        """Without the token."""
        return f"ResolveCall({self.wanted})"


class AcquireCall(msgspec.Struct, frozen=True, tag="acquire"):
    """MountService.acquire."""

    user: User
    wanted: Wanted
    token: str | None
    timeout_s: float

    def __repr__(self) -> str:
        """Without the token."""
        return f"AcquireCall({self.user}, {self.wanted})"


class ReleaseCall(msgspec.Struct, frozen=True, tag="release"):
    """MountService.release."""

    user: User
    timeout_s: float


class HealthCall(msgspec.Struct, frozen=True, tag="health"):
    """MountService.health."""

    volume: str
    timeout_s: float


class PingCall(msgspec.Struct, frozen=True, tag="ping"):
    """MountService.ping."""

    timeout_s: float


class RetireCall(msgspec.Struct, frozen=True, tag="retire"):
    """Leave the state and all mounts to another service, which takes them over."""

    timeout_s: float


Call = ResolveCall | AcquireCall | ReleaseCall | HealthCall | PingCall | RetireCall


class Answered(msgspec.Struct, frozen=True):
    """How a call went: what it asked for, or why not."""

    version: int = VERSION
    failure: Failure | None = None
    resolved: ResolvedCommit | None = None
    held: Held | None = None
    health: Health | None = None
