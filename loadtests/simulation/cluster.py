"""A cluster of simulated nodes that read one dataset, and what happens to it meanwhile."""

from __future__ import annotations

import gc
import random
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from hashlib import blake2b

from loadtests.simulation.clock import Call, Clock
from loadtests.simulation.network import Network
from loadtests.simulation.node import Node
from loadtests.simulation.store import Store
from lodefs.chunkstore.protocol import wire
from lodefs.proxy.peers.membership.peer import Peer
from lodefs.proxy.peers.membership.rendezvous import rank

REAL_UNIT_BYTES = 8 << 20
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
    # Owners read S3 so many units ahead of the first reader at most, some at once
    ahead_units: int = 0
    ahead_at_once: int = 4
    tree: bool = False  # a node asks its parents in the pack's tree first
    # A parent lets its child wait so long for its own first byte
    held_s: float = wire.PARENT_WAIT_S
    readers_share: float = 1.0  # of the nodes: only these read
    herds: int = 1  # the readers of each begin so much later than those of the one before
    herds_apart_s: float = 0.5
    members_follow_s: float = 30.0  # the list of members follows the truth after this

    @property
    def is_coarse(self) -> bool:
        """Whether a unit stands for a train of real ones."""
        return self.unit_bytes > REAL_UNIT_BYTES

    @property
    def units(self) -> int:
        """Units of the dataset."""
        return max(1, round(self.dataset_bytes / self.unit_bytes))


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
        slow = round(settings.nodes * settings.slow_share)
        self.nodes = [
            Node(self, number, 0.1 if number < slow else 1.0, self._order())
            for number in range(settings.nodes)
        ]
        self.slow = self.nodes[:slow]
        for node in self.nodes[slow : slow + round(settings.nodes * settings.stuck_share)]:
            node.stuck = True
        self._nodes = {node.address: node for node in self.nodes}
        count = max(1, round(settings.nodes * settings.readers_share))
        self.readers = sorted(self.random.sample(self.nodes, count), key=lambda one: one.number)
        for node in self.readers:
            node.reads = True
        self.unfilled = count  # readers that live and have not all yet
        self._came_units = 0
        self.depth_max = 0
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

    def follow(self) -> None:
        """The list of members becomes what is true now."""
        self.members = tuple(node.peer for node in self.nodes if node.alive)
        self._owners.clear()
        for node in self.nodes:
            node.plan_context.budget.resize(len(self.members))

    def when_filled(self, share: float, call: Call) -> None:
        """Makes the call when this share of all units is where it belongs."""
        units = self.settings.units * len(self.readers)
        self._turning_points[int(units * share)] = call

    def came(self, node: Node) -> None:
        """A unit has come to a node."""
        self._came_units += node.reads
        self.unfilled -= node.reads and node.missing_units == 0
        call = self._turning_points.get(self._came_units)
        if call is not None:
            self.clock.after(0.0, call)

    def kill(self, nodes: list[Node], *, silent: bool) -> None:
        """These die now; the list of members follows later."""
        for node in nodes:
            if node.alive:
                self.unfilled -= node.reads and node.missing_units > 0
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
        settings = self.settings
        for number, node in enumerate(self.readers):
            later_s = number % settings.herds * settings.herds_apart_s
            self.clock.at(later_s + self.random.random() * settings.start_s, node.start)
        gc.disable()  # it takes a third of the time, and next to nothing is in a cycle
        try:
            return self.clock.run(lambda: self.unfilled == 0, calls_max=CALLS_MAX)
        finally:
            gc.enable()
