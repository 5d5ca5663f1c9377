"""Random operations on one file of a writable mount, as of fsx, while what serves it is killed.

By hand: ``python -m tests.support.mount.file_exerciser SECONDS``. The file is compared with the
same bytes in memory after each operation that reads, and as a whole at the end, when it was mounted
again; files that nobody changes are compared with what was pushed.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import random
import signal
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from threading import Event, Thread

from lodefs.mount.kernel import mount_table
from lodefs.mount.writable.upper_place import UpperPlace
from tests.mount.writable.conftest import Writable
from tests.support.chunkstore.child_process import private_directory
from tests.support.mount.mounts import Mounts, kill, workers_of
from tests.support.proxy.node_process import REPO, NodeProcess

SIZE_BYTES_MAX = 6_000_000
OPERATION_BYTES_MAX = 128 << 10
OTHERS, OTHER_BYTES = 40, 150_000
CACHE_BYTES = 4 << 20  # less than there is: files are fetched again and again
HARM_S = 1.5


class FileExerciser:
    """One file, and the bytes that it must have."""

    def __init__(self, path: Path, content: bytes, seed: int) -> None:
        self.path = path
        self.content = bytearray(content)
        self.done: Counter[str] = Counter()
        self._random = random.Random(seed)
        self._fd = os.open(path, os.O_RDWR)
        self._operations: list[Callable[[], None]] = [
            self.read, self.read, self.write, self.write, self.map_read, self.map_write,
            self.truncate, self.allocate, self.reopen, self.sync, self.replace, self.compare_size,
        ]  # fmt: skip

    def step(self) -> None:
        """One operation. Raises: AssertionError where the file is not as it must be."""
        operation = self._random.choice(self._operations)
        operation()
        self.done[operation.__name__] += 1

    def close(self) -> None:
        os.close(self._fd)

    def read(self) -> None:
        first, end = self._range(len(self.content))
        self._compare(os.pread(self._fd, end - first, first), first, end)

    def write(self) -> None:
        first, end = self._range(SIZE_BYTES_MAX)
        self._put(first, data := self._random.randbytes(end - first))
        assert os.pwrite(self._fd, data, first) == len(data)

    def map_read(self) -> None:
        if self.content:
            first, end = self._range(len(self.content))
            with mmap.mmap(self._fd, 0, access=mmap.ACCESS_READ) as mapped:
                self._compare(mapped[first:end], first, end)

    def map_write(self) -> None:
        if self.content:
            first, end = self._range(len(self.content))
            data = self._random.randbytes(end - first)
            with mmap.mmap(self._fd, 0) as mapped:
                mapped[first:end] = data
            self._put(first, data)

    def truncate(self) -> None:
        size = self._random.randint(0, SIZE_BYTES_MAX)
        os.ftruncate(self._fd, size)
        self._resize(size)

    def allocate(self) -> None:
        first, end = self._range(SIZE_BYTES_MAX)
        if end > first:
            os.posix_fallocate(self._fd, first, end - first)
            self._resize(max(end, len(self.content)))

    def reopen(self) -> None:
        os.close(self._fd)
        self._fd = os.open(self.path, os.O_RDWR)

    def sync(self) -> None:
        os.fsync(self._fd)

    def replace(self) -> None:
        """As an editor does: another file takes the name."""
        beside = self.path.with_name("beside")
        beside.write_bytes(self.content)
        os.rename(beside, self.path)
        self.reopen()

    def compare_size(self) -> None:
        assert os.fstat(self._fd).st_size == os.stat(self.path).st_size == len(self.content)

    def _range(self, size: int) -> tuple[int, int]:
        first = self._random.randint(0, size)
        return first, min(size, first + self._random.randint(0, OPERATION_BYTES_MAX))

    def _put(self, first: int, data: bytes) -> None:
        if data:
            self._resize(max(len(self.content), first + len(data)))
            self.content[first : first + len(data)] = data

    def _resize(self, size: int) -> None:
        del self.content[size:]
        self.content.extend(bytes(size - len(self.content)))

    def _compare(self, found: bytes, first: int, end: int) -> None:
        assert found == self.content[first:end], f"{self.path}: {first} to {end}, {self.done}"


def main(seconds: float) -> None:
    """Exercises a file for that long. Raises: AssertionError, OSError."""
    seed = int.from_bytes(os.urandom(4))
    with private_directory() as folder, contextlib.ExitStack() as stack:
        source = folder / "source"
        source.mkdir()
        others = {str(n): random.Random(n).randbytes(OTHER_BYTES) for n in range(OTHERS)}
        content = random.Random(seed).randbytes(3_000_000)
        for name, data in {**others, "file": content}.items():
            (source / name).write_bytes(data)
        node = NodeProcess(folder, source, size_bytes_max=CACHE_BYTES)
        stack.callback(node.kill)
        mounts = Mounts(folder, node)
        stack.callback(mounts.close)
        writable = Writable(mounts, UpperPlace(folder / "changes"))
        stack.callback(writable.close)
        _mount(writable, node)
        harm = _Harm(writable, node)
        exerciser = FileExerciser(writable.root / "file", content, seed)
        try:
            end_s = time.monotonic() + seconds
            while time.monotonic() < end_s:
                exerciser.step()
                name = random.choice(list(others))
                assert (writable.root / name).read_bytes() == others[name], name
        finally:
            harm.end()
            exerciser.close()
        writable.unmount()
        _mount(writable, node)
        assert (writable.root / "file").read_bytes() == exerciser.content
        writable.unmount(discard=True)
        print(f"seed {seed}: {dict(exerciser.done)}, {dict(harm.done)}; no difference")


def _mount(writable: Writable, node: NodeProcess) -> None:
    options = writable.mounts.options(repo=REPO, workers=2, mode=0o755)
    writable.mount(options=options, commit=node.commit)


class _Harm:
    """Kills a worker, or the proxy, which is started again, every so often, in a thread."""

    def __init__(self, writable: Writable, node: NodeProcess) -> None:
        self._lower = str(writable.place.lower(0))
        self._node = node
        self._over = Event()
        self.done: Counter[str] = Counter()
        self._thread = Thread(target=self._run)
        self._thread.start()

    def end(self) -> None:
        self._over.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._over.wait(HARM_S * random.random()):
            if random.random() < 0.3:
                self._node.restart()
                self.done["proxies killed"] += 1
                continue
            workers = workers_of(mount_table.pid_of(self._lower))
            if workers:
                kill(random.choice(workers), signal.SIGKILL)
                self.done["workers killed"] += 1


if __name__ == "__main__":
    from tests import mount_namespace

    mount_namespace.enter()
    main(float(sys.argv[1]))
