"""``python -m loadtests.simulation --nodes 1000 --dataset 1TB --json``: a cluster in simulation."""

from __future__ import annotations

import argparse
import json
import re
import sys
import time
from collections.abc import Sequence

from loadtests.simulation.cluster import REAL_UNIT_BYTES, Cluster, Settings
from loadtests.simulation.figures import Figures, figures, verdicts
from loadtests.simulation.scenarios import SCENARIOS

MIB = 1 << 20
PACK_UNITS = 8
TRANSFERS_MAX = 2_500_000  # of units to nodes: some minutes; beyond, units become coarser
SIZE = re.compile(r"([0-9]+(?:\.[0-9]+)?)\s*([kMGT]?)(i?)B?\Z")


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one scenario and prints its figures. Exit code 1 where it does not end or falls short
    of what was asked."""
    options = _parser().parse_args(arguments)
    name, change, happen = options.scenario, *SCENARIOS[options.scenario][1:]
    settings = change(_settings(options))
    begin_s = time.process_time()
    cluster = Cluster(settings)
    happen(cluster)
    seen = figures(cluster, complete=cluster.run())
    asked = verdicts(seen) if name == "fill" else {}
    result = {
        "scenario": name,
        "what": SCENARIOS[name][0],
        "nodes": settings.nodes,
        "dataset_bytes": settings.units * settings.unit_bytes,
        "unit_bytes": settings.unit_bytes,
        "note": _note(settings),
        **seen.as_dict(),
        "asked": asked,
        "processor_s": round(time.process_time() - begin_s, 1),
    }
    print(json.dumps(result) if options.json else _text(result, seen))
    return 0 if seen.complete and all(asked.values()) else 1


def _settings(options: argparse.Namespace) -> Settings:
    unit_bytes = options.unit or unit_size(options.nodes, options.dataset)
    coarse = unit_bytes > REAL_UNIT_BYTES
    return Settings(
        nodes=options.nodes,
        dataset_bytes=options.dataset,
        unit_bytes=unit_bytes,
        pack_units=1 if coarse else PACK_UNITS,
        cut_through=coarse,
        in_flight=options.in_flight,
        node_bytes_per_s=options.node_speed,
        connection_bytes_per_s=options.connection_speed,
        store_bytes_per_s=options.store_speed,
        upload_bytes_per_s_max=options.upload_limit,
        seed=options.seed,
    )


def unit_size(nodes: int, dataset_bytes: int) -> int:
    """8 MiB, doubled until there are few enough transfers."""
    unit_bytes = REAL_UNIT_BYTES
    while nodes * dataset_bytes / unit_bytes > TRANSFERS_MAX:
        unit_bytes *= 2
    return unit_bytes


def parse_size(text: str) -> int:
    """Bytes of "1TB", "64MiB", "8388608"; more than none. ArgumentTypeError."""
    match = SIZE.match(text)
    if match is None or not float(match[1]):
        raise argparse.ArgumentTypeError(f"{text}: not a size; 1TB and 64MiB are")
    number, prefix, binary = match.groups()
    power = "kMGT".index(prefix) + 1 if prefix else 0
    unit: int = (1024 if binary else 1000) ** power
    return round(float(number) * unit)


def parse_count(text: str) -> int:
    """A whole number from 1 on. ArgumentTypeError."""
    if not text.isdecimal() or not int(text):
        raise argparse.ArgumentTypeError(f"{text}: not a whole number from 1 on")
    return int(text)


def _note(settings: Settings) -> str:
    if settings.unit_bytes <= REAL_UNIT_BYTES:
        return "units as real nodes move them; a unit is passed on when all of it is there"
    count = settings.unit_bytes // REAL_UNIT_BYTES
    return f"each unit stands for {count} real ones that follow each other"


def _text(result: dict[str, object], seen: Figures) -> str:
    lines = [f"{name:24} {value}" for name, value in result.items() if name != "asked"]
    for what, reached in (verdicts(seen) if result["asked"] else {}).items():
        lines.append(f"{'ok' if reached else 'SHORT':24} {what}")
    return "\n".join(lines)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="./run loadtest simulate", description=__doc__)
    parser.add_argument(
        "scenario",
        nargs="?",
        choices=SCENARIOS,
        default="fill",
        help="; ".join(f"{name}: {text}" for name, (text, *_) in SCENARIOS.items()),
    )
    parser.add_argument("--nodes", type=parse_count, default=8)
    parser.add_argument(
        "--dataset", type=parse_size, default=10**12, metavar="SIZE", help="1TB unless given"
    )
    parser.add_argument(
        "--unit",
        type=parse_size,
        metavar="SIZE",
        help="what is moved at once (default: 8MiB, or what takes minutes)",
    )
    parser.add_argument(
        "--node-speed",
        type=parse_size,
        default=1.25e9,
        metavar="BYTES_PER_S",
        help="of a node in each direction (default: 1.25GB, 10 Gbit/s)",
    )
    parser.add_argument(
        "--connection-speed",
        type=parse_size,
        default=80e6,
        metavar="BYTES_PER_S",
        help="of one read of S3 (default: 80MB)",
    )
    parser.add_argument(
        "--store-speed",
        type=parse_size,
        default=40e9,
        metavar="BYTES_PER_S",
        help="of S3 in all (default: 40GB)",
    )
    parser.add_argument(
        "--upload-limit", type=parse_size, metavar="BYTES_PER_S", help="that each node sets itself"
    )
    parser.add_argument(
        "--in-flight",
        type=parse_count,
        default=8,
        metavar="UNITS",
        help="that a node waits for at once (default: 8)",
    )
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", action="store_true", help="one JSON object")
    return parser  # fmt: skip


if __name__ == "__main__":
    sys.exit(main())
