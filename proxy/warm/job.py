"""One warm job: its request, its progress, its errors."""

from __future__ import annotations

import asyncio
import secrets
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import NamedTuple

from lodefs.chunkstore.errors import LodefsError
from lodefs.chunkstore.protocol.cache_control import (
    ERRORS_MAX,
    RUNNING,
    State,
    WarmError,
    WarmRequest,
    WarmStatus,
    encoded,
)
from lodefs.chunkstore.protocol.wire import Snapshot, kind_of
from lodefs.proxy.warm.path_patterns import Selection, common_directory

MIB = 1024 * 1024


class WindowSize(NamedTuple):
    """Limits for the units and raw bytes under way; one unit is always allowed."""

    units: int
    size_bytes: int


ALONE = WindowSize(24, 64 * MIB)  # eight whole units, as many as pull reads at a time
BESIDE_READERS = WindowSize(6, 24 * MIB)


class AdmissionWindow:
    """Admits units in the order of calls. For use on the event loop only."""

    def __init__(self, has_readers: Callable[[], bool]) -> None:
        """``has_readers`` tells whether fetches for readers are under way."""
        self._has_readers = has_readers
        self._units = 0
        self._size_bytes = 0
        self._waiting: deque[tuple[int, asyncio.Future[None]]] = deque()

    async def enter(self, size_bytes: int) -> None:
        """Returns when a unit of ``size_bytes`` may start."""
        if not self._waiting and self._has_room(size_bytes):
            self._take(size_bytes)
            return
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append((size_bytes, turn))
        try:
            await turn
        except asyncio.CancelledError:
            if turn.cancelled():
                with suppress(ValueError):  # skipped already
                    self._waiting.remove((size_bytes, turn))
            else:
                self.leave(size_bytes)
            raise

    def leave(self, size_bytes: int) -> None:
        """Notes the end of a unit."""
        self._units -= 1
        self._size_bytes -= size_bytes
        while self._waiting and self._has_room(self._waiting[0][0]):
            size_bytes, turn = self._waiting.popleft()
            if not turn.cancelled():
                self._take(size_bytes)
                turn.set_result(None)

    def _has_room(self, size_bytes: int) -> bool:
        if not self._units:
            return True
        width = BESIDE_READERS if self._has_readers() else ALONE
        return self._units < width.units and self._size_bytes + size_bytes <= width.size_bytes

    def _take(self, size_bytes: int) -> None:
        self._units += 1
        self._size_bytes += size_bytes


RATE_WINDOW_S = 10.0
RATE_STEP_S = 0.5


class Rate:
    """Bytes a second, over about the last RATE_WINDOW_S. Pure: callers pass times."""

    def __init__(self) -> None:
        self._seen: deque[tuple[float, int]] = deque()

    def see(self, now_s: float, done_bytes: int) -> None:
        """Notes how many bytes are done."""
        if not self._seen or now_s - self._seen[-1][0] >= RATE_STEP_S:
            self._seen.append((now_s, done_bytes))
            while now_s - self._seen[0][0] > RATE_WINDOW_S:
                self._seen.popleft()

    def of(self, now_s: float, done_bytes: int) -> float:
        """Returns the rate up to now; 0 while nothing is known."""
        if not self._seen or now_s <= self._seen[0][0]:
            return 0.0
        return (done_bytes - self._seen[0][1]) / (now_s - self._seen[0][0])


class Job:
    """A job's counters. The event loop changes them; they may be read at any time."""

    def __init__(
        self,
        request: WarmRequest,
        snapshot: Snapshot,
        selection: Selection,
        *,
        job_id: str | None = None,
        pinned_until_s: int | None = None,
        clock_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self.id = job_id or secrets.token_hex(8)
        self.request = request
        self.snapshot = snapshot
        self.selection = selection
        self.pinned_until_s = pinned_until_s
        self.state: State = "listing"
        self.files_done = 0
        self.files_total: int | None = None
        self.bytes_done = 0
        self.bytes_total: int | None = None
        self.fetched_bytes = 0
        self.errors: list[WarmError] = []
        self.errors_total = 0
        self._clock_s = clock_s
        self._began_s = clock_s()
        self._ended_s: float | None = None
        self._rate = Rate()

    @property
    def is_running(self) -> bool:
        return self.state in RUNNING

    def directory(self) -> bytes:
        """Returns the deepest directory that contains everything requested."""
        return common_directory(self.selection.patterns)

    def add_progress(self, size_bytes: int, fetched_bytes: int = 0, *, files: int = 0) -> None:
        """Adds bytes of files that are cached now; ``fetched_bytes`` were not cached before."""
        self._rate.see(self._clock_s(), self.bytes_done)
        self.bytes_done += size_bytes
        self.fetched_bytes += fetched_bytes
        self.files_done += files

    def add_error(self, error: LodefsError, path: bytes = b"") -> None:
        """Notes a failure; the rest may still arrive."""
        self.errors_total += 1
        if len(self.errors) < ERRORS_MAX:
            self.errors.append(WarmError(kind_of(error), str(error), encoded(path)))

    def end(self, state: State) -> None:
        """Ends the job; the first end counts."""
        if self.is_running:
            self.state = state
            self._ended_s = self._clock_s()

    def status(self) -> WarmStatus:
        now_s = self._clock_s() if self._ended_s is None else self._ended_s
        elapsed_s = now_s - self._began_s
        if self._ended_s is None:
            rate = self._rate.of(now_s, self.bytes_done)
        else:
            rate = self.bytes_done / elapsed_s if elapsed_s else 0.0
        return WarmStatus(
            id=self.id,
            repo=self.snapshot.repo,
            commit=self.snapshot.commit,
            state=self.state,
            files_done=self.files_done,
            files_total=self.files_total,
            bytes_done=self.bytes_done,
            bytes_total=self.bytes_total,
            fetched_bytes=self.fetched_bytes,
            bytes_per_s=rate,
            eta_s=eta_s(self.bytes_done, self.bytes_total, rate) if self.is_running else None,
            elapsed_s=elapsed_s,
            pinned_until_s=self.pinned_until_s,
            errors=list(self.errors),
            errors_total=self.errors_total,
        )


def eta_s(done_bytes: int, total_bytes: int | None, bytes_per_s: float) -> float | None:
    """Returns the seconds that the rest takes at this rate; None if unknown."""
    if total_bytes is None or bytes_per_s <= 0:
        return None
    return max(total_bytes - done_bytes, 0) / bytes_per_s
