"""docker.volumedriver/1.0: dockerd's requests and their answers, without HTTP.

https://docs.docker.com/engine/extend/plugins_volume/. dockerd reads an error from the ``Err`` field
of an answer, whatever the status. An answer to Get without a volume means that there is none.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TypeVar

import msgspec

from lodefs.chunkstore.errors import InvalidInput, told
from lodefs.chunkstore.format.decoding import from_json
from lodefs.mount.docker.status import status_of, time_text
from lodefs.mount.docker.volume import check_name
from lodefs.mount.docker.volume_files import Damaged
from lodefs.mount.docker.volumes import Shown, Volumes


class CreateRequest(msgspec.Struct, rename="pascal"):
    """VolumeDriver.Create."""

    name: str
    opts: dict[str, str] | None = None


class NameRequest(msgspec.Struct, rename="pascal"):
    """VolumeDriver.Remove, Path, Get."""

    name: str


class MountCall(msgspec.Struct):
    """VolumeDriver.Mount, Unmount."""

    name: str = msgspec.field(name="Name")
    mount_id: str = msgspec.field(name="ID")


T = TypeVar("T")
Method = Callable[[Volumes, bytes], dict[str, object]]


class MalformedError(InvalidInput):
    """A body that is not a request of the method."""


def encode_answer(answer: Mapping[str, object]) -> bytes:
    """Returns the bytes of an answer."""
    return msgspec.json.encode(answer)


def encode_error(text: str) -> bytes:
    """Returns the bytes of an answer with an error of one line."""
    return msgspec.json.encode({"Err": told(text) or "it failed without a message"})


def volume_in(body: bytes) -> str:
    """Returns the volume of a request; "" if it names none, or is malformed."""
    try:
        return check_name(_decode(body, NameRequest).name)
    except InvalidInput:
        return ""


def _activate(_volumes: Volumes, _body: bytes) -> dict[str, object]:
    return {"Implements": ["VolumeDriver"]}


def _capabilities(_volumes: Volumes, _body: bytes) -> dict[str, object]:
    return {"Capabilities": {"Scope": "local"}}


def _create(volumes: Volumes, body: bytes) -> dict[str, object]:
    request = _decode(body, CreateRequest)
    volumes.create(request.name, request.opts or {})
    return {}


def _remove(volumes: Volumes, body: bytes) -> dict[str, object]:
    volumes.remove(_decode(body, NameRequest).name)
    return {}


def _mount(volumes: Volumes, body: bytes) -> dict[str, object]:
    request = _decode(body, MountCall)
    return {"Mountpoint": volumes.mount(request.name, request.mount_id)}


def _unmount(volumes: Volumes, body: bytes) -> dict[str, object]:
    request = _decode(body, MountCall)
    volumes.unmount(request.name, request.mount_id)
    return {}


def _path(volumes: Volumes, body: bytes) -> dict[str, object]:
    return {"Mountpoint": volumes.path(_decode(body, NameRequest).name)}


def _get(volumes: Volumes, body: bytes) -> dict[str, object]:
    name = _decode(body, NameRequest).name
    shown = volumes.get(name)
    return {"Volume": {**_summary(shown, name), "Status": status_of(shown)}}


def _list(volumes: Volumes, _body: bytes) -> dict[str, object]:
    return {"Volumes": [_summary(shown, shown.record.name) for shown in volumes.list()]}


def _summary(shown: Shown, name: str) -> dict[str, object]:
    summary: dict[str, object] = {"Name": name, "Mountpoint": shown.held.place}
    if not isinstance(shown.record, Damaged):
        summary["CreatedAt"] = time_text(shown.record.created_at_s)
    return summary


def _decode(body: bytes, kind: type[T]) -> T:
    """Parses a request. dockerd repeats a call whose connection broke with an empty body."""
    if not body:
        raise MalformedError(
            "the request has no body, since its first try was interrupted; try again"
        )
    try:
        return from_json(body, kind)
    except InvalidInput as error:
        raise MalformedError(f"the request is malformed: {error}") from None


def _mount_unheard(volumes: Volumes, body: bytes) -> None:
    request = _decode(body, MountCall)
    volumes.unheard(request.name, request.mount_id)


UNHEARD: dict[str, Callable[[Volumes, bytes], None]] = {"/VolumeDriver.Mount": _mount_unheard}
"""Called when the client went before it knew that its call was done."""

METHODS: dict[str, Method] = {
    "/Plugin.Activate": _activate,
    "/VolumeDriver.Capabilities": _capabilities,
    "/VolumeDriver.Create": _create,
    "/VolumeDriver.Remove": _remove,
    "/VolumeDriver.Mount": _mount,
    "/VolumeDriver.Unmount": _unmount,
    "/VolumeDriver.Path": _path,
    "/VolumeDriver.Get": _get,
    "/VolumeDriver.List": _list,
}
