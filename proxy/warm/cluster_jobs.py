"""Warm jobs on all nodes: one node passes a job on to the others and adds up their progress.

A background task for each of the others gives it the job, again if it was busy or restarted, and
polls its progress. The job's id is chosen here, so that a start whose answer was lost does not make
a second job. A node that stays silent is given up, or skipped if the request allows that.
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
from lodefs.chunkstore.protocol.cache_control import (
    ERRORS_MAX,
    RUNNING,
    NodeShare,
    State,
    WarmError,
    WarmRequest,
    WarmStatus,
)
from lodefs.chunkstore.system.retry_policy import steady
from lodefs.proxy.peers.client.job_client import PeerJobClient
from lodefs.proxy.warm.jobs import Warmer

T = TypeVar("T")

log = logging.getLogger("lodefs.peers")

ASK_EVERY_S = 1.0
ASKS_PER_S_MAX = 64  # for all nodes together
ASK_TIMEOUT_S = 10.0
ASKED_MAX = 8  # at a time
PAUSES = steady(0.5, 8.0)  # after a failure
SILENT_S_MAX = 30.0
SKIP_S_MAX = 5.0  # the same, if nodes may be skipped and it never answered
BUSY_S_MAX = 3600.0  # limit for a node that answers that it is busy
STARTS_MAX = 5  # for one node's share that was started and then lost


@dataclass(slots=True)
class _NodeJob:
    """Another node's share of a job."""

    address: str
    job_id: str
    success_s: float  # time of the last answer that was not a refusal, or of the beginning
    answered_s: float | None = None  # time of the last answer, including refusals; None: none yet
    asked: bool = False  # a start was sent, so it may have the job
    begun: bool = False  # it has the job, as far as is known
    starts: int = 0  # starts that it answered
    status: WarmStatus | None = None
    error: LodefsError | None = None  # why the last call failed
    failed: int = 0  # failed calls in a row
    end: State | None = None  # how it ended for this node, whatever the other node's state is

    @property
    def why(self) -> str:
        """Returns the error without the node's address."""
        return str(self.error or "").removeprefix(f"peer {self.address}: ")

    @property
    def is_lost(self) -> bool:
        return self.end == "failed"

    @property
    def state(self) -> State:
        if self.end is not None:
            return self.end
        return "listing" if self.status is None else self.status.state

    def record_success(self, now_s: float) -> None:
        self.success_s = self.answered_s = now_s
        self.error = None

    def is_given_up(self, error: Unavailable, now_s: float, *, skip_missing: bool) -> bool:
        """Whether to stop waiting for the node after this error: it was silent, or only refused,
        for too long."""
        if error.retry_after_s is not None:
            self.answered_s = now_s
            return now_s - self.success_s > BUSY_S_MAX
        if self.answered_s is None:
            return now_s - self.success_s > (SKIP_S_MAX if skip_missing else SILENT_S_MAX)
        return now_s - self.answered_s > SILENT_S_MAX


@dataclass(slots=True)
class _ClusterJob:
    """A job that runs on all nodes. ``request`` is what the others received."""

    request: WarmRequest
    skip_missing: bool
    owner: str
    node_jobs: list[_NodeJob] = field(default_factory=list)


