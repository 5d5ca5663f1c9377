"""A worker that has lost its supervisor answers for the mount, and no longer than that."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import ExitStack
from types import SimpleNamespace
from typing import Any

import pytest

from lodefs.mount.process.serving import worker_main
from lodefs.mount.process.serving.worker_main import WorkerMain
from lodefs.mount.shm.process_table import ProcessTable

TURNS = 5


class Socket:
    """A mount's socket with a client that waits. A new supervisor comes with the first answer."""

    def __init__(self, fd: int, table: ProcessTable) -> None:
        self._fd = fd
        self._table = table
        self.answers = 0

    def fileno(self) -> int:
        return self._fd

    def answer(self) -> None:
        self.answers += 1
        self._table.turn()


@pytest.fixture
def fds() -> Iterator[dict[str, int]]:
    """Ends of pipes: one never readable, one at its end; and a device."""
    quiet, writer = os.pipe()
    ended, other = os.pipe()
    os.close(other)
    device = os.open(os.devnull, os.O_WRONLY)
    with ExitStack() as stack:
        for fd in (quiet, writer, ended, device):
            stack.callback(os.close, fd)
        yield {"quiet": quiet, "ended": ended, "device": device}


def test_it_leaves_the_socket_to_a_new_supervisor(
    fds: dict[str, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else it would agree to take-overs, of which that supervisor would not hear."""
    monkeypatch.setattr(worker_main, "WATCH_S", 0.001)
    memory = ProcessTable.create()
    table = ProcessTable(memory)
    os.close(memory)
    socket: Any = Socket(os.dup(fds["ended"]), table)
    context: Any = SimpleNamespace(
        fd=fds["device"], index=0, supervisor_fd=fds["ended"], life_fd=-1, made_fd=fds["quiet"],
        serving=lambda: None,
    )  # fmt: skip
    lines: Any = SimpleNamespace(fileno=lambda _index: fds["quiet"], receive=lambda _i: ())
    pending: Any = None
    main = WorkerMain(context, lines, pending, socket, table, lambda _line: None)
    left = iter([False] * TURNS)
    end: Any = SimpleNamespace(is_set=lambda: next(left, True))
    main.run(end)
    os.close(socket.fileno())
    assert (main.alone, socket.answers) == (True, 1)
