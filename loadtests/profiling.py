"""``./run loadtest profile``: jobs slowed on purpose, and the findings of `lodefs profile`.

The store is far away (a real delay between proxy and S3); another node sends slowly
(peer_upload_bytes_per_s_max); the cache's disk and the mount's workers are held back by cgroups;
the job itself waits between its reads. As root, for cgroups and for mounts.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import psutil

from loadtests.cli import LODEFS, Lodefs, Proxy
from loadtests.errors import LoadtestError
from loadtests.services import HOST, S3Server, free_port
from loadtests.services.latency import far_away
from loadtests.services.moto import moto_server

REPO = "jobs/data"
FILE_BYTES = 128 << 20
SECONDS = 8
STORE_DELAY_S = 0.2
PEER_RATE = "2MiB"
DISK_BYTES_PER_S = 4 << 20
CPU_SHARE = 0.03
_PERIOD_US = 100_000
_CGROUPS = Path("/sys/fs/cgroup")

# Reads at random until it is killed, and drops what it read from the page cache.
_JOB = """
import os, random, sys, time
path, size, pause = sys.argv[1], int(sys.argv[2]), float(sys.argv[3])
fd = os.open(path, os.O_RDONLY)
end = os.fstat(fd).st_size - size
os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_RANDOM)
while True:
    os.pread(fd, size, random.randrange(end))
    os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
    time.sleep(pause)
"""


class Bench:
    """A folder, a store on S3 with one file, and what must be undone."""

    def __init__(self, folder: Path, server: S3Server, stack: ExitStack) -> None:
        self.folder = folder
        self.server = server
        self.stack = stack
        self.bucket = server.make_bucket()
        self._numbers = iter(range(1000))
        near = self.lodefs(server)
        data = folder / "data"
        data.mkdir()
        (data / "file").write_bytes(os.urandom(FILE_BYTES))
        near.run("init", near.store)
        near.run("push", data, REPO)

    def lodefs(self, server: S3Server, *settings: str) -> Lodefs:
        """The command line, with settings of [serve]."""
        number = next(self._numbers)
        home = self.folder / f"home{number}"
        store = f"s3://{self.bucket}?endpoint_url={server.endpoint_url}"
        made = Lodefs(store, home, server.environment)
        made.environment()
        (home / "lodefs.toml").write_text("\n".join(["[serve]", *settings, ""]))
        return made

    def proxy(self, lodefs: Lodefs) -> Proxy:
        """A proxy that runs until the end."""
        return self.stack.enter_context(lodefs.proxy(self.folder / f"node{next(self._numbers)}"))

    def mount(self, lodefs: Lodefs, proxy: Proxy) -> Path:
        """A mount without passthrough, until the end."""
        place = self.folder / f"mnt{next(self._numbers)}"
        place.mkdir()
        lodefs.run("--proxy", proxy.url, "mount", "--no-passthrough", REPO, place)
        self.stack.callback(lodefs.run, "unmount", place)
        return place

    def warm(self, lodefs: Lodefs, proxy: Proxy) -> None:
        """Fetches everything into a node's cache."""
        lodefs.run("--proxy", proxy.url, "warm", REPO)


def profiled(lodefs: Lodefs, place: Path, *, size_bytes: int, pause_s: float = 0.0) -> Any:
    """The finding of `lodefs profile` for a job on a mount."""
    command = [sys.executable, "-c", _JOB, str(place / "file"), str(size_bytes), str(pause_s)]
    job = subprocess.Popen(command)
    try:
        return lodefs.json("profile", place, "--seconds", str(SECONDS))
    finally:
        job.kill()
        job.wait()


def slow_store(bench: Bench) -> Any:
    """S3 is distant."""
    server = bench.stack.enter_context(far_away(bench.server, STORE_DELAY_S))
    lodefs = bench.lodefs(server)
    place = bench.mount(lodefs, bench.proxy(lodefs))
    return profiled(lodefs, place, size_bytes=64 << 10)


def slow_peer(bench: Bench) -> Any:
    """Everything is on another node, which owns it and sends slowly."""
    ports = free_port(), free_port()
    members = [f'"{HOST}:{ports[0]};weight=100000"', f'"{HOST}:{ports[1]};weight=0.01"']
    common = [f"peers = [{', '.join(members)}]", "peer_allow_anonymous = true"]
    rate = f'peer_upload_bytes_per_s_max = "{PEER_RATE}"'
    owner = bench.lodefs(bench.server, f'peer_listen = "{HOST}:{ports[0]}"', rate, *common)
    bench.warm(owner, bench.proxy(owner))
    other = bench.lodefs(bench.server, f'peer_listen = "{HOST}:{ports[1]}"', *common)
    place = bench.mount(other, bench.proxy(other))
    return profiled(other, place, size_bytes=64 << 10)


