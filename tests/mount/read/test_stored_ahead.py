"""Bytes that are in the page cache before they are asked for, through the real kernel."""

from __future__ import annotations

import errno
import hashlib
import os
import random
import signal
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from threading import Thread

import pytest

from lodefs.mount.process.mounter import Mounted
from lodefs.mount.read.read_events import QUIET
from tests.support.chunkstore.child_process import private_directory
from tests.support.mount.mounts import (
    WAIT_S,
    Mounts,
    alive,
    in_child,
    kill,
    read_anew,
    until,
    workers_of,
)
from tests.support.mount.pages import pages_in_memory
from tests.support.proxy.rig import MIB, REPO, Rig, serve_rig

pytestmark = [pytest.mark.slow, pytest.mark.fuse]

_random = random.Random(8)
SMALL = {b"d/%03d" % n: _random.randbytes(1 + 137 * n) for n in range(100)}
BIG = _random.randbytes(3 * MIB + 5)
FILES = {b"big": BIG, **SMALL}
READ = [b"d/007", b"d/009"]
OTHERS = [path for path in SMALL if path not in READ]


class Made:
    """A mount without passthrough; all files are on the node, and none in the page cache."""

    def __init__(self, mounts: Mounts) -> None:
        self.mounts = mounts
        self.mounted: Mounted = mounts.mount(repo=REPO, workers=2, passthrough="off")
        for path, data in FILES.items():
            assert read_anew(self.path(path)) == data
        self.forget()

    def path(self, path: bytes) -> bytes:
        return os.fsencode(self.mounts.place) + b"/" + path

    def forget(self) -> None:
        """Nothing of the mount is in the page cache, once what was read before is stored ahead."""
        until(self._drops_all)

    def _drops_all(self) -> bool:
        for path in FILES:
            fd = os.open(self.path(path), os.O_RDONLY)
            os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
            os.close(fd)
        return not any(any(self.pages(path)) for path in FILES)

    def pages(self, path: bytes) -> list[bool]:
        return pages_in_memory(Path(os.fsdecode(self.path(path))))

    def reading_stores_others(self) -> bool:
        """Some small files are read: whether all that lie beside them are in memory now.

        Each of them is looked at, so that the kernel knows it: it may have forgotten files for lack
        of memory, and of files that it does not know nothing is stored.
        """
        for path in READ:
            assert read_anew(self.path(path)) == SMALL[path]
        stored = [all(self.pages(path)) for path in OTHERS]
        return all(stored)

    @property
    def processes(self) -> list[int]:
        """The workers, and the process that stores ahead."""
        return workers_of(self.mounted.pid)


@pytest.fixture
def made() -> Iterator[Made]:
    with private_directory() as folder:
        rig = Rig(folder, FILES, chunk_size_bytes=65536)
        with serve_rig(rig) as (proxy, _node):
            mounts = Mounts(folder, proxy)
            try:
                yield Made(mounts)
            finally:
                mounts.close()


# Python's open() asks each file whether it is a terminal, and that is a question to a worker.
READ_ALL = """
import hashlib, os, sys
found = hashlib.sha256()
for path in sys.argv[1:]:
    fd = os.open(path, os.O_RDONLY)
    found.update(os.read(fd, 1 << 20))
    os.close(fd)
print(found.hexdigest())
"""


def test_what_is_stored_ahead_is_read_without_any_process_of_ours(made: Made) -> None:
    """After two reads of small files their directory is in memory: read while all processes of the
    mount are stopped, byte for byte."""
    until(made.reading_stores_others)
    expected = hashlib.sha256(b"".join(SMALL[path] for path in OTHERS)).hexdigest()
    processes = made.processes
    for pid in processes:
        kill(pid, signal.SIGSTOP)
    try:
        assert in_child(READ_ALL, *(os.fsdecode(made.path(path)) for path in OTHERS)) == expected
    finally:
        for pid in processes:
            kill(pid, signal.SIGCONT)


