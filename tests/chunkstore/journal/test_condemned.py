"""CondemnedIds in memory."""

from __future__ import annotations

import pytest

from lodefs.chunkstore.journal.condemned import CondemnedIds, MemoryCondemned
from tests.support.chunkstore.condemned_suite import CondemnedSuite


class TestMemory(CondemnedSuite):
    """The suite."""

    @pytest.fixture
    def condemned(self) -> CondemnedIds:
        return MemoryCondemned()
