"""Pushes of a source that a URL names give what a push of the same directory gives."""

from __future__ import annotations

import time
from pathlib import Path
from random import Random

import pytest

from lodefs.chunkstore.errors import (
    Denied,
    InvalidInput,
    LodefsError,
    NotFound,
    SourceChanged,
    Unavailable,
)
from lodefs.chunkstore.push.push import PushOptions, PushResult, push
from lodefs.chunkstore.push.remote import remote_files
from lodefs.chunkstore.push.remote.remote_files import Listing, NoAccess
from lodefs.chunkstore.repo.checks.verify import verify
from lodefs.chunkstore.repo.store import create_store
from lodefs.chunkstore.system.progress import Progress
from tests.support.chunkstore.directories import in_commit
from tests.support.chunkstore.memory_objects import MemoryObjects
from tests.support.chunkstore.memory_remote import MemoryRemote

LARGE = 9 << 20  # more than two windows


class World:
    """A store, a source in memory, and a machine that pushes it."""

    def __init__(self, tmp_path: Path, source: MemoryRemote) -> None:
        self.source = source
        self.store = create_store(MemoryObjects())
        self.index_dir = tmp_path / "index"

    def push(
        self,
        source: str | Path = "memory://source",
        *,
        skip_unreadable: bool = False,
        exclude: tuple[bytes, ...] = (),
        workers: int = 0,
        dry_run: bool = False,
    ) -> PushResult:
        options = PushOptions(
            message="",
            author="",
            time_s=1_700_000_000,
            index_dir=self.index_dir,
            skip_unreadable=skip_unreadable,
            exclude=exclude,
            workers=workers,
            dry_run=dry_run,
            clock_ns=lambda: time.time_ns() + 3600 * 10**9,
        )
        self.source.reads.clear()
        return push(self.store, source, "r", "main", options)

    def content(self, result: PushResult) -> dict[bytes, object]:
        """What is in a commit of a sound store, by path."""
        assert verify(self.store, None, data=True, progress=Progress()).problems == []
        return {**in_commit(self.store, "r", result.commit)}


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> World:
    random = Random(1)
    files = {f"{n % 7}/{n % 3}/{n}".encode(): random.randbytes(n * 37) for n in range(60)}
    files |= {
        b"large": random.randbytes(LARGE),
        b"a-b": b"1",
        b"a/x": b"2",
        b"a.txt": b"",
        b"0/z": b"3",
    }
    source = MemoryRemote(files)
    monkeypatch.setitem(remote_files.SCHEMES, "memory", lambda _url: source)
    return World(tmp_path, source)


def files_below(directory: Path, files: dict[bytes, bytes]) -> Path:
    """Writes files below a directory, and returns it."""
    for key, data in files.items():
        path = directory / key.decode()
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    return directory


@pytest.mark.parametrize("workers", [0, 2])
def test_root_digest_is_that_of_a_directory(world: World, tmp_path: Path, workers: int) -> None:
    """A push of the same files from a directory finds the branch unchanged, however many workers
    read."""
    pushed = world.push(workers=workers)
    directory = world.push(files_below(tmp_path / "source", world.source.files))
    assert directory.unchanged
    assert directory.commit == pushed.commit
    assert world.content(pushed)
    assert pushed.files == len(world.source.files)


def test_a_library_that_does_not_survive_a_fork(world: World) -> None:
    """Its files are read in this process: that counts the reads, which another one would have
    done."""
    world.push(workers=2)
    assert not world.source.reads
    world.source.survives_fork = False
    world.source.files[b"large"] = Random(2).randbytes(LARGE)
    world.push(workers=2)
    assert b"large" in world.source.reads


def test_second_push_reads_nothing(world: World) -> None:
    """A source that has not changed is only listed."""
    first = world.push()
    again = world.push()
    assert again.unchanged and again.commit == first.commit
    assert world.source.reads == []


def test_only_changes_are_read(world: World) -> None:
    """A changed state and a new file are read, and what is gone is removed."""
    world.push()
    world.source.files |= {b"0/z": b"4", b"new/file": b"5"}
    del world.source.files[b"a/x"]
    result = world.push()
    assert sorted(world.source.reads) == [b"0/z", b"new/file"]
    assert result.changes is not None
    assert (result.changes.changed_files, result.changes.added_files) == (1, 1)
    assert result.changes.removed_files == 1


def test_source_without_states_is_read_again(world: World) -> None:
    """A source that cannot tell whether files change is read at every push."""
    world.source.has_states = False
    world.push()
    world.source.files[b"0/z"] = b"4"  # of the same size
    result = world.push()
    assert set(world.source.reads) >= {b"0/z", b"large"}
    assert result.changes is not None and result.changes.changed_files == 1


