"""Warming on all nodes: one node passes a job on to the others and adds up how far they are.

The others are asked when somebody asks this node. One that forgot its job (it was started anew) is
given it again; one that stays silent is given up.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol, TypeVar

import msgspec

from chunkstore.errors import DeadlineExceeded, InvalidInput, LodefsError, NotFound, Unavailable
from chunkstore.upkeep import (
    ERRORS_MAX,
    RUNNING,
    NodeShare,
    State,
    WarmError,
    WarmRequest,
    WarmStatus,
)
from proxy.warming import Warmer

T = TypeVar("T")

ASK_EVERY_S = 1.0
ASK_TIMEOUT_S = 10.0
ANSWER_S = 0.5  # how long somebody who asks this node waits for the others
ASKED_MAX = 8  # at a time
SILENT_S_MAX = 120.0
STARTS_MAX = 5  # of one node's share


class PeerJobs(Protocol):
    """The other nodes of a cluster and their jobs. Methods but the first raise errors.py's
    classes: those of the node's own answer, Unavailable where there is none."""

    def members(self) -> Sequence[str]:
        """Addresses of all nodes but this one."""
        ...

    async def start(self, address: str, request: WarmRequest) -> str:
        """Begins a job there; its id."""
        ...

    async def progress(self, address: str, job_id: str) -> WarmStatus:
        """How far it is. NotFound."""
        ...

    async def cancel(self, address: str, job_id: str) -> None:
        """Ends it. NotFound."""
        ...


@dataclass(slots=True)
class _Share:
    """What one other node does of a job."""

    address: str
    heard_s: float
    job_id: str | None = None
    starts: int = 0
    status: WarmStatus | None = None
    error: LodefsError | None = None  # why it is not heard of
    asking: asyncio.Task[None] | None = None
    end: State | None = None  # how it ended for this node, whatever the other one thinks

    @property
    def is_lost(self) -> bool:
        return self.end == "failed"

    @property
    def state(self) -> State:
        if self.end is not None:
            return self.end
        return "listing" if self.status is None else self.status.state


@dataclass(slots=True)
class _Spread:
    """A job that runs on all nodes. ``request`` is what the others were asked."""

    request: WarmRequest
    shares: list[_Share] = field(default_factory=list)
    asked_s: float = float("-inf")


