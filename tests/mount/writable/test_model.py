"""The model: whatever is done to a writable mount, it is like a plain directory.

Hypothesis makes up writes, renames, removals and reads in any order and does them to the mount and
to a plain copy of what was pushed; in between workers and the proxy are killed, and the mount is
made again over the changes that were kept.
"""

from __future__ import annotations

import contextlib
import os
import random
import shutil
import signal
import stat
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from hypothesis import Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, precondition, rule, run_state_machine_as_test

from lodefs.mount.kernel import mount_table
from lodefs.mount.writable.upper_place import UpperPlace
from tests.mount.writable.conftest import Writable, skip_where_unfit
from tests.support.chunkstore.child_process import private_directory
from tests.support.mount.mounts import Mounts, kill, until, workers_of
from tests.support.proxy.node_process import REPO, NodeProcess

pytestmark = [pytest.mark.fuse, pytest.mark.slow]

LIMIT_BYTES = 4 << 20
FILES = {
    "big": random.Random(1).randbytes(2_100_000),
    "d/small": b"small",
    "d/e/deep": b"deep",
    "f/mid": random.Random(2).randbytes(200_000),
}
NAMES = ["big", "d", "d/small", "d/e", "d/e/deep", "f", "f/mid", "g", "g/new", "d/new", "new", "l"]
names = st.sampled_from(NAMES)
places = st.integers(0, 2_200_000)
sizes = st.integers(0, 100_000)
modes = st.sampled_from([0o644, 0o755, 0o600])


@dataclass
class World:
    """What all runs of the model share: what was pushed, a node, and a mount."""

    source: Path
    plain: Path
    node: NodeProcess
    writable: Writable

    @property
    def roots(self) -> tuple[Path, Path]:
        """The mount, and the directory that it is to be like."""
        return self.writable.root, self.plain

    def begin(self) -> None:
        """As if nothing had been changed."""
        if self.writable.place.read() is not None:
            self.writable.unmount(discard=True)
        shutil.rmtree(self.plain, ignore_errors=True)
        shutil.copytree(self.source, self.plain, symlinks=True)
        self.mount()

    def mount(self) -> None:
        """Make the mount, over the changes that are there."""
        options = self.writable.mounts.options(repo=REPO, workers=2, mode=0o755)
        self.writable.mount(options=options, commit=self.commit)

    @property
    def commit(self) -> str:
        """What was pushed."""
        return self.node.commit


@pytest.fixture
def world() -> Iterator[World]:
    with private_directory() as folder, contextlib.ExitStack() as stack:
        skip_where_unfit(folder)
        source = folder / "source"
        for name, content in FILES.items():
            (source / name).parent.mkdir(parents=True, exist_ok=True)
            (source / name).write_bytes(content)
        (source / "l").symlink_to("d/small")
        node = NodeProcess(folder, source, size_bytes_max=LIMIT_BYTES)
        stack.callback(node.kill)
        mounts = Mounts(folder, node)
        stack.callback(mounts.close)
        writable = Writable(mounts, UpperPlace(folder / "changes"))
        stack.callback(writable.close)
        yield World(source, folder / "plain", node, writable)


