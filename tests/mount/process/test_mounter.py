"""Mounting and unmounting through the real kernel."""

from __future__ import annotations

import errno
import os
import select
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import NoReturn

import pytest

import lodefs
from lodefs.chunkstore.errors import Denied, InUse, InvalidInput, NotFound, Unavailable
from lodefs.chunkstore.system import libc
from lodefs.mount.kernel import device, mount_syscalls, mount_table, mountpoints
from lodefs.mount.mount_spec import Reply
from lodefs.mount.process import daemon, mount_target, mounter, process_scan, spawn
from tests.support.mount.fake_proxy import FakeProxy
from tests.support.mount.mounts import (
    BIG,
    SAMPLE,
    WAIT_S,
    Mounts,
    hold_reads,
    in_child,
    until,
    workers_of,
)

pytestmark = [pytest.mark.fuse, pytest.mark.slow]


def test_table_and_unmount(mounts: Mounts) -> None:
    """A mount is listed with what it is of and its process, which ends when it is unmounted."""
    mounted = mounts.mount()
    assert mounted in mounter.list_mounts()
    assert mounted.commit == SAMPLE.snapshot.commit
    assert not mounter.unmount(str(mounts.place)).lazy
    mounts.wait_for_end()
    assert mounted not in mounter.list_mounts()
    assert os.listdir(mounts.place) == []
    with pytest.raises(InvalidInput, match="no lodefs mount"):
        mounter.unmount(str(mounts.place))
    with pytest.raises(InvalidInput, match="no lodefs mount"):
        mounter.unmount("/")


def test_what_reads_the_cache_is_loaded_before_the_first_read(mounts: Mounts) -> None:
    """Workers inherit it, and do not load it while the first reads wait for them."""
    mounted = mounts.mount()
    assert "rocksdict" in Path(f"/proc/{mounted.pid}/maps").read_text()


def test_a_dataset_leads_root_nowhere(mounts: Mounts) -> None:
    """Who pushed it, or who serves a file system of their own, says that its directories are
    root's, and made the symlinks in them."""
    if os.geteuid() != 0:
        pytest.skip("others have no more rights than who made the symlink")
    mounts.mount()
    assert os.stat(mounts.place).st_uid == 0
    for path in ("out", "link", "out/below"):
        with pytest.raises(InvalidInput, match="others than root can change the symlink"):
            mountpoints.real(f"{mounts.place}/{path}")
    mounter.unmount(str(mounts.place))


def test_unmount_while_in_use(mounts: Mounts) -> None:
    """A mount that is in use goes out of sight, and its user can read on until the end."""
    mounts.mount()
    fd = os.open(mounts.place / "big", os.O_RDONLY)
    done = mounter.unmount(str(mounts.place))
    assert done.lazy
    assert os.getpid() in [user.pid for user in done.users]
    assert os.listdir(mounts.place) == []
    assert os.pread(fd, 1000, 4_000_000) == BIG[4_000_000:4_001_000]
    os.close(fd)
    mounts.wait_for_end()


