"""Whether processes have ended, by their pidfds."""

from __future__ import annotations

import fcntl
import resource
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager

from lodefs.chunkstore.system import processes
from lodefs.chunkstore.system.safe_open import closing

WAIT_S = 60.0


@contextmanager
def child() -> Iterator[tuple[subprocess.Popen[bytes], int]]:
    """A process that does nothing, and a pidfd of it."""
    with subprocess.Popen(["sleep", "1000"]) as started:
        try:
            with closing(processes.watch(started.pid)) as pid_fd:
                yield started, pid_fd
        finally:
            started.kill()


def test_one_that_lives_and_one_that_ends() -> None:
    """A process is over once it has ended; a signal to it is nothing then."""
    with child() as (_, living), child() as (_, ending):
        assert not processes.is_over(ending)
        assert not processes.are_over([ending, living], 0)
        processes.send(ending)
        assert processes.is_over(ending, WAIT_S)
        assert not processes.are_over([ending, living], 0)
        processes.send(living, signal.SIGTERM)
        assert processes.are_over([ending, living], WAIT_S)


def test_a_signal_after_the_end() -> None:
    """To a process that was waited for nothing is sent, and that is no error."""
    with child() as (started, pid_fd):
        started.kill()
        started.wait(WAIT_S)
        processes.send(pid_fd)
        processes.reap(started.pid)


def test_a_program_with_many_descriptors() -> None:
    """Numbers above 1023, which select(2) does not take, are descriptors like others."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, 2048), hard))
    try:
        with (
            child() as (_, pid_fd),
            closing(fcntl.fcntl(pid_fd, fcntl.F_DUPFD_CLOEXEC, 1500)) as high,
        ):
            assert not processes.is_over(high)
            processes.send(high)
            assert processes.is_over(high, WAIT_S)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
