"""A cluster of simulated nodes that read one dataset, and what happens to it meanwhile."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from hashlib import blake2b

from loadtests.simulation.clock import Call, Clock
from loadtests.simulation.network import Network
from loadtests.simulation.node import Node
from loadtests.simulation.store import Store
from lodefs.proxy.peers.membership.peer import Peer
from lodefs.proxy.peers.membership.rendezvous import rank

CALLS_MAX = 400_000_000


@dataclass(frozen=True, slots=True)
class Settings:
    """What is simulated. Sizes in bytes, speeds in bytes a second of each direction."""

    nodes: int = 8
    dataset_bytes: int = 10**12
    unit_bytes: int = 1 << 30
    in_flight: int = 8  # units that a node's reader waits for at once
    node_bytes_per_s: float = 1.25e9  # 10 Gbit/s
    connection_bytes_per_s: float = 80e6  # of S3, for each unit being read
    store_bytes_per_s: float = 40e9  # of S3, in all: 5,000 GETs of 8 MiB a second
    store_latency_s: float = 0.05
    rtt_s: float = 0.0005
    answer_s: float = 0.0001  # of processor time that one answer takes, one after the other
    cut_through: bool = False  # bytes are passed on as they come, not when the unit is there
    shuffled: bool = True  # each node reads in an order of its own
    start_s: float = 0.1  # all nodes start within this
    seed: int = 1
    pack_units: int = 1  # consecutive units that have one owner
    soft_units_max: int = 8  # being sent by one node at once: Load's limits
    hard_units_max: int = 32
    upload_bytes_per_s_max: float | None = None
    slow_share: float = 0.0  # of the nodes: these have a tenth of the speed
    stuck_share: float = 0.0  # of the nodes: these take requests and never answer
    known_max: int = 0  # packs of which a node remembers who sent a part
    # Owners read S3 so many units ahead of the first reader at most, some at once
    ahead_units: int = 0
    ahead_at_once: int = 8
    # What nodes do not do yet: each asks its parent in the unit's tree first, which has so many
    # children, and lets them wait so long for its own first byte
    children: int = 0
    held_s: float = 0.15
    members_follow_s: float = 30.0  # the list of members follows the truth after this

    @property
    def units(self) -> int:
        """Units of the dataset."""
        return max(1, round(self.dataset_bytes / self.unit_bytes))


class Tree:
    """The order in which a unit is passed on: each node to some children, from the owner on, which
    has one. In consecutive units of a pack other nodes have children, so that each node sends as
    much as it receives (as in SplitStream: Castro et al., SOSP 2003)."""

    def __init__(self, owner: Node, others: list[Node], turn: int, children: int) -> None:
        begin = -(-len(others) * turn // children)
        self._order = others[begin:] + others[:begin]
        self._ranks = {node: rank for rank, node in enumerate(self._order)}
        self._owner = owner
        self._children = children

    def parent(self, node: Node) -> Node:
        """The node above one that is not the owner."""
        rank = self._ranks[node]
        return self._order[(rank - 1) // self._children] if rank else self._owner


class Cluster:
    """All nodes, the store, and the list of members, which is the same for all."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.random = random.Random(settings.seed)
        self.clock = Clock()
        self.network = Network(self.clock)
        self.store = Store(
            self.clock,
            self.network,
            bytes_per_s=settings.store_bytes_per_s,
            connection_bytes_per_s=settings.connection_bytes_per_s,
            latency_s=settings.store_latency_s,
        )
        self.packs = [
            blake2b(f"{settings.seed} {unit}".encode(), digest_size=32).digest()
            for unit in range(-(-settings.units // settings.pack_units))
        ]
        self.counts: Counter[str] = Counter()
        self.members: tuple[Peer, ...] = tuple(
            Peer(f"node-{number}:7441") for number in range(settings.nodes)
        )
        self._owners: dict[int, list[Peer]] = {}
        self._trees: dict[int, Tree] = {}
        slow = round(settings.nodes * settings.slow_share)
        self.nodes = [
            Node(self, number, 0.1 if number < slow else 1.0, self._order())
            for number in range(settings.nodes)
        ]
        self.slow = self.nodes[:slow]
        for node in self.nodes[slow : slow + round(settings.nodes * settings.stuck_share)]:
            node.stuck = True
        self._nodes = {node.address: node for node in self.nodes}
        self.unfilled = settings.nodes  # nodes that live and have not all yet
        self._came_units = 0
        self.depth_max = 0
        self.front = 0  # the unit after the last that a reader has asked for
        self._turning_points: dict[int, Call] = {}

    def _order(self) -> Iterator[int]:
        units = list(range(self.settings.units))
        if self.settings.shuffled:
            self.random.shuffle(units)
        return iter(units)

    def node(self, peer: Peer) -> Node:
        """The node at an address."""
        return self._nodes[peer.address]

    def owners(self, unit: int) -> list[Peer]:
        """The owners of a unit among the members of now."""
        pack = unit // self.settings.pack_units
        owners = self._owners.get(pack)
        if owners is None:
            owners = self._owners[pack] = rank(self.members, self.packs[pack])
        return owners

    def parent(self, node: Node, unit: int) -> Node | None:
        """The node above another in a unit's tree; None for the owner, and without trees."""
        children = self.settings.children
        if not children or self.owners(unit)[0] == node.peer:
            return None
        tree = self._trees.get(unit)
        if tree is None:
            owner = self.node(self.owners(unit)[0])
            others = [one for one in self.nodes if one is not owner]
            random.Random(unit // self.settings.pack_units).shuffle(others)
            tree = self._trees[unit] = Tree(owner, others, unit % children, children)
        return tree.parent(node)

    def reads(self, unit: int) -> None:
        """A reader asks for a unit. Owners learn of it at once: an announcement takes no time."""
        if self.settings.ahead_units and unit >= self.front:
            self.front = unit + 1
            for node in self.nodes:
                node.fetch_ahead()

    def follow(self) -> None:
        """The list of members becomes what is true now."""
        self.members = tuple(node.peer for node in self.nodes if node.alive)
        self._owners.clear()
        for node in self.nodes:
            node.plan_context.budget.resize(len(self.members))

    def when_filled(self, share: float, call: Call) -> None:
        """Makes the call when this share of all units is where it belongs."""
        units = self.settings.units * self.settings.nodes
        self._turning_points[int(units * share)] = call

    def came(self, node: Node) -> None:
        """A unit has come to a node."""
        self._came_units += 1
        self.unfilled -= node.missing_units == 0
        call = self._turning_points.get(self._came_units)
        if call is not None:
            self.clock.after(0.0, call)

    def kill(self, nodes: list[Node], *, silent: bool) -> None:
        """These die now; the list of members follows later."""
        for node in nodes:
            if node.alive:
                self.unfilled -= node.missing_units > 0
                node.die(silent=silent)
        self.clock.after(self.settings.members_follow_s, self.follow)

    def probe(self, probed: Node) -> None:
        """Tells all nodes whether this one is alive, as their probes would."""
        now_s = self.clock.now_s
        for node in self.nodes:
            if node.alive and not node.health.usable(probed.address, now_s):
                node.health.probed(probed.address, ok=False, now_s=now_s)
                if probed.alive:
                    node.health.probed(probed.address, ok=True, now_s=now_s)

    def run(self) -> bool:
        """Runs until all living nodes are full; False if that never happens."""
        for node in self.nodes:
            self.clock.at(self.random.random() * self.settings.start_s, node.start)
        return self.clock.run(lambda: self.unfilled == 0, calls_max=CALLS_MAX)
