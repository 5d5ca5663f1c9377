"""Summarises operations, sizes and order of reads, and the slowest files of a job. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec

from lodefs.job_profile.layers import Layer, shares_of_record
from lodefs.mount.kernel.fuse_abi import Opcode
from lodefs.mount.shm.request_trace import Record

SLOWEST_MAX = 5
NEAR_BYTES = 4 << 20  # the kernel reads ahead this far, in several parallel requests
SIZES = ((4 << 10, "4 KiB"), (64 << 10, "64 KiB"), (256 << 10, "256 KiB"), (1 << 62, "larger"))


class Operation(msgspec.Struct):
    """Requests of one kind. ``seconds``: their sum."""

    operation: str
    requests: int = 0
    errors: int = 0
    seconds: float = 0.0


class SlowFile(msgspec.Struct):
    """A file and the time of its reads. ``path``: percent-encoded, "" if it is unknown. ``layer``:
    what they waited for most."""

    ino: int
    path: str = ""
    reads: int = 0
    read_bytes: int = 0
    seconds: float = 0.0
    layer: str = ""


class ReadPattern(msgspec.Struct):
    """Reads of files as the kernel asked for them. ``sizes``: the number of reads up to each size.
    ``sequential_share``: the share of bytes that follow an earlier read of the same file.
    ``store_reads``, ``store_bytes``, ``store_seconds``: the reads that waited for the store."""

    reads: int = 0
    read_bytes: int = 0
    files: int = 0
    sequential_share: float = 0.0
    store_reads: int = 0
    store_bytes: int = 0
    store_seconds: float = 0.0
    sizes: dict[str, int] = {}


def operations(records: Iterable[Record]) -> list[Operation]:
    """Operations by kind, the ones that took longest first."""
    found: dict[int, Operation] = {}
    for record in records:
        one = found.get(record.opcode)
        if one is None:
            one = found[record.opcode] = Operation(_name(record.opcode))
        one.requests += 1
        one.seconds += record.elapsed_s
        one.errors += record.errno != 0 and record.opcode == Opcode.READ
    return sorted(found.values(), key=lambda one: -one.seconds)


def _name(opcode: int) -> str:
    try:
        return Opcode(opcode).name.lower()
    except ValueError:
        return str(opcode)


def pattern(records: Sequence[Record]) -> ReadPattern:
    """Returns the sizes and the order of reads."""
    reads = sorted(
        (one for one in records if one.opcode == Opcode.READ), key=lambda one: one.start_s
    )
    ends: dict[int, int] = {}
    near_bytes = 0
    found = ReadPattern(sizes={name: 0 for _, name in SIZES})
    for one in reads:
        end = ends.get(one.ino, 0)
        if abs(one.first - end) <= NEAR_BYTES:
            near_bytes += one.size_bytes
        ends[one.ino] = one.first + one.size_bytes
        found.reads += 1
        found.read_bytes += one.size_bytes
        if one.store_s:
            found.store_reads += 1
            found.store_bytes += one.size_bytes
            found.store_seconds += one.store_s
        found.sizes[next(name for most, name in SIZES if one.size_bytes <= most)] += 1
    found.files = len(ends)
    found.sequential_share = near_bytes / found.read_bytes if found.read_bytes else 0.0
    return found


def slowest(records: Iterable[Record]) -> list[SlowFile]:
    """Returns the files whose reads took longest, without their names."""
    files: dict[int, SlowFile] = {}
    layers: dict[int, dict[Layer, float]] = {}
    for one in records:
        if one.opcode != Opcode.READ:
            continue
        file = files.setdefault(one.ino, SlowFile(one.ino))
        file.reads += 1
        file.read_bytes += one.size_bytes
        file.seconds += one.elapsed_s
        sums = layers.setdefault(one.ino, {})
        for layer, share in shares_of_record(one, names_from_store=False).items():
            sums[layer] = sums.get(layer, 0.0) + share * one.elapsed_s
    found = sorted(files.values(), key=lambda one: -one.seconds)[:SLOWEST_MAX]
    for file in found:
        sums = layers[file.ino]
        file.layer = str(max(sums, key=lambda layer: sums[layer]))
    return found
