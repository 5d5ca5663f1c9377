"""Upkeep in memory, for tests of everything that speaks HTTP: jobs run until a test ends them."""

from __future__ import annotations

from lodefs.chunkstore.errors import NotFound
from lodefs.chunkstore.format.names import check_ref_name, check_repo
from lodefs.chunkstore.protocol.cache_control import (
    RUNNING,
    EvictRequest,
    EvictView,
    PinsView,
    WarmJobs,
    WarmRequest,
    WarmStatus,
)
from lodefs.proxy.node import CacheControl
from lodefs.proxy.warm.path_patterns import Selection

COMMIT = "ab" * 32


class MemoryCacheControl(CacheControl):
    """Takes note of what it is asked. ``statuses`` are its jobs, which a test may change."""

    def __init__(self) -> None:
        self.requests: list[WarmRequest | EvictRequest] = []
        self.statuses: dict[str, WarmStatus] = {}

    def put(self, job_id: str, request: WarmRequest, **more: object) -> WarmStatus:
        """A job as a test wants it."""
        figures: dict[str, object] = {
            **dict.fromkeys(("files_done", "bytes_done", "fetched_bytes", "errors_total"), 0),
            **dict.fromkeys(("files_total", "bytes_total", "eta_s", "pinned_until_s")),
            **dict.fromkeys(("bytes_per_s", "elapsed_s"), 0.0),
            "state": "fetching",
            "errors": [],
        }
        status = WarmStatus(job_id, request.repo, COMMIT, **(figures | more))  # type: ignore[arg-type]
        self.statuses[job_id] = status
        return status

    @property
    def is_busy(self) -> bool:
        return any(status.state in RUNNING for status in self.statuses.values())

    async def warm(self, request: WarmRequest) -> WarmStatus:
        check_repo(request.repo)
        check_ref_name(request.rev)
        Selection([path.encode() for path in request.paths])
        self.requests.append(request)
        return self.put(f"{len(self.requests):016x}", request)

    async def warm_jobs(self) -> WarmJobs:
        return WarmJobs(list(reversed(self.statuses.values())))

    async def warm_status(self, job_id: str) -> WarmStatus:
        if job_id not in self.statuses:
            raise NotFound(f"there is no warm job {job_id}")
        return self.statuses[job_id]

    async def cancel_warm(self, job_id: str) -> WarmStatus:
        request = WarmRequest((await self.warm_status(job_id)).repo)
        return self.put(job_id, request, state="cancelled")

    async def pins(self) -> PinsView:
        return PinsView([], 0, 1 << 30)

    async def evict(self, request: EvictRequest) -> EvictView:
        self.requests.append(request)
        return EvictView([], 0, 0, 0, 0, 0, [], request.dry_run)
