"""The mount helper: mounts for a program with threads, whatever hangs or is killed."""

from __future__ import annotations

import errno
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from threading import Thread
from typing import NoReturn

import pytest

import lodefs
from lodefs.chunkstore import python_process
from lodefs.chunkstore.errors import DeadlineExceeded, InUse, LodefsError, Unavailable
from lodefs.mount.helper import helper_client as nurseries
from lodefs.mount.helper import helper_requests
from lodefs.mount.helper.helper_client import MountHelper
from lodefs.mount.mount_spec import TakeOver
from lodefs.mount.process import control_socket, mounter, process_scan
from lodefs.mount.shm.traffic_counters import Traffic
from tests.support.mount.fake_proxy import FakeProxy
from tests.support.mount.mounts import WAIT_S, alive, hold_reads, until, workers_of
from tests.support.mount.places import Places, processes_of

pytestmark = [pytest.mark.fuse, pytest.mark.slow]

MANY = 16
END_TIMEOUT_S = 0.2  # for the processes of a mount that is gone


def children() -> set[int]:
    """The processes that this thread has started and not reaped."""
    return set(map(int, Path("/proc/thread-self/children").read_text().split()))


def open_fds(pid: int) -> list[str]:
    """What descriptors beyond the standard ones a process has."""
    found = []
    for fd in os.listdir(f"/proc/{pid}/fd"):
        with suppress(FileNotFoundError):  # the one that listed them
            if int(fd) > 2:
                found.append(os.readlink(f"/proc/{pid}/fd/{fd}"))
    return found


def test_mounts_side_by_side(helper: MountHelper, places: Places) -> None:
    """Many orders at once are all done, and when all is unmounted no process and no descriptor is
    left."""
    before = set(open_fds(os.getpid()))
    given = [places.new(str(n)) for n in range(MANY)]
    with ThreadPoolExecutor(MANY) as pool:
        for _ in pool.map(lambda place: helper.run(places.mount(place), WAIT_S), given):
            pass
        assert len(places.mounted()) == MANY
        assert all(os.listdir(place) for place in given)
        for _ in pool.map(lambda place: helper.run(helper_requests.Unmount(place), WAIT_S), given):
            pass
    assert places.mounted() == []
    until(lambda: not places.processes())
    until(lambda: len(open_fds(helper.pid)) == 1)  # its socket
    # this test looks at pidfds, and its proxy's threads see the ends of their connections
    until(lambda: all("pidfd" in name for name in set(open_fds(os.getpid())) - before))


def test_a_late_order_is_taken_back(helper: MountHelper, places: Places, proxy: FakeProxy) -> None:
    """Whose time is up while the mount is half made finds nothing mounted, soon after it was
    told."""
    place, short_s = places.new("place"), places.short_s(helper)
    came, go = hold_reads(proxy, reads=100, where="/children")
    with pytest.raises(DeadlineExceeded):
        helper.run(places.mount(place), short_s)
    assert came.is_set()
    until(lambda: not places.mounted())
    until(lambda: not places.processes())
    go.set()
    helper.run(places.mount(place), WAIT_S)
    assert (Path(place) / "a").read_bytes() == b"hello"


def test_a_late_order_touches_no_mount_of_others(
    helper: MountHelper, places: Places, proxy: FakeProxy
) -> None:
    """A mount that was there before an order that comes too late stays."""
    place = places.new("place")
    helper.run(places.mount(place), WAIT_S)
    there = places.mounted()
    for timeout_s in (0.0, 0.001, 0.002, 0.004, 0.008):
        with pytest.raises((DeadlineExceeded, InUse)):
            helper.run(places.mount(place), timeout_s)
    assert places.mounted() == there
    assert (Path(place) / "a").read_bytes() == b"hello"


def test_a_proxy_that_is_silent(helper: MountHelper, places: Places, proxy: FakeProxy) -> None:
    """An order ends in time where nothing was begun, and others are done meanwhile."""
    silent, other = places.new("silent"), places.new("other")
    short_s = places.short_s(helper)
    came, go = hold_reads(proxy, where="/snapshots")
    failed: list[LodefsError] = []

    def run() -> None:
        try:
            helper.run(places.mount(silent), short_s)
        except LodefsError as error:
            failed.append(error)

    late = Thread(target=run)
    late.start()
    assert came.wait(WAIT_S)
    helper.run(places.mount(other), WAIT_S)
    late.join(WAIT_S)
    go.set()
    assert [type(error) for error in failed] == [DeadlineExceeded]
    assert [found.mountpoint for found in places.mounted()] == [other]


