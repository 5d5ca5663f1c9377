"""Another Python process of lodefs: the command line that starts one, and its environment.

Each part of lodefs starts its processes so, from a checkout, from a wheel and as installed. They
see Python's own library and the packages of their starter, and nothing else: not the current
directory, no ``usercustomize`` of the user whose HOME is set, nothing that PYTHON* variables name.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

_OWN = str(Path(__file__).parents[2])  # the directory that has the package lodefs


def command(module: str, *words: str) -> list[str]:
    """The command line that runs ``main`` of a module of lodefs, with ``words`` as its arguments.

    Python starts isolated (-I) and without site (-S); its program begins as that of the installed
    /usr/bin/lodefs does.
    """
    here = ""
    with suppress(OSError):  # it was removed
        here = os.getcwd()
    places = package_places(sys.path, here)
    program = (
        f"import sys; sys.path += [p for p in {places} if p not in sys.path]; "
        f"from {module} import main; main()"
    )
    return [sys.executable, "-IS", "-c", program, *words]


def package_places(path: Sequence[str], here: str) -> list[str]:
    """Where a process that another one with this sys.path starts, in the directory ``here``, finds
    packages: those of lodefs first."""
    return [_OWN, *(place for place in path if os.path.isabs(place) and place not in (_OWN, here))]


def environment(environ: Mapping[str, str]) -> dict[str, str]:
    """The environment of such a process: what it starts in turn gets no PYTHON* variables."""
    return {name: value for name, value in environ.items() if not name.startswith("PYTHON")}
