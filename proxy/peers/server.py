"""Answers other nodes: requests at the peer endpoint, from the raw target to an Answer.

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
from lodefs.chunkstore.format.names import PackId, digest_of
from lodefs.chunkstore.nodecache import layout as layout
from lodefs.chunkstore.protocol import wire
from lodefs.chunkstore.protocol.cache_control import OWNER, WarmRequest
from lodefs.chunkstore.protocol.orders.hub_orders import HubRequest
from lodefs.chunkstore.repo.pack_reader import PackIndexVersion
from lodefs.chunkstore.types import Buffer
from lodefs.proxy.api.control_handlers import parsed
from lodefs.proxy.api.responses import OCTETS, Answer, json_answer
from lodefs.proxy.api.routes import parse_query
from lodefs.proxy.fetch.chunk_reader import ChunkReader
from lodefs.proxy.fetch.flight import Follower
from lodefs.proxy.metrics.counters import Counter, Counts
from lodefs.proxy.node import Upstream
from lodefs.proxy.peers.client.context import PeerContext
from lodefs.proxy.peers.membership.peer import Peer
from lodefs.proxy.peers.recipients import Recipients
from lodefs.proxy.peers.security.request_signing import claimed
from lodefs.proxy.peers.sending_load import SendingLoad
from lodefs.proxy.runtime.thread_pools import paused
from lodefs.proxy.warm.cluster_jobs import ClusterWarmer

log = logging.getLogger("lodefs.peers")

STRANGERS_LOGGED_EVERY_S = 60.0
PEERS = "peers"  # the label of these requests
CHUNKS_SIZE_BYTES_MAX = 64 << 20  # in one answer
_TARGET = re.compile(rf"{wire.PEER_PACKS}([0-9a-f]{{64}})/(index|chunks)\Z")
_NUMBER = re.compile(rb"[0-9]{1,9}\Z")


@dataclass(frozen=True, slots=True)
class ChunkRequest:
    """A request for chunks of a pack; or, if it ``is_index``, for the index, by a node that will
    soon read these chunks (none if ``count`` is 0). ``cached``: only for what is here or on its way
    here; or, with ``waits``, in a moment."""

    pack: PackId
    cached: bool
    first: int = 0
    count: int = 0
    is_index: bool = False
    waits: bool = False


def parse_request(target: str) -> ChunkRequest:
    """Parses a request target. Raises: NotFound if there is no such path; InvalidInput."""
    path, _, raw_query = target.partition("?")
    match = _TARGET.match(path)
    if match is None:
        raise NotFound("there is no such path on the peer endpoint")
    pack = PackId(names.parse_id(match[1], "pack id"))
    query = parse_query(raw_query)
    cached = query.get("cached") == b"1"
    is_index = match[2] == "index"
    if is_index and "count" not in query:
        return ChunkRequest(pack, cached, is_index=True)
    first, count = (_number(query, name) for name in ("first", "count"))
    if count == 0:
        raise InvalidInput("count must be at least 1")
    waits = query.get("wait") == b"1"
    return ChunkRequest(pack, cached, first, count, is_index=is_index, waits=waits)


async def _no_body() -> bytes:
    return b""


class PeerServer:
    """Answers other nodes. For use on the event loop only."""

    def __init__(
        self,
        context: PeerContext,
        packs: ChunkReader,
        jobs: PeerJobServer,
        counts: Counts,
        upstream: Upstream | None = None,
    ) -> None:
        """``jobs`` answers requests for warm jobs; ``upstream`` fetches from the hub."""
        self._context = context
        self._packs = packs
        self._jobs = jobs
        self._upstream = upstream
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
        """Returns the answer to a node. Raises: Denied if it is not in the cluster; errors of
        fetching. ``at`` is the IP address and port of this node to which it is connected.

        ``body`` reads the request's body, if it is needed."""
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
        if target.partition("?")[0] == wire.PEER_HUB:
            return await self._hub_answer(target, await body())
        request = parse_request(target)
        if request.is_index:
            return await self._index(request, peer)
        return await self._chunks(request, peer)

    async def _index(self, request: ChunkRequest, peer: str) -> Answer:
        loaded = await self._packs.index(request.pack, cached=request.cached, from_origin=True)
        headers = [("Content-Type", OCTETS)]
        if request.count and not request.cached and self._context.reads_for_peers(request.pack):
            await self._packs.fetch_ahead(loaded, request.first, request.count)
            if self._is_member(peer):  # others may be told to ask it
                headers.append((wire.PARENTS_HEADER, self._parents(request.pack, peer)))
        row = layout.encode_pack_row(loaded.etag, loaded.index.encode())
        if len(row) > wire.PEER_INDEX_SIZE_BYTES_MAX:
            raise NotFound(f"the index of pack {request.pack.hex()} is too large for nodes")
        return Answer(200, headers, row)

    def _parents(self, pack: PackId, peer: str) -> str:
        """Returns the parents of a reader of a pack, as a header's value."""
        health, now_s = self._context.health, self._context.clock_s()

        def usable(one: str) -> bool:
            is_stuck = self._load.is_stuck(one, now_s)
            return self._is_member(one) and health.usable(one, now_s) and not is_stuck

        parents = self._recipients.parents(pack, peer, now_s, usable)
        return wire.parents_value(parents)

    async def _hub_answer(self, target: str, data: bytes) -> Answer:
        """Begins a fetch from the hub, once, and returns how far it is."""
        if self._upstream is None:
            raise NotFound("this node fetches nothing from a hub: its settings name none")
        check_digest(data, parse_query(target.partition("?")[2]))
        return json_answer(self._upstream.begin(parsed(data, HubRequest)), status=202)

    def _refuse(self, name: str, error: Denied) -> None:
        """Records a refused request. Refusals of non-members are logged at most once a minute."""
        self._counts.add(Counter.PEER_UNTRUSTED)
        now_s = self._context.clock_s()
        if self._is_member(name):
            self._context.health.refused(name, str(error), now_s)
        elif now_s - self._stranger_logged_s >= STRANGERS_LOGGED_EVERY_S:
            self._stranger_logged_s = now_s
            log.warning("refused a request of %s, which is not a member: %s", name, error)

    async def _chunks(self, request: ChunkRequest, peer: str) -> Answer:
        loaded = await self._packs.index(request.pack, cached=request.cached, from_origin=True)
        index = loaded.index
        first, end = request.first, request.first + request.count
        if end > len(index):
            raise InvalidInput(f"pack {request.pack.hex()} has {len(index)} chunks")
        if index.live_runs(first, request.count) != [(first, request.count)]:
            raise NotFound(f"not all of these chunks of pack {request.pack.hex()} exist now")
        size_bytes = index.raw_size(first, end)
        if size_bytes > CHUNKS_SIZE_BYTES_MAX:
            raise InvalidInput(f"{size_bytes} bytes exceed the limit of {CHUNKS_SIZE_BYTES_MAX}")
        is_member = self._is_member(peer)
        follower = Follower(peer if is_member else "", request.cached)
        # Before the load is checked: nothing may be awaited between that and what adds to it
        is_here = self._packs.will_be_here if request.waits else self._packs.is_here
        if request.cached and not await is_here(loaded, first, request.count, follower):
            raise NotFound(f"not all of these chunks of pack {request.pack.hex()} are here")
        now_s = self._context.clock_s()
        chunks = range(first, end)
        others = self._recipients.others(request.pack, peer, wire.BUSY_ADDRESSES_MAX, now_s, chunks)
        others = [one for one in others if not self._load.is_stuck(one, now_s)]
        backlog_s = self._context.upload.backlog_s(now_s)
        # A child was told to come here, and there are few of them
        alternatives = 0 if request.waits else len(others)
        if self._load.overloaded(
            follower.address,
            now_s,
            alternatives=alternatives,
            backlog_s=backlog_s,
            size_bytes=size_bytes,
        ):
            self._counts.add(Counter.PEER_REFUSED)
            return _busy(max(self._load.retry_after_s(), backlog_s), others)
        if is_member:  # others can be referred to it
            self._recipients.sent(request.pack, peer, now_s, chunks)
        headers = [("Content-Type", OCTETS), ("Content-Length", str(size_bytes))]
        self._load.began(follower.address, now_s, size_bytes)
        pieces = self._pieces(loaded, request, size_bytes, follower)
        return Answer(200, headers, b"", pieces, size_bytes)

    def _is_member(self, peer: str) -> bool:
        members = self._context.members()
        if members is not self._members:
            self._members, self._addresses = members, {member.address for member in members}
        return peer in self._addresses

    async def _pieces(
        self, loaded: PackIndexVersion, request: ChunkRequest, size_bytes: int, follower: Follower
    ) -> AsyncGenerator[Buffer, None]:
        begin_s = self._context.clock_s()
        try:
            pieces = self._packs.chunks(loaded, request.first, request.count, follower)
            async with aclosing(pieces):
                async for piece in pieces:
                    await paused(self._context.upload.reserve(len(piece), self._context.clock_s()))
                    self._counts.add(Counter.PEER_SENT_BYTES, len(piece))
                    if follower.address:
                        self._context.health.sent(follower.address, len(piece))
                    yield piece
                    self._load.took(follower.address, self._context.clock_s())
        finally:
            seconds = self._context.clock_s() - begin_s
            self._load.ended(follower.address, seconds, size_bytes)


