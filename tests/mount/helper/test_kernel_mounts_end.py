"""NodeMounts over the kernel keeps the contract, and what is beyond the contract."""

from __future__ import annotations

import os
import select
import signal
import socket
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import NoReturn

import pytest

from lodefs.chunkstore.errors import DeadlineExceeded, InUse, InvalidInput, Unavailable
from lodefs.chunkstore.protocol.cache_control import decoded
from lodefs.chunkstore.protocol.wire import Origin
from lodefs.mount.helper import helper_requests, kernel_mounts
from lodefs.mount.helper.helper_client import MountHelper
from lodefs.mount.helper.helper_process import HelperRequest
from lodefs.mount.helper.interface import Source, Traffic
from lodefs.mount.helper.kernel_mounts import KernelMounts
from lodefs.mount.kernel import features, mount_syscalls, mount_table
from lodefs.mount.mount_spec import MountRequest
from lodefs.mount.process import control_socket, handover
from tests.support.docker.node_mounts_suite import Given, NodeMountsSuite
from tests.support.docker.rig import Rig
from tests.support.mount.fake_proxy import FakeProxy
from tests.support.mount.mounts import SAMPLE, WAIT_S, Mounts, hold_reads, kill, until, workers_of

pytestmark = [pytest.mark.fuse, pytest.mark.slow]

SOURCE = Source(repo="demo")
COMMIT = SAMPLE.snapshot.commit


@dataclass
class Kernel(Given):
    """A Given over KernelMounts. ``seen``: pidfds of processes of mounts that were looked at."""

    seen: list[int] = field(default_factory=list)

    def lose(self) -> None:
        for pid in self.processes():
            os.kill(pid, signal.SIGKILL)
        self.wait_for_end()

    def lose_supervisor(self) -> None:
        supervisor, *_ = self.processes()
        os.kill(supervisor, signal.SIGKILL)
        until(lambda: not self.state().supervised)

    def state(self) -> handover.State:
        found = mount_table.on_top(str(self.place))
        place = found and control_socket.find(found.device)
        assert place is not None
        return handover.state_of(place)

    def processes(self) -> list[int]:
        """The supervisor and the workers of the mount."""
        supervisor = self.state().pid
        found = [supervisor, *workers_of(supervisor)]
        self.seen += [os.pidfd_open(pid) for pid in found]
        return found

    def wait_for_end(self) -> None:
        """Until the processes of mounts that were looked at have ended."""
        for pid_fd in self.seen:
            assert select.select([pid_fd], [], [], WAIT_S)[0], "a mount's process does not end"
            os.close(pid_fd)
        self.seen.clear()

    def close(self) -> None:
        """Leave nothing behind."""
        while mount_table.on_top(str(self.place)) is not None:
            with suppress(InvalidInput):  # it has gone by itself meanwhile
                mount_syscalls.detach(str(self.place), lazy=True, abort=True)
        for pid_fd in self.seen:
            with suppress(ProcessLookupError):
                signal.pidfd_send_signal(pid_fd, signal.SIGKILL)
        self.wait_for_end()


@contextmanager
def given_with(node: KernelMounts, folder: Path) -> Iterator[Kernel]:
    right, wrong, place = folder / "right", folder / "wrong", folder / "place"
    for file, text in ((right, "right-token\n"), (wrong, "wrong-token\n")):
        file.touch(mode=0o600)
        file.write_text(text)
    place.mkdir()
    secret = Source(repo="demo", store="s3://secret", token_file=str(right))
    denied = Source(repo="demo", store="s3://secret", token_file=str(wrong))
    made = Kernel(node, SOURCE, COMMIT, b"many", b"a", secret, denied, place)
    try:
        yield made
    finally:
        made.close()


@pytest.fixture
def given(node: KernelMounts, tmp_path: Path) -> Iterator[Kernel]:
    with given_with(node, tmp_path) as made:
        yield made


class TestKernelMounts(NodeMountsSuite):
    """The contract."""