def test_small_reads_in_a_large_file_bring_their_block(made: Made) -> None:
    """After two reads of 4 KiB, the MiB around them is in memory and right; the next is not."""
    fd = os.open(made.path(b"big"), os.O_RDONLY)
    os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_RANDOM)

    def is_stored() -> bool:
        for page in (256 + 3, 256 + 77):
            os.posix_fadvise(fd, page * 4096, 4096, os.POSIX_FADV_DONTNEED)
            assert os.pread(fd, 4096, page * 4096) == BIG[page * 4096 : (page + 1) * 4096]
        return all(made.pages(b"big")[256:512])

    until(is_stored)
    assert not any(made.pages(b"big")[512:])
    assert os.pread(fd, MIB, MIB) == BIG[MIB : 2 * MIB]
    os.close(fd)


def test_another_takes_the_place_of_one_that_is_killed(made: Made) -> None:
    """Whoever stores ahead may be killed at any time: nothing is lost, and storing goes on."""
    until(made.reading_stores_others)
    prefetcher = made.processes[-1]
    kill(prefetcher, signal.SIGKILL)
    until(lambda: not alive(prefetcher))

    def another_works() -> bool:  # it is started when somebody reads
        made.forget()
        made.reading_stores_others()
        return len(made.processes) == 3

    until(another_works)
    made.forget()
    until(made.reading_stores_others)
    for path, data in FILES.items():
        assert read_anew(made.path(path)) == data


def test_a_mount_ends_while_its_storer_waits_for_a_page(made: Made) -> None:
    """The kernel lets it wait, uninterruptibly, for a page whose reader nobody answers any more:
    on SIGTERM all processes end, and so does the read, with an error or (what was to be stored is
    stored yet) with the right bytes."""
    until(made.reading_stores_others)
    *workers, prefetcher = made.processes
    fd = os.open(made.path(b"big"), os.O_RDONLY)
    os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_RANDOM)
    stop(prefetcher)
    for page in range(100, 100 + 3 * QUIET):  # of which one worker at least tells some
        assert os.pread(fd, 4096, page * 4096) == BIG[page * 4096 : (page + 1) * 4096]
    for pid in workers:
        stop(pid)
    result: list[bytes | OSError] = []
    reader = Thread(target=lambda: result.append(outcome(fd, 50 * 4096)))
    reader.start()
    until(lambda: "D" in thread_states(os.getpid()))  # its page is locked now
    kill(prefetcher, signal.SIGCONT)
    until(lambda: "D" in thread_states(prefetcher))
    kill(made.mounted.pid, signal.SIGTERM)
    made.mounts.wait_for_end()
    until(lambda: not alive(prefetcher))
    reader.join(WAIT_S)
    os.close(fd)
    assert result == [BIG[50 * 4096 : 51 * 4096]] or isinstance(result[0], OSError)


def stop(pid: int) -> None:
    """Stops a process; all of its threads, some of which go on for a moment."""
    kill(pid, signal.SIGSTOP)
    until(lambda: set(thread_states(pid)) == {"T"})


def outcome(fd: int, first: int) -> bytes | OSError:
    """A page of a file, or why it cannot be read."""
    try:
        return os.pread(fd, 4096, first)
    except OSError as error:
        return error


def thread_states(pid: int) -> list[str]:
    """The letters of proc_pid_stat(5) of all threads."""
    found = []
    for stat in Path(f"/proc/{pid}/task").glob("*/stat"):
        with suppress(FileNotFoundError, ProcessLookupError):  # a thread that has just ended
            found.append(stat.read_text().rpartition(")")[2].split()[0])
    return found


def test_it_does_not_keep_a_mount_that_nobody_serves(made: Made) -> None:
    """When the supervisor and all workers are gone, it ends, and reads fail at once."""
    until(made.reading_stores_others)
    *workers, prefetcher = made.processes
    kill(made.mounted.pid, signal.SIGKILL)
    for pid in workers:
        kill(pid, signal.SIGKILL)
    until(lambda: not alive(prefetcher))
    with pytest.raises(OSError) as caught:
        os.stat(made.path(b"other"))
    # the kernel's answer while the connection ends, and afterwards
    assert caught.value.errno in (errno.ECONNABORTED, errno.ENOTCONN)
