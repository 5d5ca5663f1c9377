"""S3 fails while nodes read: reads of cached files go on, and others wait until S3 is back."""

from __future__ import annotations

from loadtests.cluster import plans
from loadtests.cluster.cluster import Cluster, Site, Variant
from loadtests.cluster.figures import Outcome, Seen, at
from loadtests.cluster.playing import address_of, folder_of, manner_of, targets_of
from loadtests.cluster.readers import Manner, Readers
from loadtests.cluster.scenario import Outage, Scenario

LEAD_S = 1.0  # cached reads go on for so long before, so that they are under way


def play(site: Site, scenario: Scenario, variant: Variant) -> Outcome:
    """Fills the nodes' caches with some files; then S3 fails under readers of these and others."""
    outage = scenario.outage
    assert outage is not None
    outcome = Outcome(site.dataset.size_bytes, scenario.nodes.count)
    with Cluster(site, scenario, variant).running() as cluster:
        site.origin.begin_counting()
        filling = _readers(site, scenario, variant, cluster, "filling", outage.cached, None)
        with filling:
            filling.begin()
            filling.wait(scenario.seconds_max, lambda: None)
            filled, _ = filling.collect()
        endless = Manner(pause_s=outage.pause_s, is_endless=True)
        cached = _readers(site, scenario, variant, cluster, "cached", outage.cached, endless)
        cold = _readers(site, scenario, variant, cluster, "cold", outage.cold, None)
        with cached, cold:
            cached.begin()
            wait(cached, LEAD_S)
            site.origin.relay.behave(outage=outage.kind)
            cold.begin()
            wait(cached, outage.seconds)
            site.origin.relay.behave(outage="")
            cold.wait(scenario.seconds_max, lambda: None)
            cached.stop()
            cached.wait(scenario.seconds_max, lambda: None)
            seen_cached, _ = cached.collect()
            seen_cold, cold_s = cold.collect()
        outcome.take_egress(*site.origin.sent())
        outcome.statuses = cluster.statuses()
    outcome.epochs_s = [cold_s]
    outcome.more = _more(outage, seen_cached, seen_cold)
    for seen in (filled, seen_cached, seen_cold):
        outcome.seen.add(seen)
    return outcome


def _more(outage: Outage, cached: Seen, cold: Seen) -> dict[str, float]:
    """The results that only an outage has."""
    found = {"cached_reads_failed": float(cached.failed), "cached_reads": float(cached.reads)}
    found |= {"cold_reads_failed": float(cold.failed), "outage_s": outage.seconds}
    if cached.latencies_s:
        found["cached_p99_s"] = at(sorted(cached.latencies_s), 0.99)
    if cold.latencies_s:
        found["cold_longest_s"] = max(cold.latencies_s)
    return found


def _readers(
    site: Site, scenario: Scenario, variant: Variant, cluster: Cluster, name: str,
    groups: list[str], manner: Manner | None,
) -> Readers:  # fmt: skip
    """Readers of these files on every node, not started yet."""
    reading = scenario.reading
    manner = manner or manner_of(reading)
    work = plans.everything(
        site.dataset.of(groups), scenario.nodes.count, reading.streams, seed=plans.SEED
    )
    readers = Readers(folder_of(site, variant, name))
    for number, node in cluster.live.items():
        address, targets = address_of(node, reading), targets_of(site, reading)
        readers.add(number, node.host, address, work[number], targets, manner)
    return readers


def wait(readers: Readers, seconds: float) -> None:
    """Waits for a time, or until readers that should go on have ended."""
    readers.wait(seconds, lambda: None)
