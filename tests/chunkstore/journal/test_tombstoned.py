"""CondemnedIds in memory."""

from __future__ import annotations

import pytest

from lodefs.chunkstore.journal.tombstoned import CondemnedIds, MemoryCondemned
from tests.support.chunkstore.tombstoned_suite import CondemnedSuite


class TestMemory(CondemnedSuite):
    """The suite."""

    @pytest.fixture
    def tombstoned(self) -> CondemnedIds:
        return MemoryCondemned()
