"""Reading S3 for nothing: how fast the server is when nobody does anything with its bytes.

A server on the machine that is measured takes its processors too, so this is the limit of
whatever reads from it: nothing is written, looked at, or handed on.
"""

from __future__ import annotations

import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from time import perf_counter
from typing import Any
from urllib.parse import urlsplit

from loadtests.bench.origins import Origin
from loadtests.errors import LoadtestError

CONNECTIONS = 8
PART_BYTES = 8 << 20
HEAD_BYTES_MAX = 16384
TIMEOUT_S = 60.0


def discard(origin: Origin, key: str) -> float:
    """Seconds to receive a whole object by ranged GETs over some connections at once.

    LoadtestError where the server does not send it.
    """
    size_bytes = origin.client.head_object(Bucket=origin.bucket, Key=key)["ContentLength"]
    url = origin.client.generate_presigned_url(
        "get_object", Params={"Bucket": origin.bucket, "Key": key}
    )
    firsts = iter(
        range(0, size_bytes, PART_BYTES)
    )  # shared by threads, so that each part is taken once
    start = perf_counter()
    with ThreadPoolExecutor(CONNECTIONS) as pool:
        for done in [pool.submit(_receive, url, firsts, size_bytes) for _ in range(CONNECTIONS)]:
            done.result()
    return perf_counter() - start


def _receive(url: str, firsts: Iterator[int], size_bytes: int) -> None:
    parts: Any = urlsplit(url)
    buffer = memoryview(bytearray(PART_BYTES + HEAD_BYTES_MAX))
    with socket.create_connection((parts.hostname, parts.port), TIMEOUT_S) as connection:
        connection.settimeout(None)
        for first in firsts:
            end = min(first + PART_BYTES, size_bytes)
            connection.sendall(
                f"GET {parts.path}?{parts.query} HTTP/1.1\r\nHost: {parts.netloc}\r\n"
                f"Range: bytes={first}-{end - 1}\r\n\r\n".encode()
            )
            head = b""
            while b"\r\n\r\n" not in head:
                piece = connection.recv(HEAD_BYTES_MAX)
                if not piece or len(head) > HEAD_BYTES_MAX:
                    raise LoadtestError(f"the S3 server sent no answer: {head[:200]!r}")
                head += piece
            if not head.startswith(b"HTTP/1.1 206"):
                raise LoadtestError(f"the S3 server refused: {head[:200]!r}")
            left = end - first - len(head.partition(b"\r\n\r\n")[2])
            while left:
                got = connection.recv_into(buffer, left, socket.MSG_WAITALL)
                if not got:
                    raise LoadtestError("the S3 server broke off")
                left -= got
