"""What was measured, and what follows from it for the settings. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median

import msgspec

from lodefs.chunkstore.repo.range_planner import UNIT_STORED_BYTES_MAX
from lodefs.proxy.config import FETCH_CONCURRENCY

ENOUGH_SHARE = 0.9  # of the best throughput: more requests at once gain no more than the rest
BUSY_SHARE = 0.85  # of a processor: then not the store but this program was measured
SLOW_FIRST_BYTE_S = 0.2


class Rate(msgspec.Struct, frozen=True):
    """Ranges of ``range_bytes``, ``concurrency`` at a time. ``cpu_share``: of one processor, what
    this process took meanwhile; ``errors``: requests that failed, throttling among them."""

    concurrency: int
    range_bytes: int
    bytes_per_s: float
    requests: int
    errors: int
    cpu_share: float


class Writes(msgspec.Struct, frozen=True):
    """What writes cost: objects of ``object_bytes``, ``concurrency`` at a time, and small ones, one
    after the other."""

    object_bytes: int
    concurrency: int
    bytes_per_s: float
    small_s: float


class Measured(msgspec.Struct, frozen=True):
    """One run. Times in seconds; None: not measured (there was nothing to measure it with)."""

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
    """``fetch_concurrency`` of [serve], and the reasons as sentences."""

    fetch_concurrency: int
    reasons: list[str]


def first_byte(times_s: Sequence[float]) -> tuple[float, float]:
    """The median and the longest of some times."""
    return median(times_s), max(times_s)


def advice(measured: Measured) -> Advice:
    """What follows for the settings. ``measured.reads`` must not be empty."""
    best = max(one.bytes_per_s for one in measured.reads)
    enough = next(one for one in measured.reads if one.bytes_per_s >= ENOUGH_SHARE * best)
    reasons = [_concurrency_reason(enough, measured.reads)]
    # Most fetches only wait; below the default many small files would wait for each other.
    wanted = max(enough.concurrency, FETCH_CONCURRENCY)
    if measured.first_byte_s > SLOW_FIRST_BYTE_S:
        wanted = max(wanted, 2 * FETCH_CONCURRENCY)
        reasons.append(
            f"the first byte takes {measured.first_byte_s * 1000:.0f} ms: small files need more "
            "requests at once"
        )
    if any(one.errors for one in measured.reads):
        wanted = _before_errors(measured.reads, wanted)
        reasons.append("requests failed where more were made at once: the store throttles")
    if enough.cpu_share > BUSY_SHARE:
        reasons.append(
            "this process had its processor busy: the store may do more; `data_processes` in "
            "[serve] spreads fetches over processors"
        )
    reasons += _range_reason(measured.ranges)
    return Advice(wanted, reasons)


def _concurrency_reason(enough: Rate, reads: Sequence[Rate]) -> str:
    if enough.concurrency == reads[-1].concurrency:
        return f"throughput still grows at {enough.concurrency} requests at once"
    share = ENOUGH_SHARE * 100
    return f"{enough.concurrency} at once reach {share:.0f} % of the best throughput"


def _before_errors(reads: Sequence[Rate], wanted: int) -> int:
    """Fewer than where requests failed."""
    first = next(one.concurrency for one in reads if one.errors)
    return max(1, min(wanted, first // 2))


def _range_reason(ranges: Sequence[Rate]) -> list[str]:
    """Whether lodefs' own size of a range is right here; it is no setting."""
    own = next((one for one in ranges if one.range_bytes == UNIT_STORED_BYTES_MAX), None)
    if own is None or not own.bytes_per_s:
        return []
    best = max(ranges, key=lambda one: one.bytes_per_s)
    mib = own.range_bytes >> 20
    if own.bytes_per_s >= ENOUGH_SHARE * best.bytes_per_s:
        return [f"ranges of {mib} MiB, which lodefs reads, are right here"]
    faster = f"{best.bytes_per_s / own.bytes_per_s:.1f} times as fast"
    size = f"{best.range_bytes >> 20} MiB"
    return [f"ranges of {size} come {faster} as those of {mib} MiB, which lodefs reads"]
