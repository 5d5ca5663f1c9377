"""Random edits of a directory through a real overlayfs, and what its upper directory says of them.

By hand, many of them: ``python -m tests.support.chunkstore.upper_histories EXAMPLES``.
"""

from __future__ import annotations

import errno
import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import count, repeat
from pathlib import Path

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from lodefs.chunkstore.format.chunking import ChunkingParams
from lodefs.chunkstore.format.names import CommitId, Spec
from lodefs.chunkstore.format.tree import Kind
from lodefs.chunkstore.push.changes.commit_changes import commit_changes
from lodefs.chunkstore.push.changes.upper_changes import Renamed, UpperChanges, read_upper
from lodefs.chunkstore.push.changes.upper_directory import AS_ROOT, UpperBase
from lodefs.chunkstore.push.push import PushOptions, push
from lodefs.chunkstore.repo.history import Change, diff
from lodefs.chunkstore.repo.store import Store, create_store
from tests.support.chunkstore.directories import Seen, in_commit, in_directory, write_files
from tests.support.chunkstore.memory_objects import MemoryObjects
from tests.support.chunkstore.overlay_mounts import OverlayMount, overlay

_MAY_FAIL = {
    errno.EEXIST, errno.EINVAL, errno.ENXIO, errno.EISDIR, errno.ELOOP, errno.ENOENT, errno.ENOTDIR,
    errno.ENOTEMPTY, errno.EPERM, errno.EXDEV,
}  # fmt: skip
FILES = {
    "a": b"a" * 700, "e": b"", "d/x": b"dx", "d/y": b"dy" * 600, "d/s/x": b"dsx", "d/s/z": b"dsz",
    "b/x": b"bx", "b/s/t/u": b"deep",
}  # fmt: skip
_NAMES = ["a", "b", "d", "e", "s", "t", "x", "y"]
PATHS = st.lists(st.sampled_from(_NAMES), min_size=1, max_size=3).map("/".join)
CONTENTS = st.sampled_from([b"", b"dx", b"dy", b"new", bytes(range(256)) * 5])

Edit = tuple[Callable[..., object], *tuple[object, ...]]


def write(root: Path, path: str, content: bytes) -> None:
    _put(root / path, os.O_CREAT | os.O_TRUNC, content)


def _append(root: Path, path: str) -> None:
    _put(root / path, os.O_CREAT | os.O_APPEND, b"more")


def _put(path: Path, flags: int, content: bytes) -> None:
    fd = os.open(path, os.O_WRONLY | os.O_NONBLOCK | flags)  # it does not wait at a FIFO
    with open(fd, "wb") as file:
        file.write(content)


def _truncate(root: Path, path: str) -> None:
    os.truncate(root / path, 1)


def _remove(root: Path, path: str) -> None:
    (root / path).unlink()


def remove_tree(root: Path, path: str) -> None:
    if not (root / path).is_symlink():
        shutil.rmtree(root / path)


def make_directory(root: Path, path: str) -> None:
    (root / path).mkdir()


def rename(root: Path, path: str, to: str) -> None:
    os.rename(root / path, root / to)


def _symlink(root: Path, path: str, target: str) -> None:
    (root / path).symlink_to(target)


def _link(root: Path, path: str, to: str) -> None:
    os.link(root / path, root / to, follow_symlinks=False)


def _chmod(root: Path, path: str, mode: int) -> None:
    if not (root / path).is_symlink():
        (root / path).chmod(mode | 0o100 * (root / path).is_dir())


def _touch(root: Path, path: str) -> None:
    os.utime(root / path, (1, 1), follow_symlinks=False)


def _to_directory(root: Path, path: str, name: str) -> None:
    """A directory takes the place of whatever is there, which it hides."""
    _clear(root / path)
    (root / path).mkdir()
    (root / path / name).write_bytes(b"replaced")


def _to_file(root: Path, path: str, content: bytes) -> None:
    """A file takes the place of whatever is there."""
    _clear(root / path)
    (root / path).write_bytes(content)