def test_presentation(node: KernelMounts, given: Kernel) -> None:
    """A volume's owner and mode are what stat shows, of files without the executable bits."""
    place = str(given.place)
    node.mount(Source(repo="demo", uid=1234, gid=5678, mode=0o550), COMMIT, place, WAIT_S)
    modes = {}
    for name in ("", "none", "a", "program"):
        found = os.lstat(given.place / name)
        modes[name] = oct(found.st_mode & 0o7777)
        assert (found.st_uid, found.st_gid) == (1234, 5678)
    assert modes == {"": "0o550", "none": "0o550", "a": "0o440", "program": "0o550"}
    os.kill(given.state().pid, signal.SIGKILL)
    until(lambda: not given.state().supervised)
    node.revive(place, WAIT_S)
    assert oct(os.lstat(given.place / "link").st_mode & 0o7777) == "0o777"
    assert oct(os.lstat(given.place / "many").st_mode & 0o7777) == "0o550"


def test_features_can_be_left_out(helper: MountHelper, proxy: FakeProxy) -> None:
    """Mounts of volumes do without the kernel's features that LODEFS_FUSE_WITHOUT names."""
    environ = {features.VARIABLE: features.Feature.RESEND.value}
    node = KernelMounts(helper, lambda _store, _s: proxy.address, environ=environ, log=print)
    options = node._options(SOURCE, COMMIT, "/place", WAIT_S)
    assert options.without == {features.Feature.RESEND}


def test_modes_that_write_are_refused(node: KernelMounts, given: Kernel) -> None:
    """Owner and group at most may seem to write, which an overlay above it needs."""
    with pytest.raises(InvalidInput, match="0777"):
        node.mount(Source(repo="demo", mode=0o777), COMMIT, str(given.place), WAIT_S)


def test_traffic_is_told(node: KernelMounts, given: Kernel, proxy: FakeProxy) -> None:
    """Bytes count for where the proxy says that they came from, over the death of workers too,
    and while nobody serves the kernel."""
    place = str(given.place)
    node.mount(SOURCE, COMMIT, place, WAIT_S)
    assert (given.place / "a").read_bytes() == b"hello"
    assert node.traffic(place, WAIT_S) == Traffic(cache_bytes=5)
    for origin, name in ((Origin.STORE, "program"), (Origin.PEERS, "many/00007")):
        proxy.origin = origin
        assert (given.place / name).read_bytes()
    supervisor, *workers = given.processes()
    for pid in workers:
        os.kill(pid, signal.SIGSTOP)
    assert node.traffic(place, WAIT_S) == Traffic(cache_bytes=5, peers_bytes=1, store_bytes=19)
    for pid in workers:
        os.kill(pid, signal.SIGKILL)
    until(lambda: len(workers_of(supervisor)) == len(workers))
    assert (given.place / "deep/er/est/f").read_bytes() == b"bottom"
    assert node.traffic(place, WAIT_S) == Traffic(cache_bytes=5, peers_bytes=7, store_bytes=19)
    node.revive(place, WAIT_S)
    told = node.traffic(place, WAIT_S)
    assert told is not None
    assert told.peers_bytes == 7


def test_mounts_of_others_are_seen(node: KernelMounts, mounts: Mounts) -> None:
    """Mounts that were made by hand stand there too, dead ones also."""
    mounted = mounts.mount()

    def alive() -> list[bool]:
        return [s.alive for s in node.list_mounts(WAIT_S) if s.place == str(mounts.place)]

    assert alive() == [True]
    for pid in (mounted.pid, *workers_of(mounted.pid)):
        kill(pid, signal.SIGKILL)
    until(lambda: alive() == [False])


def test_a_stuck_mount_holds_nobody_up(node: KernelMounts, given: Kernel) -> None:
    """Questions about a mount whose processes are stopped end in time; it does not count as
    dead, since it may go on."""
    place = str(given.place)
    node.mount(SOURCE, COMMIT, place, WAIT_S)
    for pid in given.processes():
        os.kill(pid, signal.SIGSTOP)
    [standing] = [s for s in node.list_mounts(1.0) if s.place == place]
    assert standing.alive
    with pytest.raises(Unavailable):
        node.traffic(place, 0.2)
    with pytest.raises((DeadlineExceeded, InUse)):
        node.mount(SOURCE, COMMIT, place, 0.5)
    assert node.showing({place}) == {}
    node.unmount(place, WAIT_S)


