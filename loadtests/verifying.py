"""Readers that believe nothing: they compare every byte of a mount with the directory that was
pushed, and note what is wrong, what fails and how long it takes at most.

``python -m loadtests.verifying MIX MOUNT SOURCE SEED`` is one of them (after fsx, which does so
with writes): it does what MIX says in random order until SIGTERM; then it prints one JSON object.
"""

from __future__ import annotations

import json
import mmap
import os
import random
import signal
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from time import perf_counter

from tests.support.chunkstore.child_process import Child, ChildError

OPEN_MAX = 48
PIECE_BYTES = 1 << 20
BLOCK_BYTES = 4096
RANGE_BYTES = (4 << 10, 64 << 10, 256 << 10)
TOLD_MAX = 10
END_TIMEOUT_S = 120.0

# How often each operation of Reader comes up, against the others.
EVERYTHING = "everything"  # in every way that programs read
RANGES = "ranges"  # past the page cache and through it: nearly all reads come to lodefs
MIXES: Mapping[str, Mapping[str, int]] = {
    EVERYTHING: {
        "pread": 60,
        "whole": 15,
        "sequential": 8,
        "map": 10,
        "list": 4,
        "status": 8,
        "forget": 12,
    },
    RANGES: {"direct": 1, "cold": 1},
}


@dataclass(slots=True)
class Verified:
    """What readers saw. ``longest_s``: the longest operation of each kind."""

    operations: int = 0
    size_bytes: int = 0
    wrong: int = 0
    errors: int = 0
    longest_s: dict[str, float] = field(default_factory=dict)
    told: list[str] = field(default_factory=list)  # the first things that went wrong

    def add(self, other: Verified) -> None:
        """Adds the results of another reader."""
        self.operations += other.operations
        self.size_bytes += other.size_bytes
        self.wrong += other.wrong
        self.errors += other.errors
        for kind, seconds in other.longest_s.items():
            self.longest_s[kind] = max(self.longest_s.get(kind, 0.0), seconds)
        self.told += other.told


@contextmanager
def verifying(mix: str, mount: Path, source: Path, readers: int) -> Iterator[Verified]:
    """Runs readers within the context; the result is filled in at its end."""
    words = [sys.executable, "-m", "loadtests.verifying", mix, str(mount), str(source)]
    found = Verified()
    with ExitStack() as stack:
        root = Path(__file__).parents[1]
        children = [
            stack.enter_context(Child([*words, str(seed)], cwd=root)) for seed in range(readers)
        ]
        for child in children:
            child.wait_for("^reading$")
        yield found
        for child in children:
            child.process.terminate()
        for child in children:
            found.add(_seen(child))


def _seen(child: Child) -> Verified:
    """The results of a reader. One that died (SIGBUS: an unreadable page) is an error."""
    try:
        if child.wait(timeout_s=END_TIMEOUT_S) != 0:
            raise child.failed("failed")
    except ChildError as error:
        return Verified(errors=1, told=[str(error)])
    return Verified(**json.loads(child.output.splitlines()[-1]))


