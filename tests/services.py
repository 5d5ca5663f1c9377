"""Fixtures: real S3 servers and dockerd, each started once and only where a test asks for it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from loadtests.services import S3Server
from loadtests.services.ceph import ceph_rgw
from loadtests.services.chromium import Browser, chromium
from loadtests.services.dockerd import Dockerd
from loadtests.services.dockerd import dockerd as running_dockerd
from loadtests.services.moto import moto_server


@pytest.fixture(scope="session")
def rgw() -> Iterator[S3Server]:
    """A real Ceph RGW: its endpoint and a user. Tests that ask for it carry the marker rgw."""
    with ceph_rgw() as server:
        yield server


@pytest.fixture
def rgw_bucket(rgw: S3Server, monkeypatch: pytest.MonkeyPatch) -> str:
    """The name of an empty bucket on the RGW; AWS's environment holds the user who may use it."""
    return _bucket(rgw, monkeypatch)


@pytest.fixture(scope="session")
def moto() -> Iterator[S3Server]:
    """moto's S3 server."""
    with moto_server() as server:
        yield server


@pytest.fixture
def moto_bucket(moto: S3Server, monkeypatch: pytest.MonkeyPatch) -> str:
    """The name of an empty bucket on moto; AWS's environment holds the user who may use it."""
    return _bucket(moto, monkeypatch)


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    """A real Chromium without a window. Tests that ask for it carry the marker browser."""
    with chromium() as running:
        yield running


@pytest.fixture(scope="session")
def dockerd() -> Iterator[Dockerd]:
    """A real dockerd with an image of busybox. Tests that ask for it carry the marker docker."""
    with running_dockerd() as daemon:
        yield daemon


def _bucket(server: S3Server, monkeypatch: pytest.MonkeyPatch) -> str:
    for name, value in server.environment.items():
        monkeypatch.setenv(name, value)
    return server.make_bucket()
