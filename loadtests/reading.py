"""Readers in separate processes, so that one stuck in a mount can be killed and forgotten.

``python -m loadtests.reading MODE ...`` does the reading and prints one JSON object; the functions
below start it. Times are taken inside, without the start of Python.
"""

from __future__ import annotations

import json
import os
import random
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from itertools import chain
from pathlib import Path
from time import perf_counter

from tests.support.chunkstore.child_process import run

PIECE_BYTES = 1 << 20
SMALL_BYTES = 64 << 10  # a larger buffer costs Python more than the file
SEED = 7
SLACK_S = 120.0  # for listing before and ending after the measured time


@dataclass(frozen=True, slots=True)
class Reading:
    """The work of readers: files or entries, bytes of content, and seconds."""

    count: int
    size_bytes: int
    seconds: float

    @property
    def per_s(self) -> float:
        """Files or entries a second."""
        return self.count / max(self.seconds, 1e-9)

    @property
    def mb_per_s(self) -> float:
        """Megabytes (10^6) a second."""
        return self.size_bytes / 1e6 / max(self.seconds, 1e-9)


def read_shuffled(root: Path, readers: int, *, seconds_max: float) -> Reading:
    """Opens, reads with one call and closes every file below ``root`` once, in an order that is the
    same everywhere, shared among ``readers`` processes; stops early when the time is over."""
    return _start("shuffled", root, readers, seconds_max, timeout_s=seconds_max + SLACK_S)


def compare(root: Path, other: Path, readers: int, *, timeout_s: float) -> Reading:
    """Reads every file below both directories, whole. Raises: ChildError if they differ."""
    return _start("compare", root, other, readers, timeout_s=timeout_s)


def walk(root: Path, *, timeout_s: float) -> Reading:
    """Lists every directory below ``root`` and takes the status of every entry."""
    return _start("walk", root, timeout_s=timeout_s)


def first_byte(path: Path, *, timeout_s: float = SLACK_S) -> Reading:
    """Opens a file and reads its first byte; its directory is listed before, unmeasured."""
    return _start("first", path, timeout_s=timeout_s)


def whole(path: Path, *, timeout_s: float) -> Reading:
    """Reads one file from start to end by pieces of 1 MiB into one buffer."""
    return _start("whole", path, timeout_s=timeout_s)


def _start(mode: str, *words: object, timeout_s: float) -> Reading:
    command = [sys.executable, "-m", "loadtests.reading", mode, *(str(word) for word in words)]
    output = run(command, cwd=Path(__file__).parents[1], timeout_s=timeout_s)
    return Reading(**json.loads(output.splitlines()[-1]))


def files_below(root: str) -> list[str]:
    """The paths of all files below a directory, sorted."""
    found = (os.path.join(folder, name) for folder, _, names in os.walk(root) for name in names)
    return sorted(found)


def share(paths: Sequence[str], readers: int, number: int) -> list[str]:
    """The paths for reader ``number`` of ``readers``: every path is in exactly one share."""
    order = list(paths)
    random.Random(SEED).shuffle(order)
    return order[number::readers]


def _shuffled(root: str, readers: str, seconds_max: str) -> Reading:
    paths = files_below(root)
    limit_s = float(seconds_max)
    work = [
        lambda number=number: _read_each(share(paths, int(readers), number), limit_s)
        for number in range(int(readers))
    ]
    return _together(work)


def _read_each(paths: Sequence[str], seconds_max: float) -> tuple[int, int]:
    end = perf_counter() + seconds_max
    count = size_bytes = 0
    for path in paths:
        fd = os.open(path, os.O_RDONLY)
        got = len(os.read(fd, SMALL_BYTES))
        os.close(fd)
        if got == 0:
            raise ValueError(f"{path} is empty")
        count += 1
        size_bytes += got
        if perf_counter() > end:
            break
    return count, size_bytes


