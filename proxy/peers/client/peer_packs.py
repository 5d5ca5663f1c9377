"""Packs from the cluster: asks a pack's owner, then others if it cannot serve, then the store.

request_plan.py decides which peers to ask and how long to wait; hedged_request.py executes that.
Bytes from peers are never trusted: an index is checked by the pack's id, a chunk by its own.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from lodefs.chunkstore.errors import Corrupt
from lodefs.chunkstore.format.names import PackId, digest_of
from lodefs.chunkstore.format.pack import PackIndex
from lodefs.chunkstore.nodecache import layout as layout
from lodefs.chunkstore.protocol import wire
from lodefs.chunkstore.repo.pack_reader import PackIndexVersion
from lodefs.chunkstore.system.lru import Lru
from lodefs.chunkstore.types import Buffer
from lodefs.proxy.fetch.cache_write import CacheWrite, FetchResult, RawChunks
from lodefs.proxy.fetch.pack_source import NOBODY, FillListener, PackSource
from lodefs.proxy.metrics.counters import Counts
from lodefs.proxy.peers.client.context import PeerContext
from lodefs.proxy.peers.client.hedge_budget import HedgeBudget
from lodefs.proxy.peers.client.hedged_request import (
    Found,
    HedgedRequest,
    PeerRequest,
    T,
    WholeBody,
)
from lodefs.proxy.peers.client.request_plan import PlanContext, RequestPlan
from lodefs.proxy.peers.membership.peer import Peer

SENDERS_MAX = 1024
PARENTED_PACKS_MAX = 1024  # packs whose parents are remembered
RUNS_MAX = 8  # requests for the parts of a unit with some chunks gone
_ETAG = re.compile(r"[!-~]{0,256}")  # it goes into a header of requests to S3
INDEX_SIZE_BYTES_USUAL = 64 * 1024

Parents = list[Peer | None]  # of the stripes of a pack; None is its owner


class PeerPacks:
    """A PackSource in front of another one, the origin. For any thread."""

    def __init__(self, origin: PackSource, context: PeerContext, counts: Counts) -> None:
        self._origin = origin
        self._context = context
        self._counts = counts
        self._plan_context = PlanContext(context.health, HedgeBudget())
        self._senders: Lru[PackId, Peer] = Lru(SENDERS_MAX)
        self._parents: Lru[PackId, Parents] = Lru(PARENTED_PACKS_MAX)

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
            target,
            INDEX_SIZE_BYTES_USUAL,
            wire.PEER_INDEX_SIZE_BYTES_MAX,
            lambda: WholeBody(checked),
        )
        # What is announced is for owners: others that sent a part of the pack make no tree
        known = () if ahead else self._known(pack_id)
        found = self._from_peers(pack_id, request, known)
        if found is None:
            return self._origin.index(pack_id)
        if ahead:
            self._note_parents(pack_id, found.headers.get(wire.PARENTS_HEADER.lower(), ""))
        return found.result

    def read(
        self,
        pack_index: PackIndexVersion,
        first: int,
        count: int,
        listener: FillListener = NOBODY,
        write: CacheWrite | None = None,
    ) -> FetchResult:
        """Implements PackSource: this process reads what peers send."""
        found = self._runs_of_peers(pack_index, first, count, listener)
        if found is not None:
            return FetchResult(memory=found, origin=wire.Origin.PEERS)
        clock_s = self._context.clock_s
        begin_s = clock_s()
        received = self._origin.read(pack_index, first, count, listener, write)
        size_bytes = pack_index.index.raw_size(first, first + count)
        self._context.health.store_served(size_bytes, clock_s() - begin_s)
        return received

    def _runs_of_peers(
        self, pack_index: PackIndexVersion, first: int, count: int, listener: FillListener
    ) -> RawChunks | None:
        """Returns the chunks that are not gone, run by run, unless there are many runs."""
        runs = pack_index.index.live_runs(first, count)
        if len(runs) > RUNS_MAX:
            return None
        raws: RawChunks = {}
        for at, some in runs:
            found = self._chunks_of_peers(pack_index, at, some, listener)
            if found is None:
                return None
            raws |= enumerate(found, at)
        return raws

    def _chunks_of_peers(
        self, pack_index: PackIndexVersion, first: int, count: int, listener: FillListener
    ) -> list[Buffer] | None:
        index = pack_index.index
        size_bytes = index.raw_size(first, first + count)
        request = PeerRequest(
            wire.peer_chunks(index.pack_id.hex(), first, count),
            size_bytes,
            size_bytes,
            lambda: ArrivingChunks(index, first, count, listener),
            listener,
        )
        parent = self._parent(index.pack_id, index.raw_offsets[first])
        known = self._known(index.pack_id)
        found = self._from_peers(index.pack_id, request, known, parent)
        if parent is not None and (found is None or found.peer != parent):
            self._drop_parent(index.pack_id, parent)
        if found is None:
            return None
        self._plan_context.budget.got(size_bytes)
        return found.result

    def _from_peers(
        self,
        pack_id: PackId,
        request: PeerRequest[T],
        known: Sequence[Peer],
        parent: Peer | None = None,
    ) -> Found[T] | None:
        """Returns a peer's checked answer; None if the store must be asked. ``known`` and
        ``parent`` are asked before the owners."""
        context, own = self._context, self._context.own_addresses()
        self._plan_context.budget.resize(len(context.members()))
        owners = context.owners_of(pack_id)
        plan = RequestPlan(
            self._plan_context,
            owners,
            self_address=own[0] if own else "",
            size_bytes=request.size_bytes,
            now_s=context.clock_s(),
            known=known,
            parent=parent,
        )
        found = HedgedRequest(plan, request, context, self._counts).run()
        if found is not None and found.peer not in owners:
            self._senders.put(pack_id, found.peer)
        return found

    def _known(self, pack_id: PackId) -> list[Peer]:
        """Returns peers that are not owners, but recently sent a part of the pack."""
        peer = self._senders.get(pack_id)
        return [] if peer is None else [peer]

    def _note_parents(self, pack_id: PackId, value: str) -> None:
        """Remembers the parents that the owner of a pack has named for its stripes, as far as they
        are other members."""
        own = self._context.own_addresses()
        others = {one.address: one for one in self._context.members() if one.address not in own}
        named = wire.parse_parents(value)
        self._parents.put(pack_id, [others.get(one) if one else None for one in named])

    def _parent(self, pack_id: PackId, offset: int) -> Peer | None:
        """Returns the parent for the stripe at an offset in the pack's raw bytes."""
        parents = self._parents.get(pack_id)
        return parents[offset // wire.STRIPE_SIZE_BYTES % len(parents)] if parents else None

    def _drop_parent(self, pack_id: PackId, parent: Peer) -> None:
        """Forgets a parent of a pack, since it did not have what it was asked for."""
        parents = self._parents.get(pack_id) or []
        self._parents.put(pack_id, [None if one == parent else one for one in parents])


class ArrivingChunks:
    """Checks the chunks [first, first + count) of a pack, each as soon as its bytes have come,
    and tells ``listener`` of the right ones."""

    def __init__(self, index: PackIndex, first: int, count: int, listener: FillListener) -> None:
        self._index = index
        self._first, self._end = first, first + count
        self._listener = listener
        self._chunks: list[Buffer] = []

    def came(self, body: memoryview) -> None:
        """Implements BodyCheck."""
        index, at = self._index, self._first + len(self._chunks)
        offsets, base = index.raw_offsets, index.raw_offsets[self._first]
        new: RawChunks = {}
        while at < self._end and offsets[at + 1] - base <= len(body):
            raw = body[offsets[at] - base : offsets[at + 1] - base]
            if bytes(digest_of(raw)) != bytes(index.chunk_id(at)):
                raise Corrupt(f"{self._what}: chunk {at} does not match its id")
            new[at] = raw
            at += 1
        self._chunks += new.values()
        if new:
            self._listener.arrived(new)

    def whole(self, body: memoryview) -> list[Buffer]:
        """Implements BodyCheck."""
        if len(body) != self._index.raw_size(self._first, self._end):
            raise Corrupt(f"{self._what}: {len(body)} bytes arrived")
        self.came(body)
        return self._chunks

    @property
    def _what(self) -> str:
        pack = self._index.pack_id.hex()
        return f"chunks {self._first} to {self._end - 1} of pack {pack}"
