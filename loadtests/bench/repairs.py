"""``./run bench repair-memory``: all packs of a store come back from the directory that was pushed.

Two stores, one eight times as large as the other: what a repair holds must not grow with it.
"""

from __future__ import annotations

from pathlib import Path

from loadtests import corpora
from loadtests.cli import Lodefs
from loadtests.results import Result
from lodefs.chunkstore.format import keys

SIZES_BYTES = (256 << 20, 2 << 30)
GROWTH_MAX = 1.5


def memory(scratch: Path) -> Result:
    """The memory and the time of both repairs, compared with the time of a push of the same."""
    result = Result("repair-memory: every pack lost, healed from the directory that was pushed")
    memories = []
    for size_bytes in SIZES_BYTES:
        source = corpora.random_file(size_bytes).parent
        store = scratch / f"store-{size_bytes}"
        lodefs = Lodefs(str(store), scratch / "home", {})
        lodefs.run("init", store)
        pushed = lodefs.run("push", source, "data/set")
        lost = list((store / keys.PACKS).glob("*/*"))
        for pack in lost:
            pack.unlink()
        healed = lodefs.run("repair", "--from", source, watch_memory=True)
        wrong = lodefs.json("verify", "--data")["problems"]
        memories.append(healed.memory_bytes)
        what = f"{size_bytes >> 20} MiB"
        result.add(f"{what}: packs lost", len(lost))
        result.add(f"{what}: memory", healed.memory_bytes / 2**20, "MiB")
        result.add(f"{what}: time", healed.seconds, "s")
        result.add(f"{what}: time / push of the same", healed.seconds / pushed.seconds, "x")
        result.add(f"{what}: problems left", len(wrong), at_most=0)
    growth = memories[-1] / memories[0]
    times = SIZES_BYTES[-1] // SIZES_BYTES[0]
    result.add(f"memory, {times} times as much", growth, "x", at_most=GROWTH_MAX)
    return result
