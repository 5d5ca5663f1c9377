"""The model: whatever is done to a mount, it shows what the pushed directory shows.

Hypothesis makes up reads, seeks, maps, listings, stats and extended attributes in any order and
asks the mount and the plain directory the same; in between the cache is evicted, the kernel
forgets, and workers and the proxy are killed. The mount is a real one, through a real proxy whose
cache holds a fraction of the files.
"""

from __future__ import annotations

import contextlib
import errno
import mmap
import os
import random
import signal
import stat
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest
from hypothesis import Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    consumes,
    precondition,
    rule,
    run_state_machine_as_test,
)

from lodefs.chunkstore.format.names import digest_of
from lodefs.mount.process.mounter import Mounted
from lodefs.proxies.own_proxy import ask
from tests.support.chunkstore.child_process import private_directory
from tests.support.mount.kernels import KERNELS
from tests.support.mount.listing import Directory
from tests.support.mount.mounts import (
    WAIT_S,
    Mounts,
    alive,
    kill,
    read_in_thread,
    until,
    workers_of,
)
from tests.support.proxy.node_process import REPO, NodeProcess

pytestmark = [pytest.mark.fuse, pytest.mark.slow]

LIMIT_BYTES = 4 << 20
BLOCK = random.Random(0).randbytes(900_000)
BIGS = {
    "big/shard0": random.Random(1).randbytes(2_100_000),
    "big/shard1": random.Random(2).randbytes(1_300_001),
    "big/shares": random.Random(3).randbytes(500_000) + BLOCK,  # its chunks are also elsewhere
    "big/also": BLOCK + random.Random(4).randbytes(700_000),
    "big/zeros": bytes(3_000_000),
}
SMALLS = {f"small/{n:03}": random.Random(9 + n).randbytes(n * 3_001) for n in range(60)}
MANY = {f"many/{n:04}": b"%d" % n for n in range(1500)}  # more than a page of the mount's
FILES = {**BIGS, **SMALLS, **MANY, "empty": b"", "small/deep/er/file": b"bottom"}
NAMES = sorted({**BIGS, **SMALLS, "empty": b"", "many/0777": b"", "small/deep/er/file": b""})
LINKS = {"link": "big/shard0", "dangling": "nowhere", "small/up": "../big"}
FOLDERS = ["", "big", "small", "many", "small/deep", "small/deep/er", "none"]

sizes = st.integers(0, 300_000) | st.sampled_from([1, 4096, 1 << 20, 1 << 22])
parts = st.floats(0, 1.1)  # of a file's size: where something is done


@dataclass
class World:
    """What all runs of the model share."""

    source: Path
    node: NodeProcess
    place: Path
    mounted: Mounted
    resends: bool  # requests of workers that die
    evicted_files: int = 0  # by the proxies before the one that runs

    def restart(self) -> None:
        """kill -9 of the proxy, and another in its place."""
        self.evicted_files = self.evictions()
        self.node.restart()

    def evictions(self) -> int:
        """How many files were evicted from the cache so far."""
        figures = ask(self.node.address, "/status")["node"]
        assert isinstance(figures, dict)
        return self.evicted_files + int(figures["evicted_files"])


@dataclass
class Opened:
    """A file that is open in the mount, with its position."""

    fd: int
    name: str
    position: int = 0

    @property
    def content(self) -> bytes:
        """What it must hold."""
        return FILES[self.name]


@dataclass
class Listing:
    """A directory that is open in the mount: its names, and what was read since the beginning."""

    directory: Directory
    names: list[bytes]
    at: int = 0
    marks: tuple[tuple[int, int], ...] = ()


def write_source(source: Path) -> None:
    """The plain directory."""
    for name, content in FILES.items():
        path = source / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    for name, target in LINKS.items():
        (source / name).symlink_to(target)
    (source / "none").mkdir()
    (source / "small/059").chmod(0o755)


@pytest.fixture(scope="module")
def world(request: pytest.FixtureRequest) -> Iterator[World]:
    """The directory, pushed, mounted, as of a kernel with this name."""
    with private_directory() as folder, contextlib.ExitStack() as stack:
        source = folder / "source"
        source.mkdir()
        write_source(source)
        node = NodeProcess(folder, source, size_bytes_max=LIMIT_BYTES)
        stack.callback(node.kill)
        mounts = Mounts(folder, node, KERNELS[request.param])
        stack.callback(mounts.close)
        mounted = mounts.mount(repo=REPO, workers=2, passthrough="on")
        yield World(source, node, mounts.place, mounted, mounts.resends)


