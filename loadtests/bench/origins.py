"""A real S3 server with a new lodefs store on it, for benchmarks that read from S3."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from loadtests.cli import Lodefs
from loadtests.services.ceph import ceph_rgw


@dataclass(frozen=True, slots=True)
class Origin:
    """A bucket on Ceph RGW: a boto3 client for it, and lodefs with a store in it."""

    endpoint_url: str
    access_key: str
    secret_key: str
    bucket: str
    client: Any
    lodefs: Lodefs


@contextmanager
def ceph_origin(scratch: Path) -> Iterator[Origin]:
    """Starts Ceph RGW, creates a bucket and a store, and removes all at the end."""
    with ceph_rgw() as server:
        client = server.client(max_pool_connections=16)
        client.create_bucket(Bucket="bench")
        env = {
            "AWS_ACCESS_KEY_ID": server.access_key,
            "AWS_SECRET_ACCESS_KEY": server.secret_key,
            "AWS_ENDPOINT_URL": server.endpoint_url,
            "AWS_DEFAULT_REGION": "us-east-1",
        }
        lodefs = Lodefs("s3://bench/store", scratch / "home", env)
        lodefs.run("init", lodefs.store)
        yield Origin(
            server.endpoint_url, server.access_key, server.secret_key, "bench", client, lodefs
        )
