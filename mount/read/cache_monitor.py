"""The node's cache next to a mount, looked after by a thread now and then.

One per worker. Readers never wait for the index's news: they only look at ``view``.
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

if TYPE_CHECKING:
    from lodefs.chunkstore.nodecache.view import CacheView

START_S = 0.1  # a mount gets ready before this work begins
NEWS_PAUSE_S = 0.01


class CacheMonitor(CachedSnapshot):
    """``client`` is for this object alone, and is asked on the Unix socket only. ``nodes`` is what
    the file system remembers of entries."""

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
        self.before_report: Callable[[], None] = lambda: None  # marks what is used unseen
        self.neighbours_size_bytes = 0  # of a slab, to bring with what comes from the disk
        self._client = client
        self._stopping = False
        self._woken = Event()
        self._thread: Thread | None = None

    def start(self) -> None:
        """Look after the cache from now on, in a thread of its own, until ``close``."""
        self._thread = Thread(target=self._run, name="nearby", daemon=True)
        self._thread.start()

    @property
    def is_started(self) -> bool:
        """Whether it looks after the cache."""
        return self._thread is not None

    def close(self) -> None:
        """Give the cache up."""
        self._stopping = True
        self._woken.set()
        if self._thread is not None:
            self._thread.join()
        self.view = None
        self._client.close()

    def current(self) -> CacheView | None:
        """The cache as it can be read now: upkeep is the thread's."""
        return self.view

    def catch_up(self, _view: CacheView) -> bool:
        """A reader missed something: news are looked for soon. They come too late for it, but for
        the next ones: bytes are asked for often, and directories are loaded ahead of a walk."""
        self._woken.set()
        return False

    @property
    def is_woken(self) -> bool:
        """Whether a reader missed something that was not looked for yet."""
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
                sleep(NEWS_PAUSE_S)  # what comes together is seen together

    def _try(self, step: Callable[[], None]) -> None:
        """Whatever goes wrong, this thread goes on: nobody else would open the cache again."""
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
        """Looks at what the proxy wrote meanwhile."""
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
