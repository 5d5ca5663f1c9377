"""Reads the bytes of a snapshot's files, from the node's cache if they are there, else by its
proxy.

Many ranges at once: those in the cache are read first. The others are merged if they lie close
together, and requested in parallel.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, NamedTuple

from lodefs.chunkstore.errors import LodefsError, Unavailable
from lodefs.chunkstore.nodecache.cached_snapshot import CachedSnapshot
from lodefs.chunkstore.protocol.read_client import Client
from lodefs.chunkstore.protocol.wire import Entry
from lodefs.reading.proxy_clients import ProxyClients

if TYPE_CHECKING:
    from lodefs.chunkstore.nodecache.cached_snapshot import Piece
    from lodefs.chunkstore.nodecache.view import OpenFile

READ_BYTES_MAX = 1 << 30  # for one pread: the kernel returns at most 2 GiB
REQUEST_BYTES_MAX = 8 << 20  # for one request to the proxy
GAP_BYTES_MAX = 64 << 10  # between two ranges that are merged
PARALLEL_MAX = 16

Span = tuple[int | None, int | None]  # first and end, as in a slice


class _Request(NamedTuple):
    """One range for the proxy, and the wanted ranges in it: (number, first, end)."""

    node: Entry
    first: int
    end: int
    wanted: list[tuple[int, int, int]]


class FileBytes:
    """Reads files of one snapshot. For any thread."""

    def __init__(self, clients: ProxyClients, cache: CachedSnapshot) -> None:
        self._clients = clients
        self._cache = cache

    def read(self, node: Entry, first: int, end: int) -> bytes:
        """Returns the bytes [first, end) of a file; fewer only at its end.

        Raises: Unavailable, DeadlineExceeded, Corrupt.
        """
        end = min(end, node.size_bytes)
        if first >= end:
            return b""
        found = self._cached(node, first, end)
        return self._fetched(node, first, end) if found is None else found

    def read_into(self, node: Entry, first: int, buffer: memoryview) -> int:
        """Fills ``buffer``, and returns the number of bytes; fewer only at the file's end."""
        end = min(first + len(buffer), node.size_bytes)
        if first >= end:
            return 0
        part = buffer[: end - first]
        extents = self._cache.find(node.ino, first, len(part), node)
        if extents is None:
            self._fetch_into(node, first, part)
        else:
            self._rendered(node, first, extents, part)
            self._cache.count(len(part))
        return len(part)

    def read_many(self, wanted: Sequence[tuple[Entry, Span]]) -> list[bytes]:
        """Returns the bytes of each range, in order. Raises the first error, as ``read`` does."""
        for found in (results := self.tried_many(wanted)):
            if isinstance(found, LodefsError):
                raise found
        return [found for found in results if isinstance(found, bytes)]

    def tried_many(self, wanted: Sequence[tuple[Entry, Span]]) -> list[bytes | LodefsError]:
        """Like ``read_many``, with an error in place of each range that could not be read."""
        results: list[bytes | LodefsError] = [b""] * len(wanted)
        missing: list[tuple[int, Entry, int, int]] = []
        for number, (node, span) in enumerate(wanted):
            first, end = bounds(span, node.size_bytes)
            if first < end:
                found = self._cached(node, first, end)
                if found is None:
                    missing.append((number, node, first, end))
                else:
                    results[number] = found
        requests = list(_merged(missing))
        if len(requests) < 2:
            for request in requests:
                self._answer(request, results)
            return results
        with ThreadPoolExecutor(min(PARALLEL_MAX, len(requests)), "lodefs-read") as threads:
            for _ in threads.map(lambda request: self._answer(request, results), requests):
                pass
        return results

    def _answer(self, request: _Request, results: list[bytes | LodefsError]) -> None:
        try:
            data = self._fetched(request.node, request.first, request.end)
        except LodefsError as error:
            for number, _, _ in request.wanted:
                results[number] = error
            return
        for number, first, end in request.wanted:
            results[number] = data[first - request.first : end - request.first]

    def _cached(self, node: Entry, first: int, end: int) -> bytes | None:
        """Returns bytes of a file, if the cache is known to have all of them."""
        cache, size_bytes = self._cache, end - first
        extents = cache.find(node.ino, first, size_bytes, node)
        if extents is None:
            return None
        if len(extents) == 1 and size_bytes <= READ_BYTES_MAX:
            file, offset, _ = extents[0]
            try:
                data = os.pread(file.fd, size_bytes, offset)
            except OSError:  # treated like a file that is too short
                data = b""
            if len(data) == size_bytes:
                cache.count(size_bytes, file)
                return data
        cache.count(size_bytes)
        return bytes(self._rendered(node, first, extents))

    def _fetched(self, node: Entry, first: int, end: int) -> bytes:
        """Returns bytes of a file that the proxy must fetch."""
        buffer = memoryview(bytearray(end - first))
        self._fetch_into(node, first, buffer)
        return bytes(buffer)

    def _fetch_into(self, node: Entry, first: int, buffer: memoryview) -> None:
        """Fills ``buffer`` with bytes of a file that the proxy must fetch."""

        def located(client: Client, at: int, part: memoryview) -> int:
            pieces = self._cache.fetch(client, node.ino, at, len(part))
            return len(self._rendered(node, at, pieces, part))

        self._ask_into(node, first, buffer, located)

    def _sent(self, node: Entry, first: int, end: int) -> memoryview:
        """Returns bytes of a file whose cache files have turned out to be damaged."""

        def sent(client: Client, at: int, part: memoryview) -> int:
            data = client.read(node.ino, at, len(part))
            part[: len(data)] = data
            return len(data)

        buffer = memoryview(bytearray(end - first))
        self._ask_into(node, first, buffer, sent)
        return buffer

    def _ask_into(
        self,
        node: Entry,
        first: int,
        buffer: memoryview,
        ask: Callable[[Client, int, memoryview], int],
    ) -> None:
        """Fills ``buffer`` by as many requests as needed. ``ask`` returns how many bytes it got."""
        at = 0
        with self._clients.client() as client:
            client.mounted(self._cache.snapshot)
            while at < len(buffer):
                client.begin()
                count = ask(client, first + at, buffer[at : at + REQUEST_BYTES_MAX])
                if not count:
                    raise Unavailable(f"the proxy has fewer bytes of {node.name!r} than it said")
                at += count

    def _rendered(
        self, node: Entry, first: int, pieces: Sequence[Piece], buffer: memoryview | None = None
    ) -> memoryview:
        def room(size_bytes: int) -> memoryview:
            return memoryview(bytearray(size_bytes)) if buffer is None else buffer[:size_bytes]

        return self._cache.render(
            pieces, room, _fill, lambda at, size: self._sent(node, first + at, first + at + size)
        )


