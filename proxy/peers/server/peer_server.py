"""Answering other nodes: what is asked on the peer door, from the raw target to an Answer.

It never forwards to another peer, which would allow loops: what this node lacks is read from the
store, or answered with 404.
"""

from __future__ import annotations

import logging
import re
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass

import msgspec

from lodefs.chunkstore.errors import Denied, InvalidInput, NotFound
from lodefs.chunkstore.format import names
from lodefs.chunkstore.format.names import PackId
from lodefs.chunkstore.nodeapi import wire
from lodefs.chunkstore.nodecache import layout as layout
from lodefs.chunkstore.repo.pack_reader import PackIndexVersion
from lodefs.chunkstore.types import Buffer
from lodefs.proxy.api.responses import OCTETS, Answer
from lodefs.proxy.api.routes import parse_query
from lodefs.proxy.fetch.pack_chunks import Packs
from lodefs.proxy.peers.client.context import PeerContext
from lodefs.proxy.peers.membership.peer import Peer
from lodefs.proxy.peers.security.request_signing import claimed
from lodefs.proxy.peers.server.job_server import PeerJobServer, is_job_target
from lodefs.proxy.peers.server.recipients import Recipients, SendingLoad
from lodefs.proxy.runtime.counters import Counter, Counts
from lodefs.proxy.runtime.thread_pools import paused

log = logging.getLogger("lodefs.peers")

STRANGERS_LOGGED_EVERY_S = 60.0
PEERS = "peers"  # the label of its requests
CHUNKS_SIZE_BYTES_MAX = 64 << 20  # in one answer
_TARGET = re.compile(rf"{wire.PEER_PACKS}([0-9a-f]{{64}})/(index|chunks)\Z")
_NUMBER = re.compile(rb"[0-9]{1,9}\Z")


@dataclass(frozen=True, slots=True)
class ChunkRequest:
    """What is asked for: a pack's index, or with ``count`` some of its chunks. ``cached``: only
    what is here or on its way here."""

    pack: PackId
    cached: bool
    first: int = 0
    count: int = 0


def parse_request(target: str) -> ChunkRequest:
    """The question of a request target. Raises: NotFound if there is no such path, InvalidInput."""
    path, _, raw_query = target.partition("?")
    match = _TARGET.match(path)
    if match is None:
        raise NotFound("no such path on the peer door")
    pack = PackId(names.parse_id(match[1], "pack id"))
    query = parse_query(raw_query)
    cached = query.get("cached") == b"1"
    if match[2] == "index":
        return ChunkRequest(pack, cached)
    first, count = (_number(query, name) for name in ("first", "count"))
    if count == 0:
        raise InvalidInput("count must be at least 1")
    return ChunkRequest(pack, cached, first, count)


async def _no_body() -> bytes:
    return b""


