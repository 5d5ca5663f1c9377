"""What tests of a cluster's members share."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

from lodefs.proxy.runtime.thread_pools import Pool


@pytest.fixture
def disk() -> Iterator[Pool]:
    """The threads that look at files."""
    pool = Pool("disk", threads=1)
    yield pool
    asyncio.run(pool.close())
