"""Volumes over mounts in memory; a nursery, a fake proxy with a token, a node's real mounts."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from chunkstore.errors import NotFound
from mount.docker.kernelmounts import KernelMounts
from mount.docker.testing import MemoryMounts
from mount.docker.testing_rig import Rig, memory_mounts
from mount.nursery import Nursery
from mount.testing.mounts import SAMPLE
from mount.testing.server import FakeProxy

SECRET_STORE = "s3://secret"
TOKEN = "right-token"


@pytest.fixture
def memory() -> MemoryMounts:
    return memory_mounts()


@pytest.fixture
def rig(tmp_path: Path, memory: MemoryMounts) -> Iterator[Rig]:
    made = Rig(tmp_path / "state", memory)
    yield made
    made.close()


@pytest.fixture
def nursery() -> Iterator[Nursery]:
    with Nursery() as made:
        yield made


@pytest.fixture
def said() -> list[str]:
    return []


@pytest.fixture
def node(
    nursery: Nursery, proxy: FakeProxy, tmp_path: Path, said: list[str]
) -> Iterator[KernelMounts]:
    """Its own store is the sample's; SECRET_STORE is behind a proxy that wants TOKEN."""
    with FakeProxy(SAMPLE, token=TOKEN) as secret:

        def proxy_for(store: str, _timeout_s: float) -> str:
            found = {"": proxy.address, SECRET_STORE: secret.address}.get(store)
            if found is None:
                raise NotFound(f"there is no store {store}")
            return found

        log = str(tmp_path / "mount.log")
        yield KernelMounts(nursery, proxy_for, environ=os.environ, say=said.append, log_path=log)
