"""``./run bench gc-schedules``: collections beside writers, in thousands of random schedules."""

from __future__ import annotations

import logging
import multiprocessing
import os
from collections import Counter
from pathlib import Path
from tempfile import TemporaryDirectory
from time import monotonic

from loadtests.results import Result
from tests.support.maintenance.schedules import Played, one_at_a_time, play, write_sources

SCHEDULES = 10_000
_PART = 50  # schedules that a process plays before it asks for more


def schedules(scratch: Path, count: int = SCHEDULES) -> Result:
    """Schedules in as many processes as there are cores; the first that breaks a rule ends it."""
    began_s = monotonic()
    processes = os.cpu_count() or 1
    memory = Path("/dev/shm")  # push indexes are written and synced very often
    with TemporaryDirectory(dir=memory if memory.is_dir() else scratch) as directory:
        shares = [(Path(directory), n, min(_PART, count - n)) for n in range(0, count, _PART)]
        with multiprocessing.get_context("spawn").Pool(processes) as pool:
            played = pool.starmap(_play_share, shares, chunksize=1)
    result = Result(f"gc-schedules, {processes} processes")
    result.add("schedules", sum(len(share) for share in played), at_least=count)
    result.add("schedules in which a ref lacked a byte, or garbage stayed", 0, at_most=0)
    for one in (
        "steps",
        "pushes",
        "kept",
        "stored_again",
        "collections",
        "killed",
        "removed",
        "restored",
        "expired",
        "deleted",
    ):
        total = sum(getattr(schedule, one) for share in played for schedule in share)
        result.add(one.replace("_", " "), total)
    needed = Counter(schedule.collections_to_clean for share in played for schedule in share)
    for collections, times in sorted(needed.items()):
        result.add(f"schedules whose garbage was gone after {collections}", times)
    result.add("time", monotonic() - began_s, "s")
    return result


def _play_share(directory: Path, first: int, count: int) -> list[Played]:
    logging.disable(logging.CRITICAL)  # what is lost and found again, thousands of times
    place = directory / f"from{first}"
    sources = write_sources(place / "sources")
    with one_at_a_time():
        return [play(seed, place / "indexes", sources) for seed in range(first, first + count)]
