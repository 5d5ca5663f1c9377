"""Warming on all nodes: one node passes a job on to the others and adds up how far they are.

Each of the others is attended in the background, whether or not somebody asks: it is given the job,
again if it was busy or forgot it (it was started anew), and asked how far it is. The job's id is
chosen here, so that a start whose answer was lost makes no second job. One that stays silent is
given up, or skipped if that was asked for.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TypeVar

import msgspec

from lodefs.chunkstore.errors import (
    DeadlineExceeded,
    InvalidInput,
    LodefsError,
    NotFound,
    Unavailable,
)
from lodefs.chunkstore.nodeapi.cache_control import (
    ERRORS_MAX,
    RUNNING,
    NodeShare,
    State,
    WarmError,
    WarmRequest,
    WarmStatus,
)
from lodefs.proxy.peers.client.job_client import PeerJobClient
from lodefs.proxy.warm.jobs import Warmer

T = TypeVar("T")

log = logging.getLogger("lodefs.peers")

ASK_EVERY_S = 1.0
ASKS_PER_S_MAX = 64  # of all nodes together
ASK_TIMEOUT_S = 10.0
ASKED_MAX = 8  # at a time
RETRY_S_MIN, RETRY_S_MAX = 0.5, 8.0  # after a failure; doubles
SILENT_S_MAX = 30.0
SKIP_S_MAX = 5.0  # likewise, if nodes may be skipped and it was never heard of
BUSY_S_MAX = 3600.0  # it answers that it has too much to do
STARTS_MAX = 5  # of one node's share, answered and then forgotten


@dataclass(slots=True)
class _NodeJob:
    """What one other node does of a job."""

    address: str
    job_id: str
    heard_s: float  # of anything but refusals; the beginning, before that
    answered_s: float | None = None  # likewise, refusals included; None: it never answered
    asked: bool = False  # a start was sent: it may have the job
    begun: bool = False  # it has the job, as far as is known
    starts: int = 0  # that it answered
    status: WarmStatus | None = None
    error: LodefsError | None = None  # why it is not heard of
    retry_s: float = RETRY_S_MIN
    end: State | None = None  # how it ended for this node, whatever the other one thinks

    @property
    def why(self) -> str:
        """The error in words, without the node's address."""
        return str(self.error or "").removeprefix(f"peer {self.address}: ")

    @property
    def is_lost(self) -> bool:
        return self.end == "failed"

    @property
    def state(self) -> State:
        if self.end is not None:
            return self.end
        return "listing" if self.status is None else self.status.state

    def heard(self, now_s: float) -> None:
        """It did as it was asked."""
        self.heard_s = self.answered_s = now_s
        self.error = None

    def is_given_up(self, error: Unavailable, now_s: float, *, skip_missing: bool) -> bool:
        """Whether it is waited for no longer after this error: it was silent, or only refused, for
        too long."""
        if error.retry_after_s is not None:
            self.answered_s = now_s
            return now_s - self.heard_s > BUSY_S_MAX
        if self.answered_s is None:
            return now_s - self.heard_s > (SKIP_S_MAX if skip_missing else SILENT_S_MAX)
        return now_s - self.answered_s > SILENT_S_MAX


@dataclass(slots=True)
class _ClusterJob:
    """A job that runs on all nodes. ``request`` is what the others were asked."""

    request: WarmRequest
    skip_missing: bool
    shares: list[_NodeJob] = field(default_factory=list)