def slow_disk(bench: Bench) -> Any:
    """The mount's workers may read only little per second from the cache's disk."""
    lodefs = bench.lodefs(bench.server)
    proxy = bench.proxy(lodefs)
    bench.warm(lodefs, proxy)
    place = bench.mount(lodefs, proxy)
    cache = proxy.socket.parent / "cache"
    number = os.stat(cache).st_dev
    disk = Path(f"/sys/dev/block/{os.major(number)}:{os.minor(number)}").resolve()
    if (disk / "partition").exists():
        disk = disk.parent
    device = (disk / "dev").read_text().strip()
    limit = f"{device} {DISK_BYTES_PER_S}"
    old = ("blkio", {"blkio.throttle.read_bps_device": limit})
    new = {"io.max": f"{device} rbps={DISK_BYTES_PER_S}"}
    bench.stack.enter_context(held_back(workers_of(place), old, new))
    os.sync()
    Path("/proc/sys/vm/drop_caches").write_text("1")
    return profiled(lodefs, place, size_bytes=64 << 10)


def slow_workers(bench: Bench) -> Any:
    """The mount's workers get only a small share of a processor."""
    lodefs = bench.lodefs(bench.server)
    proxy = bench.proxy(lodefs)
    bench.warm(lodefs, proxy)
    place = bench.mount(lodefs, proxy)
    quota = int(CPU_SHARE * _PERIOD_US)
    old = ("cpu", {"cpu.cfs_period_us": str(_PERIOD_US), "cpu.cfs_quota_us": str(quota)})
    bench.stack.enter_context(
        held_back(workers_of(place), old, {"cpu.max": f"{quota} {_PERIOD_US}"})
    )
    return profiled(lodefs, place, size_bytes=64 << 10)


def slow_job(bench: Bench) -> Any:
    """The job does other work between its reads."""
    lodefs = bench.lodefs(bench.server)
    proxy = bench.proxy(lodefs)
    bench.warm(lodefs, proxy)
    place = bench.mount(lodefs, proxy)
    return profiled(lodefs, place, size_bytes=64 << 10, pause_s=0.03)


CASES: dict[str, Callable[[Bench], Any]] = {
    "store": slow_store,
    "peers": slow_peer,
    "cache disk": slow_disk,
    "cpu": slow_workers,
    "job": slow_job,
}


def workers_of(place: Path) -> list[int]:
    """The processes of a mount."""
    for line in subprocess.run(
        [LODEFS, "mounts", "--json"], capture_output=True, check=True, text=True
    ).stdout.splitlines():
        found = json.loads(line)
        if found["mountpoint"] == str(place):
            supervisor = psutil.Process(found["pid"])
            return [supervisor.pid, *(child.pid for child in supervisor.children(recursive=True))]
    raise LoadtestError(f"{place} is not mounted")


@contextmanager
def held_back(
    pids: Sequence[int], old: tuple[str, dict[str, str]], new: dict[str, str]
) -> Iterator[None]:
    """Processes in a cgroup with limits: of version 1 (controller, files) or of version 2."""
    controller, limits = old
    base = _CGROUPS / controller
    if not base.is_dir():
        base, limits = _CGROUPS, new
    group = base / f"lodefs-loadtest-{os.getpid()}"
    try:
        group.mkdir()
        for name, value in limits.items():
            (group / name).write_text(value)
        for pid in pids:
            (group / "cgroup.procs").write_text(str(pid))
    except OSError as error:
        with suppress(OSError):
            group.rmdir()
        raise LoadtestError(f"no cgroup of {controller} can be made: {error}") from error
    try:
        yield
    finally:
        for pid in pids:
            with suppress(OSError):
                (base / "cgroup.procs").write_text(str(pid))
        with suppress(OSError):
            group.rmdir()


def main(arguments: Sequence[str] | None = None) -> int:
    """The exit code: 0 if each layer was named."""
    parser = argparse.ArgumentParser(prog="./run loadtest profile", description=__doc__)
    parser.add_argument("layers", nargs="*", metavar="LAYER", help=", ".join(CASES))
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args(arguments)
    unknown = set(options.layers) - set(CASES)
    if unknown:
        parser.error(f"{', '.join(sorted(unknown))}: the layers are {', '.join(CASES)}")
    if os.geteuid() != 0:
        print("loadtest: profile needs root: it makes cgroups and mounts", file=sys.stderr)
        return 1
    right = 0
    wanted = options.layers or list(CASES)
    with tempfile.TemporaryDirectory(prefix="lodefs-profile-") as folder, moto_server() as server:
        for name in wanted:
            found = _case(Path(folder), server, name)
            right += found["layer"] == name
            print(json.dumps(found) if options.json else _line(name, found), flush=True)
    if not options.json:
        print(f"{right} of {len(wanted)} layers named")
    return 0 if right == len(wanted) else 1


def _case(folder: Path, server: S3Server, name: str) -> dict[str, Any]:
    place = folder / name.replace(" ", "-")
    place.mkdir()
    with ExitStack() as stack:
        try:
            found = CASES[name](Bench(place, server, stack))
        except LoadtestError as error:
            return {"slowed": name, "layer": None, "waiting": {}, "advice": [str(error)]}
    return {"slowed": name, **{key: found[key] for key in ("layer", "waiting", "advice")}}


def _line(name: str, found: dict[str, Any]) -> str:
    shares = ", ".join(f"{layer} {100 * share:.0f} %" for layer, share in found["waiting"].items())
    verdict = "ok   " if found["layer"] == name else "WRONG"
    first = f"{verdict} slowed: {name:<11} named: {found['layer']}  ({shares})"
    return "\n      ".join([first, *found["advice"]])


if __name__ == "__main__":
    sys.exit(main())
