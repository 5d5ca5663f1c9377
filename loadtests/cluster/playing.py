"""Plays most scenarios: readers on all nodes, epoch by epoch, with events between reads."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path

from loadtests.cluster import plans
from loadtests.cluster.cluster import Cluster, Site, Variant
from loadtests.cluster.figures import Outcome
from loadtests.cluster.node import Node
from loadtests.cluster.origin import REPO
from loadtests.cluster.plans import Plan, Streams
from loadtests.cluster.readers import Manner, Readers
from loadtests.cluster.scenario import Reading, Scenario, expanded
from loadtests.cluster.timeline import Timeline
from lodefs.chunkstore.protocol.wire import FILES, file_path


def play(site: Site, scenario: Scenario, variant: Variant) -> Outcome:
    """Every epoch of a scenario's reading, with its events."""
    outcome = Outcome(site.dataset.size_bytes, scenario.nodes.count)
    works = plans.epochs(site.dataset, scenario.reading, scenario.nodes.count)
    with Cluster(site, scenario, variant).running() as cluster:
        timeline = outcome.timeline if site.has_timeline else None
        happening = Happening(cluster, scenario if variant.disturbed else None, works, timeline)
        site.origin.begin_counting()
        for number, work in enumerate(works):
            with Readers(folder_of(site, variant, f"epoch{number}")) as readers:
                begin = _beginner(site, cluster, scenario.reading, readers, work)
                for node in cluster.live:
                    begin(node)
                readers.begin()
                happening.meanwhile(readers, begin, scenario.seconds_max)
                seen, seconds = readers.collect()
            outcome.seen.add(seen)
            outcome.epochs_s.append(seconds)
        outcome.take_egress(*site.origin.sent())
        outcome.statuses = cluster.statuses()
        if scenario.events and variant.disturbed:
            outcome.more["events_missed"] = happening.missed
    return outcome


def play_directly(site: Site, scenario: Scenario, variant: Variant) -> Outcome:
    """The same reads from plain objects on S3, from the same hosts, without lodefs."""
    outcome = Outcome(site.dataset.size_bytes, scenario.nodes.count)
    targets = site.origin.put_plain(site.dataset)
    works = plans.epochs(site.dataset, scenario.reading, scenario.nodes.count)
    site.origin.begin_counting()
    for number, work in enumerate(works):
        with Readers(folder_of(site, variant, f"epoch{number}")) as readers:
            for node, host in enumerate(site.hosts):
                manner = manner_of(scenario.reading)
                readers.add(node, host, site.origin.address, work[node], targets, manner)
            readers.begin()
            readers.wait(scenario.seconds_max, lambda: None)
            seen, seconds = readers.collect()
        outcome.seen.add(seen)
        outcome.epochs_s.append(seconds)
    outcome.take_egress(*site.origin.sent())
    return outcome


class Happening:
    """The events of a run, each at its share of all bytes."""

    def __init__(
        self,
        cluster: Cluster,
        scenario: Scenario | None,
        works: Sequence[Plan],
        timeline: Timeline | None = None,
    ) -> None:
        """``scenario`` None: there are no events. ``timeline`` looks at the nodes meanwhile."""
        self._cluster = cluster
        self._timeline = timeline
        self._pending = expanded(scenario) if scenario else []
        self._total_bytes = sum(
            plans.size_of(work[number]) for work in works for number in cluster.live
        )
        self._read_bytes = 0  # of the epochs before

    def meanwhile(self, readers: Readers, begin: Callable[[int], None], seconds_max: float) -> None:
        """Waits for the readers of an epoch, and does what is due. ``begin``: of a node's."""
        readers.wait(seconds_max, lambda: self._look(readers, begin))
        self._read_bytes += readers.read_bytes

    @property
    def missed(self) -> int:
        """The number of events that have not happened."""
        return len(self._pending)

    def _look(self, readers: Readers, begin: Callable[[int], None]) -> None:
        if self._timeline is not None:
            self._timeline.look(time.monotonic(), self._cluster.statuses)
        while self._pending and self._pending[0].at <= self._share(readers):
            event = self._pending.pop(0)
            if event.do == "kill":
                readers.drop(event.node)
            self._cluster.happen(event)
            if event.do == "join":
                begin(event.node)

    def _share(self, readers: Readers) -> float:
        return (self._read_bytes + readers.read_bytes) / max(1, self._total_bytes)


def address_of(node: Node, reading: Reading) -> str:
    """The address at which a node's clients read."""
    return str(node.mountpoint if reading.via == "mount" else node.socket)


def targets_of(site: Site, reading: Reading) -> dict[str, str]:
    """The requests of a node's clients, by the names of files."""
    if reading.via == "mount":
        return {file.name: file.name for file in site.dataset.files}
    return {
        file.name: file_path(FILES, REPO, site.origin.commit, file.name.encode())
        for file in site.dataset.files
    }


def manner_of(reading: Reading) -> Manner:
    """The way in which the scenario's clients read."""
    return Manner(timeout_s=reading.timeout_s, patience_s=reading.patience_s)


def folder_of(site: Site, variant: Variant, name: str) -> Path:
    """A folder for the files of one group of readers."""
    return site.scratch / f"readers-{variant.name.replace(' ', '-')}-{name}"


def _beginner(
    site: Site, cluster: Cluster, reading: Reading, readers: Readers, work: Sequence[Streams]
) -> Callable[[int], None]:
    """What adds a node's readers of an epoch."""
    targets = targets_of(site, reading)

    def begin(number: int) -> None:
        node = cluster.live[number]
        address = address_of(node, reading)
        readers.add(number, node.host, address, work[number], targets, manner_of(reading))

    return begin
