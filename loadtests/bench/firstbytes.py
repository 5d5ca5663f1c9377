"""Benchmark of the first byte: cold parts of a large file against bare GETs of the same size."""

from __future__ import annotations

import http.client
import os
import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from time import perf_counter
from urllib.parse import urlsplit

from loadtests import corpora
from loadtests.bench.origins import Origin, ceph_origin
from loadtests.bench.sides import REPO, mounted, node
from loadtests.measure import drop_page_cache
from loadtests.results import Result

ROUNDS = 3
READ_BYTES = 64 << 10
PAGE_BYTES = 4 << 10
PACK_BYTES = 64 << 20
STEP_BYTES = 8 << 20  # distance between reads, so that none hits bytes fetched for another
RANDOM_READS = 200
KEY = "plain"
URL_S = 3600


@dataclass(slots=True)
class _Seconds:
    """Seconds of each read, by kind."""

    bare: list[float] = field(default_factory=list)
    fresh: list[float] = field(default_factory=list)
    unknown: list[float] = field(default_factory=list)
    known: list[float] = field(default_factory=list)
    random: list[float] = field(default_factory=list)
    random_bare: list[float] = field(default_factory=list)


def first_bytes(scratch: Path) -> Result:
    """64 KiB from cold parts of a mounted file, one reader, against GETs by a bare client. Before
    that, the first 4 KiB of a mount that was just made, the page cache dropped."""
    result = Result("first-byte")
    source = corpora.random_file()
    seconds = _Seconds()
    with ceph_origin(scratch) as origin:
        origin.lodefs.run("push", source.parent, REPO)
        origin.client.upload_file(str(source), origin.bucket, KEY)
        with _bare_client(origin) as get:
            for number in range(ROUNDS):
                _read_round(origin, get, scratch / f"node-{number}", source, seconds)
    bare_s = median(seconds.bare)
    result.add("bare GET of 64 KiB", bare_s * 1e3, "ms")
    result.add("open and first 4 KiB, new mount", median(seconds.fresh) * 1e3, "ms")
    result.add("cold, index unknown", median(seconds.unknown) * 1e3, "ms")
    result.add("cold, index known", median(seconds.known) * 1e3, "ms")
    result.add("index unknown / bare GET", median(seconds.unknown) / bare_s, "x", at_most=3)
    result.add("index known / bare GET", median(seconds.known) / bare_s, "x", at_most=1.5)
    rate, rate_bare = (len(s) / sum(s) for s in (seconds.random, seconds.random_bare))
    result.add("random 64 KiB, bare GETs", rate_bare, "/s")
    result.add("random 64 KiB, cold", rate, "/s")
    result.add("random 64 KiB / bare GETs", rate / rate_bare, "x", at_least=0.75)
    return result


def _read_round(
    origin: Origin, get: Callable[[int], bytes], folder: Path, source: Path, seconds: _Seconds
) -> None:
    """All kinds of reads on a new node, each in turn with bare GETs of the same bytes."""
    packs = source.stat().st_size // PACK_BYTES
    dice = random.Random(folder.name)

    def read(at: int) -> bytes:
        return os.pread(fd, READ_BYTES, at)

    with (
        node(origin.lodefs, folder) as proxy,
        mounted(origin.lodefs, proxy, folder / "mnt") as target,
    ):
        drop_page_cache()
        start = perf_counter()
        fd = os.open(target / source.name, os.O_RDONLY)
        try:
            os.pread(fd, PAGE_BYTES, 0)
            seconds.fresh.append(perf_counter() - start)
            for pack in dice.sample(range(packs), packs):
                middle = pack * PACK_BYTES + PACK_BYTES // 2
                for kind, at in (seconds.unknown, middle), (seconds.known, middle - STEP_BYTES):
                    kind.append(_timed(read, get, at, seconds.bare))
            for _ in range(RANDOM_READS):
                at = dice.randrange(0, packs * PACK_BYTES - READ_BYTES, PAGE_BYTES)
                seconds.random.append(_timed(read, get, at, seconds.random_bare))
        finally:
            os.close(fd)


def _timed(
    read: Callable[[int], bytes], get: Callable[[int], bytes], at: int, bare: list[float]
) -> float:
    """Seconds of a read. Adds the seconds of a bare GET of the same bytes to ``bare``."""
    start = perf_counter()
    wanted = get(at)
    middle = perf_counter()
    data = read(at)
    end = perf_counter()
    if data != wanted:
        raise AssertionError(f"wrong bytes at {at}")
    bare.append(middle - start)
    return end - middle


@contextmanager
def _bare_client(origin: Origin) -> Iterator[Callable[[int], bytes]]:
    """Reads 64 KiB of the plain object over one open connection."""
    url = urlsplit(
        origin.client.generate_presigned_url(
            "get_object", Params={"Bucket": origin.bucket, "Key": KEY}, ExpiresIn=URL_S
        )
    )
    connection = http.client.HTTPConnection(url.netloc)

    def get(at: int) -> bytes:
        wanted = f"bytes={at}-{at + READ_BYTES - 1}"
        connection.request("GET", f"{url.path}?{url.query}", headers={"Range": wanted})
        return connection.getresponse().read()

    try:
        yield get
    finally:
        connection.close()
