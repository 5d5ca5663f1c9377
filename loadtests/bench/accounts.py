"""``./run bench du``: accounts of a store with 1,000 commits and 10 million chunks.

The store is that of ``gc-speed``. The peer is a dry run of ``lodefs gc``, which finds the same.
"""

from __future__ import annotations

from pathlib import Path

from loadtests.bench.collectspeed import filled_store
from loadtests.cli import Lodefs
from loadtests.results import Result

TIME_S_MAX = 10
MEMORY_MIB_MAX = 500
RUNS = 3


def accounts(scratch: Path) -> Result:
    """Time and memory for all repositories, and for one revision; the best of three runs."""
    filled_store(scratch / "store")
    lodefs = Lodefs(str(scratch / "store"), scratch / "home", {})
    result = Result("du: 1,000 commits, 10 million chunks, 1 million files, a directory")
    runs = [lodefs.run("du", "--json", watch_memory=True) for _ in range(RUNS)]
    best_s = min(run.seconds for run in runs)
    result.add("all repositories: time", best_s, "s", at_most=TIME_S_MAX)
    memory_mib = max(run.memory_bytes for run in runs) / 2**20
    result.add("all repositories: memory", memory_mib, "MiB", at_most=MEMORY_MIB_MAX)
    one = lodefs.run("du", "r@main", "--json")
    result.add("one revision: time", one.seconds, "s")
    peer = lodefs.run("gc", "--dry-run", "--json")
    result.add("gc --dry-run: time", peer.seconds, "s")
    result.add("gc --dry-run / du", peer.seconds / best_s)
    return result
