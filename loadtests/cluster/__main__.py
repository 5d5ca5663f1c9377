"""``./run loadtest [SCENARIO]``: runs a scenario; without a name, lists them."""

from __future__ import annotations

import argparse
import ctypes
import importlib
import os
import re
import shutil
import signal
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from loadtests.cluster import dataset, figures, outage, peerhit, playing, scenario
from loadtests.cluster.cluster import AS_IT_IS, DIRECT, UNDISTURBED, WITHOUT_PEERS, Site, Variant
from loadtests.cluster.figures import Outcome
from loadtests.cluster.network import Host, Link, Network, is_over, run_name
from loadtests.cluster.node import NUMBER_FIRST
from loadtests.cluster.origin import SERVERS, Origin
from loadtests.cluster.scenario import Changes, Scenario, assertions, size
from loadtests.errors import LoadtestError
from lodefs.chunkstore.errors import InvalidInput
from tests.support.chunkstore.child_process import ChildError

ELSEWHERE = {
    "simulate": (
        "loadtests.simulation.__main__",
        "many nodes on a virtual clock, by the same decisions",
    ),
    "simulate-push": (
        "loadtests.simulation.pushing",
        "a push of 200 TB by many machines on a virtual clock",
    ),
    "profile": (
        "loadtests.profiling",
        "jobs that are slowed on purpose, and what `lodefs profile` says of each",
    ),
    "dashboards": (
        "loadtests.dashboards.__main__",
        "every panel has data, every alert fires for its cause",
    ),
}
Play = Callable[[Site, Scenario, Variant], Outcome]


def main(arguments: Sequence[str] | None = None) -> int:
    """The exit code: 0 all that is asked is reached, 1 it is not or cannot be run, 2 bad usage."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    if words[0:1] and words[0] in ELSEWHERE:
        return _elsewhere(words[0], words[1:])
    options = _parser().parse_args(words)
    if options.scenario is None:
        _list()
        return 0
    os.umask(0o022)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # all is to be removed
    try:
        wanted = scenario.load(options.scenario, changes_of(options))
        outcomes = run(wanted, options)
    except (LoadtestError, ChildError, InvalidInput, FileNotFoundError) as error:
        print(f"loadtest: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("loadtest: interrupted", file=sys.stderr)
        return 130
    return _tell(options, wanted, outcomes)


def run(wanted: Scenario, options: argparse.Namespace) -> dict[str, Outcome]:
    """Plays a scenario and its comparison runs. Returns outcomes by the variant's name."""
    with (
        scratch(options.dir, keep=options.keep) as folder,
        Network.made() as network,
        Origin.started(network, folder / "s3", options.origin) as origin,
    ):
        groups = wanted.groups
        if options.size is not None:
            groups = dataset.scaled(groups, size(options.size))
        data = dataset.write(folder / "data", groups)
        origin.push(data)
        hosts = hosts_of(wanted, network)
        origin.relay.behave(
            bytes_per_s_max=size(wanted.origin.rate),
            connection_bytes_per_s_max=size(wanted.origin.connection_rate),
            latency_s=wanted.origin.latency_s,
        )
        site = Site(
            network, origin, hosts, data, folder, keep=options.keep, has_timeline=options.timeline
        )
        return {
            variant.name: play_of(wanted, variant)(site, wanted, variant)
            for variant in variants_of(wanted, options)
        }


def hosts_of(wanted: Scenario, network: Network) -> list[Host]:
    """The nodes' hosts, with the links that the scenario describes."""
    nodes = wanted.nodes
    link = Link(size(nodes.rate), nodes.latency_s, nodes.loss)
    hosts = [network.add(f"n{number}", NUMBER_FIRST + number) for number in range(nodes.count)]
    for host in hosts:
        network.shape(host, link)
    return hosts


def variants_of(wanted: Scenario, options: argparse.Namespace) -> list[Variant]:
    """The runs: comparison runs first, the scenario last."""
    found = []
    if wanted.compare == "direct":
        found.append(DIRECT)
    if wanted.compare == "undisturbed":
        found.append(replace(UNDISTURBED, peers=not options.without_peers))
    if options.baseline:
        found.append(WITHOUT_PEERS)
    return [*found, replace(AS_IT_IS, peers=not options.without_peers)]


def play_of(wanted: Scenario, variant: Variant) -> Play:
    """The settings for playing a variant of the scenario."""
    if variant.direct:
        return playing.play_directly
    if wanted.outage is not None:
        return outage.play
    return peerhit.play if wanted.peer_hit is not None else playing.play


