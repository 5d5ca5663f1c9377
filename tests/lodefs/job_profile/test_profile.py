"""What `lodefs profile` makes of looks and requests: layers, reads, advice. Pure."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from lodefs.job_profile.layers import Layer, Shares, Tick, named, shares_of_record, waiting
from lodefs.job_profile.profile import Circumstances, advice, warm_s
from lodefs.job_profile.reads import ReadPattern, operations, pattern, slowest
from lodefs.mount.kernel.fuse_abi import Opcode
from lodefs.mount.shm.request_trace import Record

MIB = 1 << 20
AROUND = Circumstances("r@1", dataset_bytes=512 * MIB, store_bytes_per_s=8.0 * MIB, requests=9)


def read(
    start_s: float = 0.0,
    elapsed_s: float = 1.0,
    *,
    ino: int = 2,
    first: int = 0,
    size_bytes: int = 4096,
    opcode: int = Opcode.READ,
    store_s: float = 0.0,
    peers_s: float = 0.0,
    proxy_s: float = 0.0,
    disk_s: float = 0.0,
) -> Record:
    """A request that went well."""
    return Record(
        start_s, elapsed_s, ino, first, size_bytes, opcode, 7, store_s, peers_s, proxy_s, disk_s, 0
    )


def looks(
    blocked: int, running: int = 0, *, seen: bool = True, seconds: float = 10.0
) -> list[Tick]:
    """Looks that all see the same."""
    return [Tick(n / 10, blocked, running, seen) for n in range(int(seconds * 10))]


def back_to_back(
    *, store_s: float = 0.0, peers_s: float = 0.0, proxy_s: float = 0.0, disk_s: float = 0.0
) -> list[Record]:
    """Requests of a second each, one after the other."""
    return [
        read(n, first=n << 30, store_s=store_s, peers_s=peers_s, proxy_s=proxy_s, disk_s=disk_s)
        for n in range(10)
    ]


@pytest.mark.parametrize(
    ("ticks", "records", "passed_through", "layer"),
    [
        (looks(1), back_to_back(store_s=0.95), False, Layer.STORE),
        (looks(1), back_to_back(peers_s=0.95), False, Layer.PEERS),
        (looks(1), back_to_back(disk_s=0.95), False, Layer.DISK),
        (looks(1), back_to_back(), False, Layer.CPU),
        (looks(1), back_to_back(proxy_s=0.95), False, Layer.CPU),
        (looks(1), [], False, Layer.CPU),  # no worker comes to its requests
        (looks(1), [], True, Layer.DISK),  # the kernel reads by itself
        (looks(0, 1), back_to_back(store_s=0.95), False, Layer.JOB),  # read ahead while it works
        (looks(0, 0), [], False, Layer.JOB),  # it sleeps
        (looks(1, 3), back_to_back(store_s=0.95), False, Layer.JOB),
        (looks(0, seen=False), back_to_back(store_s=0.95), False, Layer.STORE),
        (looks(0, seen=False), [], False, Layer.JOB),
        ([], [], False, Layer.JOB),
    ],
)
def test_layer(
    ticks: list[Tick], records: list[Record], passed_through: bool, layer: Layer
) -> None:
    """The layer that most of the waiting is in is named; shares sum up to the time."""
    shares = waiting(ticks, records, passed_through=passed_through)
    assert named(shares) == layer
    assert sum(shares.values()) == pytest.approx(1.0)


def test_names_that_the_store_is_asked_for() -> None:
    """Waiting for the proxy while it loads directories is waiting for the store."""
    lookups = [read(0.0, 10.0, opcode=Opcode.READDIRPLUS, proxy_s=9.0)]
    assert named(waiting(looks(1), lookups, names_from_store=True)) == Layer.STORE
    assert named(waiting(looks(1), lookups)) == Layer.CPU


def test_shares_of_a_request() -> None:
    """What waits longer than the whole (clocks, threads) is never more than all of it."""
    shares = shares_of_record(read(0, 1.0, store_s=2.0, disk_s=2.0), names_from_store=False)
    assert shares == {Layer.STORE: 0.5, Layer.DISK: 0.5, Layer.CPU: 0.0}
    assert shares_of_record(read(0, 0.0), names_from_store=False) == {Layer.CPU: 1.0}


def test_order_of_reads() -> None:
    """Reads in order, also a little out of order as the kernel reads ahead, and scattered ones."""
    ahead = [read(n, first=place * MIB, size_bytes=MIB) for n, place in enumerate([0, 2, 1, 3])]
    assert pattern(ahead).sequential_share == 1.0
    scattered = [read(n, first=(n * 37 + 11) * 64 * MIB) for n in range(10)]
    found = pattern(scattered)
    assert found.sequential_share == 0.0
    assert (found.reads, found.files, found.sizes["4 KiB"]) == (10, 1, 10)
    assert pattern([]).sequential_share == 0.0


def test_slowest_files() -> None:
    """Files are sorted by what their reads took, and say what for; other requests do not count."""
    records = [
        read(0, 1.0, ino=5, store_s=0.9),
        read(1, 3.0, ino=6, disk_s=2.9),
        read(4, 9.0, ino=7, opcode=Opcode.LOOKUP),
    ]
    assert [(one.ino, one.layer) for one in slowest(records)] == [(6, "cache disk"), (5, "store")]
    assert [one.operation for one in operations(records)] == ["lookup", "read"]


def shares_of(layer: Layer, share: float) -> Shares:
    """So much for one layer, the rest the job's own."""
    return {**dict.fromkeys(Layer, 0.0), layer: share, Layer.JOB: 1.0 - share}


def reads_of(records: Iterable[Record]) -> ReadPattern:
    """Of all that waited for the store."""
    return pattern(list(records))


def test_advice_on_the_store() -> None:
    """It has the share, the command and how long that would take."""
    in_order = reads_of(read(n, first=n * MIB, size_bytes=MIB, store_s=0.9) for n in range(10))
    (said,) = advice(shares_of(Layer.STORE, 0.8), in_order, AROUND)
    assert said.startswith("100 % of the waiting is the store (the job waited 80 % of the time)")
    assert "`lodefs warm r@1` would take about 64 s" in said
    scattered = reads_of(read(n, first=n << 30, store_s=0.5) for n in range(1, 10))
    assert warm_s(AROUND, scattered) == pytest.approx(8 * (0.5 + 8 * MIB / 50e6))
    assert any("scattered" in one for one in advice(shares_of(Layer.STORE, 0.8), scattered, AROUND))


@pytest.mark.parametrize(
    ("layer", "words"),
    [
        (Layer.PEERS, "lodefs status"),
        (Layer.DISK, "lodefs doctor"),
        (Layer.CPU, "--workers"),
        (Layer.JOB, "did not wait"),
    ],
)
def test_advice(layer: Layer, words: str) -> None:
    """Each layer has a way out."""
    shares = shares_of(layer, 0.9) if layer != Layer.JOB else shares_of(Layer.STORE, 0.1)
    assert words in advice(shares, ReadPattern(), AROUND)[0]


def test_nothing_happened() -> None:
    """A mount that nobody reads from is not called a job that is fast."""
    idle = Circumstances("r@1")
    assert advice(shares_of(Layer.STORE, 0.0), ReadPattern(), idle) == [
        "nothing was read through this mount during this time"
    ]
