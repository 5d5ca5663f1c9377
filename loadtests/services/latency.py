"""A server in front of a server that answers later: what a network far away does to S3.

``python -m loadtests.services.latency PORT DELAY_S`` passes bytes on between its clients and a
port of this machine; what comes back waits ``DELAY_S`` on its way, without stopping what follows.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from urllib.parse import urlsplit

from loadtests.services import HOST, S3Server
from tests.support.chunkstore.child_process import Child

PIECE_BYTES = 256 << 10
PIECES_MAX = 256  # on their way back on one connection; more wait in the server


@contextmanager
def far_away(server: S3Server, delay_s: float) -> Iterator[S3Server]:
    """The same server seen over a network that takes ``delay_s`` from a request to its answer."""
    port = str(urlsplit(server.endpoint_url).port)
    command = [sys.executable, "-m", "loadtests.services.latency", port, str(delay_s)]
    with Child(command, cwd=Path(__file__).parents[2]) as child:
        own = child.wait_for(r"^port (\d+)$").group(1)
        yield replace(server, endpoint_url=f"http://{HOST}:{own}")


async def serve(port: int, delay_s: float) -> None:
    """Passes connections on to ``port`` until it is killed; writes its own port first."""

    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError):
            back, forth = await asyncio.open_connection(HOST, port, limit=PIECE_BYTES)
            there = asyncio.create_task(_pass_on(reader, forth, 0))
            await _pass_on(back, writer, delay_s)
            there.cancel()

    server = await asyncio.start_server(connected, HOST, 0, limit=PIECE_BYTES, backlog=256)
    print(f"port {server.sockets[0].getsockname()[1]}", flush=True)
    await server.serve_forever()


async def _pass_on(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, delay_s: float
) -> None:
    """Copies one direction until its end; every piece arrives ``delay_s`` after it was read."""
    loop = asyncio.get_running_loop()
    pieces: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue(PIECES_MAX)

    async def deliver() -> None:
        while True:
            at, piece = await pieces.get()
            if (wait_s := at - loop.time()) > 0:
                await asyncio.sleep(wait_s)
            if not piece:
                return
            writer.write(piece)
            await writer.drain()

    delivery = asyncio.create_task(deliver())
    try:
        while not delivery.done():
            piece = await reader.read(PIECE_BYTES)
            await pieces.put((loop.time() + delay_s, piece))
            if not piece:
                break
        await delivery
    except OSError:
        delivery.cancel()
    finally:
        writer.close()


if __name__ == "__main__":
    asyncio.run(serve(int(sys.argv[1]), float(sys.argv[2])))