def test_unmount_while_another_namespace_has_it(
    mounts: Mounts, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A mount that another mount namespace has, too, is unmounted here at once; it can be read
    there until that namespace ends."""
    monkeypatch.setattr(mounter, "LOOK_S", 0.1)
    mounts.mount()
    command = "echo ready; read go; cat " + str(mounts.place / "a")
    with subprocess.Popen(
        ["unshare", "--mount", "--propagation", "private", "sh", "-c", command],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as other:
        assert other.stdin is not None
        assert other.stdout is not None
        assert other.stdout.readline() == b"ready\n"
        assert mounter.unmount(str(mounts.place), timeout_s=0).lazy
        assert os.listdir(mounts.place) == []
        other.stdin.write(b"go\n")
        other.stdin.close()
        assert other.stdout.read() == b"hello"
    mounts.wait_for_end()


def test_unmount_while_somebody_looks(mounts: Mounts, monkeypatch: pytest.MonkeyPatch) -> None:
    """Who uses a mount only while it is taken away, as df does, is no user that it waits for."""
    mounts.mount()
    fd = os.open(mounts.place, os.O_RDONLY)
    detach = mount_syscalls.detach

    def look_away(place: str, *, lazy: bool) -> None:
        detach(place, lazy=lazy)
        if lazy:
            os.close(fd)

    monkeypatch.setattr(mount_syscalls, "detach", look_away)
    monkeypatch.setattr(mounter, "LOOK_S", WAIT_S)
    assert not mounter.unmount(str(mounts.place)).lazy
    mounts.wait_for_end()


def test_token_is_in_no_argument(mounts: Mounts) -> None:
    """A token is sent to the proxy, and neither arguments, environment nor log show it."""
    with FakeProxy(SAMPLE, token="very-secret") as proxy:
        mounted = mounts.mount(proxy=proxy.address, token="very-secret")
        assert (mounts.place / "a").read_bytes() == b"hello"
        for pid in [mounted.pid, *workers_of(mounted.pid)]:
            for name in ("cmdline", "environ"):
                assert b"very-secret" not in Path(f"/proc/{pid}/{name}").read_bytes()
        assert "very-secret" not in mounts.log.read_text()
        assert "very-secret" not in repr(mounts.options(token="very-secret"))
        mounter.unmount(str(mounts.place))


def test_in_the_foreground(mounts: Mounts) -> None:
    """A process can answer for a mount itself, and says when it is ready."""
    script = (
        "import sys; from lodefs.mount.process.mounter import mount_here; "
        "from lodefs.mount.options import MountOptions\n"
        "o = MountOptions(repo='demo', mountpoint=sys.argv[1], proxy=sys.argv[2])\n"
        "mount_here(o, lambda m: print(m.commit, flush=True))\n"
        "print('ended')"
    )
    with subprocess.Popen(
        [sys.executable, "-c", script, str(mounts.place), mounts.options().proxy],
        env=os.environ | {"PYTHONPATH": str(Path(lodefs.__file__).parents[1])},
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline().strip() == SAMPLE.snapshot.commit
        assert (mounts.place / "a").read_bytes() == b"hello"
        process.send_signal(signal.SIGINT)
        assert process.stdout.readline().strip() == "ended"
        assert process.wait(WAIT_S) == 0
    assert mount_table.on_top(str(mounts.place)) is None


def test_in_a_user_namespace(mounts: Mounts) -> None:
    """The root of a user namespace can mount, read and unmount."""
    script = (
        "import os, sys; from lodefs.mount.process import mounter; "
        "from lodefs.mount.options import MountOptions\n"
        "at, proxy, log = sys.argv[1:]\n"
        "mounter.mount(MountOptions(repo='demo', mountpoint=at, proxy=proxy, log_path=log))\n"
        "print(open(at + '/a').read(), len(os.listdir(at + '/many')))\n"
        "print(mounter.unmount(at).lazy, at in [m.mountpoint for m in mounter.list_mounts()])\n"
    )
    prefix = ("unshare", "--user", "--map-root-user", "--mount")
    printed = in_child(
        script, str(mounts.place), mounts.options().proxy, str(mounts.log), prefix=prefix
    )
    assert printed.splitlines() == ["hello 5000", "False False"]


def test_through_the_helper(mounts: Mounts) -> None:
    """fusermount3 mounts with the same type and source, passes the descriptor, and unmounts."""
    source = mount_table.source_of("demo", "ab" * 32, b"with,comma and \\")
    fd = mount_syscalls.attach_by_helper(str(mounts.place), source, allow_other=True)
    try:
        assert device.handshake(fd).minor >= 31
        found = mount_table.on_top(str(mounts.place))
        assert found is not None
        assert (found.is_lodefs, found.source) == (True, source)
    finally:
        os.close(fd)
        mount_syscalls.detach_by_helper(str(mounts.place), lazy=False)
    assert mount_table.on_top(str(mounts.place)) is None


@pytest.mark.parametrize(
    ("script", "timeout_s", "text"),
    [("exec sleep 600", 0.1, "did not end"), ("exit 0", 60.0, "returned no descriptor")],
)
def test_a_helper_that_does_not_help(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str, timeout_s: float, text: str
) -> None:
    """A fusermount3 that hangs, or sends nothing, is Unavailable."""
    helper = tmp_path / "fusermount3"
    helper.write_text(f"#!/bin/sh\n{script}\n")
    helper.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setattr(mount_syscalls, "FUSERMOUNT_TIMEOUT_S", timeout_s)
    with pytest.raises(Unavailable, match=text):
        mount_syscalls.attach_by_helper(str(tmp_path), b"source", allow_other=False)


def test_mount_points_that_are_refused(mounts: Mounts, tmp_path: Path) -> None:
    """A mount point that is missing, full, in use or no directory is named with the way out."""
    with pytest.raises(InvalidInput, match="mkdir -p"):
        mounts.mount(mountpoint=str(tmp_path / "missing"))
    with pytest.raises(InvalidInput, match="not a directory"):
        mounts.mount(mountpoint=str(mounts.log.parent / "proxy.sock"))
    (tmp_path / "full").mkdir()
    (tmp_path / "full/file").touch()
    with pytest.raises(InvalidInput, match="not empty"):
        mounts.mount(mountpoint=str(tmp_path / "full"))
    mounts.mount()
    with pytest.raises(InUse, match="demo@"):
        mounts.mount()
    os.symlink(mounts.place, tmp_path / "link")
    with pytest.raises(InUse, match="demo@"):
        mounts.mount(mountpoint=str(tmp_path / "link"))


def test_what_is_not_there(mounts: Mounts) -> None:
    """Unknown repositories, revisions and paths fail before anything is mounted."""
    for more in ({"repo": "other"}, {"rev": "nobranch"}, {"path": b"deep/none"}):
        with pytest.raises(NotFound):
            mounts.mount(**more)
    with pytest.raises(InvalidInput, match="directories"):
        mounts.mount(path=b"a")
    with pytest.raises(InvalidInput, match=r"\.\."):
        mounts.mount(path=b"deep/../a")
    with pytest.raises(Unavailable):
        mounts.mount(proxy="unix:/nonexistent/proxy.sock", read_timeout_s=0.1)
    assert mount_table.on_top(str(mounts.place)) is None


def test_a_mount_that_cannot_be_read_is_no_success(mounts: Mounts, proxy: FakeProxy) -> None:
    """A root that cannot be read is an error, and nothing stays mounted."""
    body = b'{"error":"Corrupt","message":"bad tree"}'
    answer = b"HTTP/1.1 500 No\r\nContent-Length: %d\r\n\r\n" % len(body) + body
    proxy.hook = lambda path: answer if "/children" in path else None
    with pytest.raises(Unavailable, match="root cannot be read"):
        mounts.mount()
    assert mount_table.on_top(str(mounts.place)) is None
    assert "bad tree" in mounts.log.read_text()


def test_mount_into_nowhere_is_an_error(mounts: Mounts, tmp_path: Path) -> None:
    """A daemon that cannot even begin is reported."""
    with pytest.raises(InvalidInput, match="the log cannot be written"):
        mounts.mount(log_path=str(tmp_path / "no/such/folder/log"))
    assert mount_table.on_top(str(mounts.place)) is None


@pytest.mark.parametrize("fork", ["", "fork"])
def test_mounting_that_is_broken_off(mounts: Mounts, proxy: FakeProxy, fork: str) -> None:
    """A mount whose caller was interrupted or killed before it was ready does not stay."""
    script = (
        "import signal, sys; from lodefs.mount.process import mounter; "
        "from lodefs.mount.options import MountOptions\n"
        "signal.signal(signal.SIGINT, signal.default_int_handler)  # shells ignore it for jobs\n"
        "at, proxy, fork = sys.argv[1:]\n"
        "mounter.mount(MountOptions(repo='demo', mountpoint=at, proxy=proxy), fork=bool(fork))"
    )
    for number in (signal.SIGINT, signal.SIGKILL):
        came, go = hold_reads(proxy, reads=100, where="/children")
        with subprocess.Popen(
            [sys.executable, "-c", script, str(mounts.place), mounts.options().proxy, fork],
            env=os.environ | {"PYTHONPATH": str(Path(lodefs.__file__).parents[1])},
            stderr=subprocess.DEVNULL,
        ) as process:
            assert came.wait(WAIT_S)
            process.send_signal(number)
            assert process.wait(WAIT_S) != 0
        go.set()
        until(lambda: mount_table.on_top(str(mounts.place)) is None)


@pytest.mark.parametrize("fork", ["", "fork"])
def test_a_mount_process_that_is_stopped_is_killed(
    mounts: Mounts, proxy: FakeProxy, fork: str
) -> None:
    """A mount that is interrupted while its processes are stopped leaves nothing."""
    script = (
        "import signal, sys; from lodefs.mount.process import mounter, spawn; "
        "from lodefs.mount.options import MountOptions\n"
        "signal.signal(signal.SIGINT, signal.default_int_handler)  # shells ignore it for jobs\n"
        "at, proxy, log, fork = sys.argv[1:]\n"
        "spawn.CANCEL_TIMEOUT_S = 2.0\n"
        "options = MountOptions(repo='demo', mountpoint=at, proxy=proxy, log_path=log)\n"
        "mounter.mount(options, fork=bool(fork))"
    )
    arguments = [str(mounts.place), mounts.options().proxy, str(mounts.log), fork]
    came, go = hold_reads(proxy, reads=100, where="/children")
    with subprocess.Popen(
        [sys.executable, "-c", script, *arguments],
        env=os.environ | {"PYTHONPATH": str(Path(lodefs.__file__).parents[1])},
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert came.wait(WAIT_S)
        found = mount_table.on_top(str(mounts.place))
        assert found is not None
        makers = process_scan.holders(found.device)
        assert makers
        for pid_fd in makers:
            signal.pidfd_send_signal(pid_fd, signal.SIGSTOP)
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=WAIT_S)
        assert "KeyboardInterrupt" in errors
    go.set()
    for pid_fd in makers:
        assert select.select([pid_fd], [], [], WAIT_S)[0]
        os.close(pid_fd)
    assert mount_table.on_top(str(mounts.place)) is None


def test_who_loses_the_race_leaves_the_winner_alone(
    mounts: Mounts, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A mount that does not get ready in time takes no other away, though it is of the same."""
    start = spawn.start

    def lose(*_words: object, **_more: object) -> Reply:
        monkeypatch.setattr(mounter, "start", start)
        mounts.mount()
        raise Unavailable("it did not get ready in time")

    monkeypatch.setattr(mounter, "start", lose)
    with pytest.raises(Unavailable, match="in time"):
        mounter.mount(mounts.options())
    assert (mounts.place / "a").read_bytes() == b"hello"


@pytest.mark.parametrize("fork", ["", "fork"])
def test_a_reply_that_nobody_reads(mounts: Mounts, fork: str) -> None:
    """A mount that gets ready just when whoever asked for it is interrupted does not stay."""
    script = (
        "import select, sys; from lodefs.mount.process import mounter, spawn as starting; "
        "from lodefs.mount.kernel import mount_table as mounttable\n"
        "from lodefs.mount.options import MountOptions\n"
        "at, proxy, log, fork = sys.argv[1:]\n"
        "def interrupt(channel, *_):\n"
        "    select.select([channel], [], [])\n"
        "    print(mounttable.on_top(at).repo)\n"
        "    raise KeyboardInterrupt\n"
        "starting._receive = interrupt\n"
        "options = MountOptions(repo='demo', mountpoint=at, proxy=proxy, log_path=log)\n"
        "try:\n"
        "    mounter.mount(options, fork=bool(fork))\n"
        "except KeyboardInterrupt:\n"
        "    print(mounttable.on_top(at))\n"
    )
    printed = in_child(script, str(mounts.place), mounts.options().proxy, str(mounts.log), fork)
    assert printed.splitlines() == ["demo", "None"]


BROKEN_OFF = """
import os, select, signal, sys
from lodefs.mount.process import mounter, spawn, startup
from lodefs.mount.kernel import mount_table
from lodefs.mount.options import MountOptions
at, proxy, log, fork, how = sys.argv[1:]
acknowledge, receive, replies = startup.acknowledge, spawn._receive, []
pid_fds = []
def received(*given):
    replies.append(receive(*given))
    pid_fds.append(os.pidfd_open(replies[0].pid))
    return replies[0]
def interrupt(channel):
    print(mount_table.on_top(at).repo)
    if how == "killed":
        os.kill(replies[0].pid, signal.SIGKILL)
        return acknowledge(channel)
    channel.send(startup.ACK)
    raise KeyboardInterrupt
spawn._receive, startup.acknowledge = received, interrupt
options = MountOptions(repo="demo", mountpoint=at, proxy=proxy, log_path=log)
try:
    mounter.mount(options, fork=bool(fork))
except BaseException as error:
    print(type(error).__name__)
print(mount_table.on_top(at))
print(bool(select.select(pid_fds, [], [], 60)[0]))
"""


@pytest.mark.parametrize("fork", ["", "fork"])
@pytest.mark.parametrize("how", ["killed", "interrupted"])
def test_broken_off_before_the_mount_settled(mounts: Mounts, fork: str, how: str) -> None:
    """Nothing stays mounted if the mount process is killed when it is ready, or if the requester is
    interrupted between its acknowledgement and the answer to it."""
    printed = in_child(
        BROKEN_OFF, str(mounts.place), mounts.options().proxy, str(mounts.log), fork, how
    )
    error = "Unavailable" if how == "killed" else "KeyboardInterrupt"
    assert printed.splitlines() == ["demo", error, "None", "True"]


def test_an_error_right_after_mounting_leaves_nothing(
    mounts: Mounts, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who cannot look at what was just mounted takes it away."""
    job = mount_target.resolve(mounts.options())

    def short_of_descriptors(_mountpoint: str) -> None:
        raise OSError(errno.EMFILE, "Too many open files")

    with monkeypatch.context() as patched:
        patched.setattr(mount_table, "on_top", short_of_descriptors)
        with pytest.raises(OSError, match="Too many"):
            daemon.serve(job, print, lambda: None)
    assert mount_table.on_top(str(mounts.place)) is None


@pytest.mark.skipif(os.geteuid() != 0, reason="mounts as another user")
def test_unmount_of_a_users_own_file_system(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that calls itself lodefs', and names a process that it is not, or that does not end:
    root has it unmounted at once."""
    place = Path(os.path.realpath(tmp_path)) / "theirs"
    place.mkdir()
    theirs = subprocess.Popen(["sleep", "1000"], user=61234)
    try:
        for pid in (1, os.getpid(), theirs.pid, 2**31 - 1):
            fd = os.open("/dev/fuse", os.O_RDWR)
            data = f"fd={fd},rootmode=40000,user_id=61234,group_id=0"
            libc.call("mount", b"a@b", os.fsencode(place), b"fuse.lodefs", 6, data.encode())
            monkeypatch.setattr(mount_table, "_answer", lambda *_, pid=pid: b"%d" % pid)
            begun_s = time.monotonic()
            assert mounter.unmount(str(place)).lazy is False
            assert time.monotonic() - begun_s < mounter.END_TIMEOUT_S / 2
            assert mount_table.on_top(str(place)) is None
            os.close(fd)
    finally:
        theirs.kill()
        theirs.wait()


@pytest.mark.skipif(os.geteuid() != 0, reason="mounts as another user")
def test_root_asks_nothing_of_a_users_own_file_system(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its server may never answer, and no signal ends who waits for that: it is listed, mounting
    over it is refused, and it is unmounted."""
    place = Path(os.path.realpath(tmp_path)) / "theirs"
    place.mkdir()

    def ask(*_: object) -> NoReturn:
        raise AssertionError("it was asked")

    monkeypatch.setattr(mount_table, "_answer", ask)
    monkeypatch.setattr(mount_table, "is_dead", ask)
    fd = os.open("/dev/fuse", os.O_RDWR)
    try:
        data = f"fd={fd},rootmode=40000,user_id=61234,group_id=0"
        libc.call("mount", b"a@b", os.fsencode(place), b"fuse.lodefs", 6, data.encode())
        (listed,) = [m for m in mounter.list_mounts() if m.mountpoint == str(place)]
        assert (listed.pid, listed.is_others) == (None, True)
        with pytest.raises(InUse, match="is mounted here"):
            mount_target.check_mountpoint(str(place))
        assert not mounter.unmount(str(place)).lazy
        assert mount_table.on_top(str(place)) is None
    finally:
        os.close(fd)


def test_unmount_of_a_mount_of_another_user(
    mounts: Mounts, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A user is told whose mount it is, and the mount stays."""
    mounts.mount()
    monkeypatch.setattr(os, "geteuid", lambda: 65534)
    with pytest.raises(Denied, match="belongs to root: unmount it as that user"):
        mounter.unmount(str(mounts.place))
    monkeypatch.undo()
    assert mounts.place.stat().st_dev != mounts.place.parent.stat().st_dev
    mounter.unmount(str(mounts.place))
