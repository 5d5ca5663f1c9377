"""A thread that follows the node's cache for a mount.

There is one per worker. Readers never wait for news of the index: they only look at ``view``.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import nullcontext
from threading import Event, Thread
from time import sleep
from typing import TYPE_CHECKING

from lodefs.chunkstore.errors import LodefsError
from lodefs.chunkstore.nodecache.cached_snapshot import RETRY_S, ROUND_S, CachedSnapshot, Opener
from lodefs.chunkstore.protocol.read_client import Client
from lodefs.chunkstore.protocol.wire import Entry, Snapshot
from lodefs.chunkstore.system.lru import Lru
from lodefs.mount.read import memory_fit
from lodefs.mount.read.shared_answers import SharedAnswers

if TYPE_CHECKING:
    from lodefs.chunkstore.nodecache.view import CacheView

START_S = 0.1  # a mount becomes ready before this work begins
NEWS_PAUSE_S = 0.01


class CacheMonitor(CachedSnapshot):
    """``client`` belongs to this object alone, and must use a Unix socket. ``nodes``: the entries
    that the file system has cached."""

    def __init__(
        self,
        client: Client,
        snapshot: Snapshot,
        log: Callable[[str], None],
        *,
        nodes: Lru[int, Entry] | None = None,
        opener: Opener | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__(
            lambda: nullcontext(client), snapshot, log, nodes=nodes, opener=opener, clock=clock
        )
        self.before_report: Callable[[], None] = lambda: (
            None
        )  # marks files that the kernel reads by itself as used
        self.neighbours_size_bytes = 0  # of a slab, to read along with bytes from the disk
        self.shared_answers = SharedAnswers()
        self._client = client
        self._stopping = False
        self._woken = Event()
        self._thread: Thread | None = None

    def start(self) -> None:
        """Follows the cache from now on, in a thread of its own, until ``close``."""
        self._thread = Thread(target=self._run, name="nearby", daemon=True)
        self._thread.start()

    @property
    def is_started(self) -> bool:
        """Whether it follows the cache."""
        return self._thread is not None

    def close(self) -> None:
        """Lets go of the cache."""
        self._stopping = True
        self._woken.set()
        if self._thread is not None:
            self._thread.join()
        self.view = None
        self._client.close()

    def current(self) -> CacheView | None:
        """Returns the present view of the cache; the thread updates it."""
        return self.view

    def catch_up(self, _view: CacheView) -> bool:
        """Asks for an update soon, after a reader missed something. It comes too late for that
        reader but helps the next: bytes are asked for often, and directories are loaded ahead."""
        self._woken.set()
        return False

    @property
    def is_woken(self) -> bool:
        """Whether a reader missed something since the last update."""
        return self._woken.is_set()

    def _run(self) -> None:
        self._woken.wait(START_S)
        self._woken.clear()
        next_turn_s = self._clock()
        while not self._stopping:
            if self._clock() >= next_turn_s:
                self._try(self.maintain)
                next_turn_s = self._clock() + ROUND_S
            else:
                self._try(self.refresh)
            if not self._stopping and self._woken.wait(max(next_turn_s - self._clock(), 0)):
                self._woken.clear()
                sleep(NEWS_PAUSE_S)  # events that come together are handled together

    def _try(self, step: Callable[[], None]) -> None:
        """Runs a step. After any error this thread continues: nobody else would open the cache."""
        try:
            step()
        except Exception as error:  # noqa: BLE001
            self.view = None
            self._next_try_s = self._clock() + RETRY_S
            self.say_once(
                "the node's cache is not read directly for a while: "
                f"{type(error).__name__}: {error}"
            )

    def refresh(self) -> None:
        """Reads what the proxy has written since."""
        view = self.view
        if view is None:
            return
        try:
            view.catch_up()
        except LodefsError as error:
            self.failed(view, error)

    def maintain(self) -> None:
        super().maintain()
        if self.view is not None:
            self.neighbours_size_bytes = memory_fit.neighbours_size_bytes(
                self.snapshot.size_bytes, memory_fit.available_bytes()
            )

    def report(self, view: CacheView) -> None:
        self.before_report()
        super().report(view)
