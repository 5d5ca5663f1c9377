"""What a mount's readers got, by where it came from."""

from __future__ import annotations

import contextlib
import fcntl
import os
import random
import struct
import subprocess
from collections.abc import Iterator
from pathlib import Path
from threading import Thread

import msgspec
import pytest

from lodefs.chunkstore.errors import UnknownFormat
from lodefs.chunkstore.protocol.figures import figure_files
from lodefs.chunkstore.protocol.figures.figure_files import directory_of
from lodefs.chunkstore.protocol.figures.mount_counts import (
    ENDING,
    HEAD_BYTES,
    ROW_WORDS,
    ROWS,
    VERSION,
    Column,
    MountCounts,
    MountDescription,
    Operation,
    Wait,
    decode,
    read_all,
)
from lodefs.chunkstore.protocol.read_client import WaitTimes
from lodefs.chunkstore.protocol.wire import ORIGIN_HEADER
from lodefs.mount.process.mounter import traffic_of, unmount
from lodefs.mount.shm import traffic_counters
from lodefs.mount.shm.process_table import SLOTS
from lodefs.mount.shm.traffic_counters import Traffic, TrafficTable
from tests.support.chunkstore.child_process import private_directory
from tests.support.mount.mounts import Mounts, read_anew, until
from tests.support.proxy.rig import MIB, REPO, Rig, serve_rig

FILES = {
    b"large": random.Random(1).randbytes(3 * MIB + 5),
    **{b"small/%d" % n: random.Random(n).randbytes(10_000) for n in range(20)},
}
TOTAL_BYTES = sum(map(len, FILES.values()))


SAID = MountDescription(b"/mnt/\xff", "demo", "c" * 64, "1.0", 7.5)


