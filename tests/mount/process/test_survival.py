"""What a mount bears: workers, proxies and supervisors that die or hang."""

from __future__ import annotations

import contextlib
import errno
import os
import random
import signal
from collections.abc import Callable
from mmap import PAGESIZE
from threading import Thread

import pytest

from lodefs.chunkstore.format.inodes import ROOT_INO, child_ino
from lodefs.mount.kernel import device, mount_table
from lodefs.mount.kernel.features import Feature
from lodefs.mount.process import mounter
from lodefs.mount.process.mounter import Mounted
from tests.support.mount.fake_proxy import FakeProxy
from tests.support.mount.kernels import DISTINCT, KERNELS
from tests.support.mount.mounts import (
    BIG,
    WAIT_S,
    Mounts,
    hold_reads,
    kernel_since,
    kill,
    read_in_thread,
    until,
    workers_of,
)

pytestmark = [pytest.mark.fuse, pytest.mark.slow]

HANGS_S = 5.0  # so long a worker does nothing until it is replaced; a busy one does something
FAILED = (errno.EIO, errno.ECONNABORTED)  # a request of a worker that died


ON_ALL = pytest.mark.parametrize("kernel", ["this one", *DISTINCT], indirect=True)


@pytest.mark.parametrize(
    ("kernel", "number"),
    [(name, signal.SIGKILL) for name in KERNELS]
    + [(name, signal.SIGSTOP) for name in ("this one", *DISTINCT)],
    indirect=["kernel"],
)
def test_worker_lost_in_the_middle_of_a_read(
    mounts: Mounts, proxy: FakeProxy, number: signal.Signals
) -> None:
    """All workers killed, or stopped for good: others take over, and the read comes back right.

    A kernel that cannot send the request again fails the read in time, and the next is right.
    """
    mounted = mounts.mount(hang_margin_s=HANGS_S - WAIT_S)
    came, go = hold_reads(proxy)
    thread, result = read_in_thread(mounts.place / "a")
    assert came.wait(WAIT_S)
    before = workers_of(mounted.pid)
    for pid in before:
        kill(pid, number)
    until(lambda: not set(before) & set(workers_of(mounted.pid)))
    if not mounts.resends:
        thread.join(WAIT_S)  # before anybody answers
    go.set()
    thread.join(WAIT_S)
    if mounts.resends:
        assert result == [b"hello"]
    else:  # the kernel may have asked once more by itself, for the page alone
        assert len(result) == 1
        assert result == [b"hello"] or errno_of(result[0]) in FAILED
    assert (mounts.place / "a").read_bytes() == b"hello"
    assert (mounts.place / "big").read_bytes() == BIG
    until(lambda: len(workers_of(mounted.pid)) == len(before))


def errno_of(result: bytes | OSError) -> int | None:
    return result.errno if isinstance(result, OSError) else None


@pytest.mark.parametrize("kernel", ["debian12-6.1"], indirect=True)
def test_each_process_has_one_descriptor(mounts: Mounts) -> None:
    """Where requests are not sent again, neither the supervisor nor another worker holds the one
    that a worker reads, also when it is replaced: its end would not fail what it had in work."""
    mounted = mounts.mount(workers=2)
    assert mounted.pid is not None
    for _ in range(2):
        processes = [mounted.pid, *workers_of(mounted.pid)]
        until(lambda processes=processes: all(devices_of(pid) == 1 for pid in processes))
        kill(processes[-1], signal.SIGKILL)
        until(lambda before=processes: new_workers(mounted.pid, before) == 1)


def devices_of(pid: int) -> int:
    """How many descriptors of FUSE connections a process has."""
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # a descriptor is closed
        links = [os.readlink(f"/proc/{pid}/fd/{fd}") for fd in os.listdir(f"/proc/{pid}/fd")]
        return links.count(device.PATH)
    return 0


def new_workers(pid: int | None, before: list[int]) -> int:
    return len(set(workers_of(pid)) - set(before))


