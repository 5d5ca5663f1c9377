"""Readiness: asks a member's ``/readyz``, on a connection of its own."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable, Sequence

from proxy.peers.addresses import Endpoint


async def is_ready(
    address: str,
    endpoints: Callable[[str], Sequence[Endpoint]],
    tls: Callable[[], ssl.SSLContext] | None = None,
) -> bool:
    """Whether the member at ``address`` says that it is ready. Sets no time limit of its own."""
    for endpoint in endpoints(address):
        try:
            return await _ask(endpoint, address, tls() if tls else None)
        except (OSError, EOFError, asyncio.LimitOverrunError):  # ssl.SSLError is an OSError
            continue
    return False


async def _ask(endpoint: Endpoint, address: str, context: ssl.SSLContext | None) -> bool:
    reader, writer = await asyncio.open_connection(
        endpoint.host, endpoint.port, ssl=context, limit=4096
    )
    try:
        writer.write(
            f"GET /readyz HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n".encode()
        )
        line = await reader.readuntil(b"\r\n")
        return line.split(b" ", 2)[1:2] == [b"200"]
    finally:
        writer.transport.abort()
