"""What follows from a profile, with figures. Pure."""

from __future__ import annotations

import msgspec

from lodefs.cli import text
from lodefs.job_profile.layers import Layer, Shares, named
from lodefs.job_profile.reads import ReadPattern

WARM_PARTS = 8  # that `lodefs warm` fetches at a time
WARM_PART_BYTES = 8 << 20
CONNECTION_BYTES_PER_S = 50e6  # of one connection to S3: what is usual, where it was not seen
SEEN_SHARE = 0.1  # less is no matter
SMALL_READ_BYTES = 256 << 10


class Circumstances(msgspec.Struct, frozen=True):
    """What else matters. ``dataset_bytes``: of all of the snapshot; None: not known.
    ``store_bytes_per_s``: how fast the store sent while somebody waited for it."""

    target: str  # REPO@COMMIT, as `lodefs warm` takes it
    dataset_bytes: int | None = None
    store_bytes_per_s: float = 0.0
    passthrough_opens: int = 0
    requests: int = 0


def advice(shares: Shares, reads: ReadPattern, around: Circumstances) -> list[str]:
    """Sentences, the most important one first."""
    layer = named(shares)
    waits = 1.0 - shares[Layer.JOB]
    if not around.requests and not around.passthrough_opens and waits < SEEN_SHARE:
        return ["nothing was read through this mount meanwhile"]
    if layer == Layer.JOB:
        found = [f"{_percent(shares[Layer.JOB])} of the time the job did not wait for its data"]
    else:
        first = f"{_percent(shares[layer] / waits)} of the waiting is {_WORDS[layer]}"
        way_out = _way_out(layer, around, reads)
        found = [f"{first} (the job waited {_percent(waits)} of the time); {way_out}"]
    if layer != Layer.JOB and reads.reads and _is_scattered(reads):
        mean = text.size(reads.read_bytes // reads.reads)
        found.append(
            f"its reads are scattered ({mean} in the mean, {_percent(reads.sequential_share)} in "
            "order): larger ones, or files in the order of packs (lodefs.torch), wait less"
        )
    if around.passthrough_opens:
        opens = text.count(around.passthrough_opens, "file")
        found.append(
            f"the kernel read {opens} by itself (passthrough), which is not among the reads below"
        )
    return found


_WORDS = {
    Layer.STORE: "the store",
    Layer.PEERS: "other nodes",
    Layer.DISK: "the cache's disk",
    Layer.CPU: "the proxy and the mount's workers",
}


def _way_out(layer: Layer, around: Circumstances, reads: ReadPattern) -> str:
    match layer:
        case Layer.STORE:
            seconds = warm_s(around, reads)
            takes = "" if seconds is None else f" would take about {_duration(seconds)}"
            return f"`lodefs warm {around.target}`{takes or ' brings the data before the job'}"
        case Layer.PEERS:
            return (
                "`lodefs status` shows how each answers; look at peer_upload_bytes_per_s_max there"
            )
        case Layer.DISK:
            return "`lodefs doctor` measures the disk: NVMe, or more memory for the page cache"
        case _:
            return "give them processors (`lodefs mount --workers`, data_processes, CPU limits)"


def warm_s(around: Circumstances, reads: ReadPattern) -> float | None:
    """About how long `lodefs warm` would take for the part of the dataset that is likely to be
    missing, as of what was read. Of reads in order, at the rate that was seen; scattered ones show
    how long the store takes to begin, and no rate. None where it is not known."""
    if not around.dataset_bytes or not around.store_bytes_per_s or not reads.store_reads:
        return None
    missing_bytes = around.dataset_bytes * reads.store_bytes / reads.read_bytes
    if not _is_scattered(reads):
        return missing_bytes / around.store_bytes_per_s
    begin_s = reads.store_seconds / reads.store_reads
    rounds = max(1.0, missing_bytes / (WARM_PARTS * WARM_PART_BYTES))
    return rounds * (begin_s + WARM_PART_BYTES / CONNECTION_BYTES_PER_S)


def _is_scattered(reads: ReadPattern) -> bool:
    mean_bytes = reads.read_bytes / reads.reads if reads.reads else 0
    return reads.sequential_share < 0.5 and mean_bytes <= SMALL_READ_BYTES


def _percent(share: float) -> str:
    return f"{100 * share:.0f} %"


def _duration(seconds: float) -> str:
    if seconds < 100:
        return f"{max(1, round(seconds))} s"
    minutes = seconds / 60
    return f"{minutes:.0f} min" if minutes < 100 else f"{minutes / 60:.0f} h"
