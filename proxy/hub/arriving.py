"""Files of a commit that is being fetched from the hub, as far as they have come.

A reader of a file gets its beginning while the rest is still on its way. Readers have it fetched
before other files, by asking again while they wait.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import aclosing

from lodefs.chunkstore.errors import NotADirectory, NotFound, Unavailable
from lodefs.chunkstore.format.foreign import hub
from lodefs.chunkstore.protocol.orders.hub_orders import HubOrder, HubRequest
from lodefs.chunkstore.protocol.wire import Origin
from lodefs.chunkstore.types import Buffer
from lodefs.proxy.hub.revisions import HubRevisions
from lodefs.proxy.node import ByteStream, Files, Located, Names, SnapshotFile, Upstream

ASK_EVERY_S = 0.5
STALLED_S_MAX = 300.0  # without a new byte


class ArrivingFile:
    """Implements Files for one file of a commit that ``order`` names by its id."""

    def __init__(
        self,
        names: Names,
        files: Files,
        revisions: HubRevisions,
        upstream: Upstream,
        order: HubOrder,
        path: bytes,
        clock_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._names = names
        self._files = files
        self._revisions = revisions
        self._upstream = upstream
        self._request = HubRequest(order, path.decode())
        self._path = path
        self._clock_s = clock_s

    async def open(self, file: SnapshotFile, first: int, size_bytes: int) -> ByteStream:  # noqa: ARG002
        """Implements Files: waits for the first byte. Raises: Unavailable if the fetch fails."""
        pieces = self._pieces(first, first + size_bytes)
        return _Stream(await anext(pieces), pieces)

    async def locate(self, file: SnapshotFile, first: int, size_bytes: int) -> Located | ByteStream:
        return await self.open(file, first, size_bytes)

    def hit(self, content_id: bytes, first: int, size_bytes: int) -> None:
        """Implements Files."""

    async def _pieces(self, at: int, end: int) -> AsyncGenerator[Buffer, None]:
        until_s = self._clock_s() + STALLED_S_MAX
        while at < end:
            there = await self._arrived()
            if there is None or there.entry.size_bytes <= at:
                if self._clock_s() > until_s:
                    raise Unavailable(
                        f"{self._request.path} does not come: the proxy's log says why"
                    )
                await asyncio.sleep(ASK_EVERY_S)
                continue
            size_bytes = min(end, there.entry.size_bytes) - at
            async with aclosing(await self._files.open(there, at, size_bytes)) as stream:
                yield stream.first
                async for piece in stream:
                    yield piece
            at += size_bytes
            until_s = self._clock_s() + STALLED_S_MAX

    async def _arrived(self) -> SnapshotFile | None:
        """Returns the file, or its beginning; None if nothing has come. Raises: Unavailable if
        the file will not come."""
        order = self._request.order
        outcome = await self._upstream.reach(self._request)
        if outcome.state == "failed":  # another attempt may succeed
            return None
        if outcome.state not in ("running", "done"):
            what = f"{order.repo_url} cannot be fetched now: the log of the proxy says why"
            raise Unavailable(what)
        try:
            if outcome.state == "done":
                snapshot = (await self._revisions.of(order.repo, order.rev)).snapshot
            else:
                branch = hub.arriving_branch_of(order.rev)
                snapshot = await self._names.snapshot(order.repo, branch)
            found = await self._names.file(snapshot, self._path)
        except (NotFound, NotADirectory):  # also if the fetch ends just now
            return None
        return found if isinstance(found, SnapshotFile) else None


class _Stream:
    """Implements ByteStream."""

    def __init__(self, first: Buffer, pieces: AsyncGenerator[Buffer, None]) -> None:
        self.first = first
        self.origin: Origin | None = Origin.STORE
        self._pieces = pieces

    def __aiter__(self) -> AsyncIterator[Buffer]:
        return self._pieces

    async def __anext__(self) -> Buffer:
        return await anext(self._pieces)

    async def aclose(self) -> None:
        await self._pieces.aclose()
