"""The Controller service: persistent volumes of a StorageClass, for the usual external-provisioner.

A volume is only a name for a dataset at a commit or, if it is writable, at a branch. Nothing is
created or deleted, so every call may be repeated, and no state is needed. The branch of a read-only
volume is resolved here, once, so that all nodes show the same commit.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Mapping

import msgspec
from blake3 import blake3

from lodefs.chunkstore.errors import AlreadyExists, InvalidInput, NotFound
from lodefs.chunkstore.format.names import DEFAULT_BRANCH
from lodefs.mount.csi.attributes import KUBERNETES, parse_secrets, parse_volume
from lodefs.mount.csi.capabilities import check_capability
from lodefs.mount.csi.generated import csi_pb2 as pb
from lodefs.mount.csi.rpc import Method, check_fields
from lodefs.mount.service.interface import MountService
from lodefs.mount.volumes.options import flag

NAMES_MAX = 10_000  # recently created volumes
REPO_BYTES_MAX, COMMIT_CHARS, DIGEST_BYTES = 80, 12, 8
_PLACEHOLDERS = {
    "${pvc.name}": KUBERNETES + "pvc/name",
    "${pvc.namespace}": KUBERNETES + "pvc/namespace",
    "${pv.name}": KUBERNETES + "pv/name",
}
_ID = re.compile(r".+@[0-9a-f]{12}#[0-9a-f]{16}\Z", re.DOTALL)
_UNKNOWN = re.compile(r"\$\{[^}]*\}?")


class Provisioned(msgspec.Struct, frozen=True):
    """A created volume: its parameters, its size, and the answer."""

    parameters: Mapping[str, str]
    size_bytes: int
    volume_id: str
    context: Mapping[str, str]


class ControllerServer:
    """See the CSI specification, Controller Service RPC."""

    def __init__(self, service: MountService) -> None:
        self._service = service
        self._lock = threading.Lock()
        self._made: dict[str, Provisioned] = {}  # by name, the latest last

    def methods(self) -> Mapping[str, Method]:
        """Returns the methods, by their names in the service."""
        return {
            "CreateVolume": self._create,
            "DeleteVolume": self._delete,
            "ValidateVolumeCapabilities": self._validate,
            "ControllerGetCapabilities": self._capabilities,
        }

    def _create(self, request: pb.CreateVolumeRequest, timeout_s: float) -> object:
        check_fields(request, ("name", "volume_capabilities"))
        takes_changes = _takes_changes(request.parameters)
        for capability in request.volume_capabilities:
            check_capability(capability, "volume_capabilities", takes_changes=takes_changes)
        if request.HasField("volume_content_source"):
            raise InvalidInput("volume_content_source: a volume is a dataset; leave dataSource out")
        size_bytes = _size_bytes(request.capacity_range)
        parameters = dict(request.parameters)
        there = self._there(request.name, parameters, request.capacity_range)
        if there is None:
            context = filled_in(parameters)
            token = parse_secrets(request.secrets).token
            there = self._resolved(request.name, parameters, context, token, size_bytes, timeout_s)
        volume = pb.Volume(
            volume_id=there.volume_id,
            capacity_bytes=there.size_bytes,
            volume_context=dict(there.context),
        )
        return pb.CreateVolumeResponse(volume=volume)

    def _there(
        self, name: str, parameters: Mapping[str, str], wanted: pb.CapacityRange
    ) -> Provisioned | None:
        """Returns the existing volume of a name. Raises: AlreadyExists if it differs."""
        with self._lock:
            made = self._made.get(name)
        if made is None:
            return None
        fits = wanted.required_bytes <= made.size_bytes
        fits = fits and (not wanted.limit_bytes or made.size_bytes <= wanted.limit_bytes)
        if made.parameters != parameters or not fits:
            raise AlreadyExists(
                f"volume {name} already exists with other parameters or another size"
            )
        return made

    def _resolved(
        self,
        name: str,
        parameters: Mapping[str, str],
        context: dict[str, str],
        token: str | None,
        size_bytes: int,
        timeout_s: float,
    ) -> Provisioned:
        options = parse_volume(context)
        wanted = options.wanted
        if options.commits:  # the branch is made where a pod writes first, from this one
            found = self._service.resolve(
                msgspec.structs.replace(wanted, rev=DEFAULT_BRANCH), token, timeout_s
            )
        else:
            found = self._service.resolve(wanted, token, timeout_s)
            context["commit"] = found.commit
        made = Provisioned(
            parameters, size_bytes, volume_id_of(wanted.source.repo, found.commit, name), context
        )
        with self._lock:
            self._made[name] = made
            while len(self._made) > NAMES_MAX:
                del self._made[next(iter(self._made))]
        return made

    def _delete(self, request: pb.DeleteVolumeRequest, _timeout_s: float) -> object:
        """Deletes nothing: a volume is a name for a dataset, and does not own it."""
        check_fields(request, ("volume_id",))
        with self._lock:
            gone = [
                name for name, made in self._made.items() if made.volume_id == request.volume_id
            ]
            for name in gone:
                del self._made[name]
        return pb.DeleteVolumeResponse()

    def _validate(self, request: pb.ValidateVolumeCapabilitiesRequest, _timeout_s: float) -> object:
        check_fields(request, ("volume_id", "volume_capabilities"))
        if not _ID.match(request.volume_id):
            raise NotFound(f"volume {request.volume_id[:128]!r} was not made by this driver")
        response = pb.ValidateVolumeCapabilitiesResponse
        told = request.volume_context or request.parameters
        try:
            for capability in request.volume_capabilities:
                check_capability(
                    capability, "volume_capabilities", takes_changes=_takes_changes(told)
                )
        except InvalidInput as error:
            return response(message=str(error))
        confirmed = response.Confirmed(
            volume_context=request.volume_context,
            volume_capabilities=request.volume_capabilities,
            parameters=request.parameters,
        )
        return response(confirmed=confirmed)

    def _capabilities(
        self, _request: pb.ControllerGetCapabilitiesRequest, _timeout_s: float
    ) -> object:
        capability = pb.ControllerServiceCapability
        types = (capability.RPC.CREATE_DELETE_VOLUME, capability.RPC.SINGLE_NODE_MULTI_WRITER)
        return pb.ControllerGetCapabilitiesResponse(
            capabilities=[capability(rpc=capability.RPC(type=one)) for one in types]
        )


def _takes_changes(parameters: Mapping[str, str]) -> bool:
    """Whether a volume of these parameters does, as far as they make sense."""
    try:
        return flag(parameters.get("write", ""))
    except InvalidInput:  # which is told with all else that is wrong
        return True


def volume_id_of(repo: str, commit: str, name: str) -> str:
    """``REPO@COMMIT#DIGEST``: the dataset, for people, and a digest of the volume's name."""
    head = repo.encode()[:REPO_BYTES_MAX].decode("utf-8", "ignore")
    digest = blake3(f"{repo}@{commit}#{name}".encode()).hexdigest(length=DIGEST_BYTES)
    return f"{head}@{commit[:COMMIT_CHARS]}#{digest}"


