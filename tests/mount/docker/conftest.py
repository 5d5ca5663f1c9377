"""Volumes over mounts in memory."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.docker.memory_mounts import MemoryMounts
from tests.support.docker.rig import Rig, memory_mounts


@pytest.fixture
def memory() -> MemoryMounts:
    return memory_mounts()


@pytest.fixture
def rig(tmp_path: Path, memory: MemoryMounts) -> Iterator[Rig]:
    made = Rig(tmp_path / "state", memory)
    yield made
    made.close()