class ClusterWarmer:
    """The jobs of this node, and those of the other nodes that belong to them."""

    def __init__(
        self,
        warmer: Warmer,
        peers: PeerJobs | None = None,
        *,
        clock_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._warmer = warmer
        self._peers = peers
        self._clock_s = clock_s
        self._spreads: dict[str, _Spread] = {}
        self._slots = asyncio.Semaphore(ASKED_MAX)

    @property
    def running(self) -> int:
        """Jobs that run on this node."""
        return self._warmer.running

    async def start(self, request: WarmRequest) -> WarmStatus:
        """Begins a job. Errors as of Warmer; InvalidInput where there are no other nodes to ask."""
        if request.all_nodes and self._peers is None:
            raise InvalidInput("this proxy belongs to no cluster: only its own cache can be warmed")
        job = await self._warmer.start(request)
        known = {one.id for one in self._warmer.jobs}
        self._spreads = {one: spread for one, spread in self._spreads.items() if one in known}
        if request.all_nodes and self._peers is not None:
            passed_on = msgspec.structs.replace(request, rev=job.snapshot.commit, all_nodes=False)
            now_s = self._clock_s()
            shares = [_Share(address, now_s) for address in self._peers.members()]
            self._spreads[job.id] = _Spread(passed_on, shares)
        return await self.status(job.id)

    async def status(self, job_id: str) -> WarmStatus:
        """How far a job is, on all its nodes. NotFound."""
        own = self._warmer.job(job_id).status()
        spread = self._spreads.get(job_id)
        if spread is None:
            return own
        if self._clock_s() - spread.asked_s >= ASK_EVERY_S:
            spread.asked_s = self._clock_s()
            for share in spread.shares:
                if share.state in RUNNING and share.asking is None:
                    share.asking = asyncio.create_task(self._ask(spread, share))
        asking = [share.asking for share in spread.shares if share.asking is not None]
        if asking:  # those who take long are seen the next time
            await asyncio.wait(asking, timeout=ANSWER_S)
            own = self._warmer.job(job_id).status()
        return together(own, spread.shares)

    def jobs(self) -> list[WarmStatus]:
        """All jobs, the newest first; other nodes as they were seen last."""
        found = []
        for job in self._warmer.jobs:
            spread = self._spreads.get(job.id)
            own = job.status()
            found.append(own if spread is None else together(own, spread.shares))
        return found

    async def cancel(self, job_id: str) -> WarmStatus:
        """Ends a job on all nodes that answer. NotFound."""
        await self._warmer.cancel(job_id)
        spread = self._spreads.get(job_id)
        if spread is not None and self._peers is not None:
            running = [share for share in spread.shares if share.state in RUNNING]
            calls = [
                _within_time(self._peers.cancel(share.address, share.job_id))
                for share in running
                if share.job_id is not None
            ]
            for share in running:
                share.end = "cancelled"  # nobody asks about it, or begins it, from now on
            await asyncio.gather(*calls, return_exceptions=True)
        return await self.status(job_id)

    async def close(self) -> None:
        """Ends the jobs of this node."""
        shares = [share for spread in self._spreads.values() for share in spread.shares]
        asking = [share.asking for share in shares if share.asking is not None]
        for task in asking:
            task.cancel()
        await asyncio.gather(*asking, return_exceptions=True)
        await self._warmer.close()

    async def _ask(self, spread: _Spread, share: _Share) -> None:
        """Learns how far one other node is; gives it the job where it has none."""
        try:
            async with self._slots:
                await self._learn(spread.request, share)
            share.error, share.heard_s = None, self._clock_s()
        except NotFound as error:
            is_over = share.job_id is None or share.starts >= STARTS_MAX
            share.job_id = None
            self._lost(share, error, is_over=is_over)
        except Unavailable as error:
            is_over = self._clock_s() - share.heard_s > SILENT_S_MAX
            self._lost(share, error, is_over=is_over)
        except LodefsError as error:
            self._lost(share, error, is_over=True)
        finally:
            share.asking = None

    async def _learn(self, request: WarmRequest, share: _Share) -> None:
        peers = self._peers
        assert peers is not None
        if share.job_id is None:
            share.starts += 1
            share.job_id = await _within_time(peers.start(share.address, request))
        share.status = await _within_time(peers.progress(share.address, share.job_id))

    def _lost(self, share: _Share, error: LodefsError, *, is_over: bool) -> None:
        share.error = error
        if is_over and share.end is None:
            share.end = "failed"


async def _within_time(call: Awaitable[T]) -> T:
    try:
        async with asyncio.timeout(ASK_TIMEOUT_S):
            return await call
    except TimeoutError as error:
        raise DeadlineExceeded(f"no answer within {ASK_TIMEOUT_S:g} s") from error


def together(own: WarmStatus, shares: Sequence[_Share]) -> WarmStatus:
    """The sums over all nodes. It runs while one of them does, and is done when all are."""
    seen = [own, *(share.status for share in shares if share.status is not None)]
    states = [own.state, *(share.state for share in shares)]
    is_running = any(state in RUNNING for state in states)
    is_known = len(seen) == len(states) and all(one.bytes_total is not None for one in seen)
    etas = [one.eta_s for one in seen if one.state in RUNNING]
    errors = [*own.errors, *(error for share in shares for error in _errors(share))]
    return msgspec.structs.replace(
        own,
        state=_state(states),
        files_done=sum(one.files_done for one in seen),
        files_total=sum(one.files_total or 0 for one in seen) if is_known else None,
        bytes_done=sum(one.bytes_done for one in seen),
        bytes_total=sum(one.bytes_total or 0 for one in seen) if is_known else None,
        fetched_bytes=sum(one.fetched_bytes for one in seen),
        bytes_per_s=sum(one.bytes_per_s for one in seen if one.state in RUNNING or not is_running),
        eta_s=None if None in etas else max((eta or 0.0 for eta in etas), default=None),
        elapsed_s=max(one.elapsed_s for one in seen),
        errors=errors[:ERRORS_MAX],
        errors_total=sum(one.errors_total for one in seen) + sum(one.is_lost for one in shares),
        nodes=[_view("", own, own.state), *(_seen(share) for share in shares)],
    )


def _state(states: Sequence[State]) -> State:
    for state in ("listing", "fetching", "failed", "cancelled"):
        if state in states:
            return state
    return "done"


def _errors(share: _Share) -> list[WarmError]:
    found = list(share.status.errors) if share.status is not None else []
    if share.is_lost and share.error is not None:
        found.append(WarmError(type(share.error).__name__, str(share.error)))
    where = f"{share.address}: "
    return [WarmError(one.error, where + one.message, one.path) for one in found]


def _seen(share: _Share) -> NodeShare:
    why = "" if share.error is None else str(share.error)
    if share.status is None:
        return NodeShare(share.address, share.state, error=why)
    return _view(share.address, share.status, share.state, why)


def _view(address: str, status: WarmStatus, state: State, why: str = "") -> NodeShare:
    return NodeShare(
        address=address,
        state=state,
        files_done=status.files_done,
        bytes_done=status.bytes_done,
        bytes_total=status.bytes_total,
        fetched_bytes=status.fetched_bytes,
        error=why or (status.errors[0].message if status.errors else ""),
    )
