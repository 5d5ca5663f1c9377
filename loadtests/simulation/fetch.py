"""One unit on its way to one node: acts as the node's fetching thread does, as ``Plan`` says."""

from __future__ import annotations

from typing import TYPE_CHECKING

from loadtests.simulation.network import Flow
from loadtests.simulation.store import Get
from lodefs.proxy.peers.client.request_plan import (
    AskPeer,
    AskStore,
    GiveUp,
    RequestPlan,
)
from lodefs.proxy.peers.membership.peer import Peer

if TYPE_CHECKING:
    from loadtests.simulation.node import Node

NEVER_S = float("inf")


class Fetch:
    """Shared by all who want the unit from this node: its own reader, and peers."""

    def __init__(self, node: Node, unit: int) -> None:
        self.node = node
        self.unit = unit
        self.cluster = node.cluster
        self.arriving = False  # bytes come, or have been asked of S3: others may follow it
        self.followers: dict[Stream, None] = {}
        self.ended = False
        self._plan: RequestPlan | None = None
        self._streams: dict[str, Stream] = {}
        self._get: Get | None = None
        self._wake_s = NEVER_S
        self._got_s = 0.0
        self.depth = 0  # peers that pass its bytes on while they come
        self._counted_s = -1.0
        self._came_bytes = 0

    def plan_and_step(self) -> None:
        """Fetches it as a reader's miss is fetched."""
        node, cluster = self.node, self.cluster
        owners = cluster.owners(self.unit)
        self._plan = RequestPlan(
            node.plan_context,
            owners,
            self_address=node.address,
            size_bytes=cluster.settings.unit_bytes,
            now_s=cluster.clock.now_s,
            parent=node.parent(self.unit),
        )
        self.step()

    def step(self) -> None:
        """Does what the plan says until it says to wait."""
        plan, clock = self._plan, self.cluster.clock
        if plan is None or self.ended or self._get is not None:
            return
        now_s = clock.now_s
        for address, stream in self._streams.items():
            if stream.flow is not None:
                plan.received(address, stream.received_bytes(), now_s)
        while True:
            action = plan.next(now_s)
            if isinstance(action, AskPeer):
                self._ask(action)
            elif isinstance(action, GiveUp):
                self.cluster.counts["given_up"] += 1
                self._streams.pop(action.address).cancel()
                if action.to_blame:
                    self.node.health.failed(action.address, now_s)
                self._stopped()
            elif isinstance(action, AskStore):
                self.turn_to_store()
                return
            else:
                if action.until_s < self._wake_s:
                    self._wake_s = action.until_s
                    clock.at(action.until_s, self._wake, action.until_s)
                return

    def _wake(self, due_s: float) -> None:
        if not self.ended and due_s == self._wake_s:
            self._wake_s = NEVER_S
            self.step()

    def _ask(self, ask: AskPeer) -> None:
        counts = self.cluster.counts
        counts["asks"] += 1
        counts["asks_cached"] += ask.cached
        counts["hedges"] += len(self._streams)
        server = self.cluster.node(ask.peer)
        stream = Stream(server, self, cached=ask.cached, waits=ask.waits)
        self._streams[ask.peer.address] = stream
        self.cluster.clock.after(self.cluster.settings.rtt_s / 2, server.asked, stream)

    def came_bytes(self) -> int:
        """What has come so far. Nothing where two nodes wait for each other's bytes."""
        if self._counted_s < self.cluster.clock.now_s:
            self._counted_s = self.cluster.clock.now_s
            self._came_bytes = 0  # what those see that this one waits for
            came = [stream.received_bytes() for stream in self._streams.values() if stream.flow]
            if self._get is not None and self._get.flow is not None:
                came.append(self.cluster.network.came_bytes(self._get.flow))
            self._came_bytes = max(came, default=0)
        return self._came_bytes

    def turn_to_store(self) -> None:
        """Reads it from S3, whatever was tried before."""
        if self._get is None and not self.ended:
            for stream in self._streams.values():
                stream.cancel()
            self._streams.clear()
            self._got_s = self.cluster.clock.now_s
            self._get = self.cluster.store.get(
                self.node.down, self.cluster.settings.unit_bytes, self.began, self._store_gave
            )

    def began(self) -> None:
        """Bytes come: those who waited for it here get them, too."""
        if not self.arriving:
            self.arriving = True
            self.node.let_in(self.unit)
            if self.cluster.settings.cut_through:
                for stream in list(self.followers):
                    stream.begin()

    def _store_gave(self) -> None:
        seconds = self.cluster.clock.now_s - self._got_s
        self.node.health.store_served(self.cluster.settings.unit_bytes, seconds)
        self._end()

    # What became of a stream

    def stream_began(self, stream: Stream) -> None:
        assert self._plan is not None
        now_s = self.cluster.clock.now_s
        self.node.health.began(stream.server.address, now_s - stream.asked_s)
        self._plan.began(stream.server.address, now_s)
        serving = stream.server.fetches.get(self.unit)
        self.depth = 1 + (serving.depth if serving is not None else 0)
        self.cluster.depth_max = max(self.cluster.depth_max, self.depth)
        self.began()
        self.step()

    def stream_gave(self, stream: Stream) -> None:
        assert self._plan is not None
        size_bytes = self.cluster.settings.unit_bytes
        now_s = self.cluster.clock.now_s
        self.node.health.served(stream.server.address, size_bytes, now_s - stream.asked_s, now_s)
        self._plan.won(stream.server.address, now_s)
        self.node.plan_context.budget.got(size_bytes)
        if not stream.waits:
            self.node.drop_parent(self.unit)
        del self._streams[stream.server.address]
        self._end()

    def stream_failed(self, stream: Stream) -> None:
        assert self._plan is not None
        self.cluster.counts["failed"] += 1
        del self._streams[stream.server.address]
        now_s = self.cluster.clock.now_s
        self.node.health.failed(stream.server.address, now_s)
        self._plan.failed(stream.server.address, now_s)
        self._stopped()
        self.step()

    def _stopped(self) -> None:
        """An attempt is over: nobody is to follow where nothing comes."""
        self.arriving = any(stream.flow for stream in self._streams.values())

    def stream_lacked(self, stream: Stream) -> None:
        assert self._plan is not None
        self.cluster.counts["lacking"] += 1
        del self._streams[stream.server.address]
        self._plan.lacking(stream.server.address, self.cluster.clock.now_s)
        self.step()

    def stream_refused(self, stream: Stream, others: list[str], retry_after_s: float) -> None:
        assert self._plan is not None
        self.cluster.counts["busy"] += 1
        address = stream.server.address
        del self._streams[address]
        peers = [Peer(other) for other in others]
        self._plan.busy(address, peers, retry_after_s, self.cluster.clock.now_s)
        self.step()

    def _end(self) -> None:
        self.cancel()
        self.node.came(self)
        for stream in list(self.followers):
            stream.begin()
            stream.server_has_it()

    def cancel(self) -> None:
        """Ends it, its attempts and its read of S3."""
        self.ended = True
        for stream in self._streams.values():
            stream.cancel()
        self._streams.clear()
        if self._get is not None:
            self.cluster.store.cancel(self._get)


