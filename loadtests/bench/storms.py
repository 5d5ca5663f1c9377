"""Many containers at once on a few volumes, undisturbed and while processes are killed."""

from __future__ import annotations

import re
import secrets
import signal
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import cycle
from math import ceil
from subprocess import TimeoutExpired
from threading import Event, Lock
from time import monotonic, perf_counter, sleep

from loadtests.results import Result
from loadtests.services.containers import BIG, SUMS, Containers, containers
from loadtests.services.dockerd import IMAGE, Dockerd
from loadtests.services.pluginnode import PluginNode
from loadtests.services.pluginrelay import Calls, relayed

VOLUMES = 10
CONTAINERS = 100
AT_ONCE = 8
P99_S = 0.5
SETTLE_S = 10.0  # for mounts and processes to end after the last container
UPKEEP_S = 150.0  # the same where Unmounts were lost: old after 1 min, looked for once a minute
HARM_EVERY_S = 3.0
CHAOS_S = 45.0
TRIES_S = 60.0  # how long calls are repeated while dockerd restarts
READ_S = 4

_UNIQUE = re.compile(r"[0-9a-f]{8,}")
CHECK = f"cd /data && sha256sum -s -c {SUMS}"
# The big file past the page cache, all others through it, until READ_S are over.
READER = f"""
rounds=0; bad=0; want=$(grep ' {BIG}$' /data/{SUMS} | cut -c1-64); end=$(($(date +%s) + {READ_S}))
while [ $(date +%s) -lt $end ]; do
  got=$(dd if=/data/{BIG} bs=256k iflag=direct 2>/dev/null | sha256sum | cut -c1-64)
  [ "$got" = "$want" ] || bad=$((bad+1))
  (cd /data && sha256sum -s -c {SUMS}) || bad=$((bad+1))
  rounds=$((rounds+1))
done
echo $rounds $bad > /out/$(hostname)
"""


@dataclass(slots=True)
class Seen:
    """What the containers of a chaos run saw, and which docker commands were repeated."""

    containers: int = 0
    rounds: int = 0
    bad: int = 0
    ended: int = 0  # by dockerd, before they could report
    again: Counter[str] = field(default_factory=Counter)  # by docker's message
    late: list[str] = field(default_factory=list)
    lock: Lock = field(default_factory=Lock)


def storm(result: Result, dockerd: Dockerd, node: PluginNode, repo: str) -> None:
    """CONTAINERS start, read and end on VOLUMES volumes, AT_ONCE at a time."""
    with _volumes(result, "storm", dockerd, node, repo) as (box, volumes, calls):
        start = perf_counter()
        with ThreadPoolExecutor(AT_ONCE) as pool:
            runs = [pool.submit(_run, box, volumes[n % VOLUMES]) for n in range(CONTAINERS)]
            errors = [error for run in runs if (error := run.result())]
        result.add("storm: containers", CONTAINERS)
        result.add("storm: time", perf_counter() - start, "s")
        result.add("storm: errors", len(errors), at_most=0)
        result.notes += [f"storm: {error}" for error in errors[:3]]
    _latencies(result, "storm", calls)


def chaos(result: Result, dockerd: Dockerd, node: PluginNode, repo: str) -> None:
    """The same for CHAOS_S, each container comparing every byte, while plugin, dockerd and proxy
    are killed in turns every HARM_EVERY_S. dockerd must have --live-restore."""
    with _volumes(result, "chaos", dockerd, node, repo, UPKEEP_S) as (box, volumes, calls):
        seen, over = Seen(), Event()
        with ThreadPoolExecutor(AT_ONCE) as pool:
            work = [
                pool.submit(_read_on, box, volumes[n::AT_ONCE] or volumes, seen, over)
                for n in range(AT_ONCE)
            ]
            try:
                harms = _harm(
                    dockerd, node
                )  # by this thread, since dockerd would end with its thread
            finally:
                over.set()
            for one in work:
                one.result()
    for what, count in harms.items():
        result.add(f"chaos: {what}", count, "times")
    result.add("chaos: containers", seen.containers)
    result.add("chaos: rounds of reading everything", seen.rounds, at_least=1)
    result.add("chaos: failed or wrong", seen.bad, at_most=0)
    result.add("chaos: containers that do not end", len(seen.late), at_most=0)
    result.add("chaos: containers ended by dockerd's own end", seen.ended)
    result.add("chaos: docker asked again", seen.again.total(), "times")
    result.notes += [f"chaos: {error}" for error in seen.late[:3]]
    result.notes += [f"chaos: again, {n}x: {why}" for why, n in seen.again.most_common(5)]
    _latencies(result, "chaos", calls)


