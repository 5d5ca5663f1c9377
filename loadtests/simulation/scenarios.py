"""What is done to a simulated cluster while its nodes read."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from loadtests.simulation.cluster import Cluster, Settings
from lodefs.proxy.read.readahead_policy import REACH_SIZE_BYTES_MAX

RESTART_S = 5.0  # until a restarted node is back
FOUND_S = 3.0  # until the others know it
LOST_SHARE = 0.1
AHEAD_UNITS = REACH_SIZE_BYTES_MAX >> 23
SEQUENTIAL_PACK_UNITS = 4  # 32 MiB, as writers make packs
SLOW_SHARE = 0.1
STUCK_SHARE = 0.1
AT_ONCE = 100  # of so many nodes, one is restarted at a time


def failure(cluster: Cluster) -> None:
    """A tenth of the nodes lose power when half of all units have come (of 8 nodes, one)."""
    lost = max(1, round(cluster.settings.nodes * LOST_SHARE))
    chosen = cluster.random.sample(cluster.nodes, lost)
    cluster.when_filled(0.5, lambda: cluster.kill(chosen, silent=True))


def deploy(cluster: Cluster) -> None:
    """From the tenth part on nodes are restarted one after the other, or one in a hundred at a
    time; caches stay, what was in flight does not."""
    waiting = list(cluster.nodes)
    at_once = max(1, len(waiting) // AT_ONCE)

    def stop_next() -> None:
        stopped = [waiting.pop() for _ in range(min(at_once, len(waiting)))]
        for node in stopped:
            node.die(silent=False)
            cluster.clock.after(RESTART_S, node.restart)
            cluster.clock.after(RESTART_S + FOUND_S, cluster.probe, node)
        if waiting:
            cluster.clock.after(RESTART_S, stop_next)

    cluster.when_filled(0.1, stop_next)


def nothing(cluster: Cluster) -> None:
    """Nothing happens."""


def stuck(settings: Settings) -> Settings:
    """A tenth of the nodes (of 8, one) are stuck."""
    share = max(1, round(settings.nodes * STUCK_SHARE)) / settings.nodes
    return replace(settings, stuck_share=share)


def ahead(settings: Settings) -> Settings:
    """All nodes read in the same order, and owners read ahead of them."""
    pack_units = min(settings.pack_units, SEQUENTIAL_PACK_UNITS)
    return replace(settings, shuffled=False, ahead_units=AHEAD_UNITS, pack_units=pack_units)


def through(settings: Settings) -> Settings:
    """As ahead, and nodes pass bytes on as they come."""
    return replace(ahead(settings), cut_through=True)


def tree(settings: Settings) -> Settings:
    """As through, and readers ask their parents first."""
    return replace(through(settings), tree=True)


SCENARIOS: dict[str, tuple[str, Callable[[Settings], Settings], Callable[[Cluster], None]]] = {
    "fill": (
        "all nodes read everything at once, each in an order of its own",
        lambda settings: settings,
        nothing,
    ),
    "herd": (
        "all nodes read everything at once, in the same order",
        lambda settings: replace(settings, shuffled=False),
        nothing,
    ),
    "herd-ahead": (
        "as herd, by sequential readers, and owners read what comes next from S3",
        ahead,
        nothing,
    ),
    "herd-through": (
        "as herd-ahead, if bytes are also passed on as they come",
        through,
        nothing,
    ),
    "herd-tree": ("as herd-through, by the trees that owners make of the readers", tree, nothing),
    "tree-failure": (
        "as herd-tree; a tenth of the nodes lose power halfway",
        tree,
        failure,
    ),
    "tree-stuck": (
        "as herd-tree; a tenth of the nodes (of 8, one) take requests and never answer",
        lambda settings: tree(stuck(settings)),
        nothing,
    ),
    "tree-half": (
        "as herd-tree; half of the nodes read",
        lambda settings: tree(replace(settings, readers_share=0.5)),
        nothing,
    ),
    "tree-herds": (
        "as herd-tree; half of the nodes begin half a second later",
        lambda settings: tree(replace(settings, herds=2)),
        nothing,
    ),
    "failure": (
        "as fill; a tenth of the nodes lose power halfway",
        lambda settings: settings,
        failure,
    ),
    "deploy": (
        "as fill; every node is restarted meanwhile, with its cache",
        lambda settings: settings,
        deploy,
    ),
    "slow": (
        "as fill; a tenth of the nodes have a tenth of the speed",
        lambda settings: replace(settings, slow_share=SLOW_SHARE),
        nothing,
    ),
    "stuck": (
        "as fill; a tenth of the nodes (of 8, one) take requests and never answer",
        stuck,
        nothing,
    ),
}