class ClusterWarmer:
    """The jobs of this node, and the jobs of other nodes that belong to them."""

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
        self._cluster_jobs: dict[str, _ClusterJob] = {}
        self._slots = asyncio.Semaphore(ASKED_MAX)
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def running(self) -> int:
        return self._warmer.running

    async def start(self, request: WarmRequest, job_id: str | None = None) -> WarmStatus:
        """Begins a job, or returns the one with this id. Raises: what Warmer raises; InvalidInput
        if there are no other nodes, or a name matches none."""
        others, is_here = self._shared_with(request)
        job = await self._warmer.start(request, job_id, is_here=is_here)
        known = {one.id for one in self._warmer.jobs}
        self._cluster_jobs = {
            one: cluster_job for one, cluster_job in self._cluster_jobs.items() if one in known
        }
        if others is not None and self._peers is not None and job.id not in self._cluster_jobs:
            passed_on = msgspec.structs.replace(
                request, rev=job.snapshot.commit, all_nodes=False, skip_missing=False, nodes=[]
            )
            now_s = self._clock_s()
            node_jobs = [_NodeJob(address, secrets.token_hex(8), now_s) for address in others]
            cluster_job = self._cluster_jobs[job.id] = _ClusterJob(
                passed_on, request.skip_missing, request.owner, node_jobs
            )
            for node_job in node_jobs:
                task = asyncio.create_task(self._follow(self._peers, cluster_job, node_job))
                self._tasks.add(task)
                task.add_done_callback(self._tasks.discard)
        return await self.status(job.id)

    async def status(self, job_id: str) -> WarmStatus:
        """Returns the progress of a job, with the last known state of other nodes. Raises:
        NotFound."""
        own = self._warmer.job(job_id).status()
        cluster_job = self._cluster_jobs.get(job_id)
        return own if cluster_job is None else merged_status(own, cluster_job.node_jobs)

    def jobs(self) -> list[WarmStatus]:
        """Returns all jobs, newest first, with the last known state of other nodes."""
        found = []
        for job in self._warmer.jobs:
            cluster_job = self._cluster_jobs.get(job.id)
            own = job.status()
            found.append(own if cluster_job is None else merged_status(own, cluster_job.node_jobs))
        return found

    async def cancel(self, job_id: str) -> WarmStatus:
        """Ends a job on all nodes that answer. Raises: NotFound."""
        await self._warmer.cancel(job_id)
        cluster_job = self._cluster_jobs.get(job_id)
        if cluster_job is not None and self._peers is not None:
            running = [node_job for node_job in cluster_job.node_jobs if node_job.state in RUNNING]
            calls = [
                _within_time(self._peers.cancel(node_job.address, node_job.job_id))
                for node_job in running
            ]
            for node_job in running:
                node_job.end = "cancelled"  # from now on nobody polls or starts it
            await asyncio.gather(*calls, return_exceptions=True)
        return await self.status(job_id)

    async def release(self, owner: str, *, everywhere: bool) -> None:
        """Ends all jobs and pins of an owner; ``everywhere`` on all nodes that answer."""
        running = [
            job_id
            for job_id, cluster_job in self._cluster_jobs.items()
            if cluster_job.owner == owner
            and any(node_job.state in RUNNING for node_job in cluster_job.node_jobs)
        ]
        for job_id in running:
            with suppress(NotFound):
                await self.cancel(job_id)
        await self._warmer.release(owner)
        if everywhere and self._peers is not None:
            calls = [self._release_at(self._peers, one, owner) for one in self._peers.members()]
            await asyncio.gather(*calls)

    async def _release_at(self, peers: PeerJobClient, address: str, owner: str) -> None:
        try:
            async with self._slots:
                await _within_time(peers.release(address, owner))
        except LodefsError as error:
            log.warning("pins of %s on %s expire later: %s", owner, address, error)

    def _shared_with(self, request: WarmRequest) -> tuple[list[str] | None, bool]:
        """Returns the other nodes that share a job (None: only this node), and whether this node
        does. Raises: InvalidInput."""
        if not (request.all_nodes or request.nodes):
            return None, True
        if self._peers is None:
            raise InvalidInput(
                "this proxy is not in a cluster: leave out --all-nodes (all_nodes, nodes) to warm "
                "its own cache, or name the nodes in `[serve] peers`"
            )
        others, own = list(self._peers.members()), list(self._peers.own())
        if not request.nodes:
            return others, True
        wanted = named(request.nodes, [*others, *own])
        return [one for one in wanted if one in others], any(one in own for one in wanted)

    async def close(self) -> None:
        attending = list(self._tasks)
        for task in attending:
            task.cancel()
        await asyncio.gather(*attending, return_exceptions=True)
        await self._warmer.close()

    async def _follow(
        self, peers: PeerJobClient, cluster_job: _ClusterJob, node_job: _NodeJob
    ) -> None:
        """Starts and polls the job of one other node until it ends."""
        ask_every_s = max(ASK_EVERY_S, len(cluster_job.node_jobs) / ASKS_PER_S_MAX)
        while node_job.state in RUNNING:
            try:
                async with self._slots:
                    await self._update(peers, cluster_job.request, node_job)
            except Exception as error:
                if not isinstance(error, LodefsError):
                    log.exception("asking %s for its progress failed", node_job.address)
                    error = LodefsError("an error inside the proxy; its log says more")
                self._record_failure(cluster_job, node_job, error)
                node_job.failed += 1
                pause_s = PAUSES.pause_s(node_job.failed)
            else:
                node_job.record_success(self._clock_s())
                pause_s, node_job.failed = ask_every_s, 0
            if node_job.state in RUNNING:
                await self._sleep(pause_s)
        # It may have begun when it was cancelled
        if node_job.end == "cancelled" and node_job.asked:
            with suppress(LodefsError):
                await _within_time(peers.cancel(node_job.address, node_job.job_id))

    async def _update(self, peers: PeerJobClient, request: WarmRequest, node_job: _NodeJob) -> None:
        if not node_job.begun:
            node_job.asked = True
            node_job.job_id = await _within_time(
                peers.start(node_job.address, request, node_job.job_id)
            )
            node_job.begun = True
            node_job.starts += 1
        node_job.status = await _within_time(peers.progress(node_job.address, node_job.job_id))

    def _record_failure(
        self, cluster_job: _ClusterJob, node_job: _NodeJob, error: LodefsError
    ) -> None:
        """Records an error, and ends the job of a node that must not be asked again."""
        was_logged = str(node_job.error) == str(error)
        node_job.error = error
        if node_job.end is not None:  # cancelled meanwhile
            return
        if isinstance(error, Unavailable):
            if node_job.is_given_up(error, self._clock_s(), skip_missing=cluster_job.skip_missing):
                busy = error.retry_after_s is not None
                node_job.end = "skipped" if cluster_job.skip_missing and not busy else "failed"
        elif isinstance(error, NotFound) and node_job.begun and node_job.starts < STARTS_MAX:
            node_job.begun = False  # the node was restarted, and has lost the job
        else:
            node_job.end = "failed"
        if node_job.end is not None or not was_logged:
            what = node_job.end or "asked again"
            log.warning("warming on %s (%s): %s", node_job.address, what, node_job.why)


