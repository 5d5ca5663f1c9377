"""Measures how fast a store is, and derives settings from that. Every phase keeps to its limits of
time and bytes. What was written is removed."""

from __future__ import annotations

import os
import random
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from itertools import count, islice
from statistics import median
from threading import Lock
from typing import NamedTuple

import msgspec

from lodefs.chunkstore.errors import InvalidInput, LodefsError
from lodefs.chunkstore.format import keys
from lodefs.chunkstore.objects.interface import ObjectStore
from lodefs.chunkstore.repo.range_planner import UNIT_STORED_BYTES_MAX
from lodefs.chunkstore.system.progress import Progress
from lodefs.proxy.config import FETCH_CONCURRENCY

CONCURRENCIES = (1, 4, 16, 64)
_SHARES = {
    1: 1,
    4: 1,
    16: 2,
    64: 4,
}  # of the bytes, by concurrency; a phase for one range size gets 1
RANGES_BYTES = (1 << 20, 4 << 20, UNIT_STORED_BYTES_MAX, 16 << 20)
RANGES_CONCURRENCY = 16
FIRST_BYTE_SAMPLES = 20
FIRST_BYTE_BYTES = 4096
LISTED_KEYS_MAX = 20_000
OBJECTS_READ_MAX = 64
OBJECT_BYTES = 16 << 20  # of each large object that --write puts
OBJECTS_WRITTEN = 8
WRITERS = 4
SMALL_SAMPLES = 10
LEFTOVER_AGE_S = 3600  # older leftovers belong to a run that was killed
_PREFIX = f"{keys.PROBES}bench-"


class Plan(NamedTuple):
    """``seconds`` for each phase, ``bytes_max`` for all reads together, and whether to write."""

    seconds: float
    bytes_max: int
    write: bool


class Source(NamedTuple):
    """An object to read from."""

    key: str
    size_bytes: int


def measure(
    objects: ObjectStore,
    plan: Plan,
    progress: Progress,
    *,
    now_s: Callable[[], float] = time.time,
) -> Measured:
    """Measures a store. Raises: InvalidInput if there is nothing to read; what ObjectStore raises
    if every request fails. ``now_s``: the Unix time, from which the age of leftovers follows."""
    prefix = f"{_PREFIX}{int(now_s())}-{os.urandom(4).hex()}-"  # no '/': a directory would stay
    made: list[Source] = []
    writes = None
    try:
        if plan.write:
            progress.phase = "writing"
            _remove_leftovers(objects, now_s())
            writes = _write(objects, prefix, plan, made)
        progress.phase = "listing"
        sources, listed, keys_per_s = _list(objects, plan)
        sources = made or sources
        if not sources:
            raise InvalidInput(
                f"{objects.url} holds nothing to read: give --write, which puts objects there"
            )
        return _read(objects, plan, sources, progress, writes, (listed, keys_per_s))
    finally:
        for source in made:
            with suppress(LodefsError):
                objects.delete(source.key)


def _read(
    objects: ObjectStore,
    plan: Plan,
    sources: Sequence[Source],
    progress: Progress,
    writes: Writes | None,
    listing: tuple[int, float | None],
) -> Measured:
    progress.phase = "first byte"
    typical_s, worst_s = first_byte(_first_bytes(objects, sources, plan.seconds))
    progress.bytes_total = plan.bytes_max
    share = plan.bytes_max // (sum(_SHARES.values()) + len(RANGES_BYTES))
    reads, ranges = [], []
    for concurrency in CONCURRENCIES:
        progress.phase = f"{concurrency} in parallel"
        part = share * _SHARES[concurrency]
        reader = _Reader(objects, sources, UNIT_STORED_BYTES_MAX, part, progress)
        reads.append(reader.run(concurrency, plan.seconds))
    for range_bytes in RANGES_BYTES:
        progress.phase = f"{range_bytes >> 20} MiB each"
        reader = _Reader(objects, sources, range_bytes, share, progress)
        ranges.append(reader.run(RANGES_CONCURRENCY, plan.seconds))
    listed, keys_per_s = listing
    small = 0 if writes is None else SMALL_SAMPLES * FIRST_BYTE_BYTES
    return Measured(
        store=objects.url,
        first_byte_s=typical_s,
        first_byte_worst_s=worst_s,
        reads=reads,
        ranges=ranges,
        list_keys_per_s=keys_per_s,
        listed_keys=listed,
        writes=writes,
        read_bytes=progress.bytes_done,
        written_bytes=0 if writes is None else OBJECTS_WRITTEN * OBJECT_BYTES + small,
    )


