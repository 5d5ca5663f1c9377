"""Tells the node's proxy what will be read next, so that it can fetch it ahead."""

from __future__ import annotations

import warnings
from collections.abc import Iterable
from contextlib import suppress

from lodefs.chunkstore.errors import LodefsError
from lodefs.chunkstore.protocol.cache_control import RUNNING, WARM, WarmRequest, WarmStatus, encoded
from lodefs.chunkstore.protocol.control_client import ControlClient
from lodefs.reading.snapshot import Snapshot
from lodefs.reading.urls import encoded_path

PATHS_MAX = 100_000  # in one hint; further files are fetched when they are read
TIMEOUT_S = 5.0
KEPT_MAX = 8  # jobs that are remembered, so that they can be cancelled


class WarmHints:
    """Starts warm jobs for what comes next. A failure warns once, and never stops a training.

    Only a proxy on a Unix socket accepts jobs; with any other proxy hints do nothing.
    """

    def __init__(self, snapshot: Snapshot) -> None:
        self._snapshot = snapshot
        self._jobs: list[str] = []
        self._calls: ControlClient | None = None
        self._is_off = False

    def want(self, paths: Iterable[str]) -> None:
        """Says that these files will be read soon."""
        names = [encoded(encoded_path(path)) for path in paths][:PATHS_MAX]
        if self._is_off or not names:
            return
        request = WarmRequest(self._snapshot.repo, self._snapshot.commit, paths=names)
        try:
            calls = self._client()
            if calls is not None:
                status = calls.call(WarmStatus, "POST", WARM, request, timeout_s=TIMEOUT_S)
                if status.state in RUNNING:
                    self._jobs.append(status.id)
        except LodefsError as error:
            self._is_off = True
            warnings.warn(f"lodefs: data is not fetched ahead: {error}", stacklevel=2)
        while len(self._jobs) > KEPT_MAX:
            self._jobs.pop(0)

    def cancel(self) -> None:
        """Says that nothing more is wanted: running jobs end."""
        while self._jobs and self._calls is not None:
            with suppress(LodefsError):
                path = f"{WARM}/{self._jobs.pop()}"
                self._calls.call(WarmStatus, "DELETE", path, timeout_s=TIMEOUT_S)
        if self._calls is not None:
            self._calls.close()
            self._calls = None

    def _client(self) -> ControlClient | None:
        if self._calls is None:
            self._calls = self._snapshot.control()
            self._is_off = self._calls is None
        return self._calls

    def __reduce__(self) -> tuple[type[WarmHints], tuple[Snapshot]]:
        return (type(self), (self._snapshot,))  # jobs belong to the process that started them
