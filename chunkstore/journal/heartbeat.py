"""Sends the heartbeats of a writer that takes long."""

from __future__ import annotations

import logging
from collections.abc import Callable
from threading import Event, Thread

from lodefs.chunkstore.errors import LodefsError

EVERY_S = 60.0
STOP_TIMEOUT_S = 10.0  # a store that does not answer must not delay the end of a push for long

_log = logging.getLogger(__name__)


class Heartbeat:
    """Calls ``beat`` at intervals, in its own thread, from ``start`` to ``stop``."""

    def __init__(self, beat: Callable[[], None], every_s: float = EVERY_S) -> None:
        self._beat = beat
        self._every_s = every_s
        self._stopped = Event()
        self._thread: Thread | None = None

    def start(self) -> None:
        """Starts the thread, once. Processes must be forked before."""
        if self._thread is None:
            self._thread = Thread(target=self._run, name="lodefs-heartbeat", daemon=True)
            self._thread.start()

    def stop(self) -> None:
        """Ends the thread."""
        self._stopped.set()
        if self._thread is not None:
            self._thread.join(STOP_TIMEOUT_S)

    def _run(self) -> None:
        while not self._stopped.wait(self._every_s):
            try:
                self._beat()
            except LodefsError as error:  # the push itself will find out what is wrong
                _log.warning("this push could not send a heartbeat: %s", error)
