"""Checks that a file with a secret can be read by its owner and group alone."""

from __future__ import annotations

import stat
from pathlib import Path

from lodefs.chunkstore.errors import InvalidInput

_FORBIDDEN_MODE = stat.S_IRWXO | stat.S_IWGRP


def check_private(path: Path, what: str) -> None:
    """Raises: InvalidInput if the file cannot be read, others may read it, or its group may change
    it.

    The group may read it: Kubernetes hands secrets out that way. ``what`` begins the message.
    """
    try:
        with path.open("rb"):
            mode = stat.S_IMODE(path.stat().st_mode)
    except OSError as error:
        raise InvalidInput(f"{what}: {error.strerror}") from error
    if mode & _FORBIDDEN_MODE:
        raise InvalidInput(
            f"{what}: its mode {mode:04o} lets others read it or its group change it: "
            f"chmod 0600 (or 0640) {path}"
        )
