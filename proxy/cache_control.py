"""What the HTTP side asks of a node's cache beyond reads: warm, pin, evict.

Implementations: cache_control.py (a cache), tests/support (in memory).
"""

from __future__ import annotations

from typing import Protocol

from lodefs.chunkstore.errors import NotFound
from lodefs.chunkstore.nodeapi.cache_control import (
    EvictRequest,
    EvictView,
    PinsView,
    WarmJobs,
    WarmRequest,
    WarmStatus,
)


def no_job(job_id: str) -> NotFound:
    """What is said of a warm job that there is not."""
    return NotFound(f"there is no warm job {job_id}: jobs end with their proxy; ask again")


class CacheControl(Protocol):
    """Control of one node's cache. Methods raise errors.py's classes."""

    @property
    def is_busy(self) -> bool:
        """Whether a job runs."""
        ...

    async def warm(self, request: WarmRequest) -> WarmStatus:
        """Begins a job. NotFound, InvalidInput; Unavailable where too many run."""
        ...

    async def warm_jobs(self) -> WarmJobs:
        """The jobs that run, and the last that ran."""
        ...

    async def warm_status(self, job_id: str) -> WarmStatus:
        """How far a job is. NotFound."""
        ...

    async def cancel_warm(self, job_id: str) -> WarmStatus:
        """Ends a job, on all nodes that it runs on. NotFound."""
        ...

    async def pins(self) -> PinsView:
        """The pins that hold now."""
        ...

    async def evict(self, request: EvictRequest) -> EvictView:
        """Drops pins and data. NotFound, InvalidInput, Unavailable."""
        ...
