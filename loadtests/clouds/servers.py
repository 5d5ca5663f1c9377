"""Servers that may hold a store, by name: each yields a URL for a store, and variables with the
credentials. All listen on 127.0.0.1."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import NamedTuple

from loadtests.clouds.buckets import azure_container, gcs_bucket
from loadtests.services import S3Server
from loadtests.services.azurite import azurite
from loadtests.services.ceph import ceph_rgw
from loadtests.services.fake_gcs import fake_gcs
from loadtests.services.moto import moto_server
from loadtests.services.rclone import rclone_server
from loadtests.services.seaweedfs import seaweedfs


class Place(NamedTuple):
    """A place for a store. ``server`` is None for other clouds than S3."""

    url: str
    environment: dict[str, str]
    server: S3Server | None = None


def _on_s3(server: S3Server, bucket: str) -> Place:
    url = f"s3://{bucket}/store?endpoint_url={server.endpoint_url}"
    return Place(url, server.environment, server)


@contextmanager
def _rgw() -> Iterator[Place]:
    with ceph_rgw() as server:
        yield _on_s3(server, server.make_bucket())


@contextmanager
def _moto() -> Iterator[Place]:
    with moto_server() as server:
        yield _on_s3(server, server.make_bucket())


@contextmanager
def _rclone() -> Iterator[Place]:
    with tempfile.TemporaryDirectory(prefix="lodefs-rclone-") as folder:
        (Path(folder) / "bucket").mkdir()
        with rclone_server(Path(folder)) as server:
            yield _on_s3(server, "bucket")


@contextmanager
def _seaweedfs() -> Iterator[Place]:
    with seaweedfs() as server:
        yield _on_s3(server, server.make_bucket())


@contextmanager
def _fake_gcs() -> Iterator[Place]:
    with fake_gcs() as variables:
        os.environ |= variables
        yield Place(f"gs://{gcs_bucket()}/store", variables)


@contextmanager
def _azurite() -> Iterator[Place]:
    with azurite() as variables:
        os.environ |= variables
        yield Place(f"az://{azure_container()}/store", variables)


SERVERS: dict[str, Callable[[], AbstractContextManager[Place]]] = {
    "rgw": _rgw,
    "moto": _moto,
    "seaweedfs": _seaweedfs,
    "rclone": _rclone,
    "fake-gcs-server": _fake_gcs,
    "azurite": _azurite,
}