def test_a_proxy_that_does_not_answer(node: KernelMounts, given: Kernel, proxy: FakeProxy) -> None:
    """Errors say that it is the proxy: that it is not there, or that it is silent."""
    _, go = hold_reads(proxy, where="/snapshots")
    with pytest.raises(DeadlineExceeded, match=r"within 0\.2 s: the proxy"):
        node.resolve(SOURCE, "main", 0.2)
    go.set()
    proxy.stop()
    with pytest.raises(Unavailable, match="check that it runs"):  # asked again until then
        node.resolve(SOURCE, "main", 1)
    with pytest.raises(Unavailable, match="check that it runs"):
        node.pin(SOURCE, COMMIT, 60, WAIT_S)
    with pytest.raises((Unavailable, DeadlineExceeded)):
        node.mount(SOURCE, COMMIT, str(given.place), 0.5)
    proxy.start()
    node.mount(SOURCE, COMMIT, str(given.place), WAIT_S)


def test_pins_reach_the_proxy(node: KernelMounts, proxy: FakeProxy) -> None:
    """A pin is of the volume's directory, for as long as was asked."""
    source = Source(repo="demo", path=b"d\xff/100%")
    node.pin(source, COMMIT, 60, WAIT_S)
    [(_, request)] = proxy.pins.items()
    assert (request.pin_s, [decoded(path) for path in request.paths]) == (60, [source.path])
    node.unpin(source, COMMIT, WAIT_S)
    assert proxy.pins == {}


def test_mounts_that_never_answer_hold_up_no_others(tmp_path: Path) -> None:
    """One that is not wanted, as a user's, is not looked at, and one that is not for long: the time
    of a look is that of all mounts."""
    looks: list[tuple[str, float]] = []

    class Helper:
        """Whose children wait for the kernel in vain."""

        def run(self, operation: helper_requests.Look, timeout_s: float) -> NoReturn:
            looks.append((operation.place, timeout_s))
            raise DeadlineExceeded("not done in time")

    node = KernelMounts(Helper(), lambda _s, _t: "", environ={}, log=print)  # type: ignore[arg-type]
    places = [str(tmp_path / name) for name in ("theirs", "ours")]
    fds = []
    try:
        for place in places:
            os.mkdir(place)
            fds.append(mount_syscalls.attach(place, b"demo@c1", allow_other=False))
        [found] = node.list_mounts(WAIT_S, lambda place: place == places[1])
        assert (found.place, found.alive) == (places[1], True)
        [(place, timeout_s)] = looks
        assert place == places[1]
        assert timeout_s <= kernel_mounts.DEAD_TIMEOUT_S
    finally:
        for fd in fds:
            os.close(fd)
        for place in places:
            mount_syscalls.detach(place, lazy=True)


def test_a_mount_that_a_killed_plugin_left_half_made(
    helper: MountHelper, node: KernelMounts, tmp_path: Path, proxy: FakeProxy
) -> None:
    """It does not count as the volume's mount: another takes its place, and stays when the
    processes that made the first one go."""
    rig = Rig(tmp_path / "state", node)
    rig.volumes.create("a", {"repo": "demo"})
    place = rig.volumes.mount("a", "a" * 64)
    node.unmount(place, WAIT_S)
    until(lambda: workers_of(helper.pid) == [])
    came, go = hold_reads(proxy, reads=100, where="/children")
    operation = MountRequest(node._options(SOURCE, COMMIT, place, WAIT_S))
    plugin, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with plugin:
        with theirs:
            helper._send(HelperRequest(operation, time.monotonic() + WAIT_S), theirs.fileno())
        assert came.wait(WAIT_S)
        [left] = [one for one in node.list_mounts(WAIT_S) if one.place == place]
        assert not left.ready
        first = mount_table.on_top(place)
        until(lambda: len(workers_of(helper.pid)) == 1)  # whoever looked for ``standing`` has ended
        [supervisor] = workers_of(helper.pid)
        makers = [os.pidfd_open(pid) for pid in (supervisor, *workers_of(supervisor))]

    def is_replaced() -> bool:
        found = mount_table.on_top(place)
        return found is not None and workers_of(helper.pid) not in ([], [supervisor])

    assert first is not None
    with ThreadPoolExecutor(1) as pool:
        mounting = pool.submit(rig.volumes.mount, "a", "b" * 64)
        until(is_replaced)
        go.set()
        assert mounting.result(WAIT_S) == place
    for pid_fd in makers:
        assert select.select([pid_fd], [], [], WAIT_S)[0]
        os.close(pid_fd)
    [standing] = [one for one in node.list_mounts(WAIT_S) if one.place == place]
    assert standing.ready
    assert (Path(place) / "a").read_bytes() == b"hello"
    for mount_id in ("a" * 64, "b" * 64):
        rig.volumes.unmount("a", mount_id)
    node.unmount(place, WAIT_S)
    rig.close()
