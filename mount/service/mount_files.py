"""Files of the mount service: one for each mount, one for each token, and the mount points.

``STATE/mounts/KEY.json`` is ``{"version":1,"digest":HEX,"mount":{...}}``, where ``digest`` is the
BLAKE3 of the bytes of ``mount``. Tokens are ``RUN/tokens/KEY``, in a directory that a reboot
empties; mount points are ``ROOT/KEY``. Only the owner can enter these directories: everybody who
reaches a mount can read it, and permitted users see it elsewhere, as a bind mount.
"""

from __future__ import annotations

import logging
import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import msgspec
from blake3 import blake3

from lodefs.chunkstore.errors import Corrupt, InvalidInput, LodefsError, UnknownFormat
from lodefs.chunkstore.format.decoding import from_json
from lodefs.mount.helper import state_files
from lodefs.mount.service.shared_mount import SharedMount

VERSION = 1
LOCK = "lock"  # in the state directory; locked by the service that owns it
RECORD_BYTES_MAX = 16 << 20
TOKEN_BYTES_MAX = 16384
_SUFFIX, _DAMAGED, _LENT = ".json", ".damaged", ".lent-"
_log = logging.getLogger("lodefs.mounter")


class _SharedEnvelope(msgspec.Struct, kw_only=True):
    version: int
    digest: str = ""
    mount: msgspec.Raw = msgspec.Raw()


class MountFiles:
    """The files of one mount service, which belong to this process until ``close``.

    ``state`` survives a reboot, ``run`` need not; mount points are created in ``root``.
    """

    def __init__(self, state: Path, run: Path, root: Path) -> None:
        """Raises: InUse if another service has them; Denied, InvalidInput, Unavailable."""
        try:
            state_files.make_private(state)
            self._lock = state_files.lock(state / LOCK, "another `lodefs mounter`")
            self._mounts = state / "mounts"
            self._tokens = run / "tokens"
            self._root = Path(os.path.realpath(root))  # the kernel lists mounts by real paths
            for folder in (self._mounts, self._tokens, self._root):
                state_files.make_private(folder)
            state_files.remove_unfinished(self._mounts)
            state_files.remove_unfinished(self._tokens)
            state_files.remove_unfinished(self._tokens, f"{_LENT}*")
        except OSError as error:
            raise state_files.translated(error, state) from error

    def close(self) -> None:
        """Lets another process have them. A second call does nothing."""
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1

    def load(self) -> list[SharedMount]:
        """Returns all recorded mounts. A damaged file is set aside and logged: its mount is removed
        when its last user in the kernel is gone."""
        found = []
        for path in sorted(self._mounts.glob(f"*{_SUFFIX}")):
            try:
                mount = decode_mount(state_files.read_whole(path, RECORD_BYTES_MAX))
                if mount.key != path.name.removesuffix(_SUFFIX):
                    raise Corrupt(f"the file is the record of {mount.key} under a wrong name")
                found.append(mount)
            except (LodefsError, OSError) as error:
                _log.error("%s is damaged and was set aside: %s", path, error)
                with suppress(OSError):
                    path.rename(path.with_suffix(_DAMAGED))
        return found

    def write(self, mount: SharedMount) -> None:
        """Records a mount; it is on disk when this returns. Raises: NoSpace, Denied,
        Unavailable."""
        state_files.write_whole(self._mounts / f"{mount.key}{_SUFFIX}", encode_mount(mount))

    def remove(self, key: str) -> None:
        """Forgets a mount and its token, if they exist."""
        try:
            (self._tokens / key).unlink(missing_ok=True)
        except OSError as error:
            raise state_files.translated(error, self._tokens / key) from error
        self.forget(key)

    def forget(self, key: str) -> None:
        """Forgets a mount, and keeps its token for users that come meanwhile."""
        try:
            (self._mounts / f"{key}{_SUFFIX}").unlink(missing_ok=True)
            state_files.sync(self._mounts)
        except OSError as error:
            raise state_files.translated(error, self._mounts / key) from error

    def place(self, key: str) -> str:
        """Returns the mount point of a mount; it may not exist."""
        return str(self._root / key)

    def make_place(self, place: str) -> None:
        """Creates a mount point. An existing mount is not touched, dead or alive."""
        try:
            os.mkdir(place, 0o755)
        except FileExistsError:
            pass
        except OSError as error:
            raise state_files.translated(error, Path(place)) from error

    def remove_place(self, place: str) -> None:
        """Removes a mount point without a mount. One that cannot be removed stays."""
        with suppress(OSError):
            os.rmdir(place)

    def key_at(self, place: str) -> str | None:
        """Returns the key of a mount point; None if it is not one of ours."""
        path = Path(place)
        return path.name if path.parent == self._root else None

    def places(self) -> list[str]:
        """Returns the keys of all existing mount points."""
        try:
            return sorted(os.listdir(self._root))
        except OSError as error:
            raise state_files.translated(error, self._root) from error

    def token_path(self, key: str) -> str:
        """Returns the file of a mount's token."""
        return str(self._tokens / key)

    def token(self, key: str) -> str | None:
        """Returns a mount's token; None if the file is gone, as after a reboot."""
        with suppress(OSError):
            return state_files.read_whole(self._tokens / key, TOKEN_BYTES_MAX).decode("ascii")
        return None

    def keep_token(self, key: str, token: str) -> None:
        """Stores a mount's token."""
        state_files.write_whole(self._tokens / key, token.encode("ascii"))

    @contextmanager
    def lent(self, token: str | None) -> Iterator[str]:
        """Yields a file with a token during the block; "" without a token."""
        if token is None:
            yield ""
            return
        path = self._tokens / f"{_LENT}{secrets.token_hex(8)}"
        state_files.write_whole(path, token.encode("ascii"))
        try:
            yield str(path)
        finally:
            with suppress(OSError):
                path.unlink()


def encode_mount(mount: SharedMount) -> bytes:
    """Returns the bytes of a mount's file."""
    raw = msgspec.json.encode(mount)
    return msgspec.json.encode(
        _SharedEnvelope(version=VERSION, digest=blake3(raw).hexdigest(), mount=msgspec.Raw(raw))
    )


def decode_mount(data: bytes) -> SharedMount:
    """Returns the mount in a file's content. Raises: Corrupt, UnknownFormat."""
    try:
        envelope = from_json(data, _SharedEnvelope)
        if envelope.version != VERSION:
            raise UnknownFormat(
                f"it is of version {envelope.version}, and this lodefs knows {VERSION}"
            )
        if blake3(envelope.mount).hexdigest() != envelope.digest:
            raise Corrupt("its digest is wrong: the file was changed, or the disk lost data")
        return from_json(envelope.mount, SharedMount)
    except InvalidInput as error:
        raise Corrupt(f"it is not a record of a mount: {error}") from error