@pytest.mark.parametrize("kernel", ["debian12-6.1"], indirect=True)
def test_a_read_of_which_a_later_page_fails(mounts: Mounts, proxy: FakeProxy) -> None:
    """Where requests are not sent again, it brings the right bytes before that page, and no
    more; the next read brings the rest."""
    mounted = mounts.mount(workers=1)
    fd = os.open(mounts.place / "big", os.O_RDONLY)
    os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_RANDOM)
    assert os.pread(fd, 100, 0) == BIG[:100]  # the kernel has the first page now
    came, go = hold_reads(proxy, reads=100)
    found: list[bytes] = []
    reader = Thread(target=lambda: found.append(os.pread(fd, 5000, 100)))
    reader.start()
    while reader.is_alive():  # the kernel may ask once more by itself, for the page alone
        until(lambda: came.is_set() or not reader.is_alive())
        if came.is_set():
            came.clear()
            for pid in workers_of(mounted.pid):
                kill(pid, signal.SIGKILL)
    go.set()
    assert found == [BIG[100:PAGESIZE]]
    assert os.pread(fd, 5000, PAGESIZE) == BIG[PAGESIZE : PAGESIZE + 5000]
    os.close(fd)


@ON_ALL
def test_workers_killed_again_and_again_under_load(mounts: Mounts) -> None:
    """Readers at work notice nothing of workers that die; or, where the kernel does not send
    requests again, some errors and reads that end before a page, and never a wrong byte or no
    end."""
    mounted = mounts.mount()
    wrong: list[object] = []

    def read(fd: int, seed: int) -> None:
        places = random.Random(seed)
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_RANDOM)
        for _ in range(300):
            first = places.randrange(len(BIG))
            last = min(first + 5000, len(BIG))
            try:
                while first < last:
                    found = os.pread(fd, last - first, first)
                    end = first + len(found)
                    short = found and not mounts.resends and end % PAGESIZE == 0
                    if found != BIG[first:end] or not (end == last or short):
                        wrong.append((first, last, len(found)))
                        break
                    first = end
            except OSError as error:
                if mounts.resends or error.errno not in FAILED:
                    wrong.append(error)
        os.close(fd)

    fds = [os.open(mounts.place / "big", os.O_RDONLY) for _ in range(4)]
    readers = [Thread(target=read, args=(fd, seed)) for seed, fd in enumerate(fds)]
    for reader in readers:
        reader.start()
    for _ in range(3):
        victims = workers_of(mounted.pid)
        for pid in victims:
            kill(pid, signal.SIGKILL)
        until(lambda victims=victims: not set(victims) & set(workers_of(mounted.pid)))
    for reader in readers:
        reader.join(WAIT_S)
        assert not reader.is_alive()
    assert wrong == []


@ON_ALL
def test_cold_read_blocks_nobody(mounts: Mounts, proxy: FakeProxy) -> None:
    """While one read waits for its bytes, names, attributes and other files are served."""
    mounts.mount(workers=1)
    came, go = hold_reads(proxy)
    thread, result = read_in_thread(mounts.place / "a")
    assert came.wait(WAIT_S)
    assert (mounts.place / "deep/er/est/f").read_bytes() == b"bottom"
    assert len(os.listdir(mounts.place / "many")) == 5000
    assert thread.is_alive()
    go.set()
    thread.join(WAIT_S)
    assert result == [b"hello"]


def test_proxy_gone_and_back(mounts: Mounts, proxy: FakeProxy) -> None:
    """Without the proxy reads fail with EIO after the time limit; with it back they work again."""
    mounts.mount(read_timeout_s=5.0)
    assert (mounts.place / "a").read_bytes() == b"hello"
    proxy.stop()
    assert (mounts.place / "a").read_bytes() == b"hello"  # the kernel has it
    attempts: list[Callable[[], object]] = [
        (mounts.place / "big").read_bytes,
        lambda: os.listdir(mounts.place / "many"),
        (mounts.place / "never-asked-for").stat,
    ]
    for attempt in attempts:
        with pytest.raises(OSError) as caught:
            attempt()
        assert caught.value.errno == errno.EIO
    proxy.start()

    def works() -> bool:
        with contextlib.suppress(OSError):
            return (mounts.place / "big").read_bytes() == BIG
        return False

    until(works)
    with pytest.raises(FileNotFoundError):
        (mounts.place / "never-asked-for").stat()
    assert "Unavailable" in mounts.log.read_text()


