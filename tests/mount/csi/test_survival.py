"""Volumes that are read while the processes around them are killed, upgraded and stuck."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import grpc
import pytest

from lodefs.mount.kernel import mount_table
from tests.support.chunkstore.child_process import private_directory
from tests.support.csi.kubelet import refused
from tests.support.csi.real_driver import DEMO, RealDriver, readers
from tests.support.mount.fake_proxy import FakeProxy
from tests.support.mount.mounts import (
    SAMPLE,
    WAIT_S,
    hold_reads,
    read_in_thread,
    until,
)

pytestmark = [pytest.mark.fuse, pytest.mark.slow]
REPUBLISHES = 360


@pytest.fixture(scope="module")
def fake() -> Iterator[FakeProxy]:
    with private_directory() as folder, FakeProxy(SAMPLE, folder) as made:
        yield made


@pytest.fixture(scope="module")
def one_node(fake: FakeProxy) -> Iterator[RealDriver]:
    with private_directory() as folder, RealDriver(folder, fake.address) as made:
        yield made


@pytest.fixture
def node(one_node: RealDriver) -> Iterator[RealDriver]:
    """Processes that tests share; each begins, and ends, without a mount."""
    yield one_node
    for target in one_node.pods.iterdir():
        one_node.kubelet.unpublish(target.name, target)
    one_node.await_no_mounts()


def test_killed_while_volumes_are_read(node: RealDriver) -> None:
    """kill -9 of driver and mount service, and another service that takes the mounts over, fail no
    read of 50 volumes; afterwards every call is right, and nothing is left in the end."""
    names = [f"t{number}" for number in range(50)]
    for name in names:
        part = {**DEMO, "path": "deep"} if name == "t0" else DEMO
        node.kubelet.publish(name, node.target(name), part)
    assert len(node.fuse_mounts()) == 2
    with readers(node, names[1:]):
        node.restart_driver()
        node.kubelet.publish("t1", node.target("t1"), DEMO)
        node.restart_mounter()
        node.kubelet.publish("more", node.target("more"), DEMO)
        node.mounters.append(node.mounter())
        node.mounters.pop(0).terminate()
        node.kubelet.publish("t2", node.target("t2"), DEMO)
    assert len(node.fuse_mounts()) == 2
    for name in names[:2]:
        assert not node.kubelet.stats(name, node.target(name)).volume_condition.abnormal
    for name in (*names, "more"):
        node.kubelet.unpublish(name, node.target(name))
    assert list(node.pods.iterdir()) == []


def test_a_service_that_restarts_itself(node: RealDriver) -> None:
    """With --restart the first process starts the service again when it is killed, and mounts go
    on; SIGTERM ends both."""
    node.mounters.append(node.mounter("--restart"))
    node.mounters.pop(0).terminate()
    first = node.mounters[0]
    node.kubelet.publish("v1", node.target("v1"), DEMO)
    children = Path(f"/proc/{first.pid}/task/{first.pid}/children")
    [service] = map(int, children.read_text().split())
    with readers(node, ["v1"]):
        os.kill(service, signal.SIGKILL)
        until(lambda: first.output.count("serving") == 2)
        node.kubelet.publish("v2", node.target("v2"), DEMO)
    assert first.terminate() == 0
    assert (node.target("v2") / "a").read_bytes() == b"hello"
    node.mounters = [node.mounter()]


def test_a_stuck_reader_and_a_dead_store(node: RealDriver, fake: FakeProxy) -> None:
    """While a reader hangs on a store that does not answer, its volume is unpublished at once."""
    node.kubelet.publish("v1", node.target("v1"), DEMO)
    came, go = hold_reads(fake, reads=1000)
    thread, _ = read_in_thread(node.target("v1") / "big")
    try:
        assert came.wait(WAIT_S)
        node.kubelet.unpublish("v1", node.target("v1"), timeout_s=WAIT_S / 2)
        assert not node.target("v1").exists()
        node.kubelet.unpublish("v1", node.target("v1"))
    finally:
        go.set()
        thread.join(WAIT_S)
        fake.hook = lambda _path: None


def test_a_mount_whose_processes_die(node: RealDriver) -> None:
    """When all processes of a mount are killed, its condition says so, it is mounted again, and a
    republish shows it again."""
    node.kubelet.publish("v1", node.target("v1"), DEMO)
    [mounted] = node.fuse_mounts()
    until(lambda: kill_all(mounted.mountpoint))
    until(lambda: node.kubelet.stats("v1", node.target("v1")).volume_condition.abnormal)

    def repaired() -> bool:
        with suppress(grpc.RpcError):
            node.kubelet.publish("v1", node.target("v1"), DEMO)
            return (node.target("v1") / "a").read_bytes() == b"hello"
        return False

    until(repaired)
    assert not node.kubelet.stats("v1", node.target("v1")).volume_condition.abnormal


def test_a_proxy_that_is_away(node: RealDriver, fake: FakeProxy) -> None:
    """Without the proxy a new snapshot is UNAVAILABLE and leaves nothing; it works afterwards."""
    fake.stop()
    try:
        with pytest.raises(grpc.RpcError) as error:
            node.kubelet.publish("v1", node.target("v1"), DEMO, timeout_s=WAIT_S / 4)
    finally:
        fake.start()
    code, text = refused(error.value)
    assert code in ("UNAVAILABLE", "DEADLINE_EXCEEDED")
    assert "proxy" in text
    assert list(node.pods.iterdir()) == []
    node.kubelet.publish("v1", node.target("v1"), DEMO)
    assert (node.target("v1") / "a").read_bytes() == b"hello"


def test_a_token_rotates_under_a_reader() -> None:
    """A republish with another token replaces that of the mount, without a new mount and without a
    failed read; no token is in a log."""
    with (
        private_directory() as folder,
        FakeProxy(SAMPLE, token="first-token") as fake,
        RealDriver(folder, fake.address) as node,
    ):
        with pytest.raises(grpc.RpcError) as error:
            node.kubelet.publish("v1", node.target("v1"), DEMO, secrets={"token": "wrong-token"})
        assert refused(error.value)[0] == "UNAUTHENTICATED"
        node.kubelet.publish("v1", node.target("v1"), DEMO, secrets={"token": "first-token"})
        [before] = node.fuse_mounts()
        with readers(node, ["v1"]):
            fake.other_token = "second-token"
            node.kubelet.publish("v1", node.target("v1"), DEMO, secrets={"token": "second-token"})
            fake.token = "second-token"  # the first one has expired
        assert [m.device for m in node.fuse_mounts()] == [before.device]
        assert (node.target("v1") / "many" / "00007").read_bytes() == b"7"
        logs = node.driver.output + node.mounters[0].output
        assert "published" in logs
        assert "-token" not in logs


def test_an_hour_of_republishing(node: RealDriver) -> None:
    """As many republishes as in an hour of requiresRepublish, every 10 s, make no mount, leave no
    file open, and are no line in the log; the reader's open file stays good."""
    node.kubelet.publish("v1", node.target("v1"), DEMO)
    processes = (node.driver, node.mounters[0])
    with open(node.target("v1") / "a", "rb") as file:
        before = [(_open_files(one.pid), one.output.count("published")) for one in processes]
        [mounted] = node.fuse_mounts()
        for _ in range(REPUBLISHES):
            node.kubelet.publish("v1", node.target("v1"), DEMO)
        assert file.read() == b"hello"
    assert node.fuse_mounts() == [mounted]
    assert len(node.mounts(node.pods)) == 1
    until(  # connections that were ended take a while to be closed
        lambda: all(
            _open_files(one.pid) <= files and one.output.count("published") == lines
            for one, (files, lines) in zip(processes, before, strict=True)
        )
    )


