"""A plugin for pytest: has ceph/s3-tests read from the proxy what it writes.

Runs in the environment of s3-tests. Requests that write never reach the proxy: objects are kept
here, and pushed when the bucket is read. A test whose keys can be no paths is skipped.
"""

from __future__ import annotations

import io
import itertools
import os
import subprocess
import tempfile
import time
from pathlib import Path
from urllib.parse import parse_qs, unquote, urlsplit

import botocore.awsrequest
import botocore.endpoint
import pytest
import s3tests.functional

RESOLVED_FOR_S = 1.2  # until the proxy looks again where a branch is
BUCKETS = [f"bucket-{n:03}" for n in range(int(os.environ["S3_BUCKETS"]))]
_free = itertools.count()
_send = botocore.endpoint.Endpoint._send


class Bucket:
    """The objects of one bucket, and whether the proxy has them."""

    def __init__(self, name: str) -> None:
        self.repo = f"tests/{name}"
        self.objects: dict[str, bytes] = {}
        self.dirty = True
        self.pushed_s = 0.0

    def push(self) -> None:
        """Have the proxy see what was written."""
        if not self.dirty:
            return
        for key in self.objects:
            parts = key.split("/")
            above = {"/".join(parts[:n]) for n in range(1, len(parts))}
            if any(part in ("", ".", "..") for part in parts) or above & set(self.objects):
                pytest.skip(f"the keys can be no paths: {key!r}")
        with tempfile.TemporaryDirectory() as folder:
            for key, content in self.objects.items():
                path = Path(folder) / key
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(content)
            words = [os.environ["LODEFS"], "push", folder, self.repo, "--allow-removals"]
            subprocess.run(words, check=True, capture_output=True)
        if self.pushed_s:
            time.sleep(RESOLVED_FOR_S)
        self.dirty, self.pushed_s = False, time.monotonic()


_buckets: dict[str, Bucket] = {}


class Raw(io.BytesIO):
    """A body as urllib3 has it."""

    def stream(self, *_: object, **__: object):  # type: ignore[no-untyped-def]
        yield self.read()


def send(self, request):  # type: ignore[no-untyped-def]
    """Keeps what is written; pushes what is read."""
    parts = urlsplit(request.url)
    name, _, key = unquote(parts.path[1:]).partition("/")
    query = parse_qs(parts.query, keep_blank_values=True)
    bucket = _buckets.get(name)
    is_copy = "x-amz-copy-source" in request.headers
    plain = not set(query) - {"x-id"}
    if request.method == "PUT" and plain and not key and name in BUCKETS:
        _buckets.setdefault(name, Bucket(name))
    elif request.method == "PUT" and plain and bucket is not None and not is_copy:
        body = request.body or b""
        body = body.read() if hasattr(body, "read") else body
        bucket.objects[key] = body.encode() if isinstance(body, str) else bytes(body)
        bucket.dirty = True
    elif request.method == "DELETE" and plain and bucket is not None:
        bucket.dirty |= bucket.objects.pop(key, None) is not None
    else:
        if bucket is not None and request.method in ("GET", "HEAD"):
            bucket.push()
        return _send(self, request)
    headers = {"etag": '"written"', "content-length": "0"}
    return botocore.awsrequest.AWSResponse(request.url, 200, headers, Raw())


def pytest_configure() -> None:
    """Before the tests are imported."""
    botocore.endpoint.Endpoint._send = send
    s3tests.functional.get_new_bucket_name = lambda: BUCKETS[next(_free)]