def _first_bytes(objects: ObjectStore, sources: Sequence[Source], seconds: float) -> list[float]:
    """Seconds of small reads, one after the other, after one that opens the connection."""
    end_s = time.monotonic() + seconds
    times_s: list[float] = []
    for number in range(FIRST_BYTE_SAMPLES + 1):
        source = random.choice(sources)
        offset = random.randrange(max(1, source.size_bytes - FIRST_BYTE_BYTES))
        begin_s = time.monotonic()
        objects.get(source.key, offset=offset, size=FIRST_BYTE_BYTES)
        if number:
            times_s.append(time.monotonic() - begin_s)
        if times_s and time.monotonic() > end_s:
            break
    return times_s


class _Reader:
    """Reads ranges at random offsets in several threads until the time or the bytes are used up."""

    def __init__(
        self,
        objects: ObjectStore,
        sources: Sequence[Source],
        range_bytes: int,
        bytes_max: int,
        progress: Progress,
    ) -> None:
        self._objects = objects
        self._sources = sources
        self._range_bytes = range_bytes
        self._left_bytes = bytes_max
        self._progress = progress
        self._lock = Lock()
        self._done_bytes = self._requests = self._errors = 0
        self._error: LodefsError | None = None

    def run(self, concurrency: int, seconds: float) -> Rate:
        """Runs one phase. Raises the store's error if every request fails."""
        begin_s, cpu_s = time.monotonic(), time.process_time()
        with ThreadPoolExecutor(concurrency, "bench") as pool:
            for _ in range(concurrency):
                pool.submit(self._work, begin_s + seconds)
        took_s = max(time.monotonic() - begin_s, 1e-6)
        if self._error is not None and self._errors == self._requests:
            raise self._error
        cpu_share = (time.process_time() - cpu_s) / took_s
        rate = self._done_bytes / took_s
        return Rate(
            concurrency, self._range_bytes, rate, self._requests, self._errors, round(cpu_share, 3)
        )

    def _work(self, end_s: float) -> None:
        while time.monotonic() < end_s and self._claim():
            source = random.choice(self._sources)
            last = max(0, source.size_bytes - self._range_bytes)
            offset = random.randrange(last + 1)
            try:
                part = self._objects.get(source.key, offset=offset, size=self._range_bytes)
                self._count(len(part.data), None)
            except LodefsError as error:
                self._count(0, error)

    def _claim(self) -> bool:
        with self._lock:
            if self._left_bytes <= 0:
                return False
            self._left_bytes -= self._range_bytes
            return True

    def _count(self, size_bytes: int, error: LodefsError | None) -> None:
        with self._lock:
            self._requests += 1
            self._done_bytes += size_bytes
            self._progress.bytes_done += size_bytes
            if error is not None:
                self._errors += 1
                self._error = error


def _list(objects: ObjectStore, plan: Plan) -> tuple[list[Source], int, float | None]:
    """Packs to read from (the largest of those seen), the number of keys listed, and keys a
    second."""
    begin_s = time.monotonic()
    found: list[Source] = []
    for info in islice(objects.list(keys.PACKS), LISTED_KEYS_MAX):
        found.append(Source(info.key, info.size_bytes))
        if time.monotonic() - begin_s > plan.seconds:
            break
    took_s = time.monotonic() - begin_s
    largest = sorted(found, key=lambda source: -source.size_bytes)[:OBJECTS_READ_MAX]
    rate = len(found) / took_s if found and took_s > 0 else None
    return [one for one in largest if one.size_bytes > FIRST_BYTE_BYTES], len(found), rate


def _write(objects: ObjectStore, prefix: str, plan: Plan, made: list[Source]) -> Writes:
    """Puts objects of OBJECT_BYTES, and small ones. Adds to ``made`` what must be removed."""
    body = os.urandom(OBJECT_BYTES)
    numbers = count()

    def put(size_bytes: int) -> None:
        source = Source(f"{prefix}{next(numbers)}", size_bytes)
        made.append(source)  # before the put, which may fail half done
        objects.put(source.key, [memoryview(body)[:size_bytes]])

    begin_s = time.monotonic()
    with ThreadPoolExecutor(WRITERS, "bench") as pool:
        for done in [pool.submit(put, OBJECT_BYTES) for _ in range(OBJECTS_WRITTEN)]:
            done.result()
    took_s = max(time.monotonic() - begin_s, 1e-6)
    large = list(made)
    times_s = []
    for _ in range(SMALL_SAMPLES):
        small_begin_s = time.monotonic()
        put(FIRST_BYTE_BYTES)
        times_s.append(time.monotonic() - small_begin_s)
        if sum(times_s) > plan.seconds:
            break
    for source in made[len(large) :]:
        objects.delete(source.key)
    made[:] = large
    rate = OBJECTS_WRITTEN * OBJECT_BYTES / took_s
    return Writes(OBJECT_BYTES, WRITERS, rate, first_byte(times_s)[0])


