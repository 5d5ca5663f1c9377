"""The measures of mounts, the states of caches, the targets for lodefs, and the picture.

States of a side: *cold*, nothing on the node; *warm*, all of it in the node's cache and nothing in
the kernel's page cache; *in memory*, the files of the node's cache are in the page cache but were
not read through the mount; *again*, the second time in a row.
"""

from __future__ import annotations

from loadtests.bench.fio import MMAP_RANDOM_4K, RANDOM_4K
from loadtests.comparison import OURS, Ask, Comparison, Measure
from loadtests.picture import Group, Panel, picture

COLD, WARM, IN_MEMORY, AGAIN = "cold", "warm", "in memory", "again"
READERS = (1, 8)
SERIES_MAX = 4

FIRST_BYTE = Measure("first byte of a file", COLD, "ms")  # the target depends on S3's own time
SEQUENTIAL = Measure("sequential_read", COLD, "MB/s")


def small_files(readers: int, state: str) -> Measure:
    """Opens, reads and closes files of 10 KB in shuffled order."""
    name = f"files of 10 KB, {readers} reader{'s' if readers > 1 else ''}"
    return Measure(name, state, "files/s")


def walk(state: str) -> Measure:
    """Lists every directory, and takes every entry's status."""
    return Measure("walk with stat", state, "entries/s")


ONE, EIGHT = (small_files(readers, IN_MEMORY).name for readers in READERS)

ASKS = {
    (RANDOM_4K.name, WARM): Ask({"native": 0.9}),
    (MMAP_RANDOM_4K.name, WARM): Ask({"native": 0.9}),
    (SEQUENTIAL.name, WARM): Ask({"native": 0.9}),
    (SEQUENTIAL.name, AGAIN): Ask({"native": 0.95}),
    (SEQUENTIAL.name, COLD): Ask({"rclone": 3}),
    (ONE, IN_MEMORY): Ask({"rclone": 3}, at_least=8_000),
    (EIGHT, IN_MEMORY): Ask({"rclone": 3}, at_least=14_000),
    (ONE, COLD): Ask({"rclone": 5}),
    (EIGHT, COLD): Ask({"rclone": 5}),
}

LABELS = {
    RANDOM_4K.name: "random 4 KiB reads",
    MMAP_RANDOM_4K.name: "random 4 KiB reads through mmap",
    SEQUENTIAL.name: "sequential read",
    "sequential_read_four_threads": "sequential read, 4 readers",
    "random_read": "random 256 KiB reads",
    "random_read_four_threads_direct_io": "random 256 KiB, 4 readers, direct I/O",
    FIRST_BYTE.name: "first byte of a file",
    walk(WARM).name: "walk with stat",
    ONE: "shuffled files of 10 KB",
    EIGHT: "shuffled files of 10 KB, 8 readers",
}
SERIES = {"rclone": "rclone mount --vfs-cache-mode full"}
ONCE_MORE = f"{LABELS[SEQUENTIAL.name]} again, from the page cache"


def drawn(result: Comparison) -> str:
    """The picture of the ratios (SVG): warm against the local disk, cold against rclone's mount."""
    series = [side for side in result.sides if side != "native"][:SERIES_MAX]
    warm = [*_groups(result, WARM, "native", series), *_again(result, series)]
    cold = _groups(result, COLD, "rclone", [side if side == OURS else None for side in series])
    return picture(
        [SERIES.get(side, side) for side in series],
        [
            Panel(
                "In the node's cache",
                "times the speed of the same files on the local disk, page cache dropped before",
                warm,
                limit=1.25,
                ticks=(0, 0.25, 0.5, 0.75, 1.0, 1.25),
            ),
            Panel(
                "For the first time on the node",
                "times the speed of rclone mount, both from Ceph RGW on the same machine",
                cold,
                limit=10,
                ticks=(0, 1, 2, 4, 6, 8, 10),
            ),
        ],
    )


def _groups(
    result: Comparison, state: str, other: str, series: list[str] | list[str | None]
) -> list[Group]:
    """The labelled measures of a state; no bar if the series has no name."""
    found = []
    for measure in result.measures():
        if measure.state == state and measure.name in LABELS:
            values = [side and result.times(measure, side, other) for side in series]
            found.append(Group(LABELS[measure.name], [value or None for value in values]))
    return [group for group in found if any(group.values)]


def _again(result: Comparison, series: list[str]) -> list[Group]:
    again = Measure(SEQUENTIAL.name, AGAIN, SEQUENTIAL.unit)
    values = [result.times(again, side, "native") for side in series]
    return [Group(ONCE_MORE, values)] if any(values) else []