@contextmanager
def _volumes(
    result: Result,
    what: str,
    dockerd: Dockerd,
    node: PluginNode,
    repo: str,
    settle_s: float = SETTLE_S,
) -> Iterator[tuple[Containers, list[str], Calls]]:
    """Volumes behind a relay that times the plugin; adds what is left of them afterwards."""
    before = node.processes()
    own = node.folder / f"{what}.sock"
    with relayed(own, node.socket) as calls, containers(dockerd, node, own) as box:
        volumes = [box.volume(repo) for _ in range(VOLUMES)]
        yield box, volumes, calls
        orphans = dockerd.end_orphans()
        settling = perf_counter()
        node.until(lambda: not node.mounts(), settle_s)
        settled_s, left = perf_counter() - settling, len(node.mounts())
        removed = [box.dockerd.try_docker("volume", "rm", name) for name in volumes]
        refused = [done.stderr.strip() for done in removed if done.returncode != 0]
        # plugin and proxy may be new processes, but not more of them
        node.until(lambda: len(node.processes()) <= len(before), SETTLE_S)
        processes = max(len(node.processes()) - len(before), 0)
    result.add(f"{what}: processes that dockerd has forgotten", orphans)
    result.add(f"{what}: mounts gone after", settled_s, "s")
    result.add(f"{what}: mounts left", left, at_most=0)
    result.add(f"{what}: processes left", processes, at_most=0)
    result.add(f"{what}: docker volume rm refused", len(refused), at_most=0)
    result.notes += [f"{what}: {error}" for error in refused[:3]]


def _run(box: Containers, volume: str) -> str:
    """Runs one container. Returns what went wrong."""
    words = ("run", "--rm", "--network", "none", "-v", f"{volume}:/data", IMAGE)
    try:
        done = box.dockerd.try_docker(*words, "sh", "-c", CHECK)
    except TimeoutExpired as error:
        return str(error)
    return "" if done.returncode == 0 else f"exit code {done.returncode}: {done.stderr.strip()}"


def _read_on(box: Containers, volumes: list[str], seen: Seen, over: Event) -> None:
    """Runs one container after the other, until the time is over."""
    for volume in cycle(volumes):
        if over.is_set():
            return
        name = f"chaos-{secrets.token_hex(4)}"
        try:
            rounds, bad = _read_once(box, volume, name, seen)
        except (TimeoutError, TimeoutExpired) as error:
            with seen.lock:
                seen.late.append(str(error))
            continue
        with seen.lock:
            seen.containers += 1
            seen.rounds += rounds
            seen.bad += bad


def _read_once(box: Containers, volume: str, name: str, seen: Seen) -> tuple[int, int]:
    """Runs one container. Returns the rounds and failures that it reports."""

    def ask(*words: str, first: Callable[[], object] = lambda: None) -> str:
        """docker's answer, repeated while its daemon restarts. Raises: TimeoutError."""
        end = monotonic() + TRIES_S
        while True:
            done = box.dockerd.try_docker(*words)
            if done.returncode == 0:
                return done.stdout
            if monotonic() > end:
                raise TimeoutError(f"docker {words[0]}: {done.stderr.strip()}")
            with seen.lock:
                seen.again[_UNIQUE.sub("...", done.stderr.strip().partition("\n")[0])] += 1
            sleep(0.2)
            first()

    out = box.node.folder / "out"
    out.mkdir(exist_ok=True)
    volumes = (
        "-v",
        f"{volume}:/data",
        "-v",
        f"{out}:/out",
    )  # dockerd's logs may be lost when it is killed
    run = ("run", "-d", "--name", name, "--hostname", name, "--network", "none", *volumes, IMAGE)
    ask(*run, "sh", "-c", READER, first=lambda: box.dockerd.try_docker("rm", "-f", name))
    try:
        ask("wait", name)
    finally:
        ask("rm", "-f", name)
    try:
        rounds, bad = map(int, (out / name).read_text().split())
    except (FileNotFoundError, ValueError):
        with seen.lock:
            seen.ended += 1
        return 0, 0
    return rounds, bad


def _harm(dockerd: Dockerd, node: PluginNode) -> Counter[str]:
    """Kills processes one after the other, and restarts them. Returns how often."""

    def plugin() -> None:
        node.kill_plugin()
        node.start_plugin()

    def proxy() -> None:
        node.kill_proxy()
        node.start_proxy()

    harms: dict[str, Callable[[], None]] = {
        "plugin killed": plugin,
        "dockerd restarted": lambda: dockerd.restart(signal.SIGTERM),
        "proxy killed": proxy,
        "dockerd killed": lambda: dockerd.restart(signal.SIGKILL),
    }
    done: Counter[str] = Counter()
    end = monotonic() + CHAOS_S
    for what, act in cycle(harms.items()):
        if monotonic() > end:
            return done
        act()
        done[what] += 1
        sleep(HARM_EVERY_S)
    return done


def _latencies(result: Result, what: str, calls: Calls) -> None:
    """The plugin's answers, by call; under kills, missing answers do not count."""
    for method, times in sorted(calls.took_s().items()):
        shown = f"{what}: {method}, {len(times)} calls"
        result.add(f"{shown}: p50", _percentile(times, 0.5), "s")
        result.add(f"{shown}: p99", _percentile(times, 0.99), "s", at_most=P99_S)
    told = Counter(
        f"{call.method}: {_UNIQUE.sub('...', call.error)}"
        for call in calls.seen
        if call.error and not call.method.endswith(".Get")  # dockerd asks Get before each Create
    )
    result.notes += [f"{what}: {count}x {error}" for error, count in told.most_common(5)]


def _percentile(values: list[float], share: float) -> float:
    """A percentile by nearest rank."""
    return sorted(values)[max(ceil(share * len(values)) - 1, 0)]
