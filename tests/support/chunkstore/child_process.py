"""Child processes for tests and benchmarks: started, watched by their output, surely stopped."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from time import monotonic

from tests.support.chunkstore import leftovers

TIMEOUT_S = 60.0  # for whatever a healthy child does at once, on a slow and loaded machine
TAIL_CHARS = 4000
_POLL_S = 0.02


class ChildError(AssertionError):
    """A child ended early, or did not do in time what was waited for. Shows its output."""


class Child:
    """One process in its own session. Its standard output and error go to one file.

    As a context manager it is killed, with all that it started in its session, at the end.
    """

    def __init__(
        self,
        argv: Sequence[str | Path],
        *,
        env: Mapping[str, str] | None = None,
        cwd: Path | None = None,
        pass_fds: Sequence[int] = (),
    ) -> None:
        """``env`` is added to this process's environment; ``pass_fds`` stay open in the child."""
        self.argv = [str(arg) for arg in argv]
        self._output = tempfile.TemporaryFile()  # noqa: SIM115 - closed by kill()
        try:
            self.process = subprocess.Popen(
                self.argv,
                stdin=subprocess.DEVNULL,
                stdout=self._output,
                stderr=subprocess.STDOUT,
                env={**os.environ, **(env or {})},
                cwd=cwd,
                pass_fds=pass_fds,
                start_new_session=True,
            )
        except BaseException:
            self._output.close()
            raise
        self._text = ""

    @property
    def pid(self) -> int:
        """The process id, which is its session's too."""
        return self.process.pid

    @property
    def output(self) -> str:
        """All that it has written so far."""
        if not self._output.closed:
            size_bytes = os.fstat(self._output.fileno()).st_size
            raw = os.pread(self._output.fileno(), size_bytes, 0)
            self._text = raw.decode("utf-8", "replace")
        return self._text

    def wait_for(self, pattern: str, *, timeout_s: float = TIMEOUT_S) -> re.Match[str]:
        """The first match of ``pattern`` (a regular expression, ``^`` and ``$`` at lines) in its
        output. ChildError where it ends first or the time is over."""
        compiled = re.compile(pattern, re.MULTILINE)
        deadline = monotonic() + timeout_s
        while True:
            ended = self.process.poll() is not None
            match = compiled.search(self.output)
            if match:
                return match
            if ended or monotonic() > deadline:
                raise self.failed(f"did not write {pattern!r}")
            self.pause()

    def wait(self, *, timeout_s: float = TIMEOUT_S) -> int:
        """Its exit code (negative: the signal). ChildError where it does not end in time."""
        try:
            return self.process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            raise self.failed(f"did not end in {timeout_s:.0f} s") from None

    def terminate(self, *, timeout_s: float = TIMEOUT_S) -> int:
        """SIGTERM, and its exit code; ChildError (after SIGKILL) where it does not obey."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        try:
            return self.wait(timeout_s=timeout_s)
        finally:
            self.kill()

    def kill(self) -> None:
        """SIGKILL to its whole session; returns when the process is gone. May be repeated."""
        with suppress(ProcessLookupError, PermissionError):  # all of them are gone already
            os.killpg(self.pid, signal.SIGKILL)
        self.process.wait(TIMEOUT_S)
        if not self._output.closed:
            self._text = self.output
            self._output.close()

    def __enter__(self) -> Child:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()

    def pause(self, seconds: float = _POLL_S) -> None:
        """A short wait inside a loop that waits for a condition; over at once when it ends."""
        with suppress(subprocess.TimeoutExpired):
            self.process.wait(seconds)

    def failed(self, what: str) -> ChildError:
        """An error that says ``what``, whether it still runs, and the end of its output."""
        code = self.process.poll()
        state = "is running" if code is None else f"ended with {code}"
        tail = self.output[-TAIL_CHARS:]
        return ChildError(f"{self.argv[0]} {what}; it {state}. Its output:\n{tail}")


def run(
    argv: Sequence[str | Path],
    *,
    env: Mapping[str, str] | None = None,
    cwd: Path | None = None,
    timeout_s: float = TIMEOUT_S,
) -> str:
    """Runs a command to its end and gives its output; ChildError where it fails."""
    with Child(argv, env=env, cwd=cwd) as child:
        code = child.wait(timeout_s=timeout_s)
        if code != 0:
            raise child.failed("failed")
        return child.output


@contextmanager
def private_directory(prefix: str = "lodefs-") -> Iterator[Path]:
    """A new directory with a short path (Unix sockets take 107 bytes), removed at the end; by the
    next run of tests where this process is killed."""
    with leftovers.claimed(prefix) as path:
        yield path
