"""The order of a push: units that are planned before a worker is free."""

from __future__ import annotations

from collections.abc import Sequence

from lodefs.chunkstore.format.chunking import ChunkingParams
from lodefs.chunkstore.push.workers.pipeline import CutUnit, Pipeline
from lodefs.chunkstore.push.workers.source_files import SourceFile
from lodefs.chunkstore.push.workers.work_units import Planner, UnitLimits
from lodefs.chunkstore.push.workers.worker import Prepare, SharedSlots
from lodefs.chunkstore.types import Buffer

LIMITS = UnitLimits(ChunkingParams(64, 256, 1024), unit_bytes=4096, files_max=1)
FILES = [SourceFile(b"%d" % n, 10, n) for n in range(100)]


class Nothing:
    """A sink that wants nothing."""

    def wanted(self, unit: CutUnit) -> Sequence[bool]:
        return [False for file in unit.files for _ in file.chunks]

    def store(self, unit: CutUnit, stored: Sequence[tuple[int, Buffer]]) -> None:
        raise AssertionError("nothing was wanted")


def test_planning_ahead_is_bounded_and_keeps_the_order() -> None:
    """Only so much of a scan is gone through early, and in the order of the files."""
    arena = SharedSlots(len(FILES), LIMITS.slot_data_bytes, LIMITS.slot_messages_bytes)
    scan = iter(FILES)
    pipeline = Pipeline(Planner(scan, LIMITS), arena.slots, LIMITS.params, Nothing())
    while pipeline.plan_ahead():
        pass
    left = len(list(scan))
    assert 0 < left < len(FILES)
    paths = []
    while (given := pipeline.next_task(b"/", 1)) is not None:
        assert isinstance(given[1], Prepare)
        paths += [read.path for read in given[1].reads]
    assert paths == [file.path for file in FILES[: len(FILES) - left]]
    arena.close()
