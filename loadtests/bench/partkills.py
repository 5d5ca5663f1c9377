"""Pushes in parts whose tasks are killed all the time: each must give the tree of a plain push."""

from __future__ import annotations

import importlib.util
import random
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from loadtests import corpora
from loadtests.bench.pushparts import new_store
from loadtests.cli import Lodefs
from loadtests.errors import LoadtestError
from loadtests.measure import run
from loadtests.results import Result
from lodefs.chunkstore.objects.directory import DirectoryObjects
from lodefs.chunkstore.repo.store import open_store

DIRECTORIES, FILES = 10_000, 100_000  # of the source: ten parts
TASKS, REPEATS, AT_ONCE = 32, 8, 2  # of the array
KILLS_MAX = 3  # of one task
KILL_AFTER_S = 4.0  # at most; a third of the tasks is killed
KILL_EVERY_S = 10.0  # a worker of Dask
POLL_S = 0.05
TIMEOUT_S = 1800.0

_DASK = f"""
import os, random, signal, sys, threading
from distributed import Client, LocalCluster
import lodefs

def kill(cluster, client, over, kills):
    while not over.wait({KILL_EVERY_S}):
        if len(client.scheduler_info()["workers"]) < {AT_ONCE}:
            continue  # one that was killed has not started again
        try:
            os.kill(random.choice(list(cluster.workers.values())).pid, signal.SIGKILL)
            kills.append(1)
        except (TypeError, OSError):  # it is about to be started again
            pass

if __name__ == "__main__":
    over, kills = threading.Event(), []
    with LocalCluster(n_workers={AT_ONCE}, threads_per_worker=1, dashboard_address=None) as cluster:
        with Client(cluster) as client:
            killer = threading.Thread(target=kill, args=(cluster, client, over, kills))
            killer.start()
            try:
                executor = client.get_executor(pure=False, retries=100)
                lodefs.push(sys.argv[1], "bench", executor=executor)
            finally:
                over.set()
                killer.join()
    print("kills", len(kills))
"""


@dataclass(frozen=True, slots=True)
class _Ended:
    """What a push has made, and how often something was killed meanwhile."""

    root: bytes
    kills: int
    seconds: float


def part_kills(scratch: Path) -> Result:
    """One source, by all executors that this machine has, and as an array."""
    result = Result("part-kills")
    source = corpora.directories(DIRECTORIES, FILES)
    ways: dict[str, Callable[[Lodefs, Path], int]] = {
        "push": _plain,
        "processes:4": _by_executor("processes:4"),
        f"an array of {TASKS} tasks": _by_array,
    }
    for package, name, way in (
        ("distributed", "Dask", _by_dask),
        ("ray", "Ray", _by_executor("ray")),
    ):
        if importlib.util.find_spec(package):
            ways[name] = way
        else:
            result.notes.append(f"without {name}: pip install {package}")
    found = {name: _ended(scratch, source, way) for name, way in ways.items()}
    for name, one in found.items():
        result.add(name, one.seconds, "s")
        result.add(f"{name}, kills", one.kills)
    different = [name for name, one in found.items() if one.root != found["push"].root]
    result.notes += [f"another root digest: {name}" for name in different]
    result.add("pushes with another root digest", len(different), at_most=0)
    return result


def _ended(scratch: Path, source: Path, way: Callable[[Lodefs, Path], int]) -> _Ended:
    """Pushes into a new store, and reads all that is in it."""
    lodefs = new_store(scratch)
    began_s = time.perf_counter()
    kills = way(lodefs, source)
    seconds = time.perf_counter() - began_s
    lodefs.run("verify", "--data")
    store = open_store(DirectoryObjects(lodefs.store))
    root = store.commit("bench", store.resolve("bench", "main")).root.digest
    shutil.rmtree(lodefs.store)
    shutil.rmtree(lodefs.home)
    return _Ended(root, kills, seconds)


def _plain(lodefs: Lodefs, source: Path) -> int:
    lodefs.run("push", source, "bench")
    return 0


def _by_executor(executor: str) -> Callable[[Lodefs, Path], int]:
    def push(lodefs: Lodefs, source: Path) -> int:
        lodefs.run("push", source, "bench", "--executor", executor)
        return 0

    return push


def _by_dask(lodefs: Lodefs, source: Path) -> int:
    """The cluster starts a worker again that was killed."""
    script = lodefs.home / "dask_push.py"
    script.write_text(_DASK)
    ended = run([sys.executable, script, source], env=lodefs.environment())
    return int(ended.output.rpartition("kills")[2])


def _by_array(lodefs: Lodefs, source: Path) -> int:
    """Tasks in a random order, some of them twice, and a third of them killed."""
    lodefs.run("plan", "create", "p", source, "bench")
    chance = random.Random(1)
    todo = [*range(1, TASKS + 1), *chance.sample(range(1, TASKS + 1), REPEATS)]
    chance.shuffle(todo)
    kills = _run_all(lodefs, deque(todo), chance)
    lodefs.run("plan", "finish", "p")
    return kills


def _run_all(lodefs: Lodefs, todo: deque[int], chance: random.Random) -> int:
    """Runs tasks side by side until all have ended well. Returns how many were killed."""
    kills: Counter[int] = Counter()
    running: dict[int, tuple[subprocess.Popen[bytes], float | None]] = {}
    deadline_s = time.monotonic() + TIMEOUT_S
    try:
        while todo or running:
            if time.monotonic() > deadline_s:
                raise LoadtestError(f"tasks {todo} are not done after {TIMEOUT_S:.0f} s")
            while todo and len(running) < AT_ONCE and todo[0] not in running:
                task = todo.popleft()
                dies = kills[task] < KILLS_MAX and chance.random() < 1 / 3
                dies_s = time.monotonic() + chance.uniform(0.1, KILL_AFTER_S) if dies else None
                running[task] = _started(lodefs, task), dies_s
            for task, (child, dies_s) in [*running.items()]:
                if dies_s is not None and time.monotonic() > dies_s and child.poll() is None:
                    child.send_signal(signal.SIGKILL)
                    child.wait()
                if child.poll() is not None:
                    del running[task]
                    if child.returncode == -signal.SIGKILL:
                        kills[task] += 1
                        todo.append(task)
                    elif child.returncode != 0:
                        raise LoadtestError(f"task {task} ended with {child.returncode}")
            time.sleep(POLL_S)
    finally:
        for child, _ in running.values():
            child.kill()
            child.wait()
    return kills.total()


def _started(lodefs: Lodefs, task: int) -> subprocess.Popen[bytes]:
    words = [str(lodefs.program), "plan", "part", "p", f"{task}/{TASKS}"]
    return subprocess.Popen(
        words, env=lodefs.environment(), stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL
    )