class Model(RuleBasedStateMachine):
    """One run."""

    def __init__(self, world: World) -> None:
        super().__init__()
        self.world = world
        self.harms = 0
        world.begin()

    def teardown(self) -> None:
        """At the end all of it is the same, from the disk."""
        self.world.writable.unmount()
        if self.world.writable.place.read() is None:
            return  # nothing was changed
        self.world.mount()
        mount, plain = map(_all_of, self.world.roots)
        assert mount == plain

    def both(self, do: Callable[[Path], object]) -> None:
        """Does something to both, with the same outcome."""
        mount, plain = (_outcome(do, root) for root in self.world.roots)
        assert mount == plain

    @rule(name=names, at=places, size=sizes)
    def write(self, name: str, at: int, size: int) -> None:
        """Bytes at a place, also past the end, of a file that is there or not."""
        data = random.Random(at + size).randbytes(size)

        def do(root: Path) -> int:
            fd = os.open(root / name, os.O_RDWR | os.O_CREAT, 0o644)
            try:
                return os.pwrite(fd, data, at)
            finally:
                os.close(fd)

        self.both(do)

    @rule(name=names, size=places)
    def truncate(self, name: str, size: int) -> None:
        """A file becomes shorter or longer."""
        self.both(lambda root: os.truncate(root / name, size))

    @rule(name=names, at=places, size=sizes)
    def read(self, name: str, at: int, size: int) -> None:
        """Bytes at a place."""

        def do(root: Path) -> bytes:
            with open(root / name, "rb") as file:
                return os.pread(file.fileno(), size, at)

        self.both(do)

    @rule(name=names, mode=modes)
    def make(self, name: str, mode: int) -> None:
        """A directory is made, or a file's permissions are changed."""
        self.both(lambda root: os.mkdir(root / name))
        self.both(lambda root: os.chmod(root / name, mode | 0o700))

    @rule(name=names)
    def remove(self, name: str) -> None:
        """A name goes, and what is below it."""
        self.both(
            lambda root: (
                shutil.rmtree(root / name)
                if (root / name).is_dir() and not (root / name).is_symlink()
                else os.unlink(root / name)
            )
        )

    @rule(name=names, to=names)
    def rename(self, name: str, to: str) -> None:
        """A name becomes another one, in the place of what had it; directories too."""
        self.both(lambda root: os.rename(root / name, root / to))

    @rule(name=names, to=names, symbolic=st.booleans())
    def link(self, name: str, to: str, symbolic: bool) -> None:
        """A file has a second name, or a symlink leads to it."""
        if symbolic:
            self.both(lambda root: os.symlink(name, root / to))
        else:
            self.both(lambda root: os.link(root / name, root / to, follow_symlinks=False))

    @rule(name=names)
    def look(self, name: str) -> None:
        """What is in a directory, or what a file is."""
        self.both(lambda root: _look(root / name))

    @rule()
    def mount_again(self) -> None:
        """Unmounted with its changes kept, and mounted."""
        self.world.writable.unmount()
        self.world.mount()

    @precondition(lambda self: self.harms < 1)
    @rule(all_of_them=st.booleans())
    def kill_workers(self, all_of_them: bool) -> None:
        """kill -9 of the workers below, or of the supervisor, too: then it is mounted again."""
        self.harms += 1
        lower = str(self.world.writable.place.lower(0))
        pid = mount_table.pid_of(lower)
        for process in (*workers_of(pid), *([pid] if all_of_them else [])):
            kill(process, signal.SIGKILL)
        if all_of_them:
            until(lambda: not workers_of(pid))
            with contextlib.suppress(OSError):
                os.listdir(lower)
            if mount_table.is_dead(lower):
                self.world.mount()

    @precondition(lambda self: self.harms < 1)
    @rule()
    def kill_the_proxy(self) -> None:
        """kill -9 of the proxy, and another in its place."""
        self.harms += 1
        self.world.node.restart()


def _outcome(do: Callable[[Path], object], root: Path) -> object:
    try:
        return do(root)
    except OSError as error:
        return error.errno


def _look(path: Path) -> object:
    found = path.lstat()
    if stat.S_ISDIR(found.st_mode):
        return sorted(os.listdir(path))
    if stat.S_ISLNK(found.st_mode):
        return os.readlink(path)
    return found.st_size, stat.S_IMODE(found.st_mode), path.read_bytes()


def _all_of(root: Path) -> dict[str, object]:
    return {str(path.relative_to(root)): _look(path) for path in sorted(root.rglob("*"))}


def test_a_writable_mount_is_a_directory(world: World) -> None:
    """In any order of what applications do and of what goes wrong, its bytes, names and errors are
    those of a plain directory."""
    bounded = settings(
        max_examples=3,
        stateful_step_count=25,
        phases=[Phase.generate],  # looking for a shorter failure takes minutes
    )
    run_state_machine_as_test(lambda: Model(world), settings=bounded)  # type: ignore[arg-type]
