"""Readiness: asks a member whether it is ready and trusts this node, on separate connections.

``/readyz`` tells anybody the first; a signed request for ``/peers/hello`` shows the second.
"""

from __future__ import annotations

import asyncio
import os
import ssl
from collections.abc import Callable, Sequence
from typing import NamedTuple

from lodefs.chunkstore.errors import InvalidInput
from lodefs.chunkstore.format.decoding import from_json
from lodefs.chunkstore.protocol import wire
from lodefs.chunkstore.protocol.http_head import encode_request
from lodefs.proxy.peers.membership.addresses import SocketAddress, place_of
from lodefs.proxy.peers.membership.peer_standing import Fault
from lodefs.proxy.peers.security.request_signing import Authenticator

READY = "/readyz"
ANSWER_SIZE_BYTES_MAX = 4096


class ProbeResult(NamedTuple):
    """The result of a probe. ``fault`` is None for a healthy member."""

    fault: Fault | None
    why: str = ""


async def probe(
    address: str,
    endpoints: Callable[[str], Sequence[SocketAddress]],
    authenticator: Authenticator,
    tls: Callable[[], ssl.SSLContext] | None = None,
) -> ProbeResult:
    """Returns the state of the member at ``address``. Sets no time limit of its own."""
    found = ProbeResult(Fault.UNREACHABLE, "its name has no address")
    for endpoint in endpoints(address):
        for target in (READY, wire.PEER_HELLO):
            place = place_of(endpoint.host, endpoint.port)
            signed = authenticator.sign("GET", target, to=place) if target != READY else []
            found = await _asked(endpoint, address, target, signed, tls() if tls else None)
            if found.fault is not None:
                break
        if found.fault is not Fault.UNREACHABLE:
            break
    return found


async def _asked(
    endpoint: SocketAddress,
    address: str,
    target: str,
    headers: Sequence[tuple[str, str]],
    context: ssl.SSLContext | None,
) -> ProbeResult:
    try:
        reader, writer = await asyncio.open_connection(
            endpoint.host, endpoint.port, ssl=context, limit=ANSWER_SIZE_BYTES_MAX
        )
        try:
            lines = [("Host", address), ("Connection", "close"), *headers]
            writer.write(encode_request("GET", target, lines))
            line = await reader.readuntil(b"\r\n")
            status = line.split(b" ", 2)[1:2]
            if status == [b"200"] or (target != READY and status == [b"204"]):
                return ProbeResult(None)
            refused = status in ([b"401"], [b"403"])
            return ProbeResult(
                Fault.REFUSING if refused else Fault.FAILING, await _refusal_text(line, reader)
            )
        finally:
            writer.transport.abort()
    except asyncio.LimitOverrunError:
        return ProbeResult(Fault.FAILING, "its answer is not HTTP")
    except EOFError:
        return ProbeResult(Fault.UNREACHABLE, "the connection ended before the answer")
    except OSError as error:
        is_cut = isinstance(error, ssl.SSLEOFError | ssl.SSLZeroReturnError)
        refused = isinstance(error, ssl.SSLError) and not is_cut
        return ProbeResult(Fault.REFUSING if refused else Fault.UNREACHABLE, _error_text(error))


def _error_text(error: OSError) -> str:
    """Returns the text of an error without the address, which asyncio adds and the reader knows."""
    is_system = not isinstance(error, ssl.SSLError) and error.errno
    return os.strerror(error.errno) if is_system and error.errno else str(error)


async def _refusal_text(line: bytes, reader: asyncio.StreamReader) -> str:
    """Returns the status line, and the text in the body of a refusal."""
    words = line.strip().decode("latin-1")[:200]
    rest = b""
    while len(rest) < ANSWER_SIZE_BYTES_MAX and (more := await reader.read(ANSWER_SIZE_BYTES_MAX)):
        rest += more
    try:
        return from_json(rest.partition(b"\r\n\r\n")[2], wire.Failure).message[:500]
    except InvalidInput:
        return words
