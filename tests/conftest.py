"""Settings of all tests."""

from __future__ import annotations

import tracemalloc  # noqa: F401 - pytest's hook of exceptions would import it in any thread

import pytest
from hypothesis import HealthCheck, settings

from tests import mount_namespace
from tests.support.chunkstore import leftovers

settings.register_profile(
    "lodefs",
    deadline=None,  # a slow machine is no failure
    derandomize=True,  # the same examples everywhere, so that a green run stays green
    print_blob=True,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
settings.load_profile("lodefs")

pytest_plugins = ["tests.services", "tests.workers", "tests.job_users"]


def pytest_sessionstart(session: pytest.Session) -> None:
    """What runs that were killed left goes; each process has mounts of its own."""
    if not hasattr(session.config, "workerinput"):
        leftovers.clear()
    mount_namespace.enter()
