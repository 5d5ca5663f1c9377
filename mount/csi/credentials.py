"""Credentials of S3 that pods' Secrets have, for the commits that come after the pods.

``RUN/csi/credentials/KEY``, one JSON object for each volume that takes changes: in a directory of
root's alone that a reboot empties, beside the tokens of mounts. No disk has them.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping
from contextlib import suppress
from pathlib import Path

import msgspec

from lodefs.chunkstore.errors import Corrupt, InvalidInput
from lodefs.chunkstore.format.decoding import from_json
from lodefs.mount.csi.attributes import SECRET_BYTES_MAX
from lodefs.mount.helper import state_files

FILE_BYTES_MAX = 4 * SECRET_BYTES_MAX


class Credentials:
    """The files of one driver."""

    def __init__(self, run: Path) -> None:
        """Raises: Denied, InvalidInput, Unavailable."""
        self._folder = run / "csi" / "credentials"
        try:
            state_files.make_private(self._folder)
            state_files.remove_unfinished(self._folder)
        except OSError as error:
            raise state_files.translated(error, self._folder) from error

    def keep(self, key: str, credentials: Mapping[str, str]) -> bool:
        """Keeps the credentials of a volume, by their names in the environment. Returns whether
        they are others than before. Raises: NoSpace, Denied, Unavailable."""
        if not credentials or credentials == self.of(key):
            return False
        state_files.write_whole(self._folder / key, msgspec.json.encode(credentials))
        return True

    def of(self, key: str) -> Mapping[str, str]:
        """Returns the credentials of a volume; {} if it came without any, or a reboot has removed
        them."""
        try:
            data = state_files.read_whole(self._folder / key, FILE_BYTES_MAX)
            return from_json(data, dict[str, str])
        except (OSError, InvalidInput, Corrupt):
            return {}

    def forget(self, key: str) -> None:
        """Removes the credentials of a volume. Raises: Denied, Unavailable."""
        try:
            (self._folder / key).unlink(missing_ok=True)
        except OSError as error:
            raise state_files.translated(error, self._folder / key) from error

    def sweep(self, keys: Collection[str]) -> None:
        """Removes the credentials of all other volumes, as far as possible."""
        with suppress(OSError):
            for name in os.listdir(self._folder):
                if name not in keys:
                    (self._folder / name).unlink()
