"""Messages on the mount service's socket: a packet asks, and one answers (unix(7), MessagePack).

The socket is for root alone: any process that can use it can mount with every token that it knows.
"""

from __future__ import annotations

import msgspec

from lodefs.chunkstore.protocol.wire import Failure
from lodefs.mount.helper.interface import ResolvedCommit
from lodefs.mount.service.interface import Health, Holding, MountClaim, MountHandle, User

VERSION = 1
HOLDINGS_MAX = 32  # in an answer: a name has 255 bytes, a path and a reason have more
MARGIN_S = 2.0  # for an answer after its time limit


class ResolveCall(msgspec.Struct, frozen=True, tag="resolve"):
    """MountService.resolve."""

    wanted: MountClaim
    token: str | None
    timeout_s: float

    def __repr__(self) -> str:
        """Leaves out the token."""
        return f"ResolveCall({self.wanted})"


class AcquireCall(msgspec.Struct, frozen=True, tag="acquire"):
    """MountService.acquire."""

    user: User
    wanted: MountClaim
    token: str | None
    timeout_s: float

    def __repr__(self) -> str:
        """Leaves out the token."""
        return f"AcquireCall({self.user}, {self.wanted})"


class AdoptCall(msgspec.Struct, frozen=True, tag="adopt"):
    """MountService.adopt."""

    user: User
    wanted: MountClaim
    token: str | None
    place: str
    found: ResolvedCommit
    timeout_s: float

    def __repr__(self) -> str:
        """Leaves out the token."""
        return f"AdoptCall({self.user}, {self.place})"


class ReleaseCall(msgspec.Struct, frozen=True, tag="release"):
    """MountService.release."""

    user: User
    timeout_s: float


class ForgetCall(msgspec.Struct, frozen=True, tag="forget"):
    """MountService.forget."""

    driver: str
    volume: str
    older_s: float
    timeout_s: float


class HoldingsCall(msgspec.Struct, frozen=True, tag="holdings"):
    """MountService.holdings for names after ``after``; HOLDINGS_MAX at most."""

    driver: str
    volume: str
    after: str
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


Call = (
    ResolveCall
    | AcquireCall
    | AdoptCall
    | ReleaseCall
    | ForgetCall
    | HoldingsCall
    | HealthCall
    | PingCall
    | RetireCall
)


class Answered(msgspec.Struct, frozen=True):
    """The result of a call, or its error."""

    version: int = VERSION
    failure: Failure | None = None
    resolved: ResolvedCommit | None = None
    held: MountHandle | None = None
    health: Health | None = None
    holdings: list[Holding] | None = None
    count: int = 0
