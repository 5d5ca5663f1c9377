"""One simulated node: it reads the dataset, and serves its peers what it has or is getting."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from loadtests.simulation.fetch import Fetch, Stream
from loadtests.simulation.network import Port
from lodefs.proxy.peers.client.hedge_budget import HedgeBudget
from lodefs.proxy.peers.client.rate_limit import RateLimiter
from lodefs.proxy.peers.client.request_plan import DEADLINE_S_MAX, PlanContext
from lodefs.proxy.peers.membership.peer import Peer
from lodefs.proxy.peers.membership.peer_health import PeerHealth
from lodefs.proxy.peers.recipients import Recipients
from lodefs.proxy.peers.sending_load import SendingLoad
from lodefs.proxy.read.readahead_policy import REACH_FACTOR

if TYPE_CHECKING:
    from loadtests.simulation.cluster import Cluster

HEALTH_PEERS_MAX = 64  # fewer than a real node remembers: 10,000 nodes share this memory
SOURCES_PACKS_MAX = 64
INDEX_S = 0.5  # until a node gets the index of a pack without the owner
NAMED_MAX = 8  # sources in one busy answer


class Node:
    """``order``: the units that it reads, one after the other, some at once."""

    def __init__(self, cluster: Cluster, number: int, speed: float, order: Iterator[int]) -> None:
        settings = cluster.settings
        self.cluster = cluster
        self.number = number
        self.peer = Peer(f"node-{number}:7441")
        self.address = self.peer.address
        self.up = Port(settings.node_bytes_per_s * speed)
        self.down = Port(settings.node_bytes_per_s * speed)
        self.have = bytearray(settings.units)
        self.missing_units = settings.units
        self.fetches: dict[int, Fetch] = {}
        self.alive = True
        self.reads = False
        self.stuck = False  # takes requests and never answers
        self.silent = False  # of a dead one: nothing comes back, not even a refusal
        self.began_s = self.filled_s = -1.0
        self.streams: dict[Stream, None] = {}  # being sent
        self._order = order
        self._next_pack = 0  # the first pack that it has not announced yet
        self._announced: set[int] = set()  # packs that it has been told of
        self._waiting: deque[int] = deque()  # their units, to be read from S3
        self._ahead: set[int] = set()  # of these, on their way
        self._wanted: set[int] = set()  # by its reader, now
        self._read_units = 0
        self._held: dict[int, list[Stream]] = {}  # its children's, until its own bytes come
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
            deadline_s_max=math.inf if settings.is_coarse else DEADLINE_S_MAX,
        )
        self._late: dict[int, list[Fetch]] = {}  # by pack, until its index has come
        self._parents: dict[int, Sequence[str | None]] = {}  # by pack, once its index has come
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
        in_flight = self.cluster.settings.in_flight
        if self.cluster.settings.ahead_units:  # sequential readers, whose read-ahead grows
            in_flight = min(in_flight, 1 << self._read_units)
        while self.alive and len(self._wanted) < in_flight:
            unit = next(self._order, None)
            if unit is None:
                return
            if self.cluster.settings.ahead_units:
                self._announce(unit)
            if not self.have[unit]:
                self._wanted.add(unit)
                if unit not in self.fetches:
                    self._fetch(unit)

    def _fetch(self, unit: int) -> None:
        fetch = self.fetches[unit] = Fetch(self, unit)
        pack = unit // self.cluster.settings.pack_units
        if pack in self._late:
            self._late[pack].append(fetch)
        else:
            fetch.plan_and_step()

    # Announcing

    def _announce(self, unit: int) -> None:
        """Asks the owners for the indexes of the packs that this node will get to."""
        settings = self.cluster.settings
        ahead = unit + min(settings.ahead_units, REACH_FACTOR * unit)
        end = len(self.cluster.packs) if ahead >= settings.units else ahead // settings.pack_units
        for pack in range(self._next_pack, end):
            if pack * settings.pack_units > unit:
                self._late[pack] = []
            self._ask_index(pack)
        self._next_pack = max(self._next_pack, end)

    def _ask_index(self, pack: int) -> None:
        cluster, settings = self.cluster, self.cluster.settings
        for peer in cluster.owners(pack * settings.pack_units):
            if peer == self.peer:
                self._told(pack)
                self.got_index(pack, ())
                return
            if self.health.usable(peer.address, cluster.clock.now_s):
                owner = cluster.node(peer)
                cluster.clock.after(settings.rtt_s / 2, owner.asked_index, pack, self)
                cluster.clock.after(INDEX_S, self.got_index, pack, ())  # of another node, or S3
                return

    def got_index(self, pack: int, parents: Sequence[str | None]) -> None:
        """The index of a pack has come, with the parents for its stripes."""
        if self.cluster.settings.tree:
            self._parents.setdefault(pack, parents)
        for fetch in self._late.pop(pack, ()):
            if not fetch.ended:
                fetch.plan_and_step()

    def parent(self, unit: int) -> Peer | None:
        """The node that it asks for a unit first; None is an owner."""
        parents = self._parents.get(unit // self.cluster.settings.pack_units, ())
        address = parents[unit % len(parents)] if parents else None
        return None if address is None else Peer(address)

    def drop_parent(self, unit: int) -> None:
        """Another node gave a unit: its parent is asked nothing more of the pack."""
        pack, parent = unit // self.cluster.settings.pack_units, self.parent(unit)
        if parent is not None:
            parents = self._parents[pack]
            self._parents[pack] = [None if one == parent.address else one for one in parents]

    def asked_index(self, pack: int, asking: Node) -> None:
        """A peer asks for the index of a pack of this node."""
        if not self.alive or self.stuck:
            return
        now_s, cluster = self.cluster.clock.now_s, self.cluster
        self._told(pack)
        parents = self.recipients.parents(
            cluster.packs[pack], asking.address, now_s, lambda one: self.health.usable(one, now_s)
        )
        self._answers_s = max(self._answers_s, now_s) + cluster.settings.answer_s
        answered_s = self._answers_s + cluster.settings.rtt_s / 2
        cluster.clock.at(answered_s, asking.got_index, pack, parents)

    def _told(self, pack: int) -> None:
        if pack not in self._announced:
            self._announced.add(pack)
            units = self.cluster.settings.pack_units
            self._waiting.extend(range(pack * units, (pack + 1) * units))
            self._fetch_ahead()

    def _fetch_ahead(self) -> None:
        """Reads some of what was announced from S3."""
        while self._waiting and len(self._ahead) < self.cluster.settings.ahead_at_once:
            unit = self._waiting.popleft()
            if unit < len(self.have) and not self.have[unit] and unit not in self.fetches:
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
            self._fetch_ahead()
        if fetch.unit in self._wanted:
            self._wanted.remove(fetch.unit)
            self._read_units += 1
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
        if stream.cached and not self.have[stream.unit] and not arriving:
            if stream.waits:
                self._held.setdefault(stream.unit, []).append(stream)
                clock.after(cluster.settings.held_s, self._let_go, stream)
            else:
                clock.at(answered_s, stream.lacking)
            return
        self._admit(stream, answered_s)

    def _admit(self, stream: Stream, answered_s: float) -> None:
        cluster, clock, settings = self.cluster, self.cluster.clock, self.cluster.settings
        now_s = clock.now_s
        pack, part = divmod(stream.unit, settings.pack_units)
        key, chunks = cluster.packs[pack], range(part, part + 1)
        asking = stream.fetch.node.address
        others = self.recipients.others(key, asking, NAMED_MAX, now_s, chunks)
        others = [one for one in others if not self.load.is_stuck(one, now_s)]
        if self.load.overloaded(
            asking,
            now_s,
            alternatives=0 if stream.waits else len(others),
            backlog_s=self.upload.backlog_s(now_s),
            size_bytes=settings.unit_bytes,
        ):
            clock.at(answered_s, stream.busy, others, self.load.retry_after_s())
            return
        self.recipients.sent(key, asking, now_s, chunks)
        self.load.began(asking, now_s, settings.unit_bytes)
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

    def let_in(self, unit: int) -> None:
        """Its own bytes begin to come: so children that wait for them are answered."""
        for stream in self._held.pop(unit, ()):
            if not stream.ended:
                self._admit(stream, self.cluster.clock.now_s + self.cluster.settings.rtt_s / 2)

    def _let_go(self, stream: Stream) -> None:
        held = self._held.get(stream.unit, [])
        if stream in held:
            held.remove(stream)
            if self.alive and not self.stuck:
                stream.lacking()

    # Dying

    def die(self, *, silent: bool) -> None:
        """Stops at once. ``silent``: as a host without power, not as a killed process."""
        self.alive, self.silent = False, silent
        for fetch in list(self.fetches.values()):
            fetch.cancel()
        self.fetches.clear()
        held = [stream for streams in self._held.values() for stream in streams]
        self._held.clear()
        for stream in [*self.streams, *held]:
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
