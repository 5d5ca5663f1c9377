"""Readers of many nodes at once: started together, watched, ended, their results collected."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from time import monotonic

import msgspec

from loadtests.cluster.figures import Seen
from loadtests.cluster.network import Host
from loadtests.cluster.plans import Streams, size_of
from loadtests.cluster.reader import Task
from loadtests.errors import LoadtestError
from tests.support.chunkstore.child_process import Child

ROOT = Path(__file__).parents[2]
READY_TIMEOUT_S = 120.0


class _Answer(msgspec.Struct):
    start_s: float
    end_s: float
    seen: Seen


@dataclass(frozen=True, slots=True)
class Manner:
    """The way to read: see reader.Task."""

    timeout_s: float = 120.0
    patience_s: float = 0.0
    pause_s: float = 0.0
    is_endless: bool = False  # until ``stop``


@dataclass(frozen=True, slots=True)
class _Running:
    child: Child
    result: Path
    size_bytes: int
    reads: int


class Readers:
    """The readers of one epoch. As a context manager it kills those that run at its end."""

    def __init__(self, folder: Path) -> None:
        """``folder``: for their files; created here."""
        folder.mkdir(parents=True)
        self._folder = folder
        self._gate, self._until = folder / "gate", folder / "until"
        self._running: dict[int, _Running] = {}
        self._dropped = Seen()

    def add(
        self, number: int, host: Host, address: str, streams: Streams,
        targets: Mapping[str, str], manner: Manner,
    ) -> None:  # fmt: skip
        """A reader on a host, ready to begin with all others, or at once if they have begun."""
        names = {job.name for jobs in streams for job in jobs}
        result = self._folder / f"result-{number}.json"
        task = Task(
            address,
            {name: targets[name] for name in names},
            streams,
            gate=str(self._gate),
            result=str(result),
            timeout_s=manner.timeout_s,
            patience_s=manner.patience_s,
            pause_s=manner.pause_s,
            until=str(self._until) if manner.is_endless else "",
        )
        file = self._folder / f"task-{number}.json"
        file.write_bytes(msgspec.json.encode(task))
        words = [sys.executable, "-m", "loadtests.cluster.reader", str(file)]
        child = Child(host.argv(words), cwd=ROOT)
        reads = sum(len(jobs) for jobs in streams)
        self._running[number] = _Running(child, result, size_of(streams), reads)

    def begin(self) -> None:
        """Starts all readers, when all are ready."""
        for running in self._running.values():
            running.child.wait_for("^ready$", timeout_s=READY_TIMEOUT_S)
        self._gate.touch()

    def stop(self) -> None:
        """Lets endless readers end after their present read."""
        self._until.touch()

    def drop(self, number: int) -> None:
        """Kills a reader, as if its machine were gone: only its wrong bytes count."""
        running = self._running.pop(number, None)
        if running is not None:
            running.child.kill()
            self._dropped.wrong_bytes += progress(running.child.output)[1]

    @property
    def read_bytes(self) -> int:
        """The results of all readers so far."""
        return sum(progress(running.child.output)[0] for running in self._running.values())

    def wait(self, timeout_s: float, meanwhile: Callable[[], None]) -> None:
        """Waits until all have ended, or the time is over, and calls ``meanwhile`` repeatedly."""
        end = monotonic() + timeout_s
        while (child := self._unfinished()) is not None and monotonic() < end:
            meanwhile()
            child.pause()

    def collect(self) -> tuple[Seen, float]:
        """What all saw, and the seconds from the first one's begin to the last one's end.

        Who has not ended has failed in all of its reads. LoadtestError for one that broke.
        """
        total = Seen(wrong_bytes=self._dropped.wrong_bytes)
        times = []
        for number, running in self._running.items():
            if running.result.exists():
                answer = msgspec.json.decode(running.result.read_bytes(), type=_Answer)
                total.add(answer.seen)
                times += [answer.start_s, answer.end_s]
            elif running.child.process.poll() is None:
                running.child.kill()
                failed = Seen(failed=running.reads, told=[f"reader {number}: did not end in time"])
                total.add(failed)
            else:
                raise LoadtestError(f"a reader broke:\n{running.child.output[-2000:]}")
        return total, max(times) - min(times) if times else 0.0

    def _unfinished(self) -> Child | None:
        children = (running.child for running in self._running.values())
        return next((child for child in children if child.process.poll() is None), None)

    def __enter__(self) -> Readers:
        return self

    def __exit__(self, *_: object) -> None:
        for running in self._running.values():
            running.child.kill()


def progress(output: str) -> tuple[int, int]:
    """The last bytes read and wrong bytes that a reader has written; (0, 0) for none."""
    whole_lines = output.rpartition("\n")[0].splitlines()
    for line in reversed(whole_lines):
        words = line.split()
        if len(words) == 2 and all(map(str.isdigit, words)):
            return int(words[0]), int(words[1])
    return 0, 0
