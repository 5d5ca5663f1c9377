"""Fixtures: a user without privilege, as jobs have one, and a proxy for that user's group."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from tests.support.hpc.job_user import GROUP, JobUser, job_user
from tests.support.mount.fake_proxy import FakeProxy
from tests.support.mount.mounts import SAMPLE


@pytest.fixture
def user() -> Iterator[JobUser]:
    """A user of no account, with a home. It takes root to become one."""
    if os.geteuid() != 0:
        pytest.skip("needs root, to become another user")
    with job_user() as made:
        yield made


@pytest.fixture
def group_proxy(user: JobUser) -> Iterator[FakeProxy]:
    """A node's proxy that the user's group may use, and nobody else."""
    with FakeProxy(SAMPLE, user.folder) as made:
        os.chown(made.path, 0, GROUP)
        os.chmod(made.path, 0o660)
        yield made
