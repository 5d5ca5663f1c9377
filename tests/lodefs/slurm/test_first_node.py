"""The first node of a job's list."""

from __future__ import annotations

import pytest

from lodefs.slurm.first_node import first_of, is_first


@pytest.mark.parametrize(
    ("nodes", "first"),
    [
        ("n1", "n1"),
        ("n[1-3]", "n1"),
        ("n[07,9-12]", "n07"),
        ("login,n[1-3]", "login"),
        ("n[01-03,7],login", "n01"),
        ("rack[0-1]n[4-7]", "rack0n4"),
        ("gpu[3-4]x,cpu1", "gpu3x"),
        ("", ""),
    ],
)
def test_the_first_of_a_list(nodes: str, first: str) -> None:
    """Ranges, lists and several dimensions."""
    assert first_of(nodes) == first


@pytest.mark.parametrize(
    ("environ", "found"),
    [
        ({"SLURM_NODELIST": "n[1-2]", "SLURMD_NODENAME": "n1"}, True),
        ({"SLURM_NODELIST": "n[1-2]", "SLURMD_NODENAME": "n2"}, False),
        ({"SLURM_JOB_NODELIST": "n2", "SLURM_NODELIST": "n1", "SLURMD_NODENAME": "n2"}, True),
        ({"SLURM_JOB_NUM_NODES": "1"}, True),
        ({"SLURM_JOB_NUM_NODES": "2"}, False),
        ({}, False),
    ],
)
def test_one_node_writes(environ: dict[str, str], *, found: bool) -> None:
    """None, where a job has several and Slurm does not say which this is."""
    assert is_first(environ) is found
