"""Answers of web servers to requests for ranges: which are used, and how much of them is read."""

from __future__ import annotations

import threading
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest
from fsspec.implementations.http import HTTPFileSystem

from lodefs.chunkstore.errors import InvalidInput, LodefsError, Unavailable
from lodefs.chunkstore.objects.ranges.answers import RangeResponse
from lodefs.chunkstore.push.remote.fsspec_files import KINDS, FsspecFiles
from lodefs.chunkstore.push.remote.http_ranges import range_of
from lodefs.chunkstore.system.retry_policy import RetryPolicy

WHAT = "a in http://host"
BLOCK = bytes(1 << 20)
BLOCKS_MAX = 64


def answer(status: int, data: bytes, **headers: str) -> RangeResponse:
    return RangeResponse(status, {n.replace("_", "-"): v for n, v in headers.items()}, data)


@pytest.mark.parametrize(
    ("found", "offset", "data", "info"),
    [
        (answer(206, b"23", content_range="bytes 2-3/9", etag='"x"'), 2, b"23", {"ETag": '"x"'}),
        (answer(206, b"8", content_range="bytes 8-8/9", content_md5="of the part"), 8, b"8", {}),
        (answer(200, b"whole", last_modified="now"), 0, b"whole", {"Last-Modified": "now"}),
        (answer(200, b""), 0, b"", {}),
    ],
)
def test_ranges(found: RangeResponse, offset: int, data: bytes, info: dict[str, str]) -> None:
    """An answer has the bytes, the size of the whole file, and its state."""
    size = 9 if found.status == 206 else len(data)
    got = range_of(found, WHAT, offset, 2 if found.status == 206 else 5)
    assert got == (data, {"size": size, **info})


def test_past_the_end() -> None:
    """A range behind the file's end is no error."""
    assert range_of(answer(416, b"", content_range="bytes */9"), WHAT, 9, 1) is None


@pytest.mark.parametrize(
    ("found", "kind", "message"),
    [
        (answer(200, b"01"), InvalidInput, "ignores ranges"),
        (answer(200, b"01234"), InvalidInput, "ignores ranges"),
        (answer(206, b"23", content_encoding="gzip"), InvalidInput, "compressed"),
        (answer(206, b"23"), Unavailable, "another range: ''"),
        (answer(206, b"01", content_range="bytes 0-1/9"), Unavailable, "another range: 'bytes 0-1"),
        (answer(206, b"23", content_range="bytes 2-3/*"), Unavailable, "another range"),
        (answer(206, b"23", content_range="bytes 2-3/1"), Unavailable, "another range"),
        (answer(206, b"2", content_range="bytes 2-3/9"), Unavailable, "1 bytes instead of 2"),
        (answer(206, b"234", content_range="bytes 2-3/9"), Unavailable, "more than 2 bytes"),
    ],
)
def test_lies(found: RangeResponse, kind: type[LodefsError], message: str) -> None:
    """Nothing else than the range is taken for it, and the error names the file."""
    with pytest.raises(kind, match=f"{WHAT}.*{message}"):
        range_of(found, WHAT, 2, 2)


class Endless(BaseHTTPRequestHandler):
    """Answers each GET with far more than was asked for."""

    status = 206
    blocks_sent = 0

    def do_HEAD(self) -> None:
        self.send_response(200)
        self.send_header("Content-Length", "10")
        self.end_headers()

    def do_GET(self) -> None:
        self.send_response(self.status)
        if self.status == 206:
            self.send_header("Content-Range", "bytes 0-3/10")
        self.end_headers()
        try:
            for _ in range(BLOCKS_MAX):
                self.wfile.write(BLOCK)
                type(self).blocks_sent += 1
        except OSError:  # the client has enough
            return

    def log_message(self, *_: object) -> None:
        """Prints nothing."""


@pytest.mark.parametrize(("status", "kind"), [(206, Unavailable), (200, InvalidInput)])
def test_an_endless_answer(status: int, kind: type[LodefsError]) -> None:
    """The connection is closed after the bytes that were asked for: no memory holds the rest."""

    class Handler(Endless):
        pass

    Handler.status = status
    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            url = f"http://127.0.0.1:{server.server_port}"
            system = HTTPFileSystem(encoded=True, skip_instance_cache=True)
            once = RetryPolicy(attempts_max=1)
            source = FsspecFiles(system, url, url, KINDS["http"], location=url, policy=once)
            with pytest.raises(kind, match=f"a in {url}"):
                source.read(b"a", 0, 4)
        finally:
            server.shutdown()
            thread.join()
    assert Handler.blocks_sent < BLOCKS_MAX / 2
