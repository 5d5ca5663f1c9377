"""Registers the driver with the kubelet, by its plugin registration, version 1.

This replaces the sidecar node-driver-registrar; with the sidecar it is not used.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping

from lodefs.mount.csi.generated import registration_pb2 as pb
from lodefs.mount.csi.identity import DRIVER
from lodefs.mount.csi.rpc import Method

_log = logging.getLogger("lodefs.csi")


class Registration:
    """``endpoint``: the driver's socket, as the kubelet sees it."""

    def __init__(self, endpoint: str) -> None:
        self._endpoint = endpoint

    def methods(self) -> Mapping[str, Method]:
        """Returns the methods, by their names in the service."""
        return {"GetInfo": self._info, "NotifyRegistrationStatus": self._notified}

    def _info(self, _request: pb.InfoRequest, _timeout_s: float) -> object:
        return pb.PluginInfo(
            type="CSIPlugin", name=DRIVER, endpoint=self._endpoint, supported_versions=["1.0.0"]
        )

    def _notified(self, request: pb.RegistrationStatus, _timeout_s: float) -> object:
        if request.plugin_registered:
            _log.info("the kubelet has registered %s", DRIVER)
        else:
            _log.error("the kubelet refuses %s: %s", DRIVER, request.error)
        return pb.RegistrationStatusResponse()
