"""Follows a warm job of a proxy to its end, also across a restart of the proxy."""

from __future__ import annotations

import time
from collections.abc import Callable

from lodefs.chunkstore.errors import NotFound, Unavailable
from lodefs.chunkstore.nodeapi.cache_control import RUNNING, WARM, WarmRequest, WarmStatus
from lodefs.chunkstore.nodeapi.control_client import ControlClient
from lodefs.chunkstore.system.progress import Progress

POLL_S_MIN, POLL_S_MAX = 0.02, 0.1
GONE_S_MAX = 60.0  # how long a proxy may be unreachable
STARTS_MAX = 10


class Follower:
    """Polls one job until it is over. If its proxy was restarted, starts the job again, which goes
    on where it was."""

    def __init__(
        self,
        calls: ControlClient,
        request: WarmRequest | None,
        *,
        clock_s: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
        warn: Callable[[str], None] = lambda _line: None,
    ) -> None:
        """``request``: what to ask for; None for a job of others. ``warn`` is called once for
        each node that cannot be asked."""
        self._calls = calls
        self._request = request
        self._clock_s = clock_s
        self._sleep = sleep
        self._warn = warn
        self._warned: set[str] = set()
        self.job_id = ""
        self._starts = 0

    def start(self) -> WarmStatus:
        """Starts the job. Raises: errors of the proxy."""
        self._starts += 1
        status = self._calls.call(WarmStatus, "POST", WARM, self._request)
        self.job_id = status.id
        return status

    def follow(self, job_id: str, progress: Progress) -> WarmStatus:
        """The job's last status. Raises: NotFound, Unavailable."""
        self.job_id = job_id
        pause_s = POLL_S_MIN
        answered_s = self._clock_s()
        while True:
            try:
                status = self._status_or_restart()
            except Unavailable:
                if self._clock_s() - answered_s > GONE_S_MAX:
                    raise
                progress.phase = "waiting for the proxy"
            else:
                answered_s = self._clock_s()
                show(status, progress)
                self._warn_of_waiting(status)
                if status.state not in RUNNING:
                    return status
            self._sleep(pause_s)
            pause_s = min(2 * pause_s, POLL_S_MAX)

    def _warn_of_waiting(self, status: WarmStatus) -> None:
        for node in status.nodes:
            if node.state in RUNNING and node.error and node.address not in self._warned:
                self._warned.add(node.address)
                self._warn(f"waiting for {node.address}: {node.error}")

    def _status_or_restart(self) -> WarmStatus:
        try:
            return self.status()
        except NotFound:
            if self._request is None or self._starts >= STARTS_MAX:
                raise
            return self.start()

    def status(self) -> WarmStatus:
        """The job's status. Raises: NotFound, Unavailable."""
        return self._calls.call(WarmStatus, "GET", f"{WARM}/{self.job_id}")

    def cancel(self) -> WarmStatus:
        """Cancels the job. Raises: NotFound, Unavailable."""
        return self._calls.call(WarmStatus, "DELETE", f"{WARM}/{self.job_id}")


def show(status: WarmStatus, progress: Progress) -> None:
    """Copies a status into the progress bar's counters."""
    progress.phase = {"listing": "listing", "fetching": "warming"}.get(status.state, status.state)
    if status.nodes:
        done = sum(node.state == "done" for node in status.nodes)
        progress.phase += f" on {len(status.nodes)} nodes ({done} done)"
        missing = [node for node in status.nodes if node.state in RUNNING and node.error]
        if missing:
            more = f" and {len(missing) - 1} more" if len(missing) > 1 else ""
            progress.phase += f", waiting for {missing[0].address}{more}"
    progress.files_done = status.files_done
    progress.files_total = status.files_total or 0
    progress.bytes_done = status.bytes_done
    progress.bytes_total = status.bytes_total or 0
    progress.bytes_sent = status.fetched_bytes
