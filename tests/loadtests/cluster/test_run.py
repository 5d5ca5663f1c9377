"""A whole load test, small: nodes in namespaces of their own, an origin that counts.

Needs root and iproute2, as CI has them; ``./run test -m cluster`` runs these alone.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from loadtests.cluster.network import is_over

ROOT = Path(__file__).parents[3]
NODES = 3

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.slow,
    pytest.mark.usefixtures("namespaces"),
]


def loadtest(*words: str) -> tuple[int, dict[str, Any]]:
    """Exit code and object of a run with few nodes and little data."""
    command = [sys.executable, "-m", "loadtests.cluster", *words, "--quick", "--origin", "moto"]
    few = ["--nodes", str(NODES), "--size", "24MiB", "--json"]
    done = subprocess.run(
        [*command, *few], cwd=ROOT, capture_output=True, text=True, timeout=240, check=False
    )
    assert done.stdout, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return done.returncode, found


def test_without_peers_every_node_reads_s3() -> None:
    """Every byte is right, and S3 sends the dataset once for each node; that is told as short of
    what is asked, and nothing stays behind."""
    code, found = loadtest("cold-read", "--without-peers")
    assert (found["reads_failed"], found["bytes_wrong"]) == (0, 0)
    assert found["read_bytes"] == NODES * found["dataset_bytes"]
    assert found["origin_egress_ratio"] == pytest.approx(NODES, abs=0.2)
    assert found["read_latency_s"]["p50"] <= found["read_latency_s"]["p99"] <= found["seconds"]
    assert (code, found["ok"]) == (1, False)
    assert not [name for name in os.listdir("/run/netns") if is_over(name)]


def test_with_peers_s3_is_read_once() -> None:
    """Every byte is right, and S3 sends each once, or once more where a busy machine hedges: never
    one for each node, as without peers."""
    _, found = loadtest("cold-read")
    assert (found["reads_failed"], found["bytes_wrong"]) == (0, 0), found["errors"]
    assert found["read_bytes"] == NODES * found["dataset_bytes"]
    assert 1 <= found["origin_egress_ratio"] < NODES - 1


def test_kill_halfway() -> None:
    """A node that is killed takes nothing with it but its own reads."""
    _, found = loadtest("node-loss")
    assert (found["reads_failed"], found["bytes_wrong"], found["events_missed"]) == (0, 0, 0)
    assert found["read_bytes"] < NODES * found["dataset_bytes"]
