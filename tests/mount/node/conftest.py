"""Mounts through the helper, for tests."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.mount.fake_proxy import FakeProxy
from tests.support.mount.places import Places


@pytest.fixture
def places(tmp_path: Path, proxy: FakeProxy) -> Iterator[Places]:
    made = Places(tmp_path, proxy)
    yield made
    made.close()
