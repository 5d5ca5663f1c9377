"""The node's cache next to a mount: whether this process can read it, and telling what it read.

One per worker, with a thread that looks after it now and then; readers only look at ``view``.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from itertools import islice
from threading import Event, Thread
from time import sleep
from typing import TYPE_CHECKING

from lodefs.chunkstore.errors import Denied, LodefsError, NotFound
from lodefs.chunkstore.nodeapi import wire
from lodefs.chunkstore.nodeapi.read_client import Client
from lodefs.chunkstore.nodeapi.wire import CachePlace, Snapshot, Used
from lodefs.mount.read import memory_fit

if TYPE_CHECKING:
    from lodefs.chunkstore.nodecache.view import CacheView

START_S = 0.1  # a mount gets ready before this work begins
ROUND_S = 2.0
NEWS_PAUSE_S = 0.01
RETRY_S = 10.0  # after the cache could not be opened
ASK_AGAIN_S = 30.0  # whether it still is the proxy's
COMPLAINT_PAUSE_S = 10.0

Opener = Callable[[CachePlace, Snapshot], "CacheView"]


class ReadCounter:
    """What one thread read from the cache's files since it began."""

    __slots__ = ("read_bytes", "reads")

    def __init__(self) -> None:
        self.reads = 0
        self.read_bytes = 0


class CacheMonitor:
    """``view`` is the cache as it can be read now, or None: then everything is asked of the proxy.

    ``client`` is for this object alone, and is asked on the Unix socket only. ``log`` logs a
    line. ``tallies`` are those of the readers.
    """

    def __init__(
        self,
        client: Client,
        snapshot: Snapshot,
        log: Callable[[str], None],
        *,
        opener: Opener | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.view: CacheView | None = None
        self.tallies: list[ReadCounter] = []
        self.before_report: Callable[[], None] = lambda: None  # marks what is used unseen
        self.neighbours_size_bytes = 0  # of a slab, to bring with what comes from the disk
        self._client = client
        self._snapshot = snapshot
        self._log = log
        self._opener = opener or _open_view
        self._clock = clock
        self._next_try_s = clock()
        self._next_complaint_s = clock()
        self._place: CachePlace | None = None
        self._said = ""
        self._told = ReadCounter()
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

    def wake(self) -> None:
        """A reader missed something: see soon what is new. For any thread."""
        self._woken.set()

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
            self._once(
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
        """What is to be done now and then: open the cache, close what was evicted, report."""
        view = self.view
        if view is None:
            if self._clock() >= self._next_try_s:
                self._open()
            return
        try:
            if not view.is_current():
                self.view = None  # the proxy has another cache, or a new one
                self._next_try_s = self._clock()
                return
            view.catch_up()
            view.close_evicted()
            self._see_memory()
            if self._clock() >= self._next_try_s:
                self._ask_again()
        except LodefsError as error:
            self.failed(view, error)
        self.before_report()
        self._report(view)

    def failed(self, view: CacheView, error: LodefsError) -> None:
        """A view's index cannot be read: it is given up, and opened anew after a while."""
        if self.view is view:
            self.view = None
            self._next_try_s = self._clock() + RETRY_S
            self._once(f"the node's cache cannot be read, the proxy is asked: {error}")

    def complain(self, text: str) -> None:
        """Log a line about the cache, not more often than every few seconds."""
        now_s = self._clock()
        if now_s >= self._next_complaint_s:
            self._next_complaint_s = now_s + COMPLAINT_PAUSE_S
            self._log(text)

    def _ask_again(self) -> None:
        """A proxy that was started anew may have another cache now."""
        self._next_try_s = self._clock() + ASK_AGAIN_S
        with suppress(LodefsError):
            if self._client.cache_place() != self._place:
                self.view = None
                self._next_try_s = self._clock()

    def _open(self) -> None:
        self._next_try_s = self._clock() + RETRY_S
        try:
            self._place = place = self._client.cache_place()
        except (NotFound, Denied):
            self._once("the proxy shares no cache: it is asked for everything")
            return
        except LodefsError:
            return  # no proxy, no news; reads say so themselves
        try:
            self.view = self._opener(place, self._snapshot)
            self._see_memory()  # readers of a new mount come at once
            self._said = ""
            self._next_try_s = self._clock() + ASK_AGAIN_S
        except LodefsError as error:
            self._once(f"the node's cache is not read directly: {error}")

    def _see_memory(self) -> None:
        self.neighbours_size_bytes = memory_fit.neighbours_size_bytes(
            self._snapshot.size_bytes, memory_fit.available_bytes()
        )

    def _once(self, text: str) -> None:
        if text != self._said:
            self._said = text
            self._log(text)

    def _report(self, view: CacheView) -> None:
        """Tells the proxy what was read, so that it evicts other files, and its figures are
        true."""
        numbers, view.used = view.used, set()
        scattered, view.scattered = view.scattered, set()
        stored_bytes, view.stored_bytes = view.stored_bytes, 0
        reads = sum(tally.reads for tally in self.tallies)
        read_bytes = sum(tally.read_bytes for tally in self.tallies)
        if not numbers and reads == self._told.reads:
            return
        used = Used(
            list(islice(numbers, wire.USED_NUMBERS_MAX)),
            reads - self._told.reads,
            read_bytes - self._told.read_bytes,
            self._snapshot.repo,
            self._snapshot.commit,
            list(islice(scattered, wire.SCATTERED_MAX)),
            stored_bytes,
        )
        try:
            self._client.report(used)
        except LodefsError:
            return  # the files' next use counts; the figures come with the next report
        self._told.reads, self._told.read_bytes = reads, read_bytes


def _open_view(place: CachePlace, snapshot: Snapshot) -> CacheView:
    """What reads a cache is loaded in the workers of mounts that can."""
    from lodefs.chunkstore.nodecache.view import open_view

    return open_view(place, snapshot)
