"""Watches a mount, and makes a profile with advice and numbers."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from contextlib import suppress

import msgspec

from lodefs.chunkstore.errors import InvalidInput, LodefsError, NotFound
from lodefs.chunkstore.protocol.connection import parse_address
from lodefs.chunkstore.protocol.read_client import Client
from lodefs.cli import text
from lodefs.cli.text import percent_encoded
from lodefs.job_profile.layers import Layer, Shares, named, waiting
from lodefs.job_profile.reads import Operation, ReadPattern, SlowFile, operations, pattern, slowest
from lodefs.job_profile.watching import watch
from lodefs.mount.kernel import mount_table
from lodefs.mount.process.mounter import state_of, trace_of
from lodefs.mount.process.process_scan import processes_using
from lodefs.proxies.own_proxy import ask

TIMEOUT_S = 5.0
DEPTH_MAX = 256  # of a path


class Profile(msgspec.Struct, frozen=True):
    """``waiting``: the share of time that the job waited for each layer (``job``: it did not wait).
    ``layer``: the one that matters. ``lost_requests``: requests too fast to be traced."""

    mountpoint: str
    repo: str
    commit: str
    seconds: float
    layer: str
    waiting: dict[str, float]
    requests: int
    lost_requests: int
    passthrough_opens: int
    operations: list[Operation]
    reads: ReadPattern
    slowest: list[SlowFile]
    advice: list[str]


def mount_of(directory: str) -> mount_table.Mount:
    """Returns the lodefs mount that contains a directory or file. Raises: NotFound; InvalidInput if
    it is not on a lodefs mount."""
    if not os.path.lexists(directory):
        raise NotFound(f"{directory}: no such file or directory")
    place = os.path.realpath(directory)
    holding = [
        mount
        for mount in mount_table.read_table()
        if place == mount.mountpoint or place.startswith(mount.mountpoint.rstrip("/") + "/")
    ]
    found = max(holding, key=lambda mount: len(mount.mountpoint), default=None)
    if found is not None:  # of two mounts on one directory the later is on top
        found = [mount for mount in holding if mount.mountpoint == found.mountpoint][-1]
    if found is None or not found.is_lodefs:
        kind = "" if found is None else f", but on {found.fs_type} ({found.mountpoint})"
        raise InvalidInput(
            f"{directory} is not in a lodefs mount{kind}; `lodefs mounts` lists them"
        )
    return found


def profile(
    directory: str,
    seconds: float,
    token: str | None,
    *,
    on_progress: Callable[[float], None] = lambda _done_s: None,
) -> Profile:
    """Watches the mount that contains a directory. Raises: NotFound, InvalidInput (no lodefs
    mount), Denied (another user's mount), Unavailable."""
    mount = mount_of(directory)
    trace = trace_of(mount.mountpoint)
    users = [user.pid for user in processes_using(mount.mountpoint)]
    before = _figures(mount.mountpoint, token)
    watched = watch(trace, users, seconds, on_progress=on_progress)
    after = _figures(mount.mountpoint, token)
    records = watched.records
    opens = after.kernel_opens - before.kernel_opens
    shares = waiting(
        watched.ticks,
        records,
        passed_through=after.kernel_opens > 0,
        names_from_store=after.trees_loaded > before.trees_loaded,
    )
    reads = pattern(records)
    files = slowest(records)
    client = _client(after.proxy, mount, token)
    try:
        dataset_bytes = _name(client, mount, files)
    finally:
        if client is not None:
            client.close()
    store_s = shares[Layer.STORE] * watched.seconds
    around = Circumstances(
        target=f"{mount.repo}@{mount.commit[:12]}",
        dataset_bytes=dataset_bytes,
        store_bytes_per_s=reads.store_bytes / store_s if store_s else 0.0,
        passthrough_opens=opens,
        requests=len(records),
    )
    return Profile(
        mountpoint=percent_encoded(os.fsencode(mount.mountpoint)),
        repo=mount.repo,
        commit=mount.commit,
        seconds=round(watched.seconds, 3),
        layer=str(named(shares)),
        waiting={str(layer): round(share, 4) for layer, share in shares.items()},
        requests=len(records),
        lost_requests=watched.lost,
        passthrough_opens=opens,
        operations=operations(records),
        reads=reads,
        slowest=files,
        advice=advice(shares, reads, around),
    )


class _Figures(msgspec.Struct, frozen=True):
    proxy: str = ""
    kernel_opens: int = 0
    trees_loaded: int = 0


def _figures(mountpoint: str, token: str | None) -> _Figures:
    """Returns the counters of the mount and the proxy, if they answer."""
    proxy, opens, trees = "", 0, 0
    with suppress(LodefsError):
        state = state_of(mountpoint)
        if state is not None:
            proxy = state.proxy
            opens = state.traffic.kernel_opens if state.traffic is not None else 0
    with suppress(LodefsError):
        node = ask(proxy, "/status", token, timeout_s=TIMEOUT_S).get("node") if proxy else None
        loaded = node.get("trees_loaded_directories") if isinstance(node, dict) else None
        trees = loaded if isinstance(loaded, int) else 0
    return _Figures(proxy, opens, trees)


def _client(proxy: str, mount: mount_table.Mount, token: str | None) -> Client | None:
    if not proxy:
        return None
    client = Client(parse_address(proxy), token=token, timeout_s=TIMEOUT_S)
    try:
        return client.mounted(client.snapshot(mount.repo, mount.commit))
    except LodefsError:
        client.close()
        return None


def _name(client: Client | None, mount: mount_table.Mount, files: Iterable[SlowFile]) -> int | None:
    """Adds paths to files, and returns the size of the whole snapshot, if the proxy answers."""
    if client is None:
        return None
    with suppress(LodefsError):
        for file in files:
            file.path = _path(client, file.ino)
        return client.snapshot(mount.repo, mount.commit).size_bytes
    return None


def _path(client: Client, ino: int) -> str:
    """Returns the path of a file in its snapshot, percent-encoded."""
    names: list[bytes] = []
    for _ in range(DEPTH_MAX):
        node = client.node(ino)
        if not node.name or node.parent == node.ino:
            break
        names.append(node.name)
        ino = node.parent
    return percent_encoded(b"/".join(reversed(names)))


WARM_PARTS = 8  # fetched by `lodefs warm` in parallel
WARM_PART_BYTES = 8 << 20
CONNECTION_BYTES_PER_S = 50e6  # usual for one connection to S3; used if none was seen
SEEN_SHARE = 0.1  # a smaller share does not matter
SMALL_READ_BYTES = 256 << 10


class Circumstances(msgspec.Struct, frozen=True):
    """Other facts that matter. ``dataset_bytes``: the size of the whole snapshot; None: unknown.
    ``store_bytes_per_s``: the store's rate while somebody waited for it."""

    target: str  # REPO@COMMIT, as `lodefs warm` takes it
    dataset_bytes: int | None = None
    store_bytes_per_s: float = 0.0
    passthrough_opens: int = 0
    requests: int = 0


def advice(shares: Shares, reads: ReadPattern, around: Circumstances) -> list[str]:
    """Returns advice as sentences, the most important one first."""
    layer = named(shares)
    waits = 1.0 - shares[Layer.JOB]
    if not around.requests and not around.passthrough_opens and waits < SEEN_SHARE:
        return ["nothing was read through this mount during this time"]
    if layer == Layer.JOB:
        found = [f"{_percent(shares[Layer.JOB])} of the time the job did not wait for its data"]
    else:
        first = f"{_percent(shares[layer] / waits)} of the waiting is {_WORDS[layer]}"
        way_out = _way_out(layer, around, reads)
        found = [f"{first} (the job waited {_percent(waits)} of the time); {way_out}"]
    if layer != Layer.JOB and reads.reads and _is_scattered(reads):
        mean = text.size(reads.read_bytes // reads.reads)
        found.append(
            f"its reads are scattered (mean size {mean}, {_percent(reads.sequential_share)} in "
            "order): larger ones, or files in the order of packs (lodefs.torch), wait less"
        )
    if around.passthrough_opens:
        opens = text.count(around.passthrough_opens, "file")
        found.append(
            f"the kernel read {opens} by itself (passthrough), which the reads below do not include"
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
            return f"`lodefs warm {around.target}`{takes or ' fetches the data before the job'}"
        case Layer.PEERS:
            return "`lodefs status` shows how each answers; check peer_upload_bytes_per_s_max there"
        case Layer.DISK:
            return "`lodefs doctor` measures the disk: NVMe, or more memory for the page cache"
        case _:
            return (
                "give them more processors (`lodefs mount --workers`, data_processes, CPU limits)"
            )


def warm_s(around: Circumstances, reads: ReadPattern) -> float | None:
    """Returns roughly how long `lodefs warm` takes for the part of the dataset that is probably
    missing, judged by what was read. Reads in order show the store's rate; scattered reads only
    show how long the store takes to begin. None if it is unknown."""
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