class PeerServer:
    """Answers other nodes. Used from the event loop alone."""

    def __init__(
        self, context: PeerContext, packs: Packs, jobs: PeerJobServer, counts: Counts
    ) -> None:
        """``jobs`` answers requests for warm jobs."""
        self._context = context
        self._packs = packs
        self._jobs = jobs
        self._counts = counts
        self._load = SendingLoad()
        self._recipients = Recipients()
        self._stranger_logged_s = float("-inf")
        self._members: Sequence[Peer] = ()
        self._addresses: set[str] = set()

    async def answer(
        self,
        method: str,
        target: str,
        headers: Mapping[str, str],
        body: Callable[[], Awaitable[bytes]] = _no_body,
        *,
        at: str,
    ) -> Answer:
        """The answer to a node. Raises: Denied if it is none of the cluster; errors of fetching.
        ``at``: the IP address and port of this node that it is connected to.

        ``body`` reads the request's; nobody else's is read."""
        try:
            peer = self._context.authenticator.check(method, target, headers, at=at)
        except Denied as error:
            self._refuse(claimed(headers), error)
            raise
        if self._is_member(peer):
            self._context.health.asks(peer, self._context.clock_s())
        if target == wire.PEER_HELLO:
            return Answer(204, [])
        if is_job_target(target):
            return await self._jobs.answer(method, target, body)
        request = parse_request(target)
        if not request.count:
            loaded = await self._packs.index(request.pack, cached=request.cached, from_origin=True)
            row = layout.encode_pack_row(loaded.etag, loaded.index.encode())
            if len(row) > wire.PEER_INDEX_SIZE_BYTES_MAX:
                raise NotFound(f"the index of pack {request.pack.hex()} is too large for nodes")
            return Answer(200, [("Content-Type", OCTETS)], row)
        return await self._chunks(request, peer)

    def _refuse(self, name: str, error: Denied) -> None:
        """Records a refused request. Refusals of non-members are logged at most once a minute."""
        self._counts.add(Counter.PEER_UNTRUSTED)
        now_s = self._context.clock_s()
        if self._is_member(name):
            self._context.health.refused(name, str(error), now_s)
        elif now_s - self._stranger_logged_s >= STRANGERS_LOGGED_EVERY_S:
            self._stranger_logged_s = now_s
            log.warning("a request of %s, which is no member, is refused: %s", name, error)

    async def _chunks(self, request: ChunkRequest, peer: str) -> Answer:
        loaded = await self._packs.index(request.pack, cached=request.cached, from_origin=True)
        index = loaded.index
        first, end = request.first, request.first + request.count
        if end > len(index):
            raise InvalidInput(f"pack {request.pack.hex()} has {len(index)} chunks")
        if index.live_runs(first, request.count) != [(first, request.count)]:
            raise NotFound(f"not all of these chunks of pack {request.pack.hex()} are there now")
        size_bytes = index.raw_offsets[end] - index.raw_offsets[first]
        if size_bytes > CHUNKS_SIZE_BYTES_MAX:
            raise InvalidInput(f"{size_bytes} bytes are more than {CHUNKS_SIZE_BYTES_MAX} at once")
        # before the load is looked at: nothing is awaited between that and what adds to it
        if request.cached and not await self._packs.is_here(loaded, first, request.count):
            raise NotFound(f"not all of these chunks of pack {request.pack.hex()} are here")
        now_s = self._context.clock_s()
        chunks = range(first, end)
        others = self._recipients.others(request.pack, peer, wire.BUSY_ADDRESSES_MAX, now_s, chunks)
        backlog_s = self._context.upload.backlog_s(now_s)
        if self._load.overloaded(
            alternatives=len(others), backlog_s=backlog_s, size_bytes=size_bytes
        ):
            self._counts.add(Counter.PEER_REFUSED)
            return _busy(max(self._load.retry_after_s(), backlog_s), others)
        is_member = self._is_member(peer)
        if is_member:  # others can be sent there
            self._recipients.sent(request.pack, peer, now_s, chunks)
        headers = [("Content-Type", OCTETS), ("Content-Length", str(size_bytes))]
        self._load.began(size_bytes)
        pieces = self._pieces(loaded, request, size_bytes, peer if is_member else "")
        return Answer(200, headers, b"", pieces, size_bytes)

    def _is_member(self, peer: str) -> bool:
        members = self._context.members()
        if members is not self._members:
            self._members, self._addresses = members, {member.address for member in members}
        return peer in self._addresses

    async def _pieces(
        self, loaded: PackIndexVersion, request: ChunkRequest, size_bytes: int, peer: str
    ) -> AsyncGenerator[Buffer, None]:
        begin_s = self._context.clock_s()
        try:
            pieces = self._packs.chunks(loaded, request.first, request.count, from_origin=True)
            async with aclosing(pieces):
                async for piece in pieces:
                    await paused(self._context.upload.reserve(len(piece), self._context.clock_s()))
                    self._counts.add(Counter.PEER_SENT_BYTES, len(piece))
                    if peer:
                        self._context.health.sent(peer, len(piece))
                    yield piece
        finally:
            self._load.ended(self._context.clock_s() - begin_s, size_bytes)


def _busy(retry_after_s: float, addresses: list[str]) -> Answer:
    headers = [("Content-Type", wire.MSGPACK), ("Retry-After", str(max(1, round(retry_after_s))))]
    body = msgspec.msgpack.encode(wire.Busy(retry_after_s, addresses))
    return Answer(503, headers, body)


def _number(query: Mapping[str, bytes], name: str) -> int:
    value = query.get(name, b"")
    if not _NUMBER.match(value):
        raise InvalidInput(f"{name} must be a number")
    return int(value)