def test_dry_run_writes_nothing(world: World) -> None:
    """A dry run counts, and there is no branch afterwards."""
    result = world.push(dry_run=True)
    assert result.changes is not None and result.changes.added_files == len(world.source.files)
    with pytest.raises(NotFound):
        world.store.resolve("r", "main")


def test_patterns(world: World) -> None:
    """Excluded directories are not even listed, and files of patterns count."""
    world.source.files[b"1/.lodefsignore"] = b"*\n"
    result = world.push(exclude=(b"/0/", b"large"))
    assert b"0" not in world.source.lists
    assert all(not path.startswith((b"0", b"1/")) for path in world.content(result))
    assert result.excluded > 2


@pytest.mark.parametrize("key", [b"a//b", b"../x", b"a/./b", b"x" * 256, b"c\0d", b"/x", b"a"])
def test_keys_that_are_no_paths(world: World, key: bytes) -> None:
    """The error names the key, --skip-unreadable leaves it out, and --exclude too."""
    world.source.files[key] = b"secret"
    with pytest.raises(InvalidInput, match="--skip-unreadable"):
        world.push()
    result = world.push(skip_unreadable=True)
    assert len(result.skipped) == 1
    assert result.files == len(world.source.files) - 1


@pytest.mark.parametrize("name", [b"again", b"../x"])
def test_directory_that_lists_itself(
    world: World, monkeypatch: pytest.MonkeyPatch, name: bytes
) -> None:
    """A source without an end is refused, and so is a name that leads elsewhere."""
    monkeypatch.setattr(world.source, "list", lambda _path: Listing([], [name]))
    with pytest.raises(InvalidInput, match="cannot be the path of a file"):
        world.push()


def test_file_that_changes_once_is_read_again(world: World) -> None:
    """A large file of which a part is from another version is read anew, whole."""
    changed = Random(2).randbytes(LARGE)

    def change(key: bytes) -> None:
        if key == b"large" and world.source.reads.count(key) == 1:
            world.source.files[b"large"] = changed

    world.source.on_read = change
    world.push()
    assert world.source.reads.count(b"large") > 3
    world.source.on_read = lambda _key: None
    assert world.push().changes is not None
    assert world.push().unchanged
    assert world.source.reads == []


def test_file_that_keeps_changing(world: World) -> None:
    """The error names the file; --skip-unreadable leaves it out."""

    def change(key: bytes) -> None:
        if key == b"large":
            world.source.files[b"large"] = Random(len(world.source.reads)).randbytes(LARGE)

    world.source.on_read = change
    with pytest.raises(SourceChanged, match="large"):
        world.push()
    assert [one.path for one in world.push(skip_unreadable=True).skipped] == [b"large"]


def test_file_that_is_gone(world: World) -> None:
    """A file that was listed, and is not there when it is read, is named."""

    def remove(key: bytes) -> None:
        if key == b"0/z":
            world.source.files.pop(key, None)

    world.source.on_read = remove
    with pytest.raises(NotFound, match="0/z"):
        world.push()


def refusing(world: World, keys: set[bytes], error: LodefsError) -> None:
    def refuse(key: bytes) -> None:
        if key in keys:
            raise error

    world.source.on_read = refuse


def test_denied_files(world: World) -> None:
    """The error says why one file cannot be read; --skip-unreadable leaves such files out."""
    refusing(world, {b"0/z", b"a/x"}, Denied("AccessDenied"))
    with pytest.raises(Denied, match="AccessDenied"):
        world.push()
    skipped = world.push(skip_unreadable=True).skipped
    assert sorted(one.path for one in skipped) == [b"0/z", b"a/x"]


@pytest.mark.parametrize(
    ("error", "expected"),
    [(NoAccess("ExpiredToken"), Denied), (Unavailable("no answer"), Unavailable)],
)
def test_lost_access_is_never_skipped(
    world: World, error: LodefsError, expected: type[LodefsError]
) -> None:
    """An end of all access is no unreadable file: nothing is committed, and a repeated push goes
    on."""
    refusing(world, {b"large"}, error)
    with pytest.raises(expected, match=str(error)):
        world.push(skip_unreadable=True)
    with pytest.raises(NotFound):
        world.store.resolve("r", "main")
    world.source.on_read = lambda _key: None
    before = len(world.source.files)
    assert world.push().files == before


def test_nothing_there(world: World) -> None:
    """An empty source is an error, and removes nothing from a branch."""
    world.source.files.clear()
    with pytest.raises(NotFound, match="nothing below"):
        world.push()


def test_source_with_the_store_in_it(world: World) -> None:
    """A source that the push itself would change is refused."""
    world.source.stores.add(world.store.url)
    with pytest.raises(InvalidInput, match="in one another"):
        world.push()