def _open_files(pid: int) -> int:
    return len(os.listdir(f"/proc/{pid}/fd"))


def test_targets_of_the_kernel(node: RealDriver) -> None:
    """A symlink, a file, a missing directory and what others have mounted are refused; what is
    published is read-only, and noexec where that is asked for."""
    link, file, other = node.target("link"), node.target("file"), node.target("other")
    link.symlink_to(node.folder)
    file.touch()
    other.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "none", other], check=True)
    try:
        for bad, code in (
            (link, "INVALID_ARGUMENT"),
            (file, "INVALID_ARGUMENT"),
            (node.target("no") / "such", "INVALID_ARGUMENT"),
            (file / "x", "INVALID_ARGUMENT"),
            (other, "FAILED_PRECONDITION"),
        ):
            with pytest.raises(grpc.RpcError) as error:
                node.kubelet.publish("v1", bad, DEMO)
            assert refused(error.value)[0] == code
            node.kubelet.unpublish("v1", bad)
        assert mount_table.on_top(str(other)) is not None
    finally:
        subprocess.run(["umount", other], check=True)
        other.rmdir()
        link.unlink()
        file.unlink()
    noexec = {**DEMO, "mountOptions": "noexec,uid=7"}
    node.kubelet.publish("v1", node.target("v1"), noexec)
    as_killed = ["mount", "-o", "remount,bind,rw,exec,suid,dev", str(node.target("v1"))]
    subprocess.run(as_killed, check=True)  # between its two calls of mount(2)
    node.kubelet.publish("v1", node.target("v1"), noexec)
    with pytest.raises(OSError, match="Read-only"):
        (node.target("v1") / "new").touch()
    with pytest.raises(PermissionError):
        subprocess.run([node.target("v1") / "program"], check=True)
    assert (node.target("v1") / "a").stat().st_uid == 7