async def _within_time(call: Awaitable[T]) -> T:
    try:
        async with asyncio.timeout(ASK_TIMEOUT_S):
            return await call
    except TimeoutError as error:
        raise DeadlineExceeded(f"no answer within {ASK_TIMEOUT_S:g} s") from error


def merged_status(own: WarmStatus, node_jobs: Sequence[_NodeJob]) -> WarmStatus:
    """Returns the sums over all nodes. The job runs while one of them does, and is done when all
    are."""
    statuses = [own, *(one.status for one in node_jobs if one.status and one.end != "skipped")]
    states = [own.state, *(node_job.state for node_job in node_jobs if node_job.end != "skipped")]
    is_running = any(state in RUNNING for state in states)
    is_known = len(statuses) == len(states) and all(one.bytes_total is not None for one in statuses)
    etas = [one.eta_s for one in statuses if one.state in RUNNING]
    errors = [*own.errors, *(error for node_job in node_jobs for error in _errors(node_job))]
    return msgspec.structs.replace(
        own,
        state=_state(states),
        files_done=sum(one.files_done for one in statuses),
        files_total=sum(one.files_total or 0 for one in statuses) if is_known else None,
        bytes_done=sum(one.bytes_done for one in statuses),
        bytes_total=sum(one.bytes_total or 0 for one in statuses) if is_known else None,
        fetched_bytes=sum(one.fetched_bytes for one in statuses),
        bytes_per_s=sum(
            one.bytes_per_s for one in statuses if one.state in RUNNING or not is_running
        ),
        eta_s=None if None in etas else max((eta or 0.0 for eta in etas), default=None),
        elapsed_s=max(one.elapsed_s for one in statuses),
        errors=errors[:ERRORS_MAX],
        errors_total=sum(one.errors_total for one in statuses)
        + sum(one.is_lost for one in node_jobs),
        nodes=[_view("", own, own.state), *(_node_view(node_job) for node_job in node_jobs)],
    )


def _state(states: Sequence[State]) -> State:
    for state in ("listing", "fetching", "failed", "cancelled"):
        if state in states:
            return state
    return "done"


def _errors(node_job: _NodeJob) -> list[WarmError]:
    found = list(node_job.status.errors) if node_job.status is not None else []
    if node_job.is_lost and node_job.error is not None:
        found.append(WarmError(type(node_job.error).__name__, node_job.why))
    where = f"{node_job.address}: "
    return [WarmError(one.error, where + one.message, one.path) for one in found]


def _node_view(node_job: _NodeJob) -> NodeShare:
    if node_job.status is None:
        return NodeShare(node_job.address, node_job.state, error=node_job.why)
    return _view(node_job.address, node_job.status, node_job.state, node_job.why)


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


SHOWN_MAX = 8


def named(names: Sequence[str], members: Sequence[str]) -> list[str]:
    """Returns the members (``HOST:PORT``) that match names, in the order of the members. A name is
    a member's address, its host, or that host's name without its domain. Raises: InvalidInput for a
    name without a match."""
    known = {name: one for one in members for name in _names_of(one)}
    unknown = [name for name in names if name not in known]
    if unknown:
        shown = ", ".join(members[:SHOWN_MAX]) + (", ..." if len(members) > SHOWN_MAX else "")
        raise InvalidInput(
            f"{unknown[0]} is not a node of this proxy's cluster, which has {shown or 'none'}: use "
            "the names in `[serve] peers`"
        )
    wanted = {known[name] for name in names}
    return [one for one in members if one in wanted]


def _names_of(address: str) -> list[str]:
    host = address.rpartition(":")[0].strip("[]")
    is_name = not host.replace(".", "").isdigit() and ":" not in host
    return [address, host, *([host.partition(".")[0]] if is_name else [])]