def _remove_leftovers(objects: ObjectStore, now_s: float) -> None:
    """Removes objects of runs that were killed."""
    for info in list(islice(objects.list(_PREFIX), LISTED_KEYS_MAX)):
        made = info.key.removeprefix(_PREFIX).partition("-")[0]
        if made.isdigit() and int(made) < now_s - LEFTOVER_AGE_S:
            with suppress(LodefsError):
                objects.delete(info.key)


ENOUGH_SHARE = 0.9  # of the best throughput: more requests gain at most the rest
BUSY_SHARE = 0.85  # of a processor: above this, the program is the limit and not the store
SLOW_FIRST_BYTE_S = 0.2


class Rate(msgspec.Struct, frozen=True):
    """A rate for ranges of ``range_bytes``, ``concurrency`` in parallel. ``cpu_share``: the share
    of one processor that this process used; ``errors``: failed requests, throttled ones
    included."""

    concurrency: int
    range_bytes: int
    bytes_per_s: float
    requests: int
    errors: int
    cpu_share: float


class Writes(msgspec.Struct, frozen=True):
    """The cost of writes: of objects of ``object_bytes``, ``concurrency`` in parallel, and of small
    ones, one after the other."""

    object_bytes: int
    concurrency: int
    bytes_per_s: float
    small_s: float


class Measured(msgspec.Struct, frozen=True):
    """The results of one run. Times are in seconds; None: there was nothing to measure this
    with."""

    store: str
    first_byte_s: float
    first_byte_worst_s: float
    reads: list[Rate]
    ranges: list[Rate]
    list_keys_per_s: float | None
    listed_keys: int
    writes: Writes | None
    read_bytes: int
    written_bytes: int


class Advice(msgspec.Struct, frozen=True):
    """``fetch_concurrency`` for [serve], and the reasons as sentences."""

    fetch_concurrency: int
    reasons: list[str]


def first_byte(times_s: Sequence[float]) -> tuple[float, float]:
    """Returns the median and the longest of some times."""
    return median(times_s), max(times_s)


def advice(measured: Measured) -> Advice:
    """Returns the settings that follow. ``measured.reads`` must not be empty."""
    best = max(one.bytes_per_s for one in measured.reads)
    enough = next(one for one in measured.reads if one.bytes_per_s >= ENOUGH_SHARE * best)
    reasons = [_concurrency_reason(enough, measured.reads)]
    # Most fetches only wait; with fewer than the default, small files would wait for each other.
    wanted = max(enough.concurrency, FETCH_CONCURRENCY)
    if measured.first_byte_s > SLOW_FIRST_BYTE_S:
        wanted = max(wanted, 2 * FETCH_CONCURRENCY)
        reasons.append(
            f"the first byte takes {measured.first_byte_s * 1000:.0f} ms: small files need more "
            "parallel requests"
        )
    if any(one.errors for one in measured.reads):
        wanted = _before_errors(measured.reads, wanted)
        reasons.append("requests failed with more of them in parallel: the store throttles")
    if enough.cpu_share > BUSY_SHARE:
        reasons.append(
            "this process used all of its processor time: the store may be faster; "
            "`data_processes` in [serve] spreads fetches over processors"
        )
    reasons += _range_reason(measured.ranges)
    return Advice(wanted, reasons)


def _concurrency_reason(enough: Rate, reads: Sequence[Rate]) -> str:
    if enough.concurrency == reads[-1].concurrency:
        return f"throughput still grows at {enough.concurrency} parallel requests"
    share = ENOUGH_SHARE * 100
    return f"{enough.concurrency} in parallel reach {share:.0f} % of the best throughput"


def _before_errors(reads: Sequence[Rate], wanted: int) -> int:
    """Returns the concurrencies below the first at which requests failed."""
    first = next(one.concurrency for one in reads if one.errors)
    return max(1, min(wanted, first // 2))


def _range_reason(ranges: Sequence[Rate]) -> list[str]:
    """Whether lodefs' own size of a range, which is no setting, is right for this store."""
    own = next((one for one in ranges if one.range_bytes == UNIT_STORED_BYTES_MAX), None)
    if own is None or not own.bytes_per_s:
        return []
    best = max(ranges, key=lambda one: one.bytes_per_s)
    mib = own.range_bytes >> 20
    if own.bytes_per_s >= ENOUGH_SHARE * best.bytes_per_s:
        return [f"ranges of {mib} MiB, which lodefs reads, suit this store"]
    faster = f"{best.bytes_per_s / own.bytes_per_s:.1f} times as fast"
    size = f"{best.range_bytes >> 20} MiB"
    return [f"ranges of {size} are {faster} as those of {mib} MiB, which lodefs reads"]
