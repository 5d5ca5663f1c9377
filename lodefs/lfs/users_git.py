"""What the git of the user says: its settings, and the directory of the repository."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from lodefs.chunkstore.errors import Unavailable

_TIMEOUT_S = 10.0


def setting(name: str, url: str) -> str:
    """Returns a setting as it is for a URL; "" if there is none, or no git."""
    return _said("config", "--get-urlmatch", name, url)


def objects_folder() -> Path:
    """Returns the directory for unfinished downloads in the Git repository of this process: git lfs
    moves files from there. Raises: Unavailable."""
    said = _said("rev-parse", "--git-common-dir")
    if not said:
        raise Unavailable("the current directory is not in a Git repository, or git is missing")
    return Path(os.path.abspath(said)) / "lfs" / "tmp"


def _said(*words: str) -> str:
    """Returns what a command prints; "" if it fails."""
    try:
        done = subprocess.run(
            ["git", *words], capture_output=True, text=True, check=False, timeout=_TIMEOUT_S
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return "" if done.returncode else done.stdout.strip()
