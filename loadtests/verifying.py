"""Readers that compare every byte with the original, and note errors and the longest wait.

``python -m loadtests.verifying FILE ORIGINAL SEED`` is one of them: it reads random ranges, past
the page cache and through it, until SIGTERM, and prints one JSON object then.
"""

from __future__ import annotations

import json
import mmap
import os
import random
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from time import perf_counter

SIZES = (4 << 10, 64 << 10, 256 << 10)
BLOCK_BYTES = 4096
END_TIMEOUT_S = 90.0


@dataclass(slots=True)
class Verified:
    """What readers saw. ``longest_s``: of the reads, from call to return."""

    reads: int = 0
    size_bytes: int = 0
    errors: int = 0
    wrong: int = 0
    longest_s: float = 0.0

    def add(self, other: Verified) -> None:
        """Takes another reader's into it."""
        self.reads += other.reads
        self.size_bytes += other.size_bytes
        self.errors += other.errors
        self.wrong += other.wrong
        self.longest_s = max(self.longest_s, other.longest_s)


@contextmanager
def verifying(file: Path, original: Path, readers: int) -> Iterator[Verified]:
    """Readers at work inside the context; what is given is filled in at its end."""
    words = [sys.executable, "-m", "loadtests.verifying", str(file), str(original)]
    found = Verified()
    children = [
        subprocess.Popen(
            [*words, str(seed)],
            stdout=subprocess.PIPE,
            text=True,
            cwd=Path(__file__).parents[1],
        )
        for seed in range(readers)
    ]
    try:
        for child in children:
            if child.stdout is None or child.stdout.readline() != "reading\n":
                raise RuntimeError(f"a reader of {file} does not begin")
        yield found
        for child in children:
            child.terminate()
        for child in children:
            output, _ = child.communicate(timeout=END_TIMEOUT_S)
            found.add(Verified(**json.loads(output)))
    finally:
        for child in children:
            child.kill()
            child.wait()


def _read(file: str, original: str, seed: str) -> Verified:
    """Reads until SIGTERM."""
    over: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, _frame: over.append(number))
    chance = random.Random(int(seed))
    found = Verified()
    with open(original, "rb") as whole:
        right = mmap.mmap(whole.fileno(), 0, access=mmap.ACCESS_READ)
    direct, plain = (os.open(file, os.O_RDONLY | more) for more in (os.O_DIRECT, 0))
    os.posix_fadvise(plain, 0, 0, os.POSIX_FADV_RANDOM)
    buffer = memoryview(mmap.mmap(-1, max(SIZES)))
    print("reading", flush=True)
    while not over:
        fd, size = chance.choice((direct, plain)), chance.choice(SIZES)
        first = chance.randrange(len(right))
        if fd == direct:  # passed through to a file system of the disk, which wants whole blocks
            first -= first % BLOCK_BYTES
        start = perf_counter()
        try:
            got = buffer[: os.preadv(fd, [buffer[:size]], first)]
        except OSError:
            found.errors += 1
            continue
        finally:
            found.longest_s = max(found.longest_s, perf_counter() - start)
        found.reads += 1
        found.size_bytes += len(got)
        if got != right[first : first + size]:
            found.wrong += 1
        if fd == plain:
            os.posix_fadvise(fd, first, size, os.POSIX_FADV_DONTNEED)
    return found


if __name__ == "__main__":
    print(json.dumps(asdict(_read(*sys.argv[1:]))))
