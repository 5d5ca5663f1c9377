"""The version of lodefs that is installed."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterable
from contextlib import suppress

_RECORD = re.compile(r"lodefs-([^-]+)\.dist-info")


def installed_version(path: Iterable[str] | None = None) -> str | None:
    """Returns the version in the name of the directory that an installer leaves in one of ``path``
    (sys.path); None in a checkout that is not installed.

    Source: https://packaging.python.org/en/latest/specifications/recording-installed-packages/.
    importlib.metadata returns the same, but its imports take longer than a mount.
    """
    for folder in sys.path if path is None else path:
        with suppress(OSError):
            for name in os.listdir(folder or "."):
                found = _RECORD.fullmatch(name)
                if found is not None:
                    return found[1]
    return None
