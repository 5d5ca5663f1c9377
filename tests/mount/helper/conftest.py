"""Mounts through the helper, for tests."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from lodefs.mount.helper import helper_client, kernel_mounts
from tests.support.mount.fake_proxy import FakeProxy
from tests.support.mount.mounts import WAIT_S
from tests.support.mount.places import Places


@pytest.fixture
def places(tmp_path: Path, proxy: FakeProxy) -> Iterator[Places]:
    made = Places(tmp_path, proxy)
    yield made
    made.close()


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine that is loaded is no helper that hangs, and no mount that nobody answers for."""
    monkeypatch.setattr(helper_client, "MARGIN_S", WAIT_S)
    monkeypatch.setattr(kernel_mounts, "STATE_TIMEOUT_S", WAIT_S)
