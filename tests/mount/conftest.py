"""A fake proxy with the sample tree, and mounts of it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from mount.testing.mounts import SAMPLE, Mounts
from mount.testing.server import FakeProxy


@pytest.fixture
def proxy(tmp_path: Path) -> Iterator[FakeProxy]:
    with FakeProxy(SAMPLE, tmp_path) as made:
        yield made


@pytest.fixture
def mounts(tmp_path: Path, proxy: FakeProxy) -> Iterator[Mounts]:
    made = Mounts(tmp_path, proxy)
    yield made
    made.close()


@pytest.fixture
def root(mounts: Mounts) -> Path:
    mounts.mount()
    return mounts.place
