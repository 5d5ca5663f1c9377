"""What a mount's readers got, by where it came from."""

from __future__ import annotations

import os
import random
from threading import Thread

import pytest

from lodefs.chunkstore.nodeapi.wire import ORIGIN_HEADER
from lodefs.mount.lifecycle.mounter import traffic_of, unmount
from lodefs.mount.shm.process_table import SLOTS
from lodefs.mount.shm.traffic_counters import Column, Traffic, TrafficTable
from tests.support.chunkstore.child_process import private_directory
from tests.support.mount.mounts import Mounts, read_anew, until
from tests.support.proxy.rig import MIB, REPO, Rig, serve_rig

FILES = {
    b"large": random.Random(1).randbytes(3 * MIB + 5),
    **{b"small/%d" % n: random.Random(n).randbytes(10_000) for n in range(20)},
}
TOTAL_BYTES = sum(map(len, FILES.values()))


def test_rows_add_up() -> None:
    """Every process counts in its own row, with all its threads; the sum is of all rows."""
    fd = TrafficTable.create()
    count, last = TrafficTable(fd).counter(3), TrafficTable(fd).counter(SLOTS - 1)
    threads = [
        Thread(target=lambda: [count(Column.CACHE_BYTES, 2) for _ in range(1000)]) for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    last(Column.STORE_BYTES, 1 << 40)
    last(Column.KERNEL_OPENS, 1)
    assert TrafficTable(fd).total() == Traffic(
        cache_bytes=8000, store_bytes=1 << 40, kernel_opens=1
    )
    os.close(fd)


def read_all(mounts: Mounts) -> None:
    """Every byte, whatever the kernel remembers."""
    for path, data in FILES.items():
        assert read_anew(os.fsencode(mounts.place) + b"/" + path) == data


@pytest.mark.slow
@pytest.mark.fuse
def test_of_a_real_proxy() -> None:
    """The first mount waits for the store, another one reads the cache; each counts its own, and
    no byte is missing."""
    with private_directory() as folder:
        rig = Rig(folder, FILES)
        with serve_rig(rig) as (proxy, _):
            mounts = Mounts(folder, proxy)
            try:
                mounts.mount(repo=REPO, workers=2, passthrough="off")
                assert traffic_of(str(mounts.place)) == Traffic()
                read_all(mounts)
                cold = traffic_of(str(mounts.place))
                assert cold is not None
                assert cold.store_bytes > 0
                assert cold.store_bytes + cold.cache_bytes >= TOTAL_BYTES
                assert (cold.peers_bytes, cold.kernel_opens) == (0, 0)
                unmount(str(mounts.place))
                mounts.mount(repo=REPO, workers=2, passthrough="off")
                read_all(mounts)
                warm = traffic_of(str(mounts.place))
                assert warm is not None
                assert warm.cache_bytes >= TOTAL_BYTES
                assert warm.store_bytes == 0
            finally:
                mounts.close()


@pytest.mark.slow
@pytest.mark.fuse
def test_what_the_kernel_reads_by_itself() -> None:
    """Opens past us are counted, where this machine has them; their bytes cannot be."""
    with private_directory() as folder:
        rig = Rig(folder, FILES)
        with serve_rig(rig) as (proxy, _):
            mounts = Mounts(folder, proxy)
            try:
                mounted = mounts.mount(repo=REPO, workers=1, passthrough="on")
                read_all(mounts)
                path = mounts.place / "large"
                if mounted.passthrough == "on":
                    until(lambda: os.getxattr(path, "user.lodefs.read_path") == b"passthrough")
                before = traffic_of(str(mounts.place))
                assert before is not None
                assert path.read_bytes() == FILES[b"large"]
                after = traffic_of(str(mounts.place))
                assert after is not None
                passed = after.kernel_opens - before.kernel_opens
                assert passed == (1 if mounted.passthrough == "on" else 0)
            finally:
                mounts.close()


def test_the_proxy_says_where_bytes_came_from() -> None:
    """An answer that waited for the store says so; one from the cache says nothing."""
    with private_directory() as folder:
        rig = Rig(folder, FILES)
        with serve_rig(rig) as (proxy, _), proxy.client() as client:
            target = f"/files/{REPO}@main/small/1"
            logged = [client.get(target).header(ORIGIN_HEADER) for _ in range(3)]
            assert logged == ["store", None, None]