class ClusterWarmer:
    """The jobs of this node, and those of the other nodes that belong to them."""

    def __init__(
        self,
        warmer: Warmer,
        peers: PeerJobClient | None = None,
        *,
        clock_s: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._warmer = warmer
        self._peers = peers
        self._clock_s = clock_s
        self._sleep = sleep
        self._spreads: dict[str, _ClusterJob] = {}
        self._slots = asyncio.Semaphore(ASKED_MAX)
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def running(self) -> int:
        """Jobs that run on this node."""
        return self._warmer.running

    async def start(self, request: WarmRequest, job_id: str | None = None) -> WarmStatus:
        """Begins a job, or finds the one with this id. Raises: as Warmer does; InvalidInput if
        there are no other nodes to ask."""
        if request.all_nodes and self._peers is None:
            raise InvalidInput(
                "this proxy is not in a cluster: leave out --all-nodes (all_nodes) to warm its own "
                "cache, or name the nodes in `[serve] peers`"
            )
        job = await self._warmer.start(request, job_id)
        known = {one.id for one in self._warmer.jobs}
        self._spreads = {one: spread for one, spread in self._spreads.items() if one in known}
        if request.all_nodes and self._peers is not None and job.id not in self._spreads:
            passed_on = msgspec.structs.replace(
                request, rev=job.snapshot.commit, all_nodes=False, skip_missing=False
            )
            now_s = self._clock_s()
            shares = [
                _NodeJob(address, secrets.token_hex(8), now_s) for address in self._peers.members()
            ]
            spread = self._spreads[job.id] = _ClusterJob(passed_on, request.skip_missing, shares)
            for share in shares:
                task = asyncio.create_task(self._follow(self._peers, spread, share))
                self._tasks.add(task)
                task.add_done_callback(self._tasks.discard)
        return await self.status(job.id)

    async def status(self, job_id: str) -> WarmStatus:
        """How far a job is; on the other nodes, as they said last. Raises: NotFound."""
        own = self._warmer.job(job_id).status()
        spread = self._spreads.get(job_id)
        return own if spread is None else together(own, spread.shares)

    def jobs(self) -> list[WarmStatus]:
        """All jobs, the newest first; other nodes as they said last."""
        found = []
        for job in self._warmer.jobs:
            spread = self._spreads.get(job.id)
            own = job.status()
            found.append(own if spread is None else together(own, spread.shares))
        return found

    async def cancel(self, job_id: str) -> WarmStatus:
        """Ends a job on all nodes that answer. Raises: NotFound."""
        await self._warmer.cancel(job_id)
        spread = self._spreads.get(job_id)
        if spread is not None and self._peers is not None:
            running = [share for share in spread.shares if share.state in RUNNING]
            calls = [
                _within_time(self._peers.cancel(share.address, share.job_id)) for share in running
            ]
            for share in running:
                share.end = "cancelled"  # nobody asks about it, or begins it, from now on
            await asyncio.gather(*calls, return_exceptions=True)
        return await self.status(job_id)

    async def close(self) -> None:
        """Ends the jobs of this node."""
        attending = list(self._tasks)
        for task in attending:
            task.cancel()
        await asyncio.gather(*attending, return_exceptions=True)
        await self._warmer.close()

    async def _follow(self, peers: PeerJobClient, spread: _ClusterJob, share: _NodeJob) -> None:
        """Sees one other node through its share."""
        ask_every_s = max(ASK_EVERY_S, len(spread.shares) / ASKS_PER_S_MAX)
        while share.state in RUNNING:
            try:
                async with self._slots:
                    await self._update(peers, spread.request, share)
            except Exception as error:
                if not isinstance(error, LodefsError):
                    log.exception("asking %s how far it is failed", share.address)
                    error = LodefsError("an error inside the proxy; its log says more")
                self._failed(spread, share, error)
                pause_s, share.retry_s = share.retry_s, min(2 * share.retry_s, RETRY_S_MAX)
            else:
                share.heard(self._clock_s())
                pause_s, share.retry_s = ask_every_s, RETRY_S_MIN
            if share.state in RUNNING:
                await self._sleep(pause_s)
        if share.end == "cancelled" and share.asked:  # it may have begun when it was to end
            with suppress(LodefsError):
                await _within_time(peers.cancel(share.address, share.job_id))

    async def _update(self, peers: PeerJobClient, request: WarmRequest, share: _NodeJob) -> None:
        if not share.begun:
            share.asked = True
            share.job_id = await _within_time(peers.start(share.address, request, share.job_id))
            share.begun = True
            share.starts += 1
        share.status = await _within_time(peers.progress(share.address, share.job_id))

    def _failed(self, spread: _ClusterJob, share: _NodeJob, error: LodefsError) -> None:
        """Whether the node may be asked again."""
        was_logged = str(share.error) == str(error)
        share.error = error
        if share.end is not None:  # cancelled meanwhile
            return
        if isinstance(error, Unavailable):
            if share.is_given_up(error, self._clock_s(), skip_missing=spread.skip_missing):
                busy = error.retry_after_s is not None
                share.end = "skipped" if spread.skip_missing and not busy else "failed"
        elif isinstance(error, NotFound) and share.begun and share.starts < STARTS_MAX:
            share.begun = False  # it was started anew, and forgot the job
        else:
            share.end = "failed"
        if share.end is not None or not was_logged:
            what = share.end or "asked again"
            log.warning("warming on %s (%s): %s", share.address, what, share.why)


async def _within_time(call: Awaitable[T]) -> T:
    try:
        async with asyncio.timeout(ASK_TIMEOUT_S):
            return await call
    except TimeoutError as error:
        raise DeadlineExceeded(f"no answer within {ASK_TIMEOUT_S:g} s") from error


def together(own: WarmStatus, shares: Sequence[_NodeJob]) -> WarmStatus:
    """The sums over all nodes. It runs while one of them does, and is done when all are."""
    seen = [own, *(one.status for one in shares if one.status and one.end != "skipped")]
    states = [own.state, *(share.state for share in shares if share.end != "skipped")]
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


def _errors(share: _NodeJob) -> list[WarmError]:
    found = list(share.status.errors) if share.status is not None else []
    if share.is_lost and share.error is not None:
        found.append(WarmError(type(share.error).__name__, share.why))
    where = f"{share.address}: "
    return [WarmError(one.error, where + one.message, one.path) for one in found]


def _seen(share: _NodeJob) -> NodeShare:
    if share.status is None:
        return NodeShare(share.address, share.state, error=share.why)
    return _view(share.address, share.status, share.state, share.why)


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
