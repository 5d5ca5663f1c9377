"""Relays as processes on hosts of the network, and a client for their control sockets."""

from __future__ import annotations

import json
import socket
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from loadtests.cluster.counting import Counts, Sent
from loadtests.cluster.network import Host
from tests.support.chunkstore.child_process import Child

ROOT = Path(__file__).parents[2]
CONTROL_TIMEOUT_S = 30


class RunningRelay:
    """A relay that can be told how to behave, and asked what it counted."""

    def __init__(self, control: Path, log: Path) -> None:
        self._control = control
        self._log = log
        self._read_to = 0  # of the log

    @classmethod
    @contextmanager
    def started(
        cls, host: Host, folder: Path, name: str, own: str, upstream: str
    ) -> Iterator[RunningRelay]:
        """A relay on ``host``; ``own`` and ``upstream`` are HOST:PORT. Killed at the end."""
        control = folder / f"{name}.sock"
        log = folder / f"{name}.log"
        words = [sys.executable, "-m", "loadtests.cluster.relay"]
        with Child(host.argv([*words, own, upstream, control, log]), cwd=ROOT) as child:
            child.wait_for("^ready$")
            yield cls(control, log)

    def behave(self, **fields: float | str) -> None:
        """Changes fields of its Behaviour; exchanges that are held are broken off."""
        self._ask({"set": fields})

    def counts(self, *, reset: bool = False) -> Counts:
        """Its counters so far; ``reset``: starts again from zero."""
        return Counts.from_dict(self._ask({"reset": reset}))

    def sent(self) -> list[Sent]:
        """The bodies that ended since the last call."""
        with self._log.open("rb") as log:
            log.seek(self._read_to)
            whole, newline, _ = log.read().rpartition(b"\n")
        self._read_to += len(whole + newline)
        return [Sent.of_line(line) for line in whole.decode().splitlines()]

    def _ask(self, what: dict[str, object]) -> dict[str, dict[str, int]]:
        with socket.socket(socket.AF_UNIX) as sock:
            sock.settimeout(CONTROL_TIMEOUT_S)
            sock.connect(str(self._control))
            with sock.makefile("rw") as lines:
                lines.write(json.dumps(what) + "\n")
                lines.flush()
                answer: dict[str, dict[str, int]] = json.loads(lines.readline())
                return answer
