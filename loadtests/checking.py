"""A reader that believes nothing: ``python -m loadtests.checking MOUNT SOURCE SEED SECONDS``.

Reads a mount in every way that programs do, in random order, and compares each byte with the
directory that was pushed (after fsx, which does so with writes). Prints one JSON object.
"""

from __future__ import annotations

import json
import mmap
import os
import random
import sys
from collections import Counter
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from time import perf_counter

OPEN_MAX = 48
PIECE_BYTES = 1 << 20
TOLD_MAX = 10


@dataclass(slots=True)
class Checked:
    """What one reader saw. ``longest_s``: of one operation, by kind of it."""

    operations: int = 0
    size_bytes: int = 0
    wrong: int = 0
    errors: int = 0
    longest_s: dict[str, float] = field(default_factory=dict)
    told: list[str] = field(default_factory=list)  # the first things that went wrong


class Reader:
    """Reads ``mount`` and compares with ``source``, as its seed says."""

    def __init__(self, mount: str, source: str, seed: int) -> None:
        self._mount = mount
        self._source = source
        self._random = random.Random(seed)
        self._folders: dict[str, list[str]] = {}
        for folder, _, names in os.walk(source):
            self._folders[os.path.relpath(folder, source)] = sorted(os.listdir(folder))
            del names
        self._names = sorted(
            os.path.relpath(os.path.join(folder, name), source)
            for folder, _, names in os.walk(source)
            for name in names
        )
        self._large = [name for name in self._names if self._size(name) >= PIECE_BYTES]
        self._open: dict[str, tuple[int, int]] = {}
        self.seen = Checked()

    def run(self, seconds: float) -> Checked:
        """Reads for so long."""
        kinds: Counter[Callable[[], None]] = Counter(
            {
                self._pread: 60,
                self._whole: 15,
                self._sequential: 8,
                self._map: 10,
                self._list: 4,
                self._status: 8,
                self._forget: 12,
            }
        )
        operations, weights = list(kinds), list(kinds.values())
        end = perf_counter() + seconds
        while perf_counter() < end:
            self._timed(self._random.choices(operations, weights)[0])
        return self.seen

    def _timed(self, operation: Callable[[], None]) -> None:
        start = perf_counter()
        name = operation.__name__.strip("_")
        try:
            operation()
        except OSError as error:
            self.seen.errors += 1
            self._tell(f"{name}: {error}")
        took_s = perf_counter() - start
        self.seen.operations += 1
        self.seen.longest_s[name] = max(self.seen.longest_s.get(name, 0.0), took_s)

    def _compare(self, what: str, first: int, mine: bytes | memoryview, expected: bytes) -> None:
        self.seen.size_bytes += len(expected)
        if mine != expected:
            self.seen.wrong += 1
            self._tell(f"{what}: {len(mine)} bytes at {first} are not those of the source")

    def _tell(self, text: str) -> None:
        if len(self.seen.told) < TOLD_MAX:
            self.seen.told.append(text)

    def _size(self, name: str) -> int:
        return os.stat(os.path.join(self._source, name)).st_size

    def _both(self) -> tuple[str, int, int]:
        """A file, open in the mount and in the source; few of them stay open."""
        if self._open and self._random.random() < 0.7:
            name = self._random.choice(list(self._open))
            return name, *self._open[name]
        some = self._large if self._random.random() < 0.5 else self._names
        name = self._random.choice(some)
        if name not in self._open:
            if len(self._open) >= OPEN_MAX:
                for fd in self._open.pop(self._random.choice(list(self._open))):
                    os.close(fd)
            mine = os.open(os.path.join(self._mount, name), os.O_RDONLY)
            self._open[name] = mine, os.open(os.path.join(self._source, name), os.O_RDONLY)
        return name, *self._open[name]

    def _pread(self) -> None:
        name, mine, theirs = self._both()
        first = self._random.randrange(self._size(name) + 5000)
        count = self._random.choice((1, 512, 4096, 4097, 65536, 300_000))
        self._compare(name, first, os.pread(mine, count, first), os.pread(theirs, count, first))

    def _sequential(self) -> None:
        name, mine, theirs = self._both()
        first = os.lseek(mine, self._random.randrange(self._size(name) + 1), os.SEEK_SET)
        for _ in range(self._random.randrange(1, 12)):
            got = os.read(mine, PIECE_BYTES)
            self._compare(name, first, got, os.pread(theirs, PIECE_BYTES, first))
            first += len(got)
            if not got:
                break

    def _whole(self) -> None:
        name = self._random.choice(self._names)
        if self._size(name) > 4 * PIECE_BYTES:
            return
        with open(os.path.join(self._mount, name), "rb", buffering=0) as mine, \
                open(os.path.join(self._source, name), "rb", buffering=0) as theirs:  # fmt: skip
            self._compare(name, 0, mine.read(), theirs.read())

    def _map(self) -> None:
        name, mine, theirs = self._both()
        size = self._size(name)
        if not size:
            return
        with mmap.mmap(mine, 0, prot=mmap.PROT_READ) as mapped:
            for _ in range(self._random.randrange(1, 8)):
                first = self._random.randrange(size)
                count = self._random.choice((1, 4096, 100_000))
                found = mapped[first : first + count]
                self._compare(name, first, found, os.pread(theirs, count, first))

    def _list(self) -> None:
        folder = self._random.choice(list(self._folders))
        found = sorted(os.listdir(os.path.join(self._mount, folder)))
        if found != self._folders[folder]:
            self.seen.wrong += 1
            self._tell(f"{folder}: its names are not those of the source")

    def _status(self) -> None:
        name = self._random.choice(self._names)
        if os.stat(os.path.join(self._mount, name)).st_size != self._size(name):
            self.seen.wrong += 1
            self._tell(f"{name}: its size is not that of the source")

    def _forget(self) -> None:
        """The kernel drops the file's pages: the next read of it comes to lodefs."""
        _, mine, _ = self._both()
        os.posix_fadvise(mine, 0, 0, os.POSIX_FADV_DONTNEED)


def main() -> None:
    """One reader, as its arguments say."""
    mount, source, seed, seconds = sys.argv[1:]
    print(json.dumps(asdict(Reader(mount, source, int(seed)).run(float(seconds)))))


if __name__ == "__main__":
    main()
