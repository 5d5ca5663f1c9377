"""One Slurm for all tests here. They run where LODEFS_TEST_SLURM=1 asks for it (`./run slurm`)."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from loadtests.slurm import cluster as real
from loadtests.slurm import configs
from loadtests.slurm.cluster import Cluster
from tests.slurm.changed import REPO, Changed
from tests.slurm.dataset import Dataset

if os.environ.get("LODEFS_TEST_SLURM") != "1":
    collect_ignore_glob = ["test_*.py"]  # not a part of this run


_ends: dict[str, float] = {}


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """How long jobs took to end; at most KillWait and 5 s are asked, on a machine that is idle."""
    for what, seconds in _ends.items():
        terminalreporter.write_line(f"{seconds:5.1f} s from scancel to free nodes: {what}")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.slow)
            item.add_marker(pytest.mark.timeout(400))


@pytest.fixture(scope="session")
def _made() -> Iterator[Cluster]:
    if lacking := real.missing():
        pytest.fail(f"LODEFS_TEST_SLURM=1, but there is no {lacking}")
    with real.cluster() as made:
        yield made
        _ends.update(made.ends)


@pytest.fixture(scope="session")
def dataset(_made: Cluster) -> Dataset:
    """A dataset in the cluster's store."""
    found = Dataset(_made)
    found.push()
    return found


@pytest.fixture
def cluster(_made: Cluster) -> Iterator[Cluster]:
    """The cluster. After each test all nodes must become idle, with nothing left of any job."""
    yield _made
    _made.output("scancel", "-u", configs.USER)
    _made.await_clean()


@pytest.fixture(scope="session")
def _pushed(dataset: Dataset) -> None:
    dataset.push_to(REPO)


@pytest.fixture
def changed(cluster: Cluster, dataset: Dataset, _pushed: None) -> Changed:
    return Changed(cluster, dataset)