class Model(RuleBasedStateMachine):
    """One run."""

    opened = Bundle("opened")
    maps = Bundle("maps")
    listings = Bundle("listings")

    def __init__(self, world: World) -> None:
        super().__init__()
        self.world = world
        self.files: list[Opened] = []
        self.mapped: list[mmap.mmap] = []
        self.open_listings: list[Listing] = []
        self.kills = 0

    def teardown(self) -> None:
        """Closes what the run left open."""
        for file in self.files:
            os.close(file.fd)
        for one in self.mapped:
            one.close()
        for listing in self.open_listings:
            listing.directory.close()

    # --- files

    @rule(target=opened, name=st.sampled_from(NAMES))
    def open(self, name: str) -> Opened:
        """A file is opened; the same one perhaps many times."""
        file = Opened(os.open(self.world.place / name, os.O_RDONLY), name)
        self.files.append(file)
        return file

    @rule(file=consumes(opened))
    def close(self, file: Opened) -> None:
        """And closed."""
        self.files.remove(file)
        os.close(file.fd)

    @rule(file=opened, part=parts, size=sizes, cold=st.booleans())
    def pread(self, file: Opened, part: float, size: int, cold: bool) -> None:
        """Bytes at a place, from the page cache or anew."""
        if cold:
            forget(file.fd)
        first = int(part * len(file.content))
        assert os.pread(file.fd, size, first) == file.content[first : first + size]

    @rule(file=opened, size=sizes)
    def read(self, file: Opened, size: int) -> None:
        """Bytes at the position, which moves on: fewer only at the end."""
        expected = file.content[file.position : file.position + size]
        assert os.read(file.fd, size) == expected
        file.position += len(expected)

    @rule(file=opened, part=parts, whence=st.sampled_from([os.SEEK_SET, os.SEEK_CUR, os.SEEK_END]))
    def seek(self, file: Opened, part: float, whence: int) -> None:
        """The position moves, also behind the end."""
        goal = int(part * len(file.content))
        base = {os.SEEK_SET: 0, os.SEEK_CUR: file.position, os.SEEK_END: len(file.content)}
        assert os.lseek(file.fd, goal - base[whence], whence) == goal
        file.position = goal

    @rule(name=st.sampled_from(NAMES))
    def read_whole(self, name: str) -> None:
        """Open, read, close, as most programs do."""
        assert (self.world.place / name).read_bytes() == FILES[name]

    @rule(target=maps, name=st.sampled_from([name for name in NAMES if FILES[name]]))
    def map(self, name: str) -> tuple[mmap.mmap, str]:
        """A file is mapped; its descriptor is closed."""
        with (self.world.place / name).open("rb") as file:
            one = mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)
        self.mapped.append(one)
        return one, name

    @rule(mapped=maps, part=parts, size=sizes, cold=st.booleans())
    def read_map(self, mapped: tuple[mmap.mmap, str], part: float, size: int, cold: bool) -> None:
        """Page faults bring the right bytes."""
        one, name = mapped
        if cold:
            one.madvise(mmap.MADV_DONTNEED)
            self.forget(name)
        first = int(part * len(FILES[name]))
        assert one[first : first + size] == FILES[name][first : first + size]

    # --- names

    @rule(target=listings, folder=st.sampled_from(FOLDERS))
    def open_directory(self, folder: str) -> Listing:
        """A directory is opened: it has the names of the plain one."""
        names = [os.fsencode(name) for name in sorted(os.listdir(self.world.source / folder))]
        listing = Listing(Directory(self.world.place / folder), [b".", b"..", *names])
        self.open_listings.append(listing)
        return listing

    @rule(listing=listings, count=st.integers(1, 2000))
    def list_more(self, listing: Listing, count: int) -> None:
        """The next names are listed."""
        expected = listing.names[listing.at : listing.at + count]
        assert listing.directory.read(count) == expected
        listing.at += len(expected)

    @rule(listing=listings)
    def mark(self, listing: Listing) -> None:
        """A place in a directory is noted."""
        listing.marks += ((listing.at, listing.directory.tell()),)

    @rule(listing=listings, choice=st.integers(0, 99))
    def go_back(self, listing: Listing, choice: int) -> None:
        """A directory is rewound, to its beginning or to a place noted before."""
        if not listing.marks:
            listing.directory.rewind()
            listing.at = 0
        else:
            listing.at, position = listing.marks[choice % len(listing.marks)]
            listing.directory.seek(position)

    @rule(folder=st.sampled_from(FOLDERS))
    def forget_directory(self, folder: str) -> None:
        """The kernel forgets a listing."""
        self.forget(folder)

    @rule(name=st.sampled_from([*NAMES, *LINKS, *FOLDERS]))
    def status(self, name: str) -> None:
        """Kind, size, executable bit and target are those of the plain directory."""
        here, there = os.lstat(self.world.place / name), os.lstat(self.world.source / name)
        assert stat.S_IFMT(here.st_mode) == stat.S_IFMT(there.st_mode)
        if stat.S_ISREG(there.st_mode):
            assert here.st_size == there.st_size
            assert bool(here.st_mode & 0o111) == bool(there.st_mode & 0o111)
        if stat.S_ISLNK(there.st_mode):
            assert os.readlink(self.world.place / name) == os.readlink(self.world.source / name)

    @rule(folder=st.sampled_from(FOLDERS), name=st.text("abz.", min_size=4, max_size=9))
    def missing(self, folder: str, name: str) -> None:
        """A name that is not there is not there."""
        with pytest.raises(FileNotFoundError):
            os.lstat(self.world.place / folder / name)

    @rule(name=st.sampled_from(NAMES))
    def attributes(self, name: str) -> None:
        """Extended attributes say which content of which commit it is."""
        path = self.world.place / name
        assert os.getxattr(path, "user.lodefs.digest") == digest_of(FILES[name]).hex().encode()
        assert os.getxattr(path, "user.lodefs.commit") == self.world.node.commit.encode()
        assert {"user.lodefs.repo", "user.lodefs.digest"} <= set(os.listxattr(path))

    # --- harm

    @rule(names=st.lists(st.sampled_from([*BIGS, *SMALLS]), min_size=3, max_size=6, unique=True))
    def evict(self, names: list[str]) -> None:
        """Other files take the place in the cache."""
        for name in names:
            self.forget(name)
            assert (self.world.place / name).read_bytes() == FILES[name]

    @rule(name=st.sampled_from([*BIGS, *SMALLS]))
    def forget(self, name: str) -> None:
        """The kernel forgets a file's pages."""
        fd = os.open(self.world.place / name, os.O_RDONLY)
        forget(fd)
        os.close(fd)

    @precondition(lambda self: self.kills < 2)
    @rule(name=st.sampled_from(sorted(BIGS)), all_of_them=st.booleans())
    def kill_workers(self, name: str, all_of_them: bool) -> None:
        """One worker is killed while a file is read, or all of them."""
        self.kills += 1
        workers = workers_of(self.world.mounted.pid)
        victims = workers if all_of_them else workers[:1]

        def harm() -> None:
            for pid in victims:
                kill(pid, signal.SIGKILL)

        self.read_while(name, harm, may_fail=not self.world.resends, dying=victims)

    @precondition(lambda self: self.kills < 2)
    @rule(name=st.sampled_from(sorted(BIGS)))
    def restart_proxy(self, name: str) -> None:
        """The proxy is killed while a file is read, and another takes its place."""
        self.kills += 1
        self.read_while(name, self.world.restart)

    def read_while(
        self,
        name: str,
        harm: Callable[[], None],
        *,
        may_fail: bool = False,
        dying: Sequence[int] = (),
    ) -> None:
        """A file is read anew in another thread while something happens; where that may fail it
        can be read after it, once the processes ``dying`` have ended."""
        self.forget(name)
        reader, found = read_in_thread(self.world.place / name)
        harm()
        reader.join(WAIT_S)
        assert not reader.is_alive()
        if may_fail and isinstance(found[0], OSError):
            assert found[0].errno in (errno.EIO, errno.ECONNABORTED)
            until(lambda: not any(map(alive, dying)))  # such a one may take a request yet
            found = [(self.world.place / name).read_bytes()]
        assert found == [FILES[name]]


def forget(fd: int) -> None:
    """The kernel drops clean pages of what a descriptor is of."""
    os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)


@pytest.mark.parametrize(
    ("world", "examples"), [("this one", 15), ("rhel9-5.14", 6)], indirect=["world"]
)
def test_a_mount_is_the_directory_that_was_pushed(world: World, examples: int) -> None:
    """In any order of what applications do and of what goes wrong, every byte, name and attribute
    of the mount is that of the directory."""
    bounded = settings(
        max_examples=examples,
        stateful_step_count=40,
        phases=[Phase.generate],  # looking for a shorter failure takes minutes
    )
    run_state_machine_as_test(lambda: Model(world), settings=bounded)  # type: ignore[arg-type]
    assert world.evictions() > examples // 3