class Stream:
    """One request of a fetch to a peer, and its answer.

    It may begin when the server's own bytes begin, and end when the server has it all.
    """

    __slots__ = (
        "admitted_s", "asked_s", "cached", "caught_up", "ended", "fetch", "flow", "paced_s",
        "server", "unit", "waits",
    )  # fmt: skip

    def __init__(self, server: Node, fetch: Fetch, *, cached: bool, waits: bool) -> None:
        self.server = server
        self.fetch = fetch
        self.unit = fetch.unit
        self.cached = cached
        self.waits = waits
        self.asked_s = fetch.cluster.clock.now_s
        self.admitted_s = -1.0
        self.flow: Flow | None = None
        self.paced_s = 0.0  # the upload limit lets it end then
        self.caught_up = False  # all that the server had so far has been sent
        self.ended = False

    def received_bytes(self) -> int:
        """What has come so far."""
        assert self.flow is not None
        came_bytes = self.fetch.cluster.network.came_bytes(self.flow)
        servers = self.server.fetches.get(self.unit) if came_bytes else None
        return min(came_bytes, servers.came_bytes()) if servers is not None else came_bytes

    def begin(self) -> None:
        """The server has the first bytes."""
        if self.ended or self.flow is not None:
            return
        cluster = self.fetch.cluster
        size_bytes = cluster.settings.unit_bytes
        now_s = cluster.clock.now_s
        self.paced_s = now_s + self.server.upload.reserve(size_bytes, now_s)
        self.flow = cluster.network.start(
            self.server.up, self.fetch.node.down, size_bytes, self._flowed
        )
        self.fetch.stream_began(self)

    def _flowed(self) -> None:
        if self.ended:
            return
        clock = self.fetch.cluster.clock
        if clock.now_s < self.paced_s:
            clock.at(self.paced_s, self._flowed)
        elif self.server.have[self.unit]:
            self._finish()
        else:
            self.caught_up = True

    def server_has_it(self) -> None:
        """The server's own fetch has ended."""
        if self.caught_up and not self.ended:
            self._finish()

    def _finish(self) -> None:
        self.server.load.took(self.fetch.node.address, self.fetch.cluster.clock.now_s)
        self.leave_server()
        self.fetch.stream_gave(self)

    def cancel(self) -> None:
        """The asking side gives it up."""
        if not self.ended:
            if self.flow is not None:
                self.fetch.cluster.network.stop(self.flow)
            self.leave_server()

    def cut(self, *, silent: bool) -> None:
        """The server has died. ``silent``: the asking side is not told."""
        if self.ended:
            return
        if self.flow is not None:
            self.fetch.cluster.network.stop(self.flow)
        if not silent:
            self.leave_server()
            self.fetch.stream_failed(self)
        self.admitted_s = -1.0

    def leave_server(self) -> None:
        self.ended = True
        if self.admitted_s >= 0:
            cluster = self.fetch.cluster
            seconds = cluster.clock.now_s - self.admitted_s
            asking = self.fetch.node.address
            self.server.load.ended(asking, seconds, cluster.settings.unit_bytes)
            self.server.streams.pop(self, None)
            self.admitted_s = -1.0

    # Answers without bytes

    def refused(self) -> None:
        """Nobody listens there."""
        if not self.ended:
            self.ended = True
            self.fetch.stream_failed(self)

    def lacking(self) -> None:
        """404."""
        if not self.ended:
            self.ended = True
            self.fetch.stream_lacked(self)

    def busy(self, others: list[str], retry_after_s: float) -> None:
        """503."""
        if not self.ended:
            self.ended = True
            self.fetch.stream_refused(self, others, retry_after_s)
