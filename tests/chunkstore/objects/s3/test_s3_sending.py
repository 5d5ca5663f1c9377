"""How bodies are sent to S3."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from typing import Any

import pytest

from lodefs.chunkstore.objects.s3.boto import S3Options, S3Transfer, open_client
from lodefs.chunkstore.objects.timed_requests import SEND_SIZE_BYTES, TLS_SEND_SIZE_BYTES

TAKEN_BYTES = 7_000  # of a slow line, at once
DATA = bytes(range(256)) * 4096 + b"end"


class _SlowSocket(socket.socket):
    """Takes little at once. All of a large body is too much for its timeout."""

    def __init__(self) -> None:
        super().__init__()
        self.taken = bytearray()

    def send(self, data: Any, flags: int = 0) -> int:
        self.taken += data[:TAKEN_BYTES]
        return min(len(data), TAKEN_BYTES)

    def sendall(self, data: Any, flags: int = 0) -> None:
        raise TimeoutError(f"{len(data)} bytes took too long")


class _TlsSocket:
    """Takes all that it is given, within one timeout."""

    def __init__(self) -> None:
        self.taken = bytearray()

    def send(self, data: memoryview) -> int:
        if len(data) > TLS_SEND_SIZE_BYTES:
            raise TimeoutError(f"{len(data)} bytes took too long")
        self.taken += data
        return len(data)

    def close(self) -> None:
        """Nothing to free."""


@pytest.fixture(params=["http", "https"])
def connection(request: pytest.FixtureRequest) -> Iterator[Any]:
    """As boto3 makes them."""
    client = open_client(S3Options(endpoint_url="http://127.0.0.1:9"), S3Transfer())
    pools = client._endpoint.http_session._pool_classes_by_scheme
    connection = pools[request.param].ConnectionCls("127.0.0.1", 9)
    connection.sock = _SlowSocket() if request.param == "http" else _TlsSocket()
    yield connection
    connection.close()
    client.close()


def test_a_slow_line_is_no_dead_one(connection: Any) -> None:
    """The timeout begins again with whatever the other side takes: one that takes little at a time
    gets all of a body, whose pieces are too large for one timeout."""
    assert connection.blocksize == SEND_SIZE_BYTES > TLS_SEND_SIZE_BYTES
    connection.send(DATA)
    connection.send(memoryview(DATA))
    assert connection.sock.taken == DATA * 2