def test_leftovers_of_a_node_that_died(node: RealDriver) -> None:
    """A service that finds mounts and mount points of an earlier life takes them away."""
    node.kubelet.publish("v1", node.target("v1"), DEMO)
    node.kubelet.unpublish("v1", node.target("v1"))
    node.kubelet.publish("v2", node.target("v2"), DEMO)
    node.mounters.pop().kill()
    for path in (node.folder / "state" / "mounts").glob("*.json"):
        path.unlink()
    (node.folder / "mounts" / "left").mkdir()
    node.mounters.append(node.mounter())
    until(lambda: not node.fuse_mounts() and not list((node.folder / "mounts").iterdir()))
    assert (node.target("v2") / "a").read_bytes() == b"hello"  # who has it reads on


def test_stores_of_volumes(node: RealDriver) -> None:
    """A volume names no store that the mounter's administrator has not allowed: without the option
    it is refused, with it lodefs looks there."""
    store = str(node.folder / "no-store")
    for code in ("UNAUTHENTICATED", "UNAVAILABLE"):
        with pytest.raises(grpc.RpcError) as error:
            node.kubelet.publish("v1", node.target("v1"), {**DEMO, "store": store})
        assert refused(error.value)[0] == code
        assert list(node.pods.iterdir()) == []
        node.mounters.append(node.mounter("--allow-store", store))
        node.mounters.pop(0).terminate()


def kill_all(place: str) -> bool:
    """Kill the processes of a mount; whether it is dead."""
    from tests.support.mount.places import processes_of

    found = mount_table.on_top(place)
    if found is None or mount_table.is_dead(place):
        return True
    for pid in processes_of(found):
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    return mount_table.is_dead(place)


def test_python_without_grpc() -> None:
    """The command says what is missing where gRPC is not installed, and others do not need it."""
    script = (
        "import sys; sys.modules['grpc'] = None; from lodefs.main import main; "
        "sys.argv = ['lodefs', 'csi', '--endpoint', 'unix:///x', '--node-id', 'n']; main()"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=False
    )
    assert done.returncode != 0
    assert "lodefs[csi]" in done.stderr
