"""A client of the MountService in another process, over its socket."""

from __future__ import annotations

from pathlib import Path

from lodefs.chunkstore.errors import DeadlineExceeded, Unavailable, UnknownFormat
from lodefs.chunkstore.protocol import rpc
from lodefs.chunkstore.system.sockets import peer_of
from lodefs.mount.helper.interface import ResolvedCommit
from lodefs.mount.service import wire
from lodefs.mount.service.interface import Health, Holding, MountClaim, MountHandle, User
from lodefs.mount.service.wire import (
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
    RetireCall,
)


class RemoteMounts:
    """See MountService. Each call has a connection of its own, so that none waits for another.
    Raises: Unavailable if no service listens at ``path``."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def resolve(self, wanted: MountClaim, token: str | None, timeout_s: float) -> ResolvedCommit:
        """See MountService."""
        answer = self._ask(ResolveCall(wanted, token, timeout_s))
        assert answer.resolved is not None
        return answer.resolved

    def acquire(
        self, user: User, wanted: MountClaim, token: str | None, timeout_s: float
    ) -> MountHandle:
        """See MountService."""
        answer = self._ask(AcquireCall(user, wanted, token, timeout_s))
        assert answer.held is not None
        return answer.held

    def adopt(
        self,
        user: User,
        wanted: MountClaim,
        token: str | None,
        place: str,
        found: ResolvedCommit,
        timeout_s: float,
    ) -> None:
        """See MountService."""
        self._ask(AdoptCall(user, wanted, token, place, found, timeout_s))

    def release(self, user: User, timeout_s: float) -> None:
        """See MountService."""
        self._ask(ReleaseCall(user, timeout_s))

    def forget(self, driver: str, volume: str, older_s: float, timeout_s: float) -> int:
        """See MountService."""
        return self._ask(ForgetCall(driver, volume, older_s, timeout_s)).count

    def holdings(self, driver: str, volume: str, timeout_s: float) -> list[Holding]:
        """See MountService."""
        found: list[Holding] = []
        while True:
            after = found[-1].volume if found else ""
            more = self._ask(HoldingsCall(driver, volume, after, timeout_s)).holdings or []
            found += more
            if len(more) < wire.HOLDINGS_MAX:
                return found

    def health(self, volume: str, timeout_s: float) -> Health:
        """See MountService."""
        answer = self._ask(HealthCall(volume, timeout_s))
        assert answer.health is not None
        return answer.health

    def ping(self, timeout_s: float) -> None:
        """See MountService."""
        self._ask(PingCall(timeout_s))

    def retire(self, timeout_s: float) -> None:
        """Asks the service to leave its mounts to this process; they are served meanwhile."""
        self._ask(RetireCall(timeout_s))

    def _ask(self, call: Call) -> Answered:
        try:
            with rpc.connect(self._path, call.timeout_s + wire.MARGIN_S) as client:
                answer, _ = rpc.ask(client, call, Answered)
        except TimeoutError as error:
            raise DeadlineExceeded(f"the mount service at {self._path} does not answer") from error
        except OSError as error:
            raise Unavailable(
                f"the mount service at {self._path} cannot be reached ({error.strerror or error}); "
                "check that `lodefs mounter` runs: `systemctl status lodefs-mounter`, or its pod"
            ) from error
        if answer.version != wire.VERSION:
            raise UnknownFormat(
                f"the mount service at {self._path} has version {answer.version}, and this "
                f"lodefs has {wire.VERSION}: upgrade both"
            )
        return answer


def check_own_service(path: Path, timeout_s: float) -> None:
    """Checks that a service of this process namespace answers at ``path``. It has then taken over
    all mounts. Raises: Unavailable.

    The socket lies on the host. During an upgrade the old pod's service answers there first, and
    has no process number (0) in this process namespace.
    """
    try:
        with rpc.connect(path, timeout_s) as sock:
            pid = peer_of(sock).pid
    except OSError as error:
        raise Unavailable(f"{path}: {error.strerror or error}") from error
    if not pid:
        raise Unavailable(f"{path}: the mounter of another container still answers")
    RemoteMounts(path).ping(timeout_s)
