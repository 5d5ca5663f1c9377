"""The driver's sockets."""

from __future__ import annotations

import socket
import subprocess
import sys
from pathlib import Path

import grpc
import pytest

from lodefs.chunkstore.errors import InvalidInput, LodefsError
from lodefs.mount.csi.generated import registration_pb2
from lodefs.mount.csi.registration import Registration
from lodefs.mount.csi.rpc import RpcServer, code_of
from tests.mount.csi.conftest import DriverRig
from tests.support.csi.kubelet import Kubelet

SECOND = """
import sys
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
    """The socket of a driver that was killed is replaced; what is no socket is left alone."""
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
    with pytest.raises(InvalidInput, match="no socket"):
        RpcServer().listen(path)
    assert path.read_text() == "mine"


def test_every_error_has_a_status() -> None:
    """Errors of ours have a status of their own, but for those of pushes and of other versions."""
    module = LodefsError.__module__
    kinds = [kind for kind in LodefsError.__subclasses__() if kind.__module__ == module]
    internal = {kind.__name__ for kind in kinds if code_of(kind("x")).name == "INTERNAL"}
    assert internal == {"Changed", "SourceChanged", "TooManyRemovals", "UnknownFormat"}


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
