"""A running cluster: its nodes, their peers' settings, bad doors, and the events of a scenario."""

from __future__ import annotations

import json
import secrets
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from loadtests.cluster.dataset import Dataset
from loadtests.cluster.network import Host, Network
from loadtests.cluster.node import BEHIND_PORT, PEER_PORT, Node, check_known
from loadtests.cluster.origin import Origin
from loadtests.cluster.relays import RunningRelay
from loadtests.cluster.scenario import Event, Fault, Scenario

SECRET_BYTES = 32


@dataclass(frozen=True, slots=True)
class Site:
    """What all runs of a scenario share: the network, the origin with the dataset, the hosts."""

    network: Network
    origin: Origin
    hosts: Sequence[Host]
    dataset: Dataset
    scratch: Path
    keep: bool = False  # caches and logs are left behind
    has_timeline: bool = False  # nodes are asked for their rates meanwhile


@dataclass(frozen=True, slots=True)
class Variant:
    """The way to run a scenario: as it is, or for comparison."""

    name: str
    peers: bool = True
    disturbed: bool = True
    direct: bool = False  # clients read S3 themselves, there are no nodes


AS_IT_IS = Variant("as it is")
WITHOUT_PEERS = Variant("without peers", peers=False)
UNDISTURBED = Variant("undisturbed", disturbed=False)
DIRECT = Variant("direct", direct=True)


class Cluster:
    """Nodes by number. ``live``: running nodes, at first without the ``late`` ones."""

    def __init__(
        self, site: Site, scenario: Scenario, variant: Variant,
        weights: Mapping[int, float] | None = None,
    ) -> None:  # fmt: skip
        """``weights``: of nodes among their peers, if not 1."""
        self._site = site
        self._scenario = scenario
        self._variant = variant
        self._weights = weights or {}
        self._folder = site.scratch / variant.name.replace(" ", "-")
        self._members_file = self._folder / "peers.json"
        self.nodes: list[Node] = []
        self.live: dict[int, Node] = {}

    @contextmanager
    def running(self) -> Iterator[Cluster]:
        """Makes all nodes ready, except late ones, and ends them at the end."""
        count, late = self._scenario.nodes.count, self._scenario.nodes.late
        self._folder.mkdir()
        faults = self._scenario.faults if self._variant.disturbed else []
        secret = self._folder / "secret"
        secret.touch(mode=0o600)
        secret.write_text(secrets.token_hex(SECRET_BYTES) + "\n")
        with ExitStack() as stack:
            stack.callback(self._end)
            self._make_nodes(secret, {fault.node for fault in faults})
            for fault in faults:
                self._put_relay(stack, fault)
            for number in range(count - late):
                self._launch(number)
            for node in self.live.values():
                self._await(node)
            yield self

    def happen(self, event: Event) -> None:
        """Carries out one event of a scenario. Events of a node need ``node``."""
        network, hosts = self._site.network, self._site.hosts
        if event.do == "kill":
            node = self.live.pop(event.node)
            network.unplug(node.host)
            node.kill()
        elif event.do == "restart":
            self.live[event.node].restart()
        elif event.do == "join":
            self._launch(event.node)
            self._await(self.live[event.node])
        elif event.do == "part":
            groups = [[hosts[number] for number in group] for group in event.groups]
            for position, group in enumerate(groups):
                for other in groups[position + 1 :]:
                    network.part(group, other)
        elif event.do == "heal":
            network.heal()
        else:
            kind = event.outage if event.do == "outage" else ""
            self._site.origin.relay.behave(outage=kind)

    def statuses(self) -> list[dict[str, Any]]:
        """The status of every live node."""
        return [{"number": number, **node.status()} for number, node in self.live.items()]

    def _make_nodes(self, secret: Path, bad: set[int]) -> None:
        nodes = self._scenario.nodes
        for number, host in enumerate(self._site.hosts):
            self._site.network.plug(host)
            settings = {**nodes.serve, **nodes.serve_of.get(str(number), {})}
            if self._variant.peers:
                settings |= self._peering(host, secret, is_behind=number in bad)
            check_known(settings)
            origin = self._site.origin
            self.nodes.append(
                Node(number, host, self._folder / f"node{number}", origin.endpoint_url, settings,
                     origin.server.environment)
            )  # fmt: skip

    def _peering(self, host: Host, secret: Path, *, is_behind: bool) -> dict[str, Any]:
        """The settings that make a node a peer of the others."""
        found: dict[str, Any] = {"peer_secret_file": str(secret)}
        found["peer_listen"] = f"{host.address}:{BEHIND_PORT if is_behind else PEER_PORT}"
        if is_behind:
            found["peer_address"] = f"{host.address}:{PEER_PORT}"
        if self._scenario.nodes.membership == "file":
            return {**found, "peers_file": str(self._members_file)}
        return {**found, "peers": self._members(range(self._scenario.nodes.count))}

    def _members(self, numbers: Sequence[int]) -> list[str]:
        return [
            f"{self._site.hosts[number].address}:{PEER_PORT}"
            + (f";weight={self._weights[number]:f}" if number in self._weights else "")
            for number in numbers
        ]

    def _launch(self, number: int) -> None:
        self.live[number] = self.nodes[number]
        self._write_members()
        self.nodes[number].launch()

    def _await(self, node: Node) -> None:
        node.wait_ready()
        if self._scenario.reading.via == "mount":
            node.mount(self._site.origin.commit)

    def _write_members(self) -> None:
        """The file of members, replaced as a whole (the shape of Prometheus' file_sd)."""
        count, late = self._scenario.nodes.count, self._scenario.nodes.late
        known = sorted({*range(count - late), *self.live})
        partial = self._members_file.with_suffix(".partial")
        partial.write_text(json.dumps([{"targets": self._members(known), "labels": {}}]))
        partial.replace(self._members_file)

    def _put_relay(self, stack: ExitStack, fault: Fault) -> None:
        """A relay at a bad node's peer address, in front of its real door."""
        host = self._site.hosts[fault.node]
        own, behind = f"{host.address}:{PEER_PORT}", f"{host.address}:{BEHIND_PORT}"
        name = f"door{fault.node}"
        relay = stack.enter_context(RunningRelay.started(host, self._folder, name, own, behind))
        relay.behave(fault=fault.fault, fault_below=fault.below)

    def _end(self) -> None:
        """Ends all nodes, and restores the network and the origin."""
        self._site.origin.relay.behave(outage="")
        self._site.network.heal()
        for node in self.nodes:
            node.stop()
            if self._site.keep:
                (node.folder / "proxy.log").write_text(node.log)
            elif node.folder.exists():
                shutil.rmtree(node.folder)
