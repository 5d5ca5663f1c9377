"""``./run bench fsx``: checks every byte of all kinds of reads while processes are killed."""

from __future__ import annotations

import json
import os
import random
import signal
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from time import monotonic, sleep

import psutil

from loadtests.bench.sides import REPO, detach
from loadtests.cli import Lodefs, Proxy
from loadtests.measure import drop_page_cache
from loadtests.results import Result
from loadtests.verifying import EVERYTHING, Verified, verifying
from tests.support.chunkstore.child_process import Child

MINUTES = 10.0
READERS = 4
LARGE_BYTES = (96 << 20, 48 << 20, 24 << 20, 3 << 20)
SMALL_FILES = 3000
SMALL_BYTES_MAX = 100_000
CACHE = "64MiB"  # less than half of the data, so that eviction never ends
WORKERS_EVERY_S, PROXY_EVERY_S, PAGES_EVERY_S = 2.0, 15.0, 7.0
PAUSE_S = 0.02
SLACK_S = 120.0
STALL_S_MAX = 3.0


@dataclass(slots=True)
class Harm:
    """The kills and restarts during the run."""

    workers: int = 0
    proxies: int = 0
    page_caches: int = 0


def check(scratch: Path, minutes: float = MINUTES) -> Result:
    """Runs readers for some minutes. Returns how much they read, and what was wrong."""
    result = Result(f"fsx, {minutes:g} minutes")
    source = _corpus(scratch / "source")
    lodefs = Lodefs(str(scratch / "store"), scratch / "home", {})
    lodefs.run("init", lodefs.store)
    lodefs.run("push", source, REPO)
    node, harm = scratch / "node", Harm()
    with ExitStack() as stack:
        proxies = [Proxy.start(lodefs, node, "--cache-size", CACHE)]
        stack.callback(_stop_last, proxies)
        target, pid = stack.enter_context(_mounted(lodefs, proxies[0], scratch / "mnt"))
        with verifying(EVERYTHING, target, source, READERS) as seen:
            _harm(60 * minutes, lodefs, node, proxies, pid, harm)
    _rows(result, seen, harm)
    cache = json.loads(_verify(lodefs, node / "cache"))
    result.add("cache files that are damaged afterwards", cache["damaged_cache_files"], at_most=0)
    result.notes.append(f"{cache['chunks']:,} chunks were in the cache at the end")
    return result


def _corpus(source: Path) -> Path:
    """Large files, of which two share their bytes in part, and small ones in a few directories."""
    made = random.Random(11)
    (source / "large").mkdir(parents=True)
    for number, size_bytes in enumerate(LARGE_BYTES):
        (source / "large" / f"{number}.bin").write_bytes(made.randbytes(size_bytes))
    shared = (source / "large" / "2.bin").read_bytes()[: 10 << 20]
    (source / "large" / "shared.bin").write_bytes(made.randbytes(1 << 20) + shared)
    for number in range(SMALL_FILES):
        path = source / "small" / f"{number % 20:02}" / f"{number:04}"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(made.randbytes(made.randrange(SMALL_BYTES_MAX)))
    return source


@contextmanager
def _mounted(lodefs: Lodefs, proxy: Proxy, target: Path) -> Iterator[tuple[Path, int]]:
    target.mkdir()
    try:
        said = lodefs.json("--proxy", proxy.url, "mount", REPO, target)
        yield target, int(said["pid"])
    finally:
        with suppress(Exception):  # an earlier failure must be reported, not this one
            lodefs.run("unmount", target)
        detach(target)


def _stop_last(proxies: list[Proxy]) -> None:
    proxies[-1].stop()


def _harm(
    seconds: float, lodefs: Lodefs, node: Path, proxies: list[Proxy], pid: int, harm: Harm
) -> None:
    """Kills processes in turn for some time."""
    start = monotonic()
    chosen = random.Random(3)
    turns = dict.fromkeys((WORKERS_EVERY_S, PROXY_EVERY_S, PAGES_EVERY_S), start)
    while (now := monotonic()) < start + seconds:
        sleep(PAUSE_S)
        due = [every for every, last in turns.items() if now - last >= every]
        turns |= dict.fromkeys(due, now)
        if WORKERS_EVERY_S in due:
            with suppress(ProcessLookupError, psutil.NoSuchProcess, IndexError):
                os.kill(chosen.choice(psutil.Process(pid).children()).pid, signal.SIGKILL)
                harm.workers += 1
        if PROXY_EVERY_S in due:
            proxies[-1].kill()
            proxies.append(Proxy.start(lodefs, node, "--cache-size", CACHE))
            harm.proxies += 1
        if PAGES_EVERY_S in due and os.geteuid() == 0:
            drop_page_cache()
            harm.page_caches += 1


def _rows(result: Result, seen: Verified, harm: Harm) -> None:
    result.add("operations", seen.operations)
    result.add("bytes compared", seen.size_bytes / 1e6, "MB")
    result.add("wrong answers", seen.wrong, at_most=0)
    result.add("errors", seen.errors, at_most=0)
    longest_s = max(seen.longest_s.values(), default=0.0)
    result.add("longest operation", longest_s, "s", at_most=STALL_S_MAX)
    for kind, seconds in sorted(seen.longest_s.items()):
        result.add(f"longest {kind}", seconds, "s")
    result.notes.append(
        f"{READERS} readers; {harm.workers} workers and {harm.proxies} proxies killed, "
        f"the page cache dropped {harm.page_caches} times; cache of {CACHE}"
    )
    result.notes += seen.told[:20]


def _verify(lodefs: Lodefs, cache_dir: Path) -> str:
    """The output of ``lodefs verify --cache``, whatever its exit code."""
    command = [sys.executable, "-m", "lodefs.main", "verify", "--cache", "--json"]
    with Child([*command, "--cache-dir", cache_dir], env=lodefs.environment()) as child:
        child.wait(timeout_s=SLACK_S)
        return child.output.splitlines()[-1]
