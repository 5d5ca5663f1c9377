"""``./run bench mount``: the same reads on the local disk, on lodefs, on rclone's mount, on peers.

Sides take turns measure by measure, so that a machine whose speed changes by the minute changes it
for all.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from time import perf_counter

from loadtests.bench import mountcorpus, smallfiles, walks
from loadtests.bench.fio import EXTRA_JOBS, MOUNTPOINT_JOBS, Job
from loadtests.bench.mountmeasures import (
    AGAIN,
    ASKS,
    COLD,
    FIRST_BYTE,
    READERS,
    SEQUENTIAL,
    WARM,
    drawn,
)
from loadtests.bench.origins import Origin, ceph_origin
from loadtests.bench.sides import PLAIN, Side, fill, lodefs_side, rclone_side
from loadtests.comparison import OURS, Ask, Comparison, Measure
from loadtests.errors import LoadtestError
from loadtests.measure import check_may_drop, disk_notes, drop_page_cache, load_note, read_all
from loadtests.reading import compare, first_byte, whole
from loadtests.results import Result

WARMING_TIMEOUT_S = 900.0
COLD_TIMEOUT_S = 300.0
GETS = 20
GET_BYTES = 64 << 10


@dataclass(frozen=True, slots=True)
class Options:
    """Options: other mounts of the same corpus, a picture, a smaller run."""

    peers: Mapping[str, Path] = field(default_factory=dict)
    picture: Path | None = None
    quick: bool = False

    @property
    def shape(self) -> mountcorpus.Shape:
        """The corpus."""
        return mountcorpus.QUICK if self.quick else mountcorpus.FULL

    @property
    def seconds(self) -> float:
        """The longest time of one job of fio."""
        return 1.0 if self.quick else 3.0

    def rounds(self, *, asked: bool) -> int:
        """How often a measure is taken: more often if it has a target."""
        return 1 if self.quick else 3 if asked else 1


def mount(scratch: Path, options: Options) -> Result:
    """Takes all measures on all sides. Raises: LoadtestError if that is not possible here."""
    check(options)
    corpus = mountcorpus.kept(options.shape)
    result = Comparison("mount", asks=dict(ASKS))
    native = Side("native", corpus, corpus)
    peers = [Side(name, root, None) for name, root in options.peers.items()]
    with ceph_origin(scratch) as origin:
        fill(origin, corpus)
        _cold(result, origin, scratch, native, options)
        with ExitStack() as stack:
            ours = stack.enter_context(lodefs_side(origin, scratch / "warm-lodefs"))
            rclone = stack.enter_context(rclone_side(origin, scratch / "warm-rclone"))
            _warm_up([ours, rclone, *peers], corpus)
            sides = [native, ours, rclone, *peers]
            _jobs(result, sides, scratch, options)
            for _ in range(options.rounds(asked=True)):
                smallfiles.warm(result, sides)
                walks.warm(result, sides)
    result.conclude()
    _notes(result, native, scratch, options)
    if options.picture:
        options.picture.write_text(drawn(result), "utf-8")
    return result


def check(options: Options) -> None:
    """Raises LoadtestError if the page cache cannot be dropped or a peer lacks the corpus."""
    check_may_drop("mount")
    for name, root in options.peers.items():
        if lacking := mountcorpus.missing(root, options.shape):
            raise LoadtestError(
                f"--peer {name}: {root} does not hold the corpus ({lacking[0]} is missing); "
                "write it with --write-corpus DIR and bring it there"
            )


def _cold(
    result: Comparison, origin: Origin, scratch: Path, native: Side, options: Options
) -> None:
    """Everything that is new to the node, on a new node each time; a first walk also natively."""
    gets = _two_gets_ms(origin)
    result.asks[FIRST_BYTE.name, COLD] = Ask(at_most=1.3 * gets + 5)
    result.notes.append(f"two ranged GETs of 64 KiB one after the other: {gets:.1f} ms")
    makers = {OURS: lodefs_side, "rclone": rclone_side}
    for number in range(options.rounds(asked=True)):
        drop_page_cache()
        walks.see(result, native, COLD)
        for name, make in makers.items():
            with make(origin, scratch / f"cold-{name}-{number}") as side:
                drop_page_cache()
                walks.see(result, side, COLD)
                first = first_byte(side.root / "four" / "0.bin")
                result.see(FIRST_BYTE, name, first.seconds * 1e3)
                read = whole(side.root / "one" / "0.bin", timeout_s=COLD_TIMEOUT_S)
                result.see(SEQUENTIAL, name, read.mb_per_s)
        for readers in READERS:
            for name, make in makers.items():
                with make(origin, scratch / f"cold-{name}-{number}-{readers}") as side:
                    drop_page_cache()
                    smallfiles.see(result, side, COLD, readers)


def _two_gets_ms(origin: Origin) -> float:
    """Milliseconds of two ranged GETs in a row on an open connection: the median of several."""
    seconds = []
    for number in range(GETS):
        start = perf_counter()
        for first in (number * GET_BYTES, (GETS + number) * GET_BYTES):
            asked = f"bytes={first}-{first + GET_BYTES - 1}"
            origin.client.get_object(
                Bucket=origin.bucket, Key=f"{PLAIN}/one/0.bin", Range=asked
            )["Body"].read()  # fmt: skip
        seconds.append(perf_counter() - start)
    return median(seconds) * 1e3


def _warm_up(sides: Iterable[Side], corpus: Path) -> None:
    """Reads everything once through each side, and compares it with the corpus."""
    for side in sides:
        compare(side.root, corpus, 8, timeout_s=WARMING_TIMEOUT_S)


def _jobs(result: Comparison, sides: list[Side], scratch: Path, options: Options) -> None:
    """fio's jobs: warm, and again at once, which means nothing if the page cache is not used."""
    for job in (*MOUNTPOINT_JOBS, *EXTRA_JOBS):
        asked = any(name == job.name for name, _ in ASKS)
        for _ in range(options.rounds(asked=asked)):
            for side in sides:
                drop_page_cache()
                _see(result, job, side, scratch, options.seconds, WARM)
                if not job.direct:
                    read_all(side.root / job.folder)
                    _see(result, job, side, scratch, options.seconds, AGAIN)


def _see(
    result: Comparison, job: Job, side: Side, scratch: Path, seconds: float, state: str
) -> None:
    value = job.run(side.root, scratch, seconds=seconds, again=state == AGAIN)
    result.see(Measure(job.name, state, job.unit), side.name, value)


def _notes(result: Comparison, native: Side, scratch: Path, options: Options) -> None:
    shape = options.shape
    result.notes.append(
        f"{shape.one_bytes >> 20} MiB file (four readers: {shape.four_bytes >> 20} MiB each), "
        f"{shape.files:,} files of 10 KB; S3: Ceph RGW on loopback; "
        f"{os.cpu_count()} processors, Linux {os.uname().release}"
    )
    result.notes.append(load_note())
    result.notes += disk_notes("native", native.root, scratch)
    if options.quick:
        result.notes.append("--quick: less data, one round; not for judging")