def test_a_child_that_cannot_be_killed(
    helper: MountHelper, places: Places, proxy: FakeProxy
) -> None:
    """A caller is told that the time is up although the child does not end, and the mount helper
    goes on."""
    place, short_s, pid = places.new("place"), places.short_s(helper), helper.pid
    until(lambda: not workers_of(pid))
    came, go = hold_reads(proxy, where="/snapshots")
    with ThreadPoolExecutor(1) as pool:
        late = pool.submit(helper.run, places.mount(place), short_s)
        assert came.wait(WAIT_S)
        [child] = workers_of(pid)
        os.kill(child, signal.SIGSTOP)  # no timer ends it now
        with pytest.raises(DeadlineExceeded, match="hangs"):
            late.result(WAIT_S)
    helper.run(places.mount(place), WAIT_S)
    assert helper.pid == pid
    until(lambda: not alive(child))  # although it is stopped
    go.set()
    assert (Path(place) / "a").read_bytes() == b"hello"


def test_the_helper_is_killed(helper: MountHelper, places: Places) -> None:
    """Another takes its place; mounts stay."""
    first, second = places.new("first"), places.new("second")
    helper.run(places.mount(first), WAIT_S)
    killed = helper.pid
    os.kill(killed, signal.SIGKILL)
    helper.run(places.mount(second), WAIT_S)
    assert helper.pid != killed
    assert (Path(first) / "a").read_bytes() == (Path(second) / "a").read_bytes()
    for place in (first, second):
        helper.run(helper_requests.Unmount(place), WAIT_S)
    until(lambda: not places.processes())
    assert not alive(killed)


def test_killed_again_and_again(helper: MountHelper, places: Places) -> None:
    """Orders that are under way when it is killed are done, or fail with an error of ours."""
    given = [places.new(str(n)) for n in range(MANY)]
    done: list[str] = []

    def run(place: str) -> None:
        try:
            helper.run(places.mount(place), WAIT_S)
            done.append(place)
        except LodefsError:
            return

    threads = [Thread(target=run, args=(place,)) for place in given]
    for n, thread in enumerate(threads):
        thread.start()
        if n % 5 == 4 and helper.pid:
            os.kill(helper.pid, signal.SIGKILL)
    for thread in threads:
        thread.join(WAIT_S)
    assert done
    assert {found.mountpoint for found in places.mounted()} >= set(done)
    for place in given:
        helper.run(helper_requests.Unmount(place), WAIT_S)
    until(lambda: not places.processes())


