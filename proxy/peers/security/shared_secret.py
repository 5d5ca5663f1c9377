"""The cluster's shared secret: a file of one line, or of two while it is changed."""

from __future__ import annotations

import logging
from pathlib import Path

from lodefs.chunkstore.errors import InvalidInput
from lodefs.chunkstore.system.private_file import check_private
from lodefs.chunkstore.system.watched_files import WatchedFiles

SECRET_BYTES_MIN = 16
SECRET_BYTES_MAX = 1024

log = logging.getLogger("lodefs.peers")


def read_secrets(path: Path) -> tuple[bytes, ...]:
    """The secrets of a file: the first one signs, each of them is accepted.

    InvalidInput, which never shows what the file holds: it cannot be read, others may read it or
    its group may change it, more than two lines, or one that is too short or too long.
    """
    what = f"peer_secret_file {path}"
    check_private(path, what)
    try:
        with path.open("rb") as file:
            data = file.read(4 * SECRET_BYTES_MAX)
    except OSError as error:
        raise InvalidInput(f"{what}: {error.strerror}") from error
    secrets = tuple(line.strip() for line in data.splitlines() if line.strip())
    if not 1 <= len(secrets) <= 2:
        raise InvalidInput(f"{what}: must hold one secret, or two on two lines while it is changed")
    if not all(SECRET_BYTES_MIN <= len(one) <= SECRET_BYTES_MAX for one in secrets):
        raise InvalidInput(
            f"{what}: a secret has {SECRET_BYTES_MIN} to {SECRET_BYTES_MAX} bytes; "
            "`openssl rand -hex 32` makes one"
        )
    return secrets


def watched_secrets(path: Path) -> WatchedFiles[tuple[bytes, ...]]:
    """The secrets of a file that is watched. Raises: InvalidInput if it cannot be used now."""
    return WatchedFiles([path], lambda: read_secrets(path), log)
