"""The driver's sockets."""

from __future__ import annotations

import socket
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import grpc
import pytest

from lodefs.chunkstore.errors import InvalidInput, LodefsError
from lodefs.chunkstore.protocol.figures.component_counts import ComponentCounts
from lodefs.mount.csi.admission import CALLS_MAX, THREADS_MAX, Admission
from lodefs.mount.csi.generated import csi_pb2, registration_pb2
from lodefs.mount.csi.identity import Identity
from lodefs.mount.csi.node import NodeServer
from lodefs.mount.csi.registration import Registration
from lodefs.mount.csi.rpc import RpcServer, code_of
from tests.mount.csi.conftest import DriverRig
from tests.support.csi.kubelet import TIMEOUT_S, Kubelet, refused
from tests.support.docker.rig import memory_mounts
from tests.support.mount.mounts import until
from tests.support.service.memory_service import MemoryService, MemoryTargets

CATS = {"repo": "vision/cats"}

SECOND = """
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from lodefs.mount.csi.rpc import RpcServer
RpcServer().listen(Path(sys.argv[1]))
"""


@pytest.mark.slow
def test_two_drivers_on_one_socket(driver: DriverRig) -> None:
    """A second driver on a socket is refused, and the first one goes on."""
    done = subprocess.run(
        [sys.executable, "-c", SECOND, str(driver.socket)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode != 0
    assert f"a driver on {driver.socket}" in done.stderr
    assert driver.kubelet.call("Probe").ready.value


def test_stale_sockets(tmp_path: Path) -> None:
    """The socket of a driver that was killed is replaced; what is not a socket is left alone."""
    path = tmp_path / "csi.sock"
    with socket.socket(socket.AF_UNIX) as stale:
        stale.bind(str(path))
    server = RpcServer()
    server.listen(path)
    server.start()
    with Kubelet(path) as kubelet, pytest.raises(grpc.RpcError):
        kubelet.call("Probe")  # answered, by a driver without services
    assert path.stat().st_mode & 0o077 == 0
    server.stop(60.0)
    assert not path.exists()
    path.write_text("mine")
    with pytest.raises(InvalidInput, match="not a socket"):
        RpcServer().listen(path)
    assert path.read_text() == "mine"


def test_every_error_has_a_status() -> None:
    """Errors of ours have a status of their own, but for those of pushes and of other versions."""
    module = LodefsError.__module__
    kinds = [kind for kind in LodefsError.__subclasses__() if kind.__module__ == module]
    internal = {kind.__name__ for kind in kinds if code_of(kind("x")).name == "INTERNAL"}
    assert internal == {"Changed", "SourceChanged", "TooManyRemovals", "UnknownFormat"}


@pytest.mark.slow
@pytest.mark.parametrize("context", [{"repo": "x" * 200_000}, {**CATS, "path": "ü" * 60_000}])
def test_long_values_are_refused_as_what_they_are(
    driver: DriverRig, tmp_path: Path, context: dict[str, str]
) -> None:
    """What they are is told without the middle: a status has room for some KB only."""
    with pytest.raises(grpc.RpcError) as error:
        driver.kubelet.publish("v", tmp_path / "target", context)
    code, text = refused(error.value)
    assert code == "INVALID_ARGUMENT", text
    assert len(text) < 2100


def test_calls_that_wait_do_not_hold_up_others(tmp_path: Path) -> None:
    """While as many publishes wait as may, the next one is UNAVAILABLE at once, and calls of other
    kinds are answered; afterwards it works. All of them count."""
    service = MemoryService(memory_mounts().repos, tmp_path / "mounts")
    counts = ComponentCounts("csi")
    server = RpcServer(Admission({"NodePublishVolume": 2}), counts)
    by_name = csi_pb2.DESCRIPTOR.services_by_name
    server.add(by_name["Identity"], Identity(service, "1.2.3").methods())
    node = NodeServer(service, "node-1", MemoryTargets(service))
    server.add(by_name["Node"], node.methods())
    server.listen(tmp_path / "csi.sock")
    server.start()
    targets = {name: tmp_path / name for name in ("v1", "v2", "v3")}
    with (
        Kubelet(tmp_path / "csi.sock") as kubelet,
        ThreadPoolExecutor(2) as pool,
        service.hold() as gate,
    ):
        waiting = [pool.submit(kubelet.publish, n, targets[n], CATS) for n in ("v1", "v2")]
        assert gate.reached.wait(TIMEOUT_S)
        until(lambda: all(targets[name].exists() for name in ("v1", "v2")))
        with pytest.raises(grpc.RpcError) as error:
            kubelet.publish("v3", targets["v3"], CATS)
        assert refused(error.value)[0] == "UNAVAILABLE"
        assert "2 calls of NodePublishVolume" in refused(error.value)[1]
        assert kubelet.call("Probe").ready.value
        kubelet.unpublish("v3", targets["v3"])
        gate.open.set()
        for one in waiting:
            one.result(TIMEOUT_S)
        kubelet.publish("v3", targets["v3"], CATS)
    server.stop(60.0)
    found = counts.figures({}).calls
    published = found["NodePublishVolume"]
    assert (published.count, published.errors) == (4, {"Unavailable": 1})
    assert (found["Probe"].count, found["NodeUnpublishVolume"].errors) == (1, {})


def test_threads_are_left_for_calls_that_wait_for_nothing() -> None:
    """All calls that wait, together, leave threads free."""
    assert sum(CALLS_MAX.values()) < THREADS_MAX


def test_registration(tmp_path: Path) -> None:
    """The kubelet hears name, socket and version of the driver."""
    path = tmp_path / "reg.sock"
    server = RpcServer()
    descriptor = registration_pb2.DESCRIPTOR.services_by_name["Registration"]
    server.add(descriptor, Registration("/var/lib/kubelet/plugins/x/csi.sock").methods())
    server.listen(path)
    server.start()
    with grpc.insecure_channel(f"unix:{path}") as channel:
        ask = channel.unary_unary(
            "/pluginregistration.Registration/GetInfo",
            request_serializer=registration_pb2.InfoRequest.SerializeToString,
            response_deserializer=registration_pb2.PluginInfo.FromString,
        )
        info = ask(registration_pb2.InfoRequest(), timeout=60, wait_for_ready=True)
    assert (info.type, info.name) == ("CSIPlugin", "csi.lodefs.dev")
    assert info.endpoint == "/var/lib/kubelet/plugins/x/csi.sock"
    assert list(info.supported_versions) == ["1.0.0"]
    server.stop(60.0)