def test_the_helper_hangs(
    helper: MountHelper, places: Places, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that takes no orders is killed, and the next order is done by another."""
    monkeypatch.setattr(nurseries, "MARGIN_S", 0.1)
    place = places.new("place")
    hung = helper.pid
    os.kill(hung, signal.SIGSTOP)
    with pytest.raises(DeadlineExceeded):
        helper.run(places.mount(place), 0.2)
    helper.run(places.mount(place), WAIT_S)
    assert helper.pid != hung
    assert not alive(hung)


def test_calls_end_in_time_while_the_helper_hangs(helper: MountHelper) -> None:
    """However many threads give orders to one that takes none, each is told that its time is up."""
    gone, hung = "/no/such/place", helper.pid
    os.kill(hung, signal.SIGSTOP)
    process = helper._process
    assert process is not None
    with suppress(BlockingIOError):  # no room for another order
        while True:
            socket.send_fds(process.control, [b"x" * 1000], [0], socket.MSG_DONTWAIT)

    def run(_n: int) -> None:
        with pytest.raises(DeadlineExceeded):
            helper.run(helper_requests.Look(gone), 0.5)

    with ThreadPoolExecutor(MANY) as pool:
        asked = [pool.submit(run, n) for n in range(MANY)]
        for one in asked:
            one.result(WAIT_S)
    os.kill(hung, signal.SIGKILL)
    assert not helper.run(helper_requests.Look(gone), WAIT_S).is_dead


@pytest.mark.parametrize("at_start", [False, True])
def test_no_descriptors(
    helper: MountHelper, monkeypatch: pytest.MonkeyPatch, *, at_start: bool
) -> None:
    """Where no descriptor is left, an order fails with an error of ours, and nothing leaks."""

    def none(*_given: object) -> NoReturn:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    before, others = len(open_fds(os.getpid())), children()
    with monkeypatch.context() as patched:
        if at_start:
            os.kill(helper.pid, signal.SIGKILL)
            patched.setattr(os, "pidfd_open", none)
        else:
            patched.setattr(socket, "socketpair", none)
        with pytest.raises(Unavailable, match="Too many open files"):
            helper.run(helper_requests.Look("/no/such/place"), WAIT_S)
        assert not any(map(alive, children() - others))
    assert len(open_fds(os.getpid())) <= before
    helper.run(helper_requests.Look("/no/such/place"), WAIT_S)


def test_stopped_processes(helper: MountHelper, places: Places) -> None:
    """A mount whose processes are all stopped is unmounted at once; they are killed then."""
    place = places.new("place")
    helper.run(places.mount(place), WAIT_S)
    [found] = places.mounted()
    processes = processes_of(found)
    assert len(processes) == 3  # a supervisor, two workers
    for pid in processes:
        os.kill(pid, signal.SIGSTOP)
    helper.run(helper_requests.Unmount(place, END_TIMEOUT_S), WAIT_S)
    assert places.mounted() == []
    until(lambda: not places.processes())


def test_a_mount_in_use_elsewhere(helper: MountHelper, places: Places) -> None:
    """Another mount namespace that has the mount reads on after it was unmounted here."""
    place, other = places.new("place"), places.new("other")
    helper.run(places.mount(place), WAIT_S)
    [found] = places.mounted()
    assert process_scan.showing({found.device: place}) == {}
    script = 'mount --bind "$0" "$1" && umount "$0" && echo && read x && cat "$1/a"'
    with subprocess.Popen(
        ["unshare", "-m", "--propagation", "private", "sh", "-c", script, place, other],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as container:
        assert container.stdout is not None
        assert container.stdout.readline() == "\n"
        assert process_scan.showing({found.device: place}) == {found.device: {0}}
        helper.run(helper_requests.Unmount(place, END_TIMEOUT_S), WAIT_S)
        until(lambda: len(open_fds(helper.pid)) == 1)  # whoever sees to the end is done
        assert places.processes() == 3
        printed, _ = container.communicate("\n", timeout=WAIT_S)
    assert printed == "hello"
    until(lambda: not places.processes())


def test_only_its_own_mounts_are_taken_away(helper: MountHelper, places: Places) -> None:
    """What is mounted by others is left alone; a symlink is not followed; nothing is fine."""
    place, link = places.new("place"), Path(places.new("link"))
    helper.run(places.mount(place), WAIT_S)
    link.rmdir()
    link.symlink_to(place)
    helper.run(helper_requests.Unmount(str(link)), WAIT_S)
    assert len(places.mounted()) == 1
    subprocess.run(["mount", "-t", "tmpfs", "none", place], check=True)
    try:
        with pytest.raises(InUse, match="tmpfs"):
            helper.run(helper_requests.Unmount(place), WAIT_S)
    finally:
        subprocess.run(["umount", place], check=True)
    for _ in range(2):
        helper.run(helper_requests.Unmount(place), WAIT_S)
    assert places.mounted() == []


CHANGED = """
import os, sys, time
from lodefs.mount.helper import helper_process as forkserver, helper_requests as orders
{}
forkserver.main()
"""
SLOW_TAKE_BACK = """
from lodefs.mount.process import daemon
take_away = daemon._take_away
def slow(*given, **more):
    for _ in range(6000):
        if os.path.exists({go!r}):
            break
        time.sleep(0.01)
    take_away(*given, **more)
daemon._take_away = slow
forkserver.KILL_S = 60.0
"""


@contextmanager
def changed(monkeypatch: pytest.MonkeyPatch, script: str) -> Iterator[MountHelper]:
    """A mount helper in whose process ``script`` was run."""
    program = CHANGED.format(script)
    command = [sys.executable, "-c", program]
    with monkeypatch.context() as patched:
        patched.setattr(python_process, "command", lambda _module, *fd: [*command, *fd])
        with MountHelper() as made:
            yield made


def test_the_next_mount_where_one_is_taken_back(
    monkeypatch: pytest.MonkeyPatch, places: Places, proxy: FakeProxy, tmp_path: Path
) -> None:
    """It is made when that is done, also where the first caller was told before, and it stays."""
    place, other, take_back = places.new("place"), places.new("other"), tmp_path / "take-back"
    with changed(monkeypatch, SLOW_TAKE_BACK.format(go=str(take_back))) as helper:
        take_back.touch()
        short_s = places.short_s(helper)
        take_back.unlink()
        came, go = hold_reads(proxy, reads=100, where="/children")
        with pytest.raises(DeadlineExceeded):
            helper.run(places.mount(place), short_s)
        assert came.is_set()
        with pytest.raises(DeadlineExceeded, match="being undone"):
            helper.run(places.mount(place), 0.1)
        helper.run(helper_requests.Look(other), WAIT_S)
        take_back.touch()
        go.set()
        helper.run(places.mount(place), WAIT_S)
        [found] = places.mounted()
        until(lambda: workers_of(helper.pid) == processes_of(found)[:1])
        assert (Path(place) / "a").read_bytes() == b"hello"


def test_a_full_helper(monkeypatch: pytest.MonkeyPatch, places: Places, proxy: FakeProxy) -> None:
    """Whose order finds no room in time is told so, and the others are done."""
    held, place = places.new("held"), places.new("place")
    came, go = hold_reads(proxy, where="/snapshots")
    full = changed(monkeypatch, "forkserver.CHILDREN_MAX = 1")
    with full as helper, ThreadPoolExecutor(1) as pool:
        pid = helper.pid
        first = pool.submit(helper.run, places.mount(held), WAIT_S)
        assert came.wait(WAIT_S)
        with pytest.raises(DeadlineExceeded, match="too much"):
            helper.run(places.mount(place), 0.1)
        go.set()
        helper.run(places.mount(place), WAIT_S)
        first.result(WAIT_S)
        assert helper.pid == pid


def test_unmounted_mounts_that_are_held_take_no_room(
    monkeypatch: pytest.MonkeyPatch, places: Places
) -> None:
    """While a child still waits for the end of an unmounted mount, orders are done."""
    place, other = places.new("place"), places.new("other")
    with changed(monkeypatch, "forkserver.CHILDREN_MAX = 1") as helper:
        helper.run(places.mount(place), WAIT_S)
        file = os.open(f"{place}/a", os.O_RDONLY)
        try:
            places.mounted()
            helper.run(helper_requests.Unmount(place, 10 * WAIT_S), WAIT_S)
            helper.run(places.mount(other), WAIT_S)
        finally:
            os.close(file)


COUNTED_WAITS = """
wait = orders.processes.are_over
def counted(*given):
    with open({waits!r}, "a") as file:
        file.write("w")
    return wait(*given)
orders.processes.are_over = counted
"""


def test_nobody_waits_for_a_mount_that_is_held(
    monkeypatch: pytest.MonkeyPatch, places: Places, tmp_path: Path
) -> None:
    """After an unmount, the end of a mount that somebody holds is waited for once."""
    place, waits = places.new("place"), tmp_path / "waits"
    with changed(monkeypatch, COUNTED_WAITS.format(waits=str(waits))) as helper:
        helper.run(places.mount(place), WAIT_S)
        [found] = places.mounted()
        supervisor, *_ = processes_of(found)
        file = os.open(f"{place}/a", os.O_RDONLY)
        try:
            helper.run(helper_requests.Unmount(place, END_TIMEOUT_S), WAIT_S)
            until(lambda: workers_of(helper.pid) == [supervisor])
            assert waits.read_text() == "w"
        finally:
            os.close(file)


def test_before_linux_6_9(monkeypatch: pytest.MonkeyPatch, places: Places) -> None:
    """Where the kernel sends no requests again, a mount says who answers for it and what was read,
    also after the death of a worker, and is not handed over."""
    place = places.new("place")
    imports = "from lodefs.mount.kernel import fuse_abi, session"
    script = f"{imports}\nsession.WANTED &= ~fuse_abi.HAS_RESEND"
    with changed(monkeypatch, script) as helper:
        helper.run(places.mount(place), WAIT_S)
        [found] = places.mounted()
        assert (Path(place) / "a").read_bytes() == b"hello"
        assert mounter.traffic_of(place) == Traffic(cache_bytes=5)
        supervisor, *workers = processes_of(found)
        os.kill(workers[0], signal.SIGKILL)
        until(lambda: len(set(workers_of(supervisor)) - {workers[0]}) == len(workers))
        with pytest.raises(Unavailable, match=r"before Linux 6\.9"):
            helper.run(TakeOver(place), WAIT_S)
        assert (Path(place) / "deep/er/est/f").read_bytes() == b"bottom"
        assert mounter.traffic_of(place) == Traffic(cache_bytes=11)
        helper.run(helper_requests.Unmount(place), WAIT_S)
        until(lambda: not places.processes())
        assert control_socket.find(found.device) is None


OWNER = """
import socket, sys
listener = socket.create_server(("127.0.0.1", 0))
from lodefs.mount.helper.helper_client import MountHelper
helper = MountHelper()
print(helper.pid, flush=True)
sys.stdin.read()
"""


def test_it_ends_with_its_owner() -> None:
    """It holds none of its owner's descriptors, and ends when the owner is killed."""
    with subprocess.Popen(
        [sys.executable, "-c", OWNER],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=os.environ | {"PYTHONPATH": str(Path(lodefs.__file__).parents[1])},
    ) as owner:
        assert owner.stdout is not None
        pid = int(owner.stdout.readline())
        assert alive(pid)
        until(lambda: len(open_fds(pid)) == 1)
        owner.kill()
    until(lambda: not alive(pid))


def test_another_that_cannot_be_started(
    helper: MountHelper, places: Places, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where the mount helper ends at once each time, an order fails instead of waiting."""
    monkeypatch.setattr(sys, "executable", "/bin/false")
    os.kill(helper.pid, signal.SIGKILL)
    with pytest.raises(Unavailable):
        helper.run(places.mount(places.new("place")), WAIT_S)
    monkeypatch.undo()
    helper.run(places.mount(places.new("other")), WAIT_S)
