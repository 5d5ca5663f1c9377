"""Files of the mount service: one for each mount, one for each token, and the mount points.

``STATE/mounts/KEY.json`` is ``{"version":1,"digest":HEX,"mount":{...}}``, ``digest`` the BLAKE3 of
the bytes of ``mount``. Tokens are ``RUN/tokens/KEY``, in a directory that a reboot empties; mount
points are ``ROOT/KEY``. All of it is for its owner alone: mounts let everybody read who gets to
them, and those who may are shown them elsewhere, as bind mounts.
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
LOCK = "lock"  # in the state directory: of the service that has it
RECORD_BYTES_MAX = 16 << 20
TOKEN_BYTES_MAX = 16384
_SUFFIX, _DAMAGED, _LENT = ".json", ".damaged", ".lent-"
_log = logging.getLogger("lodefs.mounter")


class _SharedEnvelope(msgspec.Struct, kw_only=True):
    version: int
    digest: str = ""
    mount: msgspec.Raw = msgspec.Raw()


class MountFiles:
    """The files of one mount service, which are this process's alone until ``close``.

    ``state`` survives a reboot, ``run`` need not; mount points are made in ``root``.
    """

    def __init__(self, state: Path, run: Path, root: Path) -> None:
        """InUse where another service has it; Denied, InvalidInput, Unavailable."""
        try:
            state_files.make_private(state)
            self._lock = state_files.lock(state / LOCK, "another `lodefs mounter`")
            self._mounts = state / "mounts"
            self._tokens = run / "tokens"
            self._root = Path(os.path.realpath(root))  # the kernel lists mounts so
            for folder in (self._mounts, self._tokens, self._root):
                state_files.make_private(folder)
            state_files.remove_unfinished(self._mounts)
            state_files.remove_unfinished(self._tokens)
            state_files.remove_unfinished(self._tokens, f"{_LENT}*")
        except OSError as error:
            raise state_files.translated(error, state) from error

    def close(self) -> None:
        """Let another process have them. Nothing happens the second time."""
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1

    def load(self) -> list[SharedMount]:
        """All mounts that are written down. A damaged file is put aside, with a line in the log:
        its mount is taken away when its last user in the kernel is gone."""
        found = []
        for path in sorted(self._mounts.glob(f"*{_SUFFIX}")):
            try:
                mount = decode_mount(state_files.read_whole(path, RECORD_BYTES_MAX))
                if mount.key != path.name.removesuffix(_SUFFIX):
                    raise Corrupt(f"it is the record of {mount.key}, under a wrong name")
                found.append(mount)
            except (LodefsError, OSError) as error:
                _log.error("%s is damaged and put aside: %s", path, error)
                with suppress(OSError):
                    path.rename(path.with_suffix(_DAMAGED))
        return found

    def write(self, mount: SharedMount) -> None:
        """What is known of a mount now: on disk when this returns. NoSpace, Denied, Unavailable."""
        state_files.write_whole(self._mounts / f"{mount.key}{_SUFFIX}", encode_mount(mount))

    def remove(self, key: str) -> None:
        """Forget a mount and its token; fine where there is none."""
        try:
            (self._tokens / key).unlink(missing_ok=True)
        except OSError as error:
            raise state_files.translated(error, self._tokens / key) from error
        self.forget(key)

    def forget(self, key: str) -> None:
        """Forget a mount, and keep its token for those who come meanwhile."""
        try:
            (self._mounts / f"{key}{_SUFFIX}").unlink(missing_ok=True)
            state_files.sync(self._mounts)
        except OSError as error:
            raise state_files.translated(error, self._mounts / key) from error

    def place(self, key: str) -> str:
        """The mount point of a mount, which need not be there."""
        return str(self._root / key)

    def make_place(self, place: str) -> None:
        """Make a mount point. A mount there is not touched, dead or alive."""
        try:
            os.mkdir(place, 0o755)
        except FileExistsError:
            pass
        except OSError as error:
            raise state_files.translated(error, Path(place)) from error

    def remove_place(self, place: str) -> None:
        """Remove a mount point that nothing is mounted on. What cannot be removed stays."""
        with suppress(OSError):
            os.rmdir(place)

    def key_at(self, place: str) -> str | None:
        """The key that a mount point belongs to; None where it is none of ours."""
        path = Path(place)
        return path.name if path.parent == self._root else None

    def places(self) -> list[str]:
        """Keys of all mount points that are there."""
        try:
            return sorted(os.listdir(self._root))
        except OSError as error:
            raise state_files.translated(error, self._root) from error

    def token_path(self, key: str) -> str:
        """The file of a mount's token."""
        return str(self._tokens / key)

    def token(self, key: str) -> str | None:
        """A mount's token; None where the file is gone, as after a reboot."""
        with suppress(OSError):
            return state_files.read_whole(self._tokens / key, TOKEN_BYTES_MAX).decode("ascii")
        return None

    def keep_token(self, key: str, token: str) -> None:
        """A mount's token from now on."""
        state_files.write_whole(self._tokens / key, token.encode("ascii"))

    @contextmanager
    def lent(self, token: str | None) -> Iterator[str]:
        """A file with a token for as long as the block takes; "" without one."""
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
    """The bytes of a mount's file."""
    raw = msgspec.json.encode(mount)
    return msgspec.json.encode(
        _SharedEnvelope(version=VERSION, digest=blake3(raw).hexdigest(), mount=msgspec.Raw(raw))
    )


def decode_mount(data: bytes) -> SharedMount:
    """The mount that a file says. Corrupt, UnknownFormat."""
    try:
        envelope = from_json(data, _SharedEnvelope)
        if envelope.version != VERSION:
            raise UnknownFormat(
                f"it is of version {envelope.version}, and this lodefs knows {VERSION}"
            )
        if blake3(envelope.mount).hexdigest() != envelope.digest:
            raise Corrupt("its digest is wrong: it was changed, or the disk lost something")
        return from_json(envelope.mount, SharedMount)
    except InvalidInput as error:
        raise Corrupt(f"it is no record of a mount: {error}") from error
