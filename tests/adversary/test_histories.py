"""Honest commits show their bytes, whoever else pushes to the store."""

from __future__ import annotations

import asyncio
import tempfile
from pathlib import Path
from typing import Literal

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.adversary.histories import Lie, Push, Read, Restart, Step, Warm, histories, play
from tests.support.chunkstore.directories import MEMORY

OTHER: tuple[Literal["other"], ...] = ("other",) * 4


@pytest.mark.slow
@settings(max_examples=30, deadline=None, suppress_health_check=list(HealthCheck))
@given(histories, st.sampled_from([1, 1, 1, 2]), st.booleans())
def test_any_history(steps: list[Step], nodes: int, small_cache: bool) -> None:
    """In any order of honest and lying pushes, reads, warm jobs and restarts, alone and in a
    cluster, no read of an honest commit gives other bytes than it has."""
    with tempfile.TemporaryDirectory(dir=MEMORY) as directory:
        asyncio.run(play(steps, Path(directory), nodes=nodes, small_cache=small_cache))


@pytest.mark.parametrize("size", [1, 16], ids=["ten percent", "whole"])
@pytest.mark.parametrize("path", range(4))
def test_a_lie_that_is_read_first(tmp_path: Path, path: int, size: int) -> None:
    """An attacker has his own commit read by a cold node before the honest one."""
    steps: list[Step] = [
        Lie(0, 1, OTHER),
        Push(0, 0, 99),
        Read(0, path, 0, size, 0),
        Read(1, path, 0, 16, 0),
    ]
    assert asyncio.run(play(steps, tmp_path)) == 1 + 4


def test_a_lie_that_is_warmed_before_a_restart(tmp_path: Path) -> None:
    """An attacker has all of his commit cached, and the node is restarted."""
    steps: list[Step] = [
        Lie(0, 1, OTHER),
        Push(0, 0, 99),
        Warm(0, 0),
        Restart(),
        Read(1, 2, 0, 16, 0),
    ]
    assert asyncio.run(play(steps, tmp_path)) == 4 + 1 + 4


def test_a_lie_that_a_peer_has(tmp_path: Path) -> None:
    """An attacker has his commit cached by one node; another node reads the honest one."""
    steps: list[Step] = [Lie(0, 1, OTHER, "d"), Push(0, 0, 3), Warm(0, 0), Read(1, 2, 0, 16, 1)]
    assert asyncio.run(play(steps, tmp_path, nodes=2)) == 1 + 4