def _clear(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def _fifo(root: Path, path: str) -> None:
    os.mkfifo(root / path)


EDITS: st.SearchStrategy[Edit] = st.one_of(
    st.tuples(st.just(write), PATHS, CONTENTS),
    st.tuples(st.sampled_from([_append, _truncate, _touch, _fifo]), PATHS),
    st.tuples(st.sampled_from([_remove, remove_tree, make_directory]), PATHS),
    st.tuples(st.sampled_from([rename, rename, _link]), PATHS, PATHS),
    st.tuples(st.just(_to_directory), PATHS, st.sampled_from(_NAMES)),
    st.tuples(st.just(_to_file), PATHS, CONTENTS),
    st.tuples(st.just(_symlink), PATHS, PATHS),
    st.tuples(st.just(_chmod), PATHS, st.sampled_from([0o644, 0o755, 0o600])),
)
HISTORIES = st.lists(EDITS, min_size=1, max_size=14)
HISTORIES_IN_WORLD = 50
MEMORY = Path("/dev/shm")  # push indexes are synced often


def apply(edits: Sequence[Edit], root: Path) -> None:
    """Those that cannot be done change nothing."""
    for edit, *arguments in edits:
        try:
            edit(root, *arguments)
        except OSError as error:
            if error.errno not in _MAY_FAIL:
                raise


class UpperWorld:
    """A store whose repository r has a base commit, and the same as a directory to be overlaid."""

    def __init__(self, place: Path) -> None:
        self.place = place
        self.lower = place / "lower"
        write_files(self.lower, FILES)
        (self.lower / "empty").mkdir()
        (self.lower / "link").symlink_to("d/x")
        (self.lower / "d/y").chmod(0o755)
        self.store: Store = create_store(MemoryObjects(), ChunkingParams(64, 256, 1024))
        self.options = PushOptions("m", "a", 7, place / "index", workers=0)
        pushed = push(self.store, self.lower, "r", "main", self.options)
        self.commit = CommitId(bytes.fromhex(pushed.commit))
        self._numbers = count()

    def base(self, commit: CommitId | None = None, path: bytes = b"") -> UpperBase:
        """The root of a commit as what is mounted below."""
        commit = self.commit if commit is None else commit
        root = self.store.commit("r", commit).root
        return UpperBase(Spec("r", commit.hex(), path), root, self.store.packs)

    def read(self, mounted: OverlayMount) -> UpperChanges:
        """What the upper directory says now."""
        return read_upper(mounted.upper, self.base(), xattr_prefix=AS_ROOT)

    def play(self, edits: Sequence[Edit], *, renames_directories: bool) -> None:
        """One history, on a branch of its own. Raises: AssertionError."""
        number = next(self._numbers)
        place = self.place / str(number)
        with overlay(self.lower, place, renames_directories=renames_directories) as mounted:
            apply(edits, mounted.merged)
            found = self.read(mounted)
            options = replace(self.options, message=str(number))
            result = commit_changes(
                self.store, "r", f"b{number}", found.changes, options, base=self.commit
            )
            wanted = in_directory(mounted.merged)
        assert in_commit(self.store, "r", result.commit) == wanted
        self._check_list(found, CommitId(bytes.fromhex(result.commit)), wanted)
        remove_tree(place, ".")

    def _check_list(self, found: UpperChanges, commit: CommitId, wanted: dict[bytes, Seen]) -> None:
        """The list is that of ``lodefs diff``, where nothing was renamed."""
        listed = list(found.listed())
        after = self.store.commit("r", commit).root
        assert bool(listed) == (after.digest != self.base().root.digest)
        if any(isinstance(one, Renamed) for one in listed):
            there = [one for one in listed if isinstance(one, Renamed) or one.after is not None]
            assert {one.path for one in there} <= wanted.keys()
            return
        changes = [one for one in listed if isinstance(one, Change)]
        known = {(one.what, one.path) for one in diff(self.store, self.base().root, after)}
        assert {(one.what, one.path) for one in changes} == known
        assert len(listed) == len(known)
        for one in changes:
            kind = one.after and one.after.kind
            assert kind is (wanted[one.path].kind if one.path in wanted else None)
            assert kind is not Kind.FILE or one.after is None or (
                one.after.size_bytes == len(wanted[one.path].content)
            )  # fmt: skip


def main(examples: int) -> None:
    """Plays that many, other ones each time."""
    with tempfile.TemporaryDirectory(dir=MEMORY) as folder, suppress(KeyboardInterrupt):
        worlds = _worlds(Path(folder))

        @settings(
            max_examples=examples, deadline=None, derandomize=False, database=None,
            suppress_health_check=list(HealthCheck),
        )  # fmt: skip
        @given(HISTORIES, st.booleans())
        def histories(edits: list[Edit], renames_directories: bool) -> None:
            next(worlds).play(edits, renames_directories=renames_directories)

        histories()


def _worlds(folder: Path) -> Iterator[UpperWorld]:
    """One for each history; another one after some: to list a store in memory takes as long as it
    has objects, so a thousand times as many histories took a million times as long."""
    for number in count():
        place = folder / str(number)
        place.mkdir()
        world = UpperWorld(place)
        yield from repeat(world, HISTORIES_IN_WORLD)
        shutil.rmtree(place)


if __name__ == "__main__":
    from tests import mount_namespace

    mount_namespace.enter()
    main(int(sys.argv[1]))
