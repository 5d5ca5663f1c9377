"""The Identity service: the driver's name, and whether it works."""

from __future__ import annotations

from collections.abc import Mapping

from google.protobuf.wrappers_pb2 import BoolValue

from lodefs.chunkstore.errors import LodefsError
from lodefs.mount.csi.generated import csi_pb2 as pb
from lodefs.mount.csi.rpc import Method
from lodefs.mount.service.interface import MountService

DRIVER = "csi.lodefs.dev"
PROBE_TIMEOUT_S = 2.0


class Identity:
    """See the CSI specification, Identity Service RPC."""

    def __init__(self, service: MountService, version: str) -> None:
        self._service = service
        self._version = version

    def methods(self) -> Mapping[str, Method]:
        """Returns the methods, by their names in the service."""
        return {
            "GetPluginInfo": self._info,
            "GetPluginCapabilities": self._capabilities,
            "Probe": self._probe,
        }

    def _info(self, _request: pb.GetPluginInfoRequest, _timeout_s: float) -> object:
        return pb.GetPluginInfoResponse(name=DRIVER, vendor_version=self._version)

    def _capabilities(self, _request: pb.GetPluginCapabilitiesRequest, _timeout_s: float) -> object:
        service = pb.PluginCapability.Service(type=pb.PluginCapability.Service.CONTROLLER_SERVICE)
        return pb.GetPluginCapabilitiesResponse(capabilities=[pb.PluginCapability(service=service)])

    def _probe(self, _request: pb.ProbeRequest, timeout_s: float) -> object:
        """Ready while the mount service answers, since nothing can be published without it."""
        try:
            self._service.ping(min(PROBE_TIMEOUT_S, timeout_s))
        except LodefsError:
            return pb.ProbeResponse(ready=BoolValue(value=False))
        return pb.ProbeResponse(ready=BoolValue(value=True))
