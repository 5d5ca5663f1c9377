"""Watches a mount for a while: its requests, and the threads that make them."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from typing import NamedTuple

from lodefs.job_profile.layers import Tick
from lodefs.job_profile.threads import JobThreads
from lodefs.mount.shm.request_trace import Record, RequestTrace

TICK_S = 0.02
DRAIN_S = 0.1  # a busy process fills its ring in a quarter of a second
REFRESH_S = 0.5
LEASE_S = 3.0  # the trace is off so long after this process is gone
RECORDS_MAX = 1_000_000  # kept; further ones are counted as lost


class Watched(NamedTuple):
    """What was seen. ``lost``: requests that came too fast to be read."""

    seconds: float
    records: list[Record]
    ticks: list[Tick]
    lost: int


def watch(
    trace: RequestTrace,
    users: Iterable[int],
    seconds: float,
    *,
    on_progress: Callable[[float], None] = lambda _done_s: None,
) -> Watched:
    """Watches for so long; ``users``: processes that are known to use the mount. KeyboardInterrupt
    ends it early, with what was seen."""
    threads = JobThreads()
    threads.add(users)
    reader, records, ticks = trace.reader(), list[Record](), list[Tick]()
    left_out = 0
    begin_s = now_s = time.monotonic()
    drain_s = refresh_s = 0.0
    try:
        while now_s < begin_s + seconds:
            if now_s >= refresh_s:
                trace.switch_on(now_s + LEASE_S)
                threads.refresh()
                refresh_s = now_s + REFRESH_S
            ticks.append(threads.look(now_s))
            if now_s >= drain_s:
                found = list(reader.read())
                threads.add(one.pid for one in found)
                left_out += max(0, len(records) + len(found) - RECORDS_MAX)
                records += found[: RECORDS_MAX - len(records)]
                drain_s = now_s + DRAIN_S
                on_progress(now_s - begin_s)
            time.sleep(TICK_S)
            now_s = time.monotonic()
    except KeyboardInterrupt:
        now_s = time.monotonic()
    finally:
        trace.switch_on(0.0)
    records += list(reader.read())[: RECORDS_MAX - len(records)]
    return Watched(now_s - begin_s, records, ticks, reader.lost + left_out)
