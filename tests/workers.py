"""How tests are spread over processes when pytest-xdist is told to (``-n``)."""

from __future__ import annotations

import gc
from collections import Counter
from collections.abc import Iterable
from typing import Any

import pytest
from xdist.scheduler import LoadScopeScheduling

# Tests that share what is slow to make (packages, a booted machine, servers) or what a machine has
# once stay in one process. The longest come first, else a process ends with them alone.
TOGETHER = (
    ("tests/kube/",),  # one Kubernetes
    ("tests/deploy/test_managed_plugin",),  # shares nothing with the others there, which take long
    ("tests/deploy/test_units",),
    ("tests/deploy/",),
    ("tests/loadtests/test_docker",),
    ("tests/chunkstore/objects/test_interface", "tests/chunkstore/repo/test_store_probe"),  # RGW
    ("tests/loadtests/cluster/",),  # network namespaces
    (  # a real dockerd, and clients by the hundred
        "tests/mount/docker/containers/",
        "tests/adversary/test_docker_clients",
        "tests/lodefs/commands/test_docker_plugin",
    ),
    (  # processes that are stopped, and mount namespaces, which copy the mounts of those
        "tests/mount/process/",
        "tests/mount/helper/",
        "tests/mount/fs/test_passing",
        "tests/mount/fs/test_interrupts",
        "tests/mount/read/test_stored_ahead",
    ),
)


def group(nodeid: str) -> str:
    """The tests that one process runs one after the other: a file, or files that share."""
    path = nodeid.partition("::")[0]
    return next((each[0] for each in TOGETHER if path.startswith(each)), path)


def repeated(nodeids: Iterable[str]) -> list[str]:
    """The ids that several tests have."""
    return [nodeid for nodeid, times in Counter(nodeids).items() if times > 1]


class GroupScheduling(LoadScopeScheduling):
    """Gives each process a group at a time, in the order of collection."""

    def _split_scope(self, nodeid: str) -> str:
        return group(nodeid)


def pytest_configure() -> None:
    """Nothing of a collection is garbage, and looking for some takes a quarter of its time."""
    gc.disable()


def pytest_collection_finish() -> None:
    """Tests have their garbage collected, without looking at what was collected of them."""
    gc.freeze()
    gc.enable()


def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> GroupScheduling:
    """Takes the place of ``--dist``."""
    config.option.loadscopereorder = False  # by the number of tests
    return GroupScheduling(config, log)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Slow groups first, if there are several processes. UsageError if tests have one id."""
    if again := repeated(item.nodeid for item in items):
        raise pytest.UsageError(f"xdist would run one test of each of these ids: {again}")
    if not hasattr(config, "workerinput"):
        return
    ranks = {each[0]: rank for rank, each in enumerate(TOGETHER)}
    slow = {group(item.nodeid) for item in items if item.get_closest_marker("slow")}

    def rank(item: pytest.Item) -> tuple[int, bool]:
        name = group(item.nodeid)
        return ranks.get(name, len(ranks)), name not in slow

    items.sort(key=rank)