class Reader:
    """Reads ``mount`` and compares it with ``source``, as its seed decides."""

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
        self._open: dict[str, _Pair] = {}
        self._block = memoryview(mmap.mmap(-1, max(RANGE_BYTES)))  # aligned, as O_DIRECT wants it
        self._operations: dict[str, Callable[[], None]] = {
            "pread": self._pread,
            "direct": self._direct,
            "cold": self._cold,
            "whole": self._whole,
            "sequential": self._sequential,
            "map": self._map,
            "list": self._list,
            "status": self._status,
            "forget": self._forget,
        }
        self.seen = Verified()

    def run(self, mix: Mapping[str, int], is_over: Callable[[], bool]) -> Verified:
        """Reads in a mix of ways until the time is over."""
        names, weights = list(mix), list(mix.values())
        while not is_over():
            self.do(self._random.choices(names, weights)[0])
        return self.seen

    def do(self, name: str) -> None:
        """Runs one operation."""
        start = perf_counter()
        try:
            self._operations[name]()
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

    def _both(self) -> tuple[str, _Pair]:
        """A file, open in the mount and in the source; a few files stay open."""
        if self._open and self._random.random() < 0.7:
            name = self._random.choice(list(self._open))
            return name, self._open[name]
        some = self._large if self._random.random() < 0.5 else self._names
        name = self._random.choice(some)
        if name not in self._open:
            if len(self._open) >= OPEN_MAX:
                self._open.pop(self._random.choice(list(self._open))).close()
            self._open[name] = _Pair(
                os.path.join(self._mount, name), os.path.join(self._source, name)
            )
        return name, self._open[name]

    def _pread(self) -> None:
        name, pair = self._both()
        first = self._random.randrange(self._size(name) + 5000)
        count = self._random.choice((1, 512, 4096, 4097, 65536, 300_000))
        self._compare(
            name, first, os.pread(pair.mine, count, first), os.pread(pair.theirs, count, first)
        )

    def _direct(self) -> None:
        """Reads whole blocks past the page cache, as a disk's file system requires."""
        name, pair = self._both()
        first = self._random.randrange(self._size(name) + 1)
        self._range(name, pair.direct(), pair.theirs, first - first % BLOCK_BYTES)

    def _cold(self) -> None:
        """Reads through the page cache, which keeps nothing of it."""
        name, pair = self._both()
        first = self._random.randrange(self._size(name) + 1)
        os.posix_fadvise(pair.mine, 0, 0, os.POSIX_FADV_RANDOM)
        count = self._range(name, pair.mine, pair.theirs, first)
        os.posix_fadvise(pair.mine, first, count, os.POSIX_FADV_DONTNEED)

    def _range(self, name: str, mine: int, theirs: int, first: int) -> int:
        count = self._random.choice(RANGE_BYTES)
        got = self._block[: os.preadv(mine, [self._block[:count]], first)]
        self._compare(name, first, got, os.pread(theirs, count, first))
        return count

    def _sequential(self) -> None:
        name, pair = self._both()
        first = os.lseek(pair.mine, self._random.randrange(self._size(name) + 1), os.SEEK_SET)
        for _ in range(self._random.randrange(1, 12)):
            got = os.read(pair.mine, PIECE_BYTES)
            self._compare(name, first, got, os.pread(pair.theirs, PIECE_BYTES, first))
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
        name, pair = self._both()
        size = self._size(name)
        if not size:
            return
        with mmap.mmap(pair.mine, 0, prot=mmap.PROT_READ) as mapped:
            for _ in range(self._random.randrange(1, 8)):
                first = self._random.randrange(size)
                count = self._random.choice((1, 4096, 100_000))
                found = mapped[first : first + count]
                self._compare(name, first, found, os.pread(pair.theirs, count, first))

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
        """Makes the kernel drop the file's pages, so that lodefs serves the next read."""
        _, pair = self._both()
        os.posix_fadvise(pair.mine, 0, 0, os.POSIX_FADV_DONTNEED)


class _Pair:
    """A file of the mount and the same of the source, open."""

    def __init__(self, mine: str, theirs: str) -> None:
        self._path = mine
        self._direct = -1
        self.mine = os.open(mine, os.O_RDONLY)
        self.theirs = os.open(theirs, os.O_RDONLY)

    def direct(self) -> int:
        """The mount's file, opened once more for reads past the page cache."""
        if self._direct < 0:
            self._direct = os.open(self._path, os.O_RDONLY | os.O_DIRECT)
        return self._direct

    def close(self) -> None:
        """All of them."""
        for fd in (self.mine, self.theirs, self._direct):
            if fd >= 0:
                os.close(fd)


def main() -> None:
    """Runs one reader, as its arguments say."""
    mix, mount, source, seed = sys.argv[1:]
    over: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, _frame: over.append(number))
    reader = Reader(mount, source, int(seed))
    print("reading", flush=True)
    print(json.dumps(asdict(reader.run(MIXES[mix], lambda: bool(over)))))


if __name__ == "__main__":
    main()