def _compare(root: str, other: str, readers: str) -> Reading:
    names = [os.path.relpath(path, root) for path in files_below(root)]
    if names != [os.path.relpath(path, other) for path in files_below(other)]:
        raise ValueError(f"{root} and {other} do not have the same files")
    work = [
        lambda number=number: _compare_each(root, other, names[number :: int(readers)])
        for number in range(int(readers))
    ]
    return _together(work)


def _compare_each(root: str, other: str, names: Sequence[str]) -> tuple[int, int]:
    size_bytes = 0
    for name in names:
        with open(os.path.join(root, name), "rb", buffering=0) as one, \
                open(os.path.join(other, name), "rb", buffering=0) as two:  # fmt: skip
            for mine in _pieces(one.fileno()):
                if os.read(two.fileno(), len(mine)) != mine:
                    raise ValueError(f"{name} differs in {root} and {other}")
                size_bytes += len(mine)
            if os.read(two.fileno(), 1):
                raise ValueError(f"{name} is longer in {other}")
    return len(names), size_bytes


def _pieces(fd: int) -> Iterator[bytes]:
    while piece := os.read(fd, PIECE_BYTES):
        yield piece


def _walk(root: str) -> Reading:
    start = perf_counter()
    count = 0
    folders = [root]
    while folders:
        with os.scandir(folders.pop()) as entries:
            for entry in entries:
                entry.stat(follow_symlinks=False)
                count += 1
                if entry.is_dir(follow_symlinks=False):
                    folders.append(entry.path)
    return Reading(count, 0, perf_counter() - start)


def _first(path: str) -> Reading:
    for entry in chain.from_iterable(map(os.scandir, (Path(path).parents[1], Path(path).parent))):
        entry.stat()
    start = perf_counter()
    fd = os.open(path, os.O_RDONLY)
    got = len(os.read(fd, 1))
    seconds = perf_counter() - start
    os.close(fd)
    return Reading(1, got, seconds)


def _whole(path: str) -> Reading:
    buffer = bytearray(PIECE_BYTES)
    start = perf_counter()
    fd = os.open(path, os.O_RDONLY)
    size_bytes = 0
    while got := os.readv(fd, [buffer]):
        size_bytes += got
    os.close(fd)
    return Reading(1, size_bytes, perf_counter() - start)


def _together(work: Sequence[Callable[[], tuple[int, int]]]) -> Reading:
    """Runs each piece of work in a process; all begin at once. Exits with 1 if one fails."""
    gate, opener = os.pipe()
    results, answer = os.pipe()
    children = []
    for piece in work:
        pid = os.fork()
        if pid == 0:
            os.close(opener)
            _work(piece, gate, answer)
        children.append(pid)
    os.close(gate)
    os.close(answer)
    os.close(opener)  # starts them
    with os.fdopen(results) as lines:
        done = [json.loads(line) for line in lines]
    codes = [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in children]
    if any(codes) or len(done) != len(work):
        sys.exit(1)
    seconds = max(line["end"] for line in done) - min(line["start"] for line in done)
    count, size_bytes = (sum(line[key] for line in done) for key in ("count", "size_bytes"))
    return Reading(count, size_bytes, seconds)


def _work(piece: Callable[[], tuple[int, int]], gate: int, answer: int) -> None:
    """A reader process: waits at the gate, reads, prints one line, ends."""
    code = 1
    try:
        os.read(gate, 1)
        start = perf_counter()
        count, size_bytes = piece()
        line = {"count": count, "size_bytes": size_bytes, "start": start, "end": perf_counter()}
        os.write(answer, f"{json.dumps(line)}\n".encode())
        code = 0
    except Exception as error:  # noqa: BLE001 - a reader's end is told by its status
        with suppress(OSError):
            sys.stderr.write(f"{type(error).__name__}: {error}\n")
            sys.stderr.flush()
    os._exit(code)


MODES: dict[str, Callable[..., Reading]] = {
    "shuffled": _shuffled,
    "compare": _compare,
    "walk": _walk,
    "first": _first,
    "whole": _whole,
}


def main() -> int:
    """Runs one reading, as the arguments say."""
    mode, *words = sys.argv[1:]
    reading = MODES[mode](*words)
    print(json.dumps(asdict(reading)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