def test_rows_add_up() -> None:
    """Every process counts in its own row, with all its threads; the sum is of all rows."""
    fd = TrafficTable.create(SAID)
    first, last = TrafficTable(fd).counter(3), TrafficTable(fd).counter(ROWS - 1)
    threads = [
        Thread(target=lambda: [first.read(Column.DIRECT_READS, 2) for _ in range(1000)])
        for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    last.add(Column.STORE_BYTES, 1 << 40)
    last.add(Column.KERNEL_OPENS, 1)
    TrafficTable(fd).counter(SLOTS - 1).add(Column.KERNEL_OPENS, 1)  # has no row
    table = TrafficTable(fd)
    assert table.total() == Traffic(cache_bytes=8000, store_bytes=1 << 40, kernel_opens=1)
    assert table.counts()[Column.DIRECT_READS] == 4000
    os.close(fd)


def test_waiting_is_told_by_layer() -> None:
    """What the proxy brought is waited for where it came from; what is left is the mount's own."""
    fd = TrafficTable.create(SAID)
    counter = TrafficTable(fd).counter(1)
    for _ in range(2):
        counter.answered(Operation.READ, 3 * 10**9)
    counter.failed(Operation.READ)
    counter.brought(b"store", 100)
    waited = WaitTimes()
    for origin, elapsed_s in ((b"store", 2.0), (b"peers", 1.0), (b"", 0.5)):
        waited.for_proxy(origin, elapsed_s)
    waited.for_disk(1.0)
    assert waited.is_any
    counter.waited(waited)
    counter.add(Column.WAITING, 2)
    found = TrafficTable(fd).counts()
    assert found.waiting == Wait(2.0, 1.0, 0.5, 1.0, 1.5)
    assert found.requests(Operation.READ) == (2, 6.0, 1)
    assert (found[Column.STORE_READS], found[Column.STORE_BYTES]) == (1, 100)
    assert (found[Column.CACHE_READS], found[Column.WAITING]) == (0, 2)
    counter.add(Column.WAITING, -1)
    TrafficTable(fd).counter(1).begin()
    assert TrafficTable(fd).counts()[Column.WAITING] == 0
    os.close(fd)


def test_rows_begin_apart() -> None:
    """Each row is noted by a byte of its own, so that of processes that begin together none undoes
    what another has noted."""
    fd = TrafficTable.create(SAID)
    before = os.pread(fd, HEAD_BYTES, 0)
    changed: list[list[int]] = []
    for slot in (7, 2, ROWS - 1):
        os.pwrite(fd, before, 0)
        TrafficTable(fd).counter(slot).add(Column.RESENDS, 1)
        after = os.pread(fd, HEAD_BYTES, 0)
        changed.append([at for at in range(HEAD_BYTES) if before[at] != after[at]])
        assert TrafficTable(fd).counts()[Column.RESENDS] >= 1
    assert [len(places) for places in changed] == [1, 1, 1]
    assert len({places[0] for places in changed}) == 3
    os.close(fd)


def test_a_table_of_an_older_form() -> None:
    """It is known by its version, and nothing is asked of it."""
    fd = TrafficTable.create(SAID)
    assert TrafficTable(fd).is_known
    os.pwrite(fd, struct.pack("=I", VERSION - 1), 8)
    assert not TrafficTable(fd).is_known
    with pytest.raises(UnknownFormat):
        TrafficTable(fd).counts()
    os.close(fd)


def test_files_are_seen_while_their_mount_lives(tmp_path: Path) -> None:
    """A mount's file is read by others until the last who has it ends, then it is swept."""
    fd = TrafficTable.create(SAID, tmp_path)
    TrafficTable(fd).counter(2).add(Column.RESENDS, 5)
    kept = os.dup(fd)  # as a child has it
    os.close(fd)
    (found,) = read_all(tmp_path, sweep=True)
    assert (found.description, found.uid, found[Column.RESENDS]) == (SAID, os.geteuid(), 5)
    os.close(kept)
    assert list(read_all(tmp_path)) == []
    assert len(list(tmp_path.iterdir())) == 1
    fd = TrafficTable.create(SAID, tmp_path)
    assert [path.suffix for path in tmp_path.iterdir()] == [ENDING]  # the other was swept
    os.close(fd)


def test_other_files_are_left_alone(tmp_path: Path) -> None:
    """What is no file of counts harms no reader: rubbish, links, pipes, directories, cut files."""
    fd = TrafficTable.create(SAID, tmp_path)
    (mine,) = tmp_path.iterdir()
    whole = mine.read_bytes()
    held = []
    for name, data in (("rubbish", b"x" * 99), ("other", b"lodefsMC" + b"\xff" * 9000)):
        path = tmp_path / f"{name}{ENDING}"
        path.write_bytes(data)
        held.append(os.open(path, os.O_RDONLY))
        fcntl.flock(held[-1], fcntl.LOCK_SH)
    (tmp_path / f"link{ENDING}").symlink_to(mine)
    os.mkfifo(tmp_path / f"pipe{ENDING}")
    (tmp_path / f"dir{ENDING}").mkdir()
    assert [one.description for one in read_all(tmp_path, sweep=True)] == [SAID]
    assert len(list(tmp_path.iterdir())) == 6
    for size in (0, 10, 40, 8191, 8192, 8193, 9000):
        with contextlib.suppress(UnknownFormat):
            assert decode(whole[:size]).description == SAID
    for one in (*held, fd):
        os.close(one)
    assert list(read_all(tmp_path / "missing")) == []
    nameless = TrafficTable.create(SAID, tmp_path / "missing")
    assert TrafficTable(nameless).counts().description == SAID
    os.close(nameless)


def held_file(directory: Path, name: str, data: bytes) -> int:
    """A file as a living mount has it, made by somebody else."""
    fd = os.open(directory / f"{name}{ENDING}", os.O_RDWR | os.O_CREAT)
    os.write(fd, data)
    fcntl.flock(fd, fcntl.LOCK_SH)
    return fd


@pytest.mark.parametrize(
    "info",
    [
        msgspec.msgpack.encode(MountDescription(b"/", "demo", "c", "1", 0.0)).replace(
            b"demo", b"d\xff\xfeo"
        ),
        b"\x91" * 7000 + b"\xc0",
        b"\x81\xa1x" + b"\x91" * 7000,
    ],
    ids=["no UTF-8", "nested", "nested in a map"],
)
def test_a_hostile_description_hides_no_mount(tmp_path: Path, info: bytes) -> None:
    """A description that cannot be decoded is left out, and mounts go on to be made and read."""
    head = struct.pack("=8sIIII", b"lodefsMC", VERSION, ROWS, ROW_WORDS, len(info)) + info
    head = head.ljust(HEAD_BYTES, b"\0")
    with pytest.raises(UnknownFormat):
        decode(head)
    held = held_file(tmp_path, "0", head)
    fd = TrafficTable.create(SAID, tmp_path)
    assert [one.description for one in read_all(tmp_path, sweep=True)] == [SAID]
    os.close(held)
    os.close(fd)


def test_no_failing_sweep_stops_a_mount(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What others left in the directory is nothing that a new mount depends on."""

    def failing(*_: object, **__: object) -> Iterator[MountCounts]:
        raise ValueError("unforeseen")

    monkeypatch.setattr(traffic_counters, "read_all", failing)
    fd = TrafficTable.create(SAID, tmp_path)
    assert [one.description for one in read_all(tmp_path)] == [SAID]
    os.close(fd)


@pytest.mark.skipif(os.geteuid() != 0, reason="mounts as root")
def test_what_is_mounted_over_a_file_is_not_asked(tmp_path: Path) -> None:
    """A file system over a file of the directory, which may never answer, is passed by; the file
    of counts that lies in it is not read."""
    first = TrafficTable.create(SAID, tmp_path)
    other = tmp_path / f"0{ENDING}"
    other.touch()
    elsewhere = TrafficTable.create(MountDescription(b"/x", "other", "c", "1", 0.0), tmp_path)
    (source,) = {
        path for path in tmp_path.iterdir() if os.fstat(elsewhere).st_ino == path.stat().st_ino
    }
    hidden = source.rename(tmp_path / "hidden")
    other.touch()
    subprocess.run(["mount", "--bind", str(hidden), str(other)], check=True, timeout=60)
    try:
        assert [one.description for one in read_all(tmp_path)] == [SAID]
    finally:
        subprocess.run(["umount", str(other)], check=True, timeout=60)
    os.close(first)
    os.close(elsewhere)


@pytest.mark.skipif(os.geteuid() != 0, reason="makes files of another user")
def test_many_files_of_one_user_hide_no_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The limit counts for each user: who makes many files hides but his own."""
    monkeypatch.setattr(figure_files, "FILES_MAX", 3)
    mine = TrafficTable.create(SAID, tmp_path)
    (whole,) = (path.read_bytes() for path in tmp_path.iterdir())
    held = [held_file(tmp_path, f"0{n}", whole) for n in range(5)]
    for fd in held:
        os.fchown(fd, 12345, -1)
    assert [one.uid for one in read_all(tmp_path)] == [12345, 12345, 12345, 0]
    for fd in (*held, mine):
        os.close(fd)


@pytest.mark.skipif(os.geteuid() != 0, reason="makes files of another user")
def test_more_names_than_are_looked_at_hide_nobody_for_long(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Names that sort first, in files that are held, of one user: the others are seen after a few
    sweeps, each of which looks at no more names than the limit."""
    monkeypatch.setattr(figure_files, "FILES_MAX", 3)
    monkeypatch.setattr(figure_files, "NAMES_MAX", 20)
    looked: list[str] = []
    path_of = figure_files._path
    monkeypatch.setattr(
        figure_files, "_path", lambda place, name: looked.append(name) or path_of(place, name)
    )
    mine = TrafficTable.create(SAID, tmp_path)
    (whole,) = (path.read_bytes() for path in tmp_path.iterdir())
    held = [held_file(tmp_path, f"!{n:03}", whole) for n in range(100)]
    for fd in held:
        os.fchown(fd, 12345, -1)
    for _ in range(8):
        looked.clear()
        found = [one.uid for one in read_all(tmp_path, sweep=True)]
        assert len(looked) <= 20
        assert found.count(12345) <= 3
    assert 0 in found
    for fd in (*held, mine):
        os.close(fd)


def read_whole(mounts: Mounts) -> None:
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
            figures = directory_of(proxy.socket_path)
            figures.mkdir()
            try:
                mounts.mount(repo=REPO, workers=2, passthrough="off")
                assert traffic_of(str(mounts.place)) == Traffic()
                read_whole(mounts)
                cold = traffic_of(str(mounts.place))
                assert cold is not None
                assert cold.store_bytes > 0
                assert cold.store_bytes + cold.cache_bytes >= TOTAL_BYTES
                assert (cold.peers_bytes, cold.kernel_opens) == (0, 0)
                (counts,) = read_all(figures)
                assert os.fsdecode(counts.description.mountpoint) == str(mounts.place)
                reads, spent_s, failed = counts.requests(Operation.READ)
                assert reads >= len(FILES) and spent_s > 0 and not failed
                assert 0 < counts.waiting.store_s <= spent_s + counts.requests(Operation.LIST)[1]
                # a reader has its answer a moment before its request is counted as answered
                until(lambda: [one[Column.WAITING] for one in read_all(figures)] == [0])
                unmount(str(mounts.place))
                mounts.mount(repo=REPO, workers=2, passthrough="off")
                read_whole(mounts)
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
                read_whole(mounts)
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
