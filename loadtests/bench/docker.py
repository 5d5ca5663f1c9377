"""``./run bench docker``: containers on volumes of lodefs, next to bind mounts of the same files.

A real dockerd, `lodefs serve` with a store in a directory of the same disk, `lodefs docker-plugin`.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from time import perf_counter

from loadtests.bench import containerreads, mountcorpus, storms
from loadtests.comparison import OURS, Comparison, Measure
from loadtests.errors import LoadtestError
from loadtests.measure import disk_notes
from loadtests.results import Result
from loadtests.services.containers import Containers, containers, write_flowers
from loadtests.services.dockerd import IMAGE, dockerd
from loadtests.services.pluginnode import plugin_node

BIND = "bind"
CORPUS, FLOWERS = "bench/corpus", "bench/flowers"
FLOWERS_BYTES = 8 << 20
RUNS = 15
RUN_MORE_S = 0.15
PLACES = {
    "": "/new",
    ", image has the directory": "/data",
}  # with that directory, dockerd mounts twice


def docker(scratch: Path) -> Result:
    """Starts containers, reads in them, starts many at once, and repeats it while processes die."""
    if os.geteuid() != 0 or shutil.which("dockerd") is None:
        raise LoadtestError("docker: needs root and dockerd (packages docker.io, busybox-static)")
    corpus = mountcorpus.kept(mountcorpus.FULL)
    (folder := scratch / "n").mkdir()
    result = Comparison("docker", asks=dict(containerreads.ASKS), against=(BIND,))
    with dockerd(live_restore=True) as daemon, plugin_node(folder) as node:
        node.push(corpus, CORPUS)
        write_flowers(scratch / "flowers", FLOWERS_BYTES)
        node.push(scratch / "flowers", FLOWERS)
        with containers(daemon, node) as box:
            volume = box.volume(CORPUS)
            containerreads.see(result, box, {BIND: str(corpus), OURS: volume})
            _runs(result, box, {BIND: str(corpus), OURS: volume})
        storms.storm(result, daemon, node, FLOWERS)
        storms.chaos(result, daemon, node, FLOWERS)
    result.conclude()
    for place in PLACES:
        measure = _run_measure(place)
        ours, bind = result.figure(measure, OURS), result.figure(measure, BIND)
        if ours is not None and bind is not None:
            more = f"{OURS} - {BIND}, {measure.name}"
            result.add(more, ours - bind, "s", at_most=RUN_MORE_S)
    result.notes.append(
        "warm: all bytes are in the node's cache, or on the disk for the bind mount, and the page "
        "cache is dropped before, for both; again: the second time at once"
    )
    result.notes += disk_notes("the bind mount", corpus, scratch)
    return result


def _run_measure(place: str) -> Measure:
    return Measure(f"docker run --rm ... true{place}", "median", "s")


def _runs(result: Comparison, box: Containers, sources: dict[str, str]) -> None:
    """`docker run` from its start to its end, sides in turns. Nothing else has the volume, so each
    run of ours mounts and unmounts."""
    for _ in range(RUNS):
        for place, target in PLACES.items():
            for side, source in sources.items():
                start = perf_counter()
                words = ("run", "--rm", "--network", "none", "-v", f"{source}:{target}:ro", IMAGE)
                box.dockerd.docker(*words, "true")
                result.see(_run_measure(place), side, perf_counter() - start)
