"""Where temporary files go: never where another user can put others in their places."""

from __future__ import annotations

import os
from collections.abc import MutableMapping

VARIABLES = ("TMPDIR", "TEMP", "TMP")  # as Python looks for it


def leave_others_directories(environ: MutableMapping[str, str]) -> list[str]:
    """Root may have the environment of a user, after su(1) or ``sudo -E``. Takes out of it each
    directory for temporary files in which that user can move what root makes; returns a line for
    each."""
    named = [name for name in VARIABLES if environ.get(name)]
    if not named or os.geteuid() != 0:
        return []
    from lodefs.chunkstore.system.safe_open import keeps_names  # not at each start
    from lodefs.mount.kernel.namespaces import in_first_user_namespace

    if not in_first_user_namespace():
        return []  # its root has no more rights than who made that
    return [
        f"{name}={environ.pop(name)} is not used: others can change what root makes there"
        for name in named
        if not keeps_names(environ[name])
    ]
