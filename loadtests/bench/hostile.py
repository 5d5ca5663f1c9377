"""``./run bench hostile``: honest commits among lying ones, in thousands of histories."""

from __future__ import annotations

import asyncio
import logging
import multiprocessing
import os
import tempfile
from collections.abc import Sequence
from pathlib import Path
from time import monotonic
from typing import NamedTuple

from hypothesis import HealthCheck, Phase, Verbosity, given, seed, settings
from hypothesis import strategies as st

from loadtests.results import Result
from tests.adversary.histories import Step, WrongBytes, histories, play

HISTORIES = 10_000


class Played(NamedTuple):
    """The result of one process."""

    histories: int
    honest_reads: int
    wrong: int


def hostile(scratch: Path) -> Result:
    """Plays histories in as many processes as there are cores. Returns what honest readers saw."""
    began_s = monotonic()
    processes = os.cpu_count() or 1
    shares = [(scratch, n, HISTORIES // processes) for n in range(processes)]
    with multiprocessing.get_context("spawn").Pool(processes) as pool:
        played = pool.starmap(_play_share, shares)
    result = Result(f"hostile, {processes} processes")
    result.add("histories", sum(one.histories for one in played), at_least=HISTORIES)
    result.add("reads of honest commits", sum(one.honest_reads for one in played))
    result.add("histories with wrong bytes", sum(one.wrong for one in played), at_most=0)
    result.add("time", monotonic() - began_s, "s")
    result.notes.append("proxy, hot path, mounts and passthrough; one node or two; restarts")
    return result


def _play_share(scratch: Path, number: int, count: int) -> Played:
    logging.disable(logging.CRITICAL)  # thousands of lines about refused files
    played = honest_reads = wrong = 0

    @seed(number)
    @settings(
        max_examples=count,
        deadline=None,
        database=None,
        phases=[Phase.generate],
        verbosity=Verbosity.quiet,
        suppress_health_check=list(HealthCheck),
    )
    @given(histories, st.sampled_from([1, 1, 1, 2]), st.booleans())
    def one(steps: Sequence[Step], nodes: int, small_cache: bool) -> None:  # noqa: FBT001
        nonlocal played, honest_reads, wrong
        with tempfile.TemporaryDirectory(dir=scratch) as directory:
            played += 1
            try:
                work = play(steps, Path(directory), nodes=nodes, small_cache=small_cache)
                honest_reads += asyncio.run(work)
            except WrongBytes:
                wrong += 1

    one()
    return Played(played, honest_reads, wrong)
