"""Reads by processes in containers: fio and Python of this machine, on two sides in turn.

A container has the machine's programs at their own paths, read-only, so that nothing is built.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from loadtests.bench.fio import MOUNTPOINT_JOBS, RANDOM_4K, Job, parse
from loadtests.bench.mountmeasures import AGAIN, READERS, WARM, small_files
from loadtests.comparison import Ask, Comparison, Measure
from loadtests.measure import drop_page_cache
from loadtests.reading import Reading
from loadtests.services.containers import Containers

ROOT = Path(__file__).parents[2]
PYTHON = Path(sys.base_prefix) / "bin/python3"
PROGRAMS = dict.fromkeys(["/usr", "/lib", "/lib64", sys.base_prefix, str(ROOT)])
JOBS = tuple(job for job in MOUNTPOINT_JOBS if job.name == "sequential_read") + (RANDOM_4K,)
ROUNDS = 3
SECONDS = 3.0
SMALL_SECONDS_MAX = 10.0
TIMEOUT_S = 300.0
SHARE = 0.9  # required share of the bind mount's speed

MEASURES = [*(job.name for job in JOBS), *(small_files(count, WARM).name for count in READERS)]
ASKS = {(name, WARM): Ask({"bind": SHARE}) for name in MEASURES}


def see(result: Comparison, box: Containers, sources: Mapping[str, str]) -> None:
    """Takes all measures on all sides. ``sources``: the volume or directory of each side."""
    with _readers(box, sources) as readers:
        for name in readers.values():  # once before, to warm everything
            _python(box, name, "walk", "/data")
            box.dockerd.docker("exec", name, "sh", "-c", "cat /data/one/* /data/files/*/* | wc -c",
                               timeout_s=TIMEOUT_S)  # fmt: skip
        for _ in range(ROUNDS):
            for job in JOBS:
                for side, name in readers.items():
                    drop_page_cache()
                    result.see(Measure(job.name, WARM, job.unit), side, _fio(box, name, job))
                    box.dockerd.docker("exec", name, "sh", "-c", "cat /data/one/* > /dev/null")
                    again = _fio(box, name, job, endless=True)
                    result.see(Measure(job.name, AGAIN, job.unit), side, again)
            for count in READERS:
                for side, name in readers.items():
                    drop_page_cache()
                    for state in (WARM, AGAIN):
                        words = ("shuffled", "/data/files", str(count), str(SMALL_SECONDS_MAX))
                        reading = _python(box, name, *words)
                        result.see(small_files(count, state), side, reading.per_s)


@contextmanager
def _readers(box: Containers, sources: Mapping[str, str]) -> Iterator[dict[str, str]]:
    """Starts an idle container for each side. Returns their names."""
    names = {}
    words = [f"--volume={path}:{path}:ro" for path in PROGRAMS]
    try:
        for side, source in sources.items():
            names[side] = box.start(source, "sleep 3600", *words, f"--workdir={ROOT}")
        yield names
    finally:
        for name in names.values():
            box.remove(name)


def _fio(box: Containers, name: str, job: Job, *, endless: bool = False) -> float:
    """Runs one job in a container, from its standard input. Returns its result."""
    size = box.dockerd.docker("exec", name, "stat", "-c", "%s", f"/data/{job.folder}/0.bin")
    text = job.text(Path("/data"), size_bytes=int(size), seconds=SECONDS, endless=endless)
    fio = "cd /tmp && /usr/bin/fio --readonly --output-format=json job"
    script = f"cat > /tmp/job <<'END'\n{text}END\n{fio}"
    figures = parse(box.dockerd.docker("exec", name, "sh", "-c", script, timeout_s=TIMEOUT_S))
    return figures.mb_per_s if job.unit == "MB/s" else figures.per_s


def _python(box: Containers, name: str, *words: str) -> Reading:
    command = ("exec", name, str(PYTHON), "-m", "loadtests.reading", *words)
    output = box.dockerd.docker(*command, timeout_s=TIMEOUT_S)
    return Reading(**json.loads(output.splitlines()[-1]))
