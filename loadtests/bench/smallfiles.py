"""20,000 files of 10 KB, opened, read and closed in shuffled order by one and by eight readers."""

from __future__ import annotations

from collections.abc import Sequence

from loadtests.bench.mountmeasures import AGAIN, IN_MEMORY, READERS, WARM, small_files
from loadtests.bench.sides import Side
from loadtests.comparison import Comparison
from loadtests.measure import drop_page_cache, read_all
from loadtests.reading import read_shuffled

SECONDS_MAX = 15.0  # a slow side is stopped after this, and judged by its work so far


def see(result: Comparison, side: Side, state: str, readers: int) -> None:
    """One reading of the files, which are listed before, outside of the measured time."""
    reading = read_shuffled(side.root / "files", readers, seconds_max=SECONDS_MAX)
    result.see(small_files(readers, state), side.name, reading.per_s)


def warm(result: Comparison, sides: Sequence[Side]) -> None:
    """The states of a node with the files: warm, cache files in memory, again at once."""
    for readers in READERS:
        for side in sides:
            drop_page_cache()
            see(result, side, WARM, readers)
            if side.cache_files:
                drop_page_cache()
                read_all(side.cache_files)
                see(result, side, IN_MEMORY, readers)
            see(result, side, AGAIN, readers)
