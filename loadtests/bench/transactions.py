"""``./run bench transaction``: small files that four processes write in one transaction, against a
push of the same files from a directory."""

from __future__ import annotations

import shutil
import statistics
import sys
from pathlib import Path
from random import Random

from loadtests.cli import LODEFS, Lodefs
from loadtests.measure import Run, run
from loadtests.results import Result
from lodefs.chunkstore.objects.directory import DirectoryObjects
from lodefs.chunkstore.repo.store import open_store

FILES = 100_000
FILE_BYTES = 10_000
FILES_IN_DIRECTORY = 100
PROCESSES = 4
TURNS = 3
SPEED_MIN = 0.7
MEMORY_MIB_MAX = 300

PROGRAM = """
import multiprocessing
import sys
from concurrent.futures import ProcessPoolExecutor

import lodefs

source, files, in_directory, processes = sys.argv[1], *map(int, sys.argv[2:])


def write(part, first):
    with part:
        for number in range(first, first + files // processes):
            path = f"{number // in_directory:05}/{number:07}"
            with open(f"{source}/{path}", "rb") as file:
                part.put(path, file.read())
    return part


if __name__ == "__main__":
    pool = ProcessPoolExecutor(processes, mp_context=multiprocessing.get_context("fork"))
    with lodefs.transaction("bench") as tx, pool:
        parts = [tx.fork() for _ in range(processes)]
        tx.merge(pool.map(write, parts, range(0, files, files // processes)))
    print(tx.result.commit)
"""


def four_processes(scratch: Path, files: int = FILES) -> Result:
    """Both in turns, each into a store of its own; then once more, with their memory looked at.
    The files are the same, so the digests of the roots are."""
    result = Result("transaction")
    source, program = scratch / "source", scratch / "program.py"
    _fill(source, files)
    program.write_text(PROGRAM)
    words = {
        "push": [LODEFS, "push", source, "bench"],
        "transaction": [sys.executable, program, source, files, FILES_IN_DIRECTORY, PROCESSES],
    }
    runs: dict[str, list[Run]] = {name: [] for name in words}
    digests: set[bytes] = set()
    for turn in range(TURNS + 1):
        for name, command in words.items():
            place = scratch / "turn"
            lodefs = Lodefs(str(place / "store"), place / "home", {})
            lodefs.run("init", lodefs.store)
            environment = lodefs.environment()
            runs[name].append(
                run([str(word) for word in command], env=environment, watch_memory=turn == TURNS)
            )
            store = open_store(DirectoryObjects(lodefs.store))
            digests.add(store.commit("bench", store.resolve("bench", "main")).root.digest)
            shutil.rmtree(place)
    speeds = {
        name: files / statistics.median(one.seconds for one in some[:TURNS])
        for name, some in runs.items()
    }
    for name, speed in speeds.items():
        result.add(f"{name}: speed", speed, "files/s")
        cpu_s = statistics.median(one.cpu_s for one in runs[name][:TURNS])
        result.add(f"{name}: processor time", cpu_s, "s")
    result.ratio("transaction", speeds["transaction"], {"push": speeds["push"]}, SPEED_MIN)
    for name, at_most in (("push", None), ("transaction", MEMORY_MIB_MAX)):
        memory_mib = runs[name][TURNS].memory_bytes / (1 << 20)
        result.add(f"{name}: memory of all processes", memory_mib, "MiB", at_most=at_most)
    result.add("roots that differ", len(digests) - 1, at_most=0)
    result.notes.append(f"{files:,} files of {FILE_BYTES:,} bytes, the start of Python included")
    return result


def _fill(source: Path, files: int) -> None:
    maker = Random(76)
    for number in range(files):
        path = source / f"{number // FILES_IN_DIRECTORY:05}" / f"{number:07}"
        if number % FILES_IN_DIRECTORY == 0:
            path.parent.mkdir(parents=True)
        path.write_bytes(maker.randbytes(FILE_BYTES))