def filled_in(parameters: Mapping[str, str]) -> dict[str, str]:
    """Returns the attributes of a volume, from its StorageClass's parameters. The provisioner
    reports the values of ``${pvc.name}``, ``${pvc.namespace}`` and ``${pv.name}``
    (--extra-create-metadata). Raises: InvalidInput if it does not."""
    found = {}
    for key, value in parameters.items():
        if key.startswith(KUBERNETES):
            continue
        for placeholder, told in _PLACEHOLDERS.items():
            if placeholder in value:
                if told not in parameters:
                    raise InvalidInput(
                        f"parameters {key}: {placeholder} is not known; run the provisioner with "
                        "--extra-create-metadata"
                    )
                value = value.replace(placeholder, parameters[told])
        if unknown := _UNKNOWN.search(value):
            raise InvalidInput(
                f"parameters {key}: there is no {unknown[0][:60]}; there are "
                f"{', '.join(_PLACEHOLDERS)}"
            )
        found[key] = value
    return found


def _size_bytes(wanted: pb.CapacityRange) -> int:
    """Returns the reported size of a volume: that of its dataset, whatever a claim asks for."""
    if wanted.required_bytes < 0 or wanted.limit_bytes < 0:
        raise InvalidInput("capacity_range: a size is negative")
    if wanted.limit_bytes and wanted.limit_bytes < wanted.required_bytes:
        raise InvalidInput("capacity_range: limit_bytes is less than required_bytes")
    return int(wanted.required_bytes)