def _busy(retry_after_s: float, addresses: list[str]) -> Answer:
    headers = [("Content-Type", wire.MSGPACK), ("Retry-After", str(max(1, round(retry_after_s))))]
    body = msgspec.msgpack.encode(wire.Busy(retry_after_s, addresses))
    return Answer(503, headers, body)


def _number(query: Mapping[str, bytes], name: str) -> int:
    value = query.get(name, b"")
    if not _NUMBER.match(value):
        raise InvalidInput(f"{name} must be a number")
    return int(value)


def check_digest(data: bytes, query: Mapping[str, bytes]) -> None:
    """Raises: Denied if a body is not the one that the target was signed for."""
    if digest_of(data).hex().encode() != query.get("digest"):
        raise Denied("the body does not match the signed request")


_ID = re.compile(r"[0-9a-f]{16}\Z")
_OWNER = re.compile(rf"{wire.PEER_WARM}/of/({OWNER})\Z")
_JOB = re.compile(rf"{wire.PEER_WARM}/([0-9a-f]{{16}})\Z")


def is_job_target(target: str) -> bool:
    """Whether a request target is that of a job."""
    path = target.partition("?")[0]
    return path == wire.PEER_WARM or path.startswith(f"{wire.PEER_WARM}/")


class PeerJobServer:
    """Answers authenticated nodes about warm jobs. Only a request's target is authenticated, so the
    target of a request with a body has the body's BLAKE3."""

    def __init__(self, warmer: ClusterWarmer) -> None:
        self._warmer = warmer

    async def answer(
        self, method: str, target: str, body: Callable[[], Awaitable[bytes]]
    ) -> Answer:
        """Begins a job (POST), once for each id in the target; returns its progress (GET), or ends
        it or all jobs of an owner (DELETE). Raises: InvalidInput, NotFound, Unavailable; Denied if
        the body does not match the target."""
        path, _, raw_query = target.partition("?")
        if path == wire.PEER_WARM:
            data = await body()
            query = parse_query(raw_query)
            check_digest(data, query)
            job_id = query.get("job", b"").decode("latin-1")
            if job_id and not _ID.match(job_id):
                raise InvalidInput("a job's id has 16 hex digits")
            request = msgspec.structs.replace(parsed(data, WarmRequest), all_nodes=False)
            return json_answer(await self._warmer.start(request, job_id or None), status=202)
        owner = _OWNER.match(path)
        if owner is not None and method == "DELETE":
            await self._warmer.release(owner[1], everywhere=False)
            return json_answer({})
        match = _JOB.match(path)
        if match is None:
            raise NotFound("there is no such path on the peer endpoint")
        if method == "DELETE":
            return json_answer(await self._warmer.cancel(match[1]))
        return json_answer(await self._warmer.status(match[1]))