@contextmanager
def scratch(below: Path | None, *, keep: bool) -> Iterator[Path]:
    """A folder for a run, with a short path. It is removed at the end, like those of ended runs."""
    parent = below or Path(tempfile.gettempdir())
    for leftover in parent.glob("lodefs-load-*"):
        if is_over(f"{leftover.name}-x"):
            _remove(leftover)
    folder = parent / run_name(os.getpid())
    folder.mkdir(parents=True, mode=0o700)
    try:
        yield folder
    finally:
        if keep:
            kept = folder.rename(folder.with_name(f"kept-{folder.name}"))
            print(f"loadtest: kept {kept}", file=sys.stderr)
        else:
            _remove(folder)


def _remove(folder: Path) -> None:
    """Unmounts mounts of a dead run first: they would answer with errors for ever."""
    for line in Path("/proc/self/mounts").read_text().splitlines():
        where = re.sub(r"\\([0-7]{3})", lambda found: chr(int(found[1], 8)), line.split()[1])
        if where.startswith(f"{folder}/"):
            ctypes.CDLL(None).umount2(os.fsencode(where), 2)  # MNT_DETACH
    shutil.rmtree(folder, ignore_errors=True)


def changes_of(options: argparse.Namespace) -> Changes:
    """The command line's changes to a scenario's tables."""
    more: dict[str, dict[str, Any]] = {"nodes": {}, "origin": {}, "reading": {}}
    for table, key, value in (
        ("nodes", "rate", options.node_rate),
        ("nodes", "latency_s", options.node_latency),
        ("nodes", "loss", options.node_loss),
        ("origin", "rate", options.origin_rate),
        ("origin", "connection_rate", options.origin_connection_rate),
        ("origin", "latency_s", options.origin_latency),
        ("reading", "via", options.via),
    ):
        if value is not None:
            more[table][key] = value
    return Changes(options.nodes, options.quick, more)


def _tell(options: argparse.Namespace, wanted: Scenario, outcomes: dict[str, Outcome]) -> int:
    """Prints the table or the object. Returns the exit code."""
    outcome = outcomes.pop(AS_IT_IS.name)
    found = outcome.figures()
    if wanted.compare:
        found |= figures.compared(outcome, outcomes[wanted.compare], wanted.compare)
    asked = {each.figure: (each.at_least, each.at_most) for each in assertions(wanted)}
    if wanted.events:
        asked["events_missed"] = (None, 0.0)
    result = figures.report(options.scenario, wanted.title, found, asked)
    told = figures.as_json(options.scenario, outcome, outcomes, result)
    if options.json:
        print(figures.dumped(told), flush=True)
    else:
        for kind, other in outcomes.items():
            table = figures.report(kind, "for comparison", other.figures(), {})
            print(table.table())
        result.notes += [f"error: {error}" for error in outcome.seen.told]
        result.notes += outcome.timeline.lines()
        print(result.table(), flush=True)
    return 0 if told["ok"] else 1


def _list() -> None:
    for name in scenario.names():
        print(f"{name:16} {scenario.load(name).title}")
    for name, (_, text) in ELSEWHERE.items():
        print(f"{name:16} {text}")


def _elsewhere(name: str, words: list[str]) -> int:
    """A load test other than a scenario, with a command line of its own."""
    return int(importlib.import_module(ELSEWHERE[name][0]).main(words) or 0)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="./run loadtest", description=__doc__)
    add = parser.add_argument
    add("scenario", nargs="?", metavar="SCENARIO", help="its name, or a TOML file with a slash")
    add("--nodes", type=int, metavar="N", help="how many (scenarios: 8)")
    add("--size", metavar="SIZE", help="of the dataset in all, as 2GiB")
    add("--quick", action="store_true", help="less data, shorter outages: shows that all works")
    add("--baseline", action="store_true", help="run it without peers too")
    add("--without-peers", action="store_true", help="run it without peers only")
    add("--via", choices=("proxy", "mount"), help="what clients read through")
    add("--origin", choices=sorted(SERVERS), default="rgw", help="the S3 server (rgw)")
    add("--origin-rate", metavar="SIZE", help="of all that S3 sends, bytes a second, as 200MB")
    add("--origin-connection-rate", metavar="SIZE", help="of each of its answers, as 10MB")
    add("--origin-latency", type=float, metavar="S", help="of each answer of S3, seconds")
    add("--node-rate", metavar="SIZE", help="of each node's link, bytes a second (tc tbf)")
    add("--node-latency", type=float, metavar="S", help="of each node's link (tc netem)")
    add("--node-loss", type=float, metavar="SHARE", help="of packets, 0 to 1 (tc netem)")
    add("--timeline", action="store_true", help="what each node sends and gets, by the second")
    add("--json", action="store_true", help="print one JSON object")
    add("--dir", type=Path, help="where caches and data go (the temporary directory)")
    add("--keep", action="store_true", help="leave caches and logs behind")
    return parser


if __name__ == "__main__":
    sys.exit(main())