def test_stuck_proxy(mounts: Mounts, proxy: FakeProxy) -> None:
    """A proxy that answers nothing costs EIO after the time limit; unmounting works meanwhile."""
    mounts.mount(read_timeout_s=5.0)
    came, go = hold_reads(proxy, reads=1000)
    with pytest.raises(OSError) as caught:
        (mounts.place / "a").read_bytes()
    assert caught.value.errno == errno.EIO
    came.clear()
    thread, result = read_in_thread(mounts.place / "a")
    assert came.wait(WAIT_S)
    mounter.unmount(str(mounts.place))
    assert mount_table.on_top(str(mounts.place)) is None
    go.set()
    thread.join(WAIT_S)
    assert len(result) == 1


@ON_ALL
def test_proxy_that_lost_its_cache(mounts: Mounts, proxy: FakeProxy) -> None:
    """A proxy that does not know an inode number any more is asked for the names again."""
    mounted = mounts.mount()
    (mounts.place / "deep/er/est/f").stat()
    numbers = [ROOT_INO]
    for name in (b"deep", b"er", b"est", b"f"):
        numbers.append(child_ino(numbers[-1], name))
    lost = set(numbers[1:])
    asked: list[str] = []

    def hook(path: str) -> bytes | None:
        number = int(path.partition("@")[2].split("/")[1]) if "/nodes/" in path else 0
        if path.split("?")[0].endswith("/lookup"):
            asked.append(path)
            lost.discard(child_ino(number, path.rpartition("name=")[2].encode()))
        if number in lost:
            body = b'{"error":"NotFound","message":"unknown inode"}'
            return b"HTTP/1.1 404 No\r\nContent-Length: %d\r\n\r\n" % len(body) + body
        return None

    proxy.hook = hook
    with pytest.raises(OSError) as caught:
        (mounts.place / "deep/er/est/f").read_bytes()
    assert caught.value.errno == errno.ESTALE
    if kernel_since(6, 16) and Feature.INC_EPOCH not in mounts.kernel.without:
        assert (mounts.place / "deep/er/est/f").read_bytes() == b"bottom"
        assert asked
    assert mounted.pid


def lose_all(mounted: Mounted) -> None:
    """Kill a mount's supervisor and all of its workers."""
    before = workers_of(mounted.pid)
    kill(mounted.pid, signal.SIGKILL)
    for pid in before:
        kill(pid, signal.SIGKILL)


@ON_ALL
def test_all_processes_killed(mounts: Mounts) -> None:
    """Without its processes a mount is dead and says so; the next mount takes it away."""
    first = mounts.mount()
    lose_all(first)
    until(lambda: mount_table.is_dead(str(mounts.place)))
    with pytest.raises(OSError) as caught:
        (mounts.place / "big").read_bytes()
    assert caught.value.errno in (errno.ENOTCONN, errno.ECONNABORTED)
    assert [m.pid for m in mounter.list_mounts() if m.mountpoint == str(mounts.place)] == [None]
    second = mounts.mount()
    assert second.pid != first.pid
    assert (mounts.place / "a").read_bytes() == b"hello"
    assert len([m for m in mounter.list_mounts() if m.mountpoint == str(mounts.place)]) == 1


def test_dead_mount_can_be_unmounted(mounts: Mounts) -> None:
    """Unmounting takes a dead mount away too."""
    lose_all(mounts.mount())
    until(lambda: mount_table.is_dead(str(mounts.place)))
    mounter.unmount(str(mounts.place))
    assert mount_table.on_top(str(mounts.place)) is None


@ON_ALL
def test_supervisor_told_to_end(mounts: Mounts) -> None:
    """SIGTERM unmounts."""
    mounted = mounts.mount()
    kill(mounted.pid, signal.SIGTERM)
    mounts.wait_for_end()
    assert mount_table.on_top(str(mounts.place)) is None


def test_a_mount_that_is_stopped_holds_up_no_list(mounts: Mounts) -> None:
    """All processes of a mount are stopped: who lists mounts sees it without a process, in time,
    although the kernel would wait for ever for what is asked of it."""
    mounted = mounts.mount()
    assert mounted.pid is not None
    processes = [*workers_of(mounted.pid), mounted.pid]
    for pid in processes:
        os.kill(pid, signal.SIGSTOP)
    try:
        found = [m for m in mounter.list_mounts() if m.mountpoint == str(mounts.place)]
        assert [m.pid for m in found] == [None]
    finally:
        for pid in processes:
            os.kill(pid, signal.SIGCONT)
    assert (mounts.place / "a").read_bytes() == b"hello"
