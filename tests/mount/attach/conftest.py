"""A mount service in memory, and its attach socket."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.docker.memory_mounts import MemoryMounts
from tests.support.docker.rig import memory_mounts
from tests.support.service.attach_rig import AttachRig


@pytest.fixture
def memory() -> MemoryMounts:
    return memory_mounts()


@pytest.fixture
def rig(tmp_path: Path, memory: MemoryMounts) -> Iterator[AttachRig]:
    made = AttachRig(tmp_path, memory)
    yield made
    made.service.end()
