"""Two users of one node: one scans three times the cache, and the other repeats its reads."""

from __future__ import annotations

import multiprocessing
import os
import random
import shutil
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from statistics import median
from time import perf_counter, sleep
from typing import Any

from loadtests.bench.proxies import answer, connection
from loadtests.bench.sides import REPO as PINNED_REPO
from loadtests.bench.sides import mounted
from loadtests.cli import Lodefs, Proxy
from loadtests.errors import LoadtestError
from loadtests.measure import load_note
from loadtests.results import Result
from lodefs.chunkstore.protocol.wire import USER_HEADER

MIB = 1 << 20
CACHE_BYTES = 96 * MIB
SCANNED = 36  # files of FILE_BYTES: three times the cache
FILE_BYTES = 8 * MIB
PINNED, COLD = 3, 6  # files that the other user reads
READ_BYTES = 64 << 10
READERS = 16  # parallel readers of the scan
ROUNDS = 3
ROUND_S = 2.0
WARM_UP_S = 1.0
SCANNER, OTHER = 5001, 5002
SETTINGS = "[serve]\nfetch_concurrency = 4\n"


def fair_shares(scratch: Path) -> Result:
    """Rates of one user alone, beside another's scan, and beside the same scan of another proxy,
    which shares nothing with it but processors; and as if both were one user."""
    if os.geteuid() != 0:
        raise LoadtestError("fair-shares: only root may read for others; run it as root")
    result = Result("fair-shares")
    config = scratch / "lodefs.toml"
    config.write_text(SETTINGS)
    lodefs = Lodefs(str(scratch / "store"), scratch / "home", {"LODEFS_CONFIG": str(config)})
    lodefs.run("init", scratch / "store")
    for repo, count in (("scan", SCANNED), (PINNED_REPO, PINNED), ("cold", 3 * ROUNDS * COLD)):
        _push(lodefs, scratch / "data", repo, count)
    size = f"--cache-size={CACHE_BYTES}"
    for what, scanner in (("two users", SCANNER), ("as one user", OTHER)):
        folder = scratch / what.replace(" ", "-")
        with (
            lodefs.proxy(folder / "one", size) as proxy,
            lodefs.proxy(folder / "two", size) as another,
            mounted(lodefs, proxy, scratch / "mnt", "--no-passthrough") as root,
        ):
            _measure(result, what, lodefs, (proxy, another, root), scanner)
    result.notes.append(load_note())
    return result


def _measure(
    result: Result, what: str, lodefs: Lodefs, node: tuple[Proxy, Proxy, Path], scanner: int
) -> None:
    """In turn: alone, beside the scan, and beside the scan of another proxy. ``node``: both
    proxies, and a mount of what is pinned."""
    proxy, another, root = node
    lodefs.run("--proxy", proxy.url, "warm", PINNED_REPO, "--pin", "1h")
    sides: dict[str, Proxy | None] = {"alone": None, "beside": proxy, "elsewhere": another}
    rates: dict[tuple[str, str], list[float]] = defaultdict(list)
    cold = iter(range(3 * ROUNDS * COLD))
    for _ in range(ROUNDS):
        with _scan(proxy, scanner) as scanned:
            sleep(ROUND_S)
        rates["scan", "alone"].append(scanned.rate())
        for side, scan_of in sides.items():
            with _scan(scan_of, scanner) if scan_of else nullcontext() as other:
                rates["pinned", side].append(_rate(root))
                if other is not None:
                    other.begin()
                rates["cold", side].append(_files(proxy, [next(cold) for _ in range(COLD)]))
            if other is not None:
                rates["scan", side].append(other.rate())
    wanted = 0.5 if scanner != OTHER else None
    for kind, unit in (("pinned", "/s"), ("cold", "MiB/s"), ("scan", "MiB/s")):
        found = {side: median(rates[kind, side]) for side in sides}
        for side in sides:
            result.add(f"{what}: {kind} {side}", found[side], unit)
        if kind != "scan":
            ratio = found["elsewhere"] / found["alone"]
            result.add(f"{what}: {kind}, elsewhere / alone", ratio, "x")
        ratio = found["beside"] / found["alone"]
        result.add(f"{what}: {kind}, beside / alone", ratio, "x", at_least=wanted)
    pins = lodefs.json("--proxy", proxy.url, "pins", "--json")
    result.add(f"{what}: pinned set is there", float(_is_whole(pins)), at_least=1)


