"""Families that other programs of this node count in files: read in a thread, with a deadline.

The files lie in memory (/run), but a directory may be anything: one that hangs must delay neither
readers nor a scrape.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future

from lodefs.proxy.metrics.exposition import Family

DEADLINE_S = 2.0
MoreFamilies = Callable[[], Iterable[Family]]
_log = logging.getLogger("lodefs.proxy")


class OtherFamilies:
    """The families from ``make``, which may block. ``families`` are those of the last successful
    call. ``late`` is how often it took too long. For one event loop."""

    def __init__(self, make: MoreFamilies, deadline_s: float = DEADLINE_S) -> None:
        self.families: Sequence[Family] = ()
        self.late = 0
        self._make = make
        self._deadline_s = deadline_s
        self._reading: asyncio.Future[Sequence[Family]] | None = None

    async def read(self) -> None:
        """Reads them again, once for all concurrent callers, and waits at most until the
        deadline."""
        if self._reading is None:
            self._reading = asyncio.wrap_future(_in_thread(self._make))
            self._reading.add_done_callback(self._done)
        reading = self._reading
        await asyncio.wait((reading,), timeout=self._deadline_s)
        if not reading.done():
            self.late += 1

    def _done(self, reading: asyncio.Future[Sequence[Family]]) -> None:
        self._reading = None
        if reading.cancelled():
            return
        error = reading.exception()
        if error is None:
            self.families = reading.result()
        else:
            _log.warning("the counters of mounts and components cannot be read: %r", error)


def _in_thread(make: MoreFamilies) -> Future[Sequence[Family]]:
    """Runs ``make`` in a thread that nothing waits for at exit."""
    future: Future[Sequence[Family]] = Future()

    def work() -> None:
        try:
            found = tuple(make())
        except BaseException as error:  # noqa: BLE001 - waiting callers get the error
            future.set_exception(error)
        else:
            future.set_result(found)

    try:
        threading.Thread(target=work, name="lodefs-figures", daemon=True).start()
    except RuntimeError as error:
        future.set_exception(error)
    return future
