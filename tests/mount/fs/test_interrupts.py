"""Whose interrupts are honoured, and how workers hear of them."""

from __future__ import annotations

import errno
import os
import select
import signal
from pathlib import Path

import pytest

from lodefs.mount.fs.interrupts import InterruptPipes, doomed, is_doomed


def status(pending: int = 0, *, shared: int = 0, blocked: int = 0, ignored: int = 0,
           caught: int = 0) -> str:  # fmt: skip
    """The lines of /proc/PID/status that matter, among others."""
    masks = (0 if not pending else 1 << (pending - 1)), (0 if not shared else 1 << (shared - 1))
    return (
        "Name:\tSigPnd: ffff\nState:\tD (disk sleep)\nSigQ:\t1/100\n"
        f"SigPnd:\t{masks[0]:016x}\nShdPnd:\t{masks[1]:016x}\nSigBlk:\t{blocked:016x}\n"
        f"SigIgn:\t{ignored:016x}\nSigCgt:\t{caught:016x}\nCapInh:\tffffffffffffffff\n"
    )


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGSEGV, 64])
def test_signals_that_end_a_process(number: int) -> None:
    """Pending for the thread or for the process, a deadly signal dooms it."""
    assert is_doomed(status(number))
    assert is_doomed(status(shared=number))


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGUSR1, 64])
def test_signals_that_a_process_deals_with(number: int) -> None:
    """One that is blocked, ignored or has a handler does not."""
    mask = 1 << (number - 1)
    assert not is_doomed(status(number, blocked=mask))
    assert not is_doomed(status(number, ignored=mask))
    assert not is_doomed(status(number, caught=mask))


@pytest.mark.parametrize("number", [0, signal.SIGCHLD, signal.SIGURG, signal.SIGSTOP])
def test_signals_that_end_nobody(number: int) -> None:
    """No signal at all, or one that by itself ends no process, does not."""
    assert not is_doomed(status(number))


def test_kill_cannot_be_dealt_with() -> None:
    """Whatever the masks say, SIGKILL dooms."""
    everything = (1 << 64) - 1
    assert is_doomed(
        status(signal.SIGKILL, blocked=everything, ignored=everything, caught=everything)
    )


def test_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    """A living process is not doomed, nor one that cannot be seen; one that is gone is, also one
    that goes between the opening and the reading of its status."""
    assert not doomed(os.getpid())
    assert not doomed(0)
    pid = os.fork()
    if not pid:
        os._exit(0)
    os.waitpid(pid, 0)
    assert doomed(pid)

    def read_text(_path: Path, *_how: str) -> str:
        raise ProcessLookupError(errno.ESRCH, os.strerror(errno.ESRCH))

    monkeypatch.setattr(Path, "read_text", read_text)
    assert doomed(pid)


def test_all_hear() -> None:
    """Each line brings what was told, once and in order, and a bare wake-up nothing."""
    lines = InterruptPipes(3)
    lines.notify(5)
    lines.wake(1)
    lines.notify(1 << 63)
    for index in range(3):
        assert select.select([lines.fileno(index)], [], [], 0)[0]
        assert lines.receive(index) == [5, 1 << 63]
        assert lines.receive(index) == []
    lines.close()


def test_who_does_not_listen_blocks_nobody() -> None:
    """However much is told to lines that nobody reads, telling goes on; the first is not lost."""
    lines = InterruptPipes(2)
    for unique in range(20_000):
        lines.notify(unique)
    assert lines.receive(0)[0] == lines.receive(1)[0] == 0
    lines.close()
