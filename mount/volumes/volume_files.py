"""The state directory: one file for each volume, which a crash leaves complete or as it was.

``STATE/volumes/KEY.json`` is ``{"version":1,"name":NAME,"digest":HEX,"volume":{...}}``, where
``digest`` is the BLAKE3 of the bytes of ``volume``, a structure of the driver's. A file that cannot
be read affects only its own volume. Only the owner can enter the directory.
"""

from __future__ import annotations

import itertools
import os
from pathlib import Path
from typing import Generic, Protocol, TypeVar

import msgspec
from blake3 import blake3

from lodefs.chunkstore.errors import Corrupt, InvalidInput, LodefsError, UnknownFormat
from lodefs.chunkstore.format.decoding import from_json
from lodefs.mount.helper import state_files
from lodefs.mount.volumes.changes import key_of

VERSION = 1
RECORD_BYTES_MAX = 4 << 20
_SUFFIX, _DAMAGED = ".json", ".damaged"


class Damaged(msgspec.Struct, frozen=True):
    """A file that does not say what its volume is. ``name`` "": it does not even have the name."""

    key: str
    name: str
    why: str


class Named(Protocol):
    """A volume, as a driver has it."""

    @property
    def name(self) -> str: ...
    @property
    def key(self) -> str: ...


V = TypeVar("V", bound=Named)


class _Envelope(msgspec.Struct, kw_only=True):
    version: int
    name: str = ""
    digest: str = ""
    volume: msgspec.Raw = msgspec.Raw()


class VolumeFiles(Generic[V]):
    """The files of one state directory, which is this process's alone until ``close``."""

    def __init__(self, kind: type[V], directory: Path, whose: str) -> None:
        """``kind``: the structure of a volume. Raises: InUse if another process has the directory,
        which is the state of ``whose``; Denied, Unavailable."""
        self._kind = kind
        try:
            directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            self.directory = Path(os.path.realpath(directory))  # the kernel lists mounts so
            self._volumes = self.directory / "volumes"
            state_files.make_private(self._volumes)
            self._lock = state_files.lock(self.directory / "lock", whose)
            state_files.remove_unfinished(self._volumes)
        except OSError as error:
            raise state_files.translated(error, directory) from error

    def close(self) -> None:
        """Lets another process have the directory. A second call does nothing."""
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1

    def load(self) -> list[V | Damaged]:
        """Returns all volumes, damaged ones included."""
        try:
            paths = sorted(self._volumes.glob(f"*{_SUFFIX}"))
        except OSError as error:
            raise state_files.translated(error, self._volumes) from error
        return [_read(self._kind, path) for path in paths]

    def write(self, volume: V) -> None:
        """Replaces a volume's record; it is on disk when this returns.

        Raises: NoSpace, Denied, Unavailable; the old record then stays.
        """
        state_files.write_whole(self._path(volume.key), encode_volume(volume))

    def remove(self, key: str) -> None:
        """Forgets a volume, if it exists."""
        try:
            self._path(key).unlink(missing_ok=True)
            state_files.sync(self._volumes)
        except OSError as error:
            raise state_files.translated(error, self._path(key)) from error

    def set_aside(self, key: str) -> None:
        """Moves a damaged file out of the way, to ``KEY.damaged``, for inspection.

        A file replaces an earlier ``KEY.damaged``. If that or the file is a directory, the name is
        ``KEY.damaged.2`` and so on.
        """
        path = self._path(key)
        aside = self._volumes / f"{key}{_DAMAGED}"
        numbers = itertools.count(2)
        while aside.is_dir() or (path.is_dir() and aside.exists()):
            aside = aside.with_name(f"{key}{_DAMAGED}.{next(numbers)}")
        try:
            path.rename(aside)
            state_files.sync(self._volumes)
        except FileNotFoundError:
            return
        except OSError as error:
            raise state_files.translated(error, path) from error

    def _path(self, key: str) -> Path:
        return self._volumes / f"{key}{_SUFFIX}"


def encode_volume(volume: Named) -> bytes:
    """Returns the bytes of a volume's file."""
    raw = msgspec.json.encode(volume)
    return msgspec.json.encode(
        _Envelope(
            version=VERSION,
            name=volume.name,
            digest=blake3(raw).hexdigest(),
            volume=msgspec.Raw(raw),
        )
    )


def decode_volume(kind: type[V], data: bytes) -> V:
    """Returns the volume in a file's content. Raises: Corrupt, UnknownFormat."""
    try:
        envelope = from_json(data, _Envelope)
        if envelope.version != VERSION:
            raise UnknownFormat(
                f"it is of version {envelope.version}, and this lodefs knows {VERSION}: "
                "install the newer one again, or remove the volume"
            )
        if blake3(envelope.volume).hexdigest() != envelope.digest:
            raise Corrupt("its digest is wrong: the file was changed, or the disk lost data")
        volume = from_json(envelope.volume, kind)
    except InvalidInput as error:
        raise Corrupt(f"it is not a record of a volume: {error}") from error
    if volume.name != envelope.name:
        raise Corrupt("the record has two names")
    return volume


def _read(kind: type[V], path: Path) -> V | Damaged:
    key = path.name.removesuffix(_SUFFIX)
    data = b""
    try:
        data = state_files.read_whole(path, RECORD_BYTES_MAX)
        volume = decode_volume(kind, data)
        if volume.key != key:
            raise Corrupt(f"the file is the record of volume {volume.name!r} under a wrong name")
        return volume
    except OSError as error:
        return Damaged(key, "", f"the file cannot be read: {error.strerror}")
    except LodefsError as error:
        return Damaged(key, _name_in(data, key), str(error))


def _name_in(data: bytes, key: str) -> str:
    """Returns the name in a file that is otherwise damaged; "" if it does not fit the key."""
    try:
        name = from_json(data, _Name).name
        return name if key_of(name) == key else ""
    except InvalidInput:
        return ""


class _Name(msgspec.Struct):
    name: str