def _fill(part: memoryview, file: OpenFile, offset: int) -> bool:
    """Reads until ``part`` is full; False if the file is too short."""
    try:
        while part:
            count = os.preadv(file.fd, (part[:READ_BYTES_MAX],), offset)
            if not count:
                return False
            part, offset = part[count:], offset + count
    except OSError:
        return False  # a disk error: the proxy may get the bytes elsewhere
    return True


def bounds(span: Span, size_bytes: int) -> tuple[int, int]:
    """Returns first byte and end of a range in a file, as for a slice."""
    first, end, _ = slice(*span).indices(size_bytes)
    return first, end


def _merged(missing: list[tuple[int, Entry, int, int]]) -> Iterator[_Request]:
    """Yields the fewest requests for all ranges, each of limited size unless one range is
    larger."""
    request: _Request | None = None
    for number, node, first, end in sorted(missing, key=lambda one: (one[1].ino, one[2], one[3])):
        if (
            request is not None
            and request.node.ino == node.ino
            and first <= request.end + GAP_BYTES_MAX
            and max(end, request.end) - request.first <= REQUEST_BYTES_MAX
        ):
            request.wanted.append((number, first, end))
            request = request._replace(end=max(end, request.end))
            continue
        if request is not None:
            yield request
        request = _Request(node, first, end, [(number, first, end)])
    if request is not None:
        yield request
