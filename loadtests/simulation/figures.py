"""What a simulated run came to, and what is asked of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass

from loadtests.simulation.cluster import Cluster

# Asked of `fill` with 1,000 and 10,000 nodes and 1 TB.
EGRESS_RATIO_MAX = 1.05
P99_TO_P50_MAX = 1.8
P50_TO_IDEAL_MAX = 1.3


@dataclass(frozen=True, slots=True)
class Figures:
    """``origin_egress_ratio``: what S3 sent, by the dataset. Fill times are of the nodes that
    lived and had the full speed; ``ideal_s`` is the dataset by the speed of a node. Sent bytes
    are of a node to its peers, by their mean."""

    complete: bool
    origin_egress_ratio: float
    fill_p50_s: float
    fill_p99_s: float
    fill_max_s: float
    slow_fill_p50_s: float  # of the slow nodes; 0 without
    ideal_s: float
    fill_p99_to_p50: float
    fill_p50_to_ideal: float
    sent_max_to_mean: float
    sent_p99_to_mean: float
    depth_max: int  # nodes that passed bytes on one after the other, while they came
    asks: int
    asks_each_unit: float  # requests to peers for each unit of each node
    busy_share: float  # of the requests
    lacking_share: float
    hedges_share: float
    failed: int
    given_up: int
    calls: int  # of the event loop

    def as_dict(self) -> dict[str, object]:
        """For JSON: figures with four digits."""
        return {
            name: round(value, 4) if isinstance(value, float) else value
            for name, value in asdict(self).items()
        }


def figures(cluster: Cluster, *, complete: bool) -> Figures:
    """The figures of a run that has ended."""
    settings, counts = cluster.settings, cluster.counts
    dataset_bytes = settings.units * settings.unit_bytes
    slow = set(cluster.slow)
    fills = [(node.filled_s - node.began_s, node in slow) for node in cluster.nodes if node.filled]
    times = sorted(seconds for seconds, is_slow in fills if not is_slow) or [0.0]
    sent = sorted(node.up.sent_bytes for node in cluster.nodes)
    mean = sum(sent) / len(sent) or 1.0
    asks = counts["asks"] or 1
    p50, p99 = quantile(times, 0.5), quantile(times, 0.99)
    ideal_s = dataset_bytes / settings.node_bytes_per_s
    return Figures(
        complete=complete,
        origin_egress_ratio=cluster.store.egress_bytes / dataset_bytes,
        fill_p50_s=p50,
        fill_p99_s=p99,
        fill_max_s=times[-1],
        slow_fill_p50_s=quantile(sorted(s for s, is_slow in fills if is_slow) or [0.0], 0.5),
        ideal_s=ideal_s,
        fill_p99_to_p50=p99 / (p50 or 1.0),
        fill_p50_to_ideal=p50 / ideal_s,
        sent_max_to_mean=sent[-1] / mean,
        sent_p99_to_mean=quantile(sent, 0.99) / mean,
        depth_max=cluster.depth_max,
        asks=counts["asks"],
        asks_each_unit=asks / (settings.nodes * settings.units),
        busy_share=counts["busy"] / asks,
        lacking_share=counts["lacking"] / asks,
        hedges_share=counts["hedges"] / asks,
        failed=counts["failed"],
        given_up=counts["given_up"],
        calls=cluster.clock.calls,
    )


def quantile(ordered: Sequence[float], share: float) -> float:
    """The smallest value that this share of them does not exceed."""
    return ordered[min(int(len(ordered) * share), len(ordered) - 1)]


def verdicts(seen: Figures) -> dict[str, bool]:
    """What is asked of a fill, and whether it is reached."""
    return {
        f"origin_egress_ratio <= {EGRESS_RATIO_MAX}": seen.origin_egress_ratio <= EGRESS_RATIO_MAX,
        f"fill_p99_to_p50 <= {P99_TO_P50_MAX}": seen.fill_p99_to_p50 <= P99_TO_P50_MAX,
        f"fill_p50_to_ideal <= {P50_TO_IDEAL_MAX}": seen.fill_p50_to_ideal <= P50_TO_IDEAL_MAX,
    }