def _is_whole(pins: object) -> bool:
    found = pins.get("pins", []) if isinstance(pins, dict) else pins
    return bool(found) and all(pin["is_complete"] for pin in found)  # type: ignore[union-attr]


def _push(lodefs: Lodefs, folder: Path, repo: str, count: int) -> None:
    folder.mkdir()
    dice = random.Random(repo)
    for number in range(count):
        (folder / str(number)).write_bytes(dice.randbytes(FILE_BYTES if repo != "cold" else MIB))
    lodefs.run("push", folder, repo)
    shutil.rmtree(folder)


def _request(user: int, repo: str, number: int, first: int, size: int) -> bytes:
    """A range GET for a user."""
    return (
        f"GET /files/{repo}@main/{number} HTTP/1.1\r\nHost: node\r\n{USER_HEADER}: {user}\r\n"
        f"Range: bytes={first}-{first + size - 1}\r\n\r\n"
    ).encode()


def _rate(root: Path) -> float:
    """Random reads a second from the pinned files of a mount, bypassing the page cache."""
    reads, ends_s = 0, perf_counter() + ROUND_S
    fds = [os.open(root / str(number), os.O_RDONLY) for number in range(PINNED)]
    try:
        while perf_counter() < ends_s:
            fd, at = random.choice(fds), random.randrange(FILE_BYTES // READ_BYTES) * READ_BYTES
            os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
            os.pread(fd, READ_BYTES, at)
            reads += 1
    finally:
        for fd in fds:
            os.close(fd)
    return reads / ROUND_S


def _files(proxy: Proxy, numbers: list[int]) -> float:
    """MiB a second from files that nobody has read, each read in order."""
    buffer, begun_s = bytearray(MIB), perf_counter()
    with connection(proxy.socket) as client:
        for number in numbers:
            for first in range(0, MIB, READ_BYTES):
                answer(client, _request(OTHER, "cold", number, first, READ_BYTES), buffer)
    return len(numbers) / (perf_counter() - begun_s)


class _Scanned:
    """The bytes that a scan has read since the start, or since ``begin``."""

    def __init__(self) -> None:
        self.answers = multiprocessing.RawArray("Q", READERS)
        self._ends: tuple[int, float] | None = None
        self.begin()

    def begin(self) -> None:
        """Starts counting."""
        self._begun = (sum(self.answers), perf_counter())

    def end(self) -> None:
        """Stops counting."""
        self._ends = (sum(self.answers), perf_counter())

    def rate(self) -> float:
        """The rate in MiB a second."""
        assert self._ends is not None
        (first, first_s), (last, last_s) = self._begun, self._ends
        return float(last - first) / (last_s - first_s)


@contextmanager
def _scan(proxy: Proxy, user: int) -> Iterator[_Scanned]:
    """Reads all files of the scanned repository again and again, READERS at a time."""
    scanned = _Scanned()
    readers = [
        multiprocessing.Process(
            target=_read_on, args=(proxy.socket, user, n, scanned.answers), daemon=True
        )
        for n in range(READERS)
    ]
    for reader in readers:
        reader.start()
    sleep(WARM_UP_S)
    scanned.begin()
    try:
        yield scanned
    finally:
        scanned.end()
        for reader in readers:
            reader.kill()
        for reader in readers:
            reader.join()


def _read_on(socket: Path, user: int, reader: int, answers: Any) -> None:
    buffer, number = bytearray(MIB), reader
    with connection(socket) as client:
        while True:
            number = (number + READERS + 1) % SCANNED
            for first in range(0, FILE_BYTES, MIB):
                answer(client, _request(user, "scan", number, first, MIB), buffer)
                answers[reader] += 1
