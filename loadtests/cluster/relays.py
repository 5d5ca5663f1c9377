"""Relays as processes on hosts of the network, and what they are told and asked."""

from __future__ import annotations

import json
import socket
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from chunkstore.testing.children import Child
from loadtests.cluster.counting import Counts
from loadtests.cluster.network import Host

ROOT = Path(__file__).parents[2]
CONTROL_TIMEOUT_S = 30


class RunningRelay:
    """A relay that can be told how to behave, and asked what it counted."""

    def __init__(self, control: Path) -> None:
        self._control = control

    @classmethod
    @contextmanager
    def started(
        cls, host: Host, folder: Path, name: str, own: str, upstream: str
    ) -> Iterator[RunningRelay]:
        """A relay on ``host``; ``own`` and ``upstream`` are HOST:PORT. Killed at the end."""
        control = folder / f"{name}.sock"
        words = [sys.executable, "-m", "loadtests.cluster.relay", own, upstream, str(control)]
        with Child(host.argv(words), cwd=ROOT) as child:
            child.wait_for("^ready$")
            yield cls(control)

    def behave(self, **fields: float | str) -> None:
        """Changes fields of its Behaviour; exchanges that are held are broken off."""
        self._ask({"set": fields})

    def counts(self, *, reset: bool = False) -> Counts:
        """What it counted so far; ``reset``: it counts from zero then."""
        return Counts.from_dict(self._ask({"reset": reset}))

    def _ask(self, what: dict[str, object]) -> dict[str, dict[str, int]]:
        with socket.socket(socket.AF_UNIX) as sock:
            sock.settimeout(CONTROL_TIMEOUT_S)
            sock.connect(str(self._control))
            with sock.makefile("rw") as lines:
                lines.write(json.dumps(what) + "\n")
                lines.flush()
                answer: dict[str, dict[str, int]] = json.loads(lines.readline())
                return answer
