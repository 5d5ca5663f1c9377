"""A fake proxy with the sample tree, mounts of it, and what makes mounts for other programs."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from lodefs.chunkstore.errors import NotFound
from lodefs.mount.helper.helper_client import MountHelper
from lodefs.mount.helper.kernel_mounts import KernelMounts
from tests.support.mount.fake_proxy import FakeProxy
from tests.support.mount.kernels import KERNELS, Kernel
from tests.support.mount.mounts import SAMPLE, Mounts

SECRET_STORE = "s3://secret"
TOKEN = "right-token"


@pytest.fixture
def proxy(tmp_path: Path) -> Iterator[FakeProxy]:
    with FakeProxy(SAMPLE, tmp_path) as made:
        yield made


@pytest.fixture
def kernel(request: pytest.FixtureRequest) -> Kernel:
    """As of which kernel mounts are: the running one, unless a test is parametrized by names."""
    return KERNELS[getattr(request, "param", "this one")]


@pytest.fixture
def mounts(tmp_path: Path, proxy: FakeProxy, kernel: Kernel) -> Iterator[Mounts]:
    made = Mounts(tmp_path, proxy, kernel)
    yield made
    made.close()


@pytest.fixture
def root(mounts: Mounts) -> Path:
    mounts.mount()
    return mounts.place


@pytest.fixture
def helper() -> Iterator[MountHelper]:
    with MountHelper() as made:
        yield made


@pytest.fixture
def logged() -> list[str]:
    return []


@pytest.fixture
def node(
    helper: MountHelper, proxy: FakeProxy, tmp_path: Path, logged: list[str]
) -> Iterator[KernelMounts]:
    """Its own store is the sample's; SECRET_STORE is behind a proxy that wants TOKEN."""
    with FakeProxy(SAMPLE, token=TOKEN) as secret:

        def proxy_for(store: str, _timeout_s: float) -> str:
            found = {"": proxy.address, SECRET_STORE: secret.address}.get(store)
            if found is None:
                raise NotFound(f"there is no store {store}")
            return found

        log = str(tmp_path / "mount.log")
        yield KernelMounts(helper, proxy_for, environ=os.environ, log=logged.append, log_path=log)
