"""A bucket of any size that takes no room: its objects are made as they are read.

``python -m loadtests.services.generatedbucket PORT OBJECTS SIZE`` answers ListObjectsV2, HEAD and
GET with ranges and If-Match (Amazon S3 API Reference), to anybody. The bytes of an object are the
BLAKE3 of its key, extended. GET /sent says how many bytes of objects it has sent.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Lock
from typing import ClassVar
from urllib.parse import parse_qs, urlsplit
from urllib.request import urlopen

from blake3 import blake3

from loadtests.services import HOST, free_port, wait_for_port
from tests.support.chunkstore.child_process import Child

KEYS_MAX = 1000  # in one answer
_RANGE = re.compile(r"bytes=(\d+)-(\d+)")
_OBJECT = "<Contents><Key>{0}</Key><Size>{1}</Size><ETag>&quot;{0}&quot;</ETag></Contents>"


@dataclass(frozen=True, slots=True)
class GeneratedBucket:
    """A running server. Its bucket is ``data``, its keys are decimal numbers."""

    endpoint_url: str

    def sent_bytes(self) -> int:
        """The bytes of objects that were sent so far."""
        with urlopen(f"{self.endpoint_url}/sent") as answer:
            return int(answer.read())


@contextmanager
def generated_bucket(objects: int, size_bytes: int) -> Iterator[GeneratedBucket]:
    """Yields a server with so many objects of that size, which ends with the block."""
    port = free_port()
    words = [sys.executable, "-m", "loadtests.services.generatedbucket"]
    with Child([*words, *map(str, (port, objects, size_bytes))]) as child:
        if not wait_for_port(child, port, timeout_s=60):
            raise child.failed(f"does not listen on port {port}")
        yield GeneratedBucket(f"http://{HOST}:{port}")


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    objects = size_bytes = 0
    sent_bytes: ClassVar[list[int]] = [0]
    lock = Lock()

    def do_GET(self) -> None:
        url = urlsplit(self.path)
        key = url.path.removeprefix("/data").strip("/")
        if url.path == "/sent":
            self._answer(200, str(self.sent_bytes[0]).encode())
        elif not key:
            self._answer(200, self._listing(parse_qs(url.query)).encode())
        elif not self._has(key):
            self._answer(404, b"<Error><Code>NoSuchKey</Code></Error>")
        elif self.headers.get("If-Match", f'"{key}"') != f'"{key}"':
            self._answer(412, b"<Error><Code>PreconditionFailed</Code></Error>")
        else:
            self._object(key)

    def do_HEAD(self) -> None:
        key = self.path.removeprefix("/data/")
        self.send_response(200 if self._has(key) else 404)
        self.send_header("Content-Length", str(self.size_bytes))
        self.send_header("ETag", f'"{key}"')
        self.end_headers()

    def log_message(self, *_: object) -> None:
        """Writes no log."""

    def _has(self, key: str) -> bool:
        return key.isdigit() and int(key) < self.objects

    def _object(self, key: str) -> None:
        found = _RANGE.fullmatch(self.headers.get("Range", f"bytes=0-{self.size_bytes - 1}"))
        assert found is not None
        first, last = int(found[1]), min(int(found[2]), self.size_bytes - 1)
        body = blake3(key.encode()).digest(length=last + 1 - first, seek=first)
        with self.lock:
            self.sent_bytes[0] += len(body)
        headers = {
            "ETag": f'"{key}"',
            "Content-Range": f"bytes {first}-{last}/{self.size_bytes}",
        }
        self._answer(206, body, headers)

    def _listing(self, query: dict[str, list[str]]) -> str:
        """Returns a page of all keys. Their order is that of texts of one length."""
        first = int(query.get("continuation-token", ["0"])[0])
        prefix = query.get("prefix", [""])[0]
        width = len(str(self.objects - 1))
        end = min(first + KEYS_MAX, self.objects) if prefix in ("", "/") else first
        rows = [_OBJECT.format(f"{n:0{width}}", self.size_bytes) for n in range(first, end)]
        more = 0 < end < self.objects
        token = f"<NextContinuationToken>{end}</NextContinuationToken>" if more else ""
        truncated = f"<IsTruncated>{str(more).lower()}</IsTruncated>"
        return f"<ListBucketResult>{truncated}{token}{''.join(rows)}</ListBucketResult>"

    def _answer(self, status: int, body: bytes, headers: dict[str, str] | None = None) -> None:
        self.send_response(status)
        for name, value in {"Content-Length": str(len(body)), **(headers or {})}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)


def main(port: int, objects: int, size_bytes: int) -> None:
    """Serves until it is killed."""
    _Handler.objects, _Handler.size_bytes = objects, size_bytes
    ThreadingHTTPServer((HOST, port), _Handler).serve_forever()


if __name__ == "__main__":
    main(*map(int, sys.argv[1:4]))
