"""A kubelet's side of CSI: calls to a driver's socket, as Kubernetes makes them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

import grpc
from google.protobuf.message_factory import GetMessageClass

from lodefs.mount.csi.generated import csi_pb2 as pb

TIMEOUT_S = 60.0
EPHEMERAL = "csi.storage.k8s.io/ephemeral"
MODE = pb.VolumeCapability.AccessMode
READ_MANY = MODE.MULTI_NODE_READER_ONLY


def capability(mode: int = READ_MANY, flags: tuple[str, ...] = (), group: str = "") -> Any:
    """A mounted volume of an access mode."""
    mount = pb.VolumeCapability.MountVolume(mount_flags=flags, volume_mount_group=group)
    return pb.VolumeCapability(mount=mount, access_mode=MODE(mode=mode))  # type: ignore[arg-type]


class Kubelet:
    """Calls by the names of their methods, on a connection of its own."""

    def __init__(self, socket: Path) -> None:
        self._channel = grpc.insecure_channel(f"unix:{socket}")

    def __enter__(self) -> Kubelet:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Hang up."""
        self._channel.close()

    def call(self, called: str, /, *, timeout_s: float = TIMEOUT_S, **fields: Any) -> Any:
        """The answer to one call; grpc.RpcError."""
        services = pb.DESCRIPTOR.services_by_name
        for service in (services["Identity"], services["Node"], services["Controller"]):
            if called in service.methods_by_name:
                method = service.methods_by_name[called]
                call = self._channel.unary_unary(
                    f"/{service.full_name}/{called}",
                    request_serializer=GetMessageClass(method.input_type).SerializeToString,
                    response_deserializer=GetMessageClass(method.output_type).FromString,
                )
                request = GetMessageClass(method.input_type)(**fields)
                return call(request, timeout=timeout_s, wait_for_ready=True)
        raise AssertionError(called)

    def publish(
        self, volume: str, target: Path, attributes: Mapping[str, str], **fields: Any
    ) -> None:
        """Publish a volume, of which ``attributes`` are; ``fields`` take the place of the usual."""
        given = {"volume_capability": capability(), "readonly": True, **fields}
        self.call(
            "NodePublishVolume",
            volume_id=volume,
            target_path=str(target),
            volume_context=dict(attributes),
            **given,
        )

    def unpublish(self, volume: str, target: Path, **fields: Any) -> None:
        """Take it back."""
        self.call("NodeUnpublishVolume", volume_id=volume, target_path=str(target), **fields)

    def stats(self, volume: str, target: Path) -> Any:
        """Usage and condition of a volume."""
        return self.call("NodeGetVolumeStats", volume_id=volume, volume_path=str(target))


def refused(error: grpc.RpcError) -> tuple[str, str]:
    """The status and the message of a call that failed."""
    return error.code().name, error.details() or ""
