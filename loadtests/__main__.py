"""``python -m loadtests [NAME ...] [--json]``: runs benchmarks; without a name, lists them."""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

from loadtests.bench import mounts, proxies, pulls, pushes
from loadtests.results import Result

Benchmark = Callable[[Path], Result]

BENCHMARKS: dict[str, tuple[Benchmark, str]] = {
    "push-tree": (pushes.tree, "push of a real tree against restic, borg, casync, hf_xet"),
    "push-random": (pushes.random_file, "push of 1 GiB of random bytes against the same"),
    "push-unchanged": (pushes.unchanged, "push again, nothing changed"),
    "push-one-byte": (pushes.one_byte, "one byte changed in a 1 GiB file"),
    "push-million": (pushes.million, "one file changed among 1,000,000"),
    "pull": (pulls.pull, "pull from Ceph RGW against boto3 with 8 threads"),
    "range-get": (proxies.range_get, "range GETs that hit, against nginx with one worker"),
    "proxy-restart": (proxies.restart, "ready again with 1,000,000 chunks cached"),
    "proxy-memory": (proxies.memory, "memory under a cold full-speed read of 4 GiB"),
    "mount-cold": (mounts.cold, "cold sequential read through the mount against rclone mount"),
}


def main() -> int:
    """Runs the benchmarks named; exit code 2 for an unknown name."""
    parser = argparse.ArgumentParser(prog="./run bench", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help="which ones; 'all' for all")
    parser.add_argument("--json", action="store_true", help="one JSON object a line")
    parser.add_argument("--dir", type=Path, help="where scratch files go (default: a new one)")
    options = parser.parse_args()
    if not options.names:
        for name, (_, text) in BENCHMARKS.items():
            print(f"{name:16} {text}")
        return 0
    names = list(BENCHMARKS) if options.names == ["all"] else options.names
    unknown = [name for name in names if name not in BENCHMARKS]
    if unknown:
        print(f"unknown: {', '.join(unknown)}; known: {', '.join(BENCHMARKS)}", file=sys.stderr)
        return 2
    os.umask(0o022)
    for name in names:
        with tempfile.TemporaryDirectory(prefix=f"lodefs-{name}-", dir=options.dir) as scratch:
            result = BENCHMARKS[name][0](Path(scratch))
        print(result.json() if options.json else result.table(), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
