"""One simulated node: it reads the dataset, and serves its peers what it has or is getting."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING

from loadtests.simulation.fetch import Fetch, Stream
from loadtests.simulation.network import Port
from lodefs.proxy.peers.client.hedge_budget import HedgeBudget
from lodefs.proxy.peers.client.rate_limit import RateLimiter
from lodefs.proxy.peers.client.request_plan import DEADLINE_S_MAX, PlanContext
from lodefs.proxy.peers.membership.peer import Peer
from lodefs.proxy.peers.membership.peer_health import PeerHealth
from lodefs.proxy.peers.server import Recipients, SendingLoad
from lodefs.proxy.read.readahead_policy import REACH_FACTOR

if TYPE_CHECKING:
    from loadtests.simulation.cluster import Cluster

HEALTH_PEERS_MAX = 64  # fewer than a real node remembers: 10,000 nodes share this memory
SOURCES_PACKS_MAX = 64
NAMED_MAX = 8  # sources in one busy answer


class Node:
    """``order``: the units that it reads, one after the other, some at once."""

    def __init__(self, cluster: Cluster, number: int, speed: float, order: Iterator[int]) -> None:
        settings = cluster.settings
        self.cluster = cluster
        self.peer = Peer(f"node-{number}:7441")
        self.address = self.peer.address
        self.up = Port(settings.node_bytes_per_s * speed)
        self.down = Port(settings.node_bytes_per_s * speed)
        self.have = bytearray(settings.units)
        self.missing_units = settings.units
        self.fetches: dict[int, Fetch] = {}
        self.alive = True
        self.stuck = False  # takes requests and never answers
        self.silent = False  # of a dead one: nothing comes back, not even a refusal
        self.began_s = self.filled_s = -1.0
        self.streams: dict[Stream, None] = {}  # being sent
        self._order = order
        self._next_ahead = 0  # the first unit that it has not looked at yet
        self._ahead: set[int] = set()  # of its own units, on their way before anybody asks
        self._wanted: set[int] = set()  # by its reader, now
        self._held: dict[int, list[Stream]] = {}  # its children's, until it fetches that unit
        self._answers_s = 0.0  # when the asks before this one have been answered
        self._forget()

    @property
    def filled(self) -> bool:
        """Whether it has all units, and lives."""
        return self.alive and not self.missing_units

    def _forget(self) -> None:
        """What a restarted process does not know any more."""
        settings = self.cluster.settings
        self.health = PeerHealth(peers_max=HEALTH_PEERS_MAX)
        self.plan_context = PlanContext(
            self.health,
            HedgeBudget(nodes=len(self.cluster.members)),
            jitter=self.cluster.random.random,
            deadline_s_max=math.inf if settings.cut_through else DEADLINE_S_MAX,
        )
        self.recipients = Recipients(packs_max=SOURCES_PACKS_MAX)
        unit_bytes = settings.unit_bytes
        self.load = SendingLoad(
            settings.soft_units_max * unit_bytes, settings.hard_units_max * unit_bytes
        )
        self.upload = RateLimiter(settings.upload_bytes_per_s_max)

    # Reading

    def start(self) -> None:
        """Begins to read."""
        self.began_s = self.cluster.clock.now_s
        self.read_on()

    def read_on(self) -> None:
        """Keeps the wanted number of units on their way."""
        while self.alive and len(self._wanted) < self.cluster.settings.in_flight:
            unit = next(self._order, None)
            if unit is None:
                return
            self.cluster.reads(unit)
            if not self.have[unit]:
                self._wanted.add(unit)
                if unit not in self.fetches:
                    fetch = self.fetches[unit] = Fetch(self, unit)
                    fetch.followers |= dict.fromkeys(self._held.pop(unit, ()))
                    fetch.plan_and_step()

    def fetch_ahead(self) -> None:
        """Reads what it owns from S3, as far ahead of the readers as settings say."""
        settings = self.cluster.settings
        front = self.cluster.front
        end = min(front + min(settings.ahead_units, REACH_FACTOR * front), settings.units)
        while self._next_ahead < end and len(self._ahead) < settings.ahead_at_once:
            unit = self._next_ahead
            self._next_ahead += 1
            if self.cluster.owners(unit)[0] != self.peer or self.have[unit]:
                continue
            if unit not in self.fetches:
                self._ahead.add(unit)
                fetch = self.fetches[unit] = Fetch(self, unit)
                fetch.turn_to_store()

    def came(self, fetch: Fetch) -> None:
        """A unit is there, for all who wanted it."""
        del self.fetches[fetch.unit]
        self.have[fetch.unit] = 1
        self.missing_units -= 1
        if not self.missing_units:
            self.filled_s = self.cluster.clock.now_s
        self.cluster.came(self)
        if fetch.unit in self._ahead:
            self._ahead.remove(fetch.unit)
            self.fetch_ahead()
        if fetch.unit in self._wanted:
            self._wanted.remove(fetch.unit)
            self.read_on()

    # Serving

    def asked(self, stream: Stream) -> None:
        """A peer's request arrives."""
        cluster, clock = self.cluster, self.cluster.clock
        if stream.ended or (not self.alive and self.silent):
            return
        if not self.alive:
            clock.after(cluster.settings.rtt_s / 2, stream.refused)
            return
        now_s = clock.now_s
        self._answers_s = max(self._answers_s, now_s) + cluster.settings.answer_s
        answered_s = self._answers_s + cluster.settings.rtt_s / 2
        fetch = self.fetches.get(stream.unit)
        arriving = fetch is not None and fetch.arriving
        is_child = cluster.parent(stream.fetch.node, stream.unit) is self
        if stream.cached and not is_child and not self.have[stream.unit] and not arriving:
            clock.at(answered_s, stream.lacking)
            return
        settings = cluster.settings
        pack, part = divmod(stream.unit, settings.pack_units)
        key, chunks = cluster.packs[pack], range(part, part + 1)
        asking = stream.fetch.node.address
        others = self.recipients.others(key, asking, NAMED_MAX, now_s, chunks)
        if not is_child and self.load.overloaded(
            alternatives=len(others),
            backlog_s=self.upload.backlog_s(now_s),
            size_bytes=settings.unit_bytes,
        ):
            clock.at(answered_s, stream.busy, others, self.load.retry_after_s())
            return
        self.recipients.sent(key, asking, now_s, chunks)
        self.load.began(settings.unit_bytes)
        self.streams[stream] = None
        stream.admitted_s = now_s
        clock.at(answered_s, self._serve, stream)

    def _serve(self, stream: Stream) -> None:
        if stream.ended or not self.alive or self.stuck:
            return
        unit = stream.unit
        if self.have[unit]:
            stream.begin()
            return
        fetch = self.fetches.get(unit)
        is_child = self.cluster.parent(stream.fetch.node, unit) is self
        if stream.cached and is_child and (fetch is None or not fetch.arriving):
            self._hold(stream, fetch)
            return
        if stream.cached and (fetch is None or not fetch.arriving):  # it was, and failed since
            stream.leave_server()
            stream.fetch.stream_lacked(stream)
            return
        if fetch is None:
            fetch = self.fetches[unit] = Fetch(self, unit)
        fetch.followers[stream] = None
        if fetch.arriving and self.cluster.settings.cut_through:
            stream.begin()
        elif not fetch.arriving:
            fetch.turn_to_store()

    def _hold(self, stream: Stream, fetch: Fetch | None) -> None:
        """Has a child wait for this node's own bytes, for a moment."""
        if fetch is None:
            self._held.setdefault(stream.unit, []).append(stream)
        else:
            fetch.followers[stream] = None
        self.cluster.clock.after(self.cluster.settings.held_s, self._let_go, stream)

    def _let_go(self, stream: Stream) -> None:
        if stream.ended or stream.flow is not None:
            return
        if (fetch := self.fetches.get(stream.unit)) is not None:
            fetch.followers.pop(stream, None)
        stream.leave_server()
        stream.fetch.stream_lacked(stream)

    # Dying

    def die(self, *, silent: bool) -> None:
        """Stops at once. ``silent``: as a host without power, not as a killed process."""
        self.alive, self.silent = False, silent
        for fetch in list(self.fetches.values()):
            fetch.cancel()
        self.fetches.clear()
        for stream in list(self.streams):
            stream.cut(silent=silent)
        self.streams.clear()

    def restart(self) -> None:
        """Comes back with its cache and without its memory."""
        self.alive = True
        self._forget()
        units = [*self._wanted]
        self._wanted.clear()
        rest = self._order
        self._order = (unit for part in (iter(units), rest) for unit in part)
        self.read_on()
