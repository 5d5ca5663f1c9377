"""Starts other Python processes of lodefs: their command line and their environment.

Every part of lodefs starts its processes in this way, from a checkout, from a wheel, and when
installed. They see Python's own library and the packages of their parent, and nothing else: not the
current directory, no ``usercustomize`` of the user whose HOME is set, nothing from PYTHON*
variables.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

_OWN = str(Path(__file__).parents[2])  # the directory with the package lodefs


def command(module: str, *words: str) -> list[str]:
    """Returns the command line that runs ``main`` of a module of lodefs with the arguments
    ``words``.

    Python starts isolated (-I) and without site (-S). Its program begins like that of the installed
    /usr/bin/lodefs.
    """
    here = ""
    with suppress(OSError):  # the directory was removed
        here = os.getcwd()
    places = package_places(sys.path, here)
    program = (
        f"import sys; sys.path += [p for p in {places} if p not in sys.path]; "
        f"from {module} import main; main()"
    )
    return [sys.executable, "-IS", "-c", program, *words]


def package_places(path: Sequence[str], here: str) -> list[str]:
    """Returns where a child process finds packages, those of lodefs first, for a parent with this
    sys.path in the directory ``here``."""
    return [_OWN, *(place for place in path if os.path.isabs(place) and place not in (_OWN, here))]


def environment(environ: Mapping[str, str]) -> dict[str, str]:
    """Returns the environment of such a process, without PYTHON* variables for its own children."""
    return {name: value for name, value in environ.items() if not name.startswith("PYTHON")}
