"""Mounts whose supervisor is killed, replaced, or both."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from pathlib import Path
from threading import Thread

import pytest

import lodefs
from lodefs.chunkstore.errors import InUse, InvalidInput, LodefsError, Unavailable
from lodefs.mount.kernel import mount_table
from lodefs.mount.process import control_socket, handover, mounter
from lodefs.mount.process.mounter import Mounted
from tests.support.mount.fake_proxy import FakeProxy
from tests.support.mount.kernels import DISTINCT
from tests.support.mount.load import Load
from tests.support.mount.mounts import (
    BIG,
    SAMPLE,
    WAIT_S,
    Mounts,
    alive,
    hold_reads,
    kill,
    read_in_thread,
    until,
    workers_of,
)

pytestmark = [
    pytest.mark.fuse,
    pytest.mark.slow,
]


@pytest.fixture(autouse=True)
def _able(mounts: Mounts) -> None:
    able = mounts.resends or bool(mounts.kernel.without)
    assert able, "only Linux 6.9 and newer sends requests again"


def listed(mounts: Mounts) -> Mounted:
    found = [m for m in mounter.list_mounts() if m.mountpoint == str(mounts.place)]
    assert len(found) == 1
    return found[0]


def socket_of(mounts: Mounts) -> control_socket.Place | None:
    found = mount_table.on_top(str(mounts.place))
    return found and control_socket.find(found.device)


def lose_supervisor(mounts: Mounts, mounted: Mounted) -> list[int]:
    """Kill the supervisor; its workers, which have noticed it."""
    orphans = workers_of(mounted.pid)
    for pid in orphans:
        mounts.watch(pid)
    kill(mounted.pid, signal.SIGKILL)
    until(lambda: not listed(mounts).supervised)
    return orphans


def test_supervisor_killed_under_load(mounts: Mounts) -> None:
    """Workers serve on without it, another takes the mount over, and readers notice nothing."""
    first = mounts.mount()
    with Load(mounts.place / "big", BIG) as load:
        until(load.everyone_read())
        orphans = lose_supervisor(mounts, first)
        assert listed(mounts).pid in orphans
        until(load.everyone_read())
        second = mounts.take_over()
        assert (second.repo, second.commit) == (first.repo, first.commit)
        until(lambda: not any(map(alive, orphans)))
        until(load.everyone_read())
        assert listed(mounts) == second
        for pid in workers_of(second.pid):
            kill(pid, signal.SIGKILL)
        until(load.everyone_read())
    assert load.wrong == []
    assert os.getxattr(mounts.place, mount_table.PID_XATTR) == b"%d" % (second.pid or 0)
    mounter.unmount(str(mounts.place))
    mounts.wait_for_end()


def test_one_killed_after_the_other(mounts: Mounts) -> None:
    """Every supervisor finds the workers of all before it, and in the end none is left."""
    mounted = mounts.mount()
    all_workers: set[int] = set()
    with Load(mounts.place / "big", BIG, readers=2) as load:
        for _ in range(3):
            all_workers |= set(lose_supervisor(mounts, mounted))
            mounted = mounts.take_over()
            until(load.everyone_read())
    assert load.wrong == []
    until(lambda: not any(map(alive, all_workers)))
    assert len(workers_of(mounted.pid)) == mounts.options().worker_count()
    kill(mounted.pid, signal.SIGTERM)
    mounts.wait_for_end()
    assert mount_table.on_top(str(mounts.place)) is None


def test_living_supervisor_is_relieved(mounts: Mounts) -> None:
    """An upgrade: the old supervisor ends without unmounting, and readers notice nothing."""
    first = mounts.mount()
    place = socket_of(mounts)
    with Load(mounts.place / "big", BIG) as load:
        until(load.everyone_read())
        second = mounts.take_over()
        until(load.everyone_read())
    assert load.wrong == []
    pid = first.pid
    assert pid is not None
    until(lambda: not alive(pid))
    assert listed(mounts) == second
    assert socket_of(mounts) == place
    assert "left to another process" in mounts.log.read_text()


def test_requests_in_work_go_over(mounts: Mounts, proxy: FakeProxy) -> None:
    """A read that waited in a worker of the old supervisor comes back right from a new one."""
    mounts.mount()
    came, go = hold_reads(proxy)
    thread, result = read_in_thread(mounts.place / "a")
    assert came.wait(WAIT_S)
    mounts.take_over()
    thread.join(WAIT_S)
    assert result == [b"hello"]
    go.set()


def test_orphans_end_with_the_mount(mounts: Mounts) -> None:
    """Workers without a supervisor end when their mount is taken away, and leave no socket."""
    orphans = lose_supervisor(mounts, mounts.mount())
    place = socket_of(mounts)
    assert place is not None
    with pytest.raises(InUse, match="--take-over"):
        mounts.mount()
    assert not mounter.unmount(str(mounts.place)).lazy
    until(lambda: not any(map(alive, orphans)))
    assert not place.path.exists()


def test_orphans_end_with_a_mount_in_use(mounts: Mounts) -> None:
    """Nor do they go before the last user of a mount that is out of sight."""
    orphans = lose_supervisor(mounts, mounts.mount())
    fd = os.open(mounts.place / "big", os.O_RDONLY)
    assert mounter.unmount(str(mounts.place)).lazy
    assert os.pread(fd, 1000, 4_000_000) == BIG[4_000_000:4_001_000]
    os.close(fd)
    until(lambda: not any(map(alive, orphans)))


def test_one_of_two_orphans_is_lost(mounts: Mounts, proxy: FakeProxy) -> None:
    """Also without a supervisor the requests of a worker that dies go to those that are left."""
    mounted = mounts.mount(workers=2)
    came, go = hold_reads(proxy)
    thread, result = read_in_thread(mounts.place / "a")
    assert came.wait(WAIT_S)
    orphans = lose_supervisor(mounts, mounted)
    # It is not known which has the request; the other is told twice then, which harms nobody.
    kill(orphans[0], signal.SIGKILL)
    until(lambda: not alive(orphans[0]))
    until(lambda: listed(mounts).pid == orphans[1])
    go.set()
    thread.join(WAIT_S)
    assert result == [b"hello"]


def test_the_loss_is_told(mounts: Mounts) -> None:
    """Workers say in the log that they have lost their supervisor, and what to do."""
    lose_supervisor(mounts, mounts.mount())
    until(lambda: "--take-over" in mounts.log.read_text())


def test_what_cannot_be_taken_over(mounts: Mounts, tmp_path: Path) -> None:
    """Nothing mounted, something else mounted, and a dead mount are told apart."""
    with pytest.raises(InvalidInput, match="no lodefs mount"):
        mounter.take_over(str(mounts.place))
    subprocess.run(["mount", "-t", "tmpfs", "none", str(mounts.place)], check=True, timeout=WAIT_S)
    try:
        with pytest.raises(InvalidInput, match="no lodefs mount"):
            mounter.take_over(str(mounts.place))
    finally:
        subprocess.run(["umount", str(mounts.place)], check=True, timeout=WAIT_S)
    mounted = mounts.mount()
    for pid in [mounted.pid, *workers_of(mounted.pid)]:
        kill(pid, signal.SIGKILL)
    until(lambda: mount_table.is_dead(str(mounts.place)))
    with pytest.raises(InvalidInput, match="mounts again"):
        mounter.take_over(str(mounts.place))


@pytest.mark.parametrize("kernel", DISTINCT, indirect=True)
def test_without_resend_there_is_no_taking_over(mounts: Mounts) -> None:
    """Where the kernel does not send requests again, who asks is told so, and the mount stays as
    it is; its workers end with its supervisor, and then it is dead and is mounted anew."""
    mounted = mounts.mount()
    with pytest.raises(Unavailable, match=r"before Linux 6\.9"):
        mounts.take_over()
    assert listed(mounts) == mounted
    assert (mounts.place / "big").read_bytes() == BIG
    workers = workers_of(mounted.pid)
    kill(mounted.pid, signal.SIGKILL)
    until(lambda: not any(map(alive, workers)))
    until(lambda: mount_table.is_dead(str(mounts.place)))
    with pytest.raises(InvalidInput, match="mounts again"):
        mounts.take_over()
    mounts.mount()
    assert (mounts.place / "a").read_bytes() == b"hello"


def test_twice_at_once(mounts: Mounts) -> None:
    """While one takes a mount over, another is refused; afterwards it may."""
    lose_supervisor(mounts, mounts.mount())
    place = socket_of(mounts)
    assert place is not None
    taken = handover.take(place)
    with pytest.raises(InUse, match="under way"):
        mounts.take_over()
    taken.connection.close()
    taken.unlock()
    taken.resources.close()
    mounts.take_over()
    assert (mounts.place / "a").read_bytes() == b"hello"


def test_many_at_once(mounts: Mounts) -> None:
    """Of many that come at once some are refused and all that are not follow each other."""
    lose_supervisor(mounts, mounts.mount())
    done: list[Mounted | LodefsError] = []

    def attempt() -> None:
        try:
            done.append(mounts.take_over())
        except LodefsError as error:
            done.append(error)

    with Load(mounts.place / "big", BIG, readers=2) as load:
        threads = [Thread(target=attempt) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(2 * WAIT_S)
        until(load.everyone_read())
    assert load.wrong == []
    winners = [one for one in done if isinstance(one, Mounted)]
    assert len(done) == 4
    assert winners
    assert all(isinstance(one, InUse) for one in done if not isinstance(one, Mounted)), done
    until(lambda: sum(alive(winner.pid or 0) for winner in winners) == 1)
    assert listed(mounts) in winners


def test_a_taker_that_fails_leaves_all_as_it_was(mounts: Mounts) -> None:
    """A supervisor that gave its descriptors stays until the taker says that it has begun."""
    mounted = mounts.mount()
    place = socket_of(mounts)
    assert place is not None
    taken = handover.take(place)
    assert taken.giver.supervised
    taken.resources.close()
    taken.connection.close()
    taken.unlock()
    assert listed(mounts) == mounted
    second = mounts.take_over()
    assert listed(mounts) == second


KILLED_TAKER = """
import os, signal, socket, sys
from pathlib import Path
from lodefs.mount.process import daemon, handover, startup
from lodefs.mount.mount_spec import TakeOver
def die(_taken):
    Path(sys.argv[3]).write_text(Path("/proc/thread-self/children").read_text())
    os.kill(os.getpid(), signal.SIGKILL)
