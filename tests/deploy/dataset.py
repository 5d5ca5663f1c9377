"""What the machine's tests read: a dataset on S3."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from urllib.parse import urlsplit

from loadtests.services import S3Server
from loadtests.services.machine import ROOT
from tests.support.chunkstore.child_process import run

# A file of 8 MiB is fetched in units of which some are large enough for a data process (512 KiB),
# at any pace of the reader. Of 3 MiB, none may be.
SIZES_BYTES = {"a": 10, "b": 8 << 20, "c": 8 << 20}


@dataclass(frozen=True)
class Dataset:
    """The repository ``cats`` of a store. ``sha256``: of each file, in hex."""

    store: str
    s3_port: int
    sha256: dict[str, str]


def push(server: S3Server, source: Path) -> Dataset:
    """Make files, and push them into a new store."""
    digests = {}
    for name, size_bytes in SIZES_BYTES.items():
        data = os.urandom(size_bytes)
        (source / name).write_bytes(data)
        digests[name] = sha256(data).hexdigest()
    store = f"s3://{server.make_bucket()}/store"
    lodefs = [sys.executable, "-m", "lodefs.main", "--store", store]
    environment = {**server.environment, "AWS_ENDPOINT_URL": server.endpoint_url}
    environment |= {"HOME": str(source.parent), "LODEFS_CONFIG": os.devnull}
    run([*lodefs, "init", store], env=environment, cwd=ROOT)
    run([*lodefs, "push", str(source), "cats"], env=environment, cwd=ROOT)
    port = urlsplit(server.endpoint_url).port
    assert port is not None
    return Dataset(store, port, digests)
