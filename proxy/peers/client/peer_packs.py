"""Packs from the cluster: asks a pack's owner, then others if it cannot serve, then the store.

request_plan.py decides which peers to ask and how long to wait; hedged_request.py executes that.
Bytes from peers are never trusted: an index is checked by the pack's id, a chunk by its own.
"""

from __future__ import annotations

import re

from lodefs.chunkstore.errors import Corrupt
from lodefs.chunkstore.format.names import PackId, digest_of
from lodefs.chunkstore.format.pack import PackIndex
from lodefs.chunkstore.nodecache import layout as layout
from lodefs.chunkstore.protocol import wire
from lodefs.chunkstore.repo.pack_reader import PackIndexVersion
from lodefs.chunkstore.system.lru import Lru
from lodefs.chunkstore.types import Buffer
from lodefs.proxy.fetch.cache_write import CacheWrite
from lodefs.proxy.fetch.pack_source import OnStarted, PackSource, Received
from lodefs.proxy.peers.client.context import PeerContext
from lodefs.proxy.peers.client.hedge_budget import HedgeBudget
from lodefs.proxy.peers.client.hedged_request import (
    HedgedRequest,
    PeerRequest,
    T,
)
from lodefs.proxy.peers.client.request_plan import PlanContext, RequestPlan
from lodefs.proxy.peers.membership.peer import Peer
from lodefs.proxy.runtime.counters import Counts

SENDERS_MAX = 1024
RUNS_MAX = 8  # requests for the parts of a unit with some chunks gone
_ETAG = re.compile(r"[!-~]{0,256}")  # it goes into a header of requests to S3
INDEX_SIZE_BYTES_USUAL = 64 * 1024


class PeerPacks:
    """A PackSource in front of another one, the origin. For any thread."""

    def __init__(self, origin: PackSource, context: PeerContext, counts: Counts) -> None:
        self._origin = origin
        self._context = context
        self._counts = counts
        self._plan_context = PlanContext(context.health, HedgeBudget())
        self._senders: Lru[PackId, Peer] = Lru(SENDERS_MAX)

    @property
    def url(self) -> str:
        return self._origin.url

    def waits_for_peers(self, pack_id: PackId) -> bool:
        owners = self._context.owners_of(pack_id)
        return bool(owners) and owners[0].address not in self._context.own_addresses()

    def reads_for_peers(self, pack_id: PackId) -> bool:
        return len(self._context.members()) > 1 and self._context.reads_for_peers(pack_id)

    def index(self, pack_id: PackId, ahead: range = range(0)) -> PackIndexVersion:
        def checked(body: Buffer) -> PackIndexVersion:
            etag, data = layout.decode_pack_row(bytes(body))
            if not _ETAG.fullmatch(etag):
                raise Corrupt(f"the index of pack {pack_id.hex()} comes with a malformed ETag")
            return PackIndexVersion(PackIndex.decode(pack_id, data), etag)

        target = wire.peer_index(pack_id.hex(), ahead)
        request = PeerRequest(
            target, INDEX_SIZE_BYTES_USUAL, wire.PEER_INDEX_SIZE_BYTES_MAX, checked
        )
        found = self._from_peers(pack_id, request)
        return self._origin.index(pack_id) if found is None else found

    def read(
        self,
        pack_index: PackIndexVersion,
        first: int,
        count: int,
        started: OnStarted = lambda: None,
        write: CacheWrite | None = None,
    ) -> Received:
        """Implements PackSource: this process reads what peers send."""
        index = pack_index.index
        if not index.has_gone:
            found = self._chunks_of_peers(pack_index, first, count, started)
        else:
            found = self._runs_of_peers(pack_index, first, count, started)
        if found is not None:
            return Received(wire.Origin.PEERS, found, [])
        clock_s = self._context.clock_s
        begin_s = clock_s()
        received = self._origin.read(pack_index, first, count, started, write)
        size_bytes = index.raw_offsets[first + count] - index.raw_offsets[first]
        self._context.health.store_served(size_bytes, clock_s() - begin_s)
        return received

    def _runs_of_peers(
        self, pack_index: PackIndexVersion, first: int, count: int, started: OnStarted
    ) -> list[Buffer] | None:
        """Returns a unit with some chunks gone: reads the others run by run, unless there are many
        runs."""
        runs = pack_index.index.live_runs(first, count)
        if len(runs) > RUNS_MAX:
            return None
        raws: list[Buffer] = [b""] * count
        for at, some in runs:
            found = self._chunks_of_peers(pack_index, at, some, started)
            if found is None:
                return None
            raws[at - first : at - first + some] = found
        return raws

    def _chunks_of_peers(
        self, pack_index: PackIndexVersion, first: int, count: int, started: OnStarted
    ) -> list[Buffer] | None:
        index = pack_index.index
        size_bytes = index.raw_offsets[first + count] - index.raw_offsets[first]
        request = PeerRequest(
            wire.peer_chunks(index.pack_id.hex(), first, count),
            size_bytes,
            size_bytes,
            lambda body: checked_chunks(index, first, count, body),
            started,
        )
        found = self._from_peers(index.pack_id, request)
        if found is not None:
            self._plan_context.budget.got(size_bytes)
        return found

    def _from_peers(self, pack_id: PackId, request: PeerRequest[T]) -> T | None:
        """Returns a peer's checked answer; None if the store must be asked."""
        context, own = self._context, self._context.own_addresses()
        self._plan_context.budget.resize(len(context.members()))
        owners = context.owners_of(pack_id)
        plan = RequestPlan(
            self._plan_context,
            owners,
            self_address=own[0] if own else "",
            size_bytes=request.size_bytes,
            now_s=context.clock_s(),
            known=self._known(pack_id),
        )
        found = HedgedRequest(plan, request, context, self._counts).run()
        if found is None:
            return None
        if found[1] not in owners:
            self._senders.put(pack_id, found[1])
        return found[0]

    def _known(self, pack_id: PackId) -> list[Peer]:
        """Returns peers that are not owners, but recently sent a part of the pack."""
        peer = self._senders.get(pack_id)
        return [] if peer is None else [peer]


def checked_chunks(index: PackIndex, first: int, count: int, body: Buffer) -> list[Buffer]:
    """Splits bytes into the chunks [first, first + count). Raises: Corrupt if one does not match
    its id."""
    view, base = memoryview(body), index.raw_offsets[first]
    what = f"chunks {first} to {first + count - 1} of pack {index.pack_id.hex()}"
    if len(view) != index.raw_offsets[first + count] - base:
        raise Corrupt(f"{what}: {len(view)} bytes arrived")
    chunks: list[Buffer] = []
    for n in range(first, first + count):
        raw = view[index.raw_offsets[n] - base : index.raw_offsets[n + 1] - base]
        if bytes(digest_of(raw)) != bytes(index.chunk_id(n)):
            raise Corrupt(f"{what}: chunk {n} does not match its id")
        chunks.append(raw)
    return chunks