handover.Taken.confirm = die
requester = startup.Requester(socket.socket(fileno=int(sys.argv[2])), startup.new_done_fd())
daemon.run(TakeOver(sys.argv[1]), requester)
"""


def test_a_taker_that_is_killed_halfway_leaves_all_as_it_was(
    mounts: Mounts, tmp_path: Path
) -> None:
    """Its workers serve already when it is killed: they end, who asked for it sees its end at
    once, and the mount's supervisor stays the only one."""
    mounted = mounts.mount()
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    ours.settimeout(WAIT_S)
    with Load(mounts.place / "big", BIG, readers=2) as load, ours:
        words = [str(mounts.place), str(theirs.fileno()), str(tmp_path / "workers")]
        with theirs:
            taker = subprocess.run(
                [sys.executable, "-c", KILLED_TAKER, *words],
                env=os.environ | {"PYTHONPATH": str(Path(lodefs.__file__).parents[1])},
                timeout=WAIT_S,
                check=False,
                pass_fds=[theirs.fileno()],
            )
        assert taker.returncode == -signal.SIGKILL
        workers = list(map(int, (tmp_path / "workers").read_text().split()))
        assert workers
        assert ours.recv(1) == b""
        until(lambda: not any(map(alive, workers)))
        assert listed(mounts) == mounted
        until(load.everyone_read())
        second = mounts.take_over()
        until(load.everyone_read())
    assert load.wrong == []
    until(lambda: not alive(mounted.pid or 0))
    assert listed(mounts) == second


def test_the_token_goes_over_the_socket_alone(mounts: Mounts) -> None:
    """No process of the new supervisor shows a token, and its requests carry it."""
    with FakeProxy(SAMPLE, token="very-secret") as proxy:
        mounts.mount(proxy=proxy.address, token="very-secret")
        mounted = mounts.take_over()
        assert (mounts.place / "a").read_bytes() == b"hello"
        for pid in [mounted.pid, *workers_of(mounted.pid)]:
            for name in ("cmdline", "environ"):
                assert b"very-secret" not in Path(f"/proc/{pid}/{name}").read_bytes()
        place = socket_of(mounts)
        assert place is not None
        assert place.path.stat().st_mode & 0o077 == 0
        assert place.path.parent.stat().st_mode & 0o077 == 0
        mounter.unmount(str(mounts.place))
