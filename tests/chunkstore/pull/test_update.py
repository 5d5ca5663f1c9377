"""update.py, single_file.py: a copy is brought to another version; one file becomes one file."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from lodefs.chunkstore.errors import InvalidInput, NotFound, Unavailable
from lodefs.chunkstore.format import keys
from lodefs.chunkstore.format.names import CommitId, Spec
from lodefs.chunkstore.pull import update
from lodefs.chunkstore.pull.pull import pull
from lodefs.chunkstore.pull.single_file import pull_file
from lodefs.chunkstore.pull.target import STATE_DIR, updated_from
from lodefs.chunkstore.repo.store import Store, create_store
from tests.chunkstore.pull.test_pull import check
from tests.support.chunkstore.faulty_store import FaultyObjects, fail
from tests.support.chunkstore.handmade import Files, Handmade, Link, Program
from tests.support.chunkstore.memory_objects import MemoryObjects

OLD: Files = {
    b"same/deep/file": b"1",
    b"same/other": b"2",
    b"gone/a": b"3",
    b"gone/b/c": b"4",
    b"changed": b"old",
    b"made-executable": b"5",
    b"file-then-directory": b"6",
    b"directory-then-file/x": b"7",
    b"link": Link(b"one"),
}
NEW: Files = {
    b"same/deep/file": b"1",
    b"same/other": b"2",
    b"changed": b"newer",
    b"made-executable": Program(b"5"),
    b"file-then-directory/y": b"6",
    b"directory-then-file": b"8",
    b"link": Link(b"two"),
    b"new/n": b"n",
}


class Versions:
    """A store with two versions of r: the tag old, and main; and a copy of the old one."""

    def __init__(self, place: Path) -> None:
        self.objects = FaultyObjects(MemoryObjects())
        self.store: Store = create_store(self.objects)
        made = Handmade(self.store, pack_chunks=1)
        self.old = made.commit("r", OLD)
        self.store.refs("r").advance("tags", "old", self.old, expected_sequence=None)
        self.new = made.commit("r", NEW)
        self.copy = place / "copy"
        pull(self.store, Spec("r", "old"), self.copy)

    def update(self, rev: str = "main", since: CommitId | None = None) -> tuple[int, int]:
        """Files and symlinks that were written, and removed."""
        found = pull(self.store, Spec("r", rev), self.copy, since=since)
        assert found.updated_from is not None
        return found.files + found.symlinks, found.removed


@pytest.fixture
def versions(tmp_path: Path) -> Versions:
    return Versions(tmp_path)


def test_a_copy_goes_to_another_version_and_back(versions: Versions) -> None:
    """Files, directories, symlinks and executable bits; what is equal is not touched, nor what the
    dataset does not have."""
    same = (versions.copy / "same" / "deep" / "file").stat()
    (versions.copy / "own").write_text("mine")
    assert versions.update() == (6, 3)
    check(versions.copy, {**NEW, b"own": b"mine"})
    now = (versions.copy / "same" / "deep" / "file").stat()
    assert (now.st_ino, now.st_mtime_ns) == (same.st_ino, same.st_mtime_ns)
    assert versions.update("old")[1] == 2
    check(versions.copy, {**OLD, b"own": b"mine"})


@pytest.mark.parametrize(
    "path", ["changed", "gone/a", "gone/b/mine", "link", "new", "directory-then-file/mine"]
)
def test_local_changes_are_never_overwritten(versions: Versions, path: str) -> None:
    """A path that the update would replace or remove, and that is another one now, is named, and
    nothing is changed at all."""
    place = versions.copy / path
    place.unlink(missing_ok=True)
    place.write_text("mine")
    before = {p: (p.lstat().st_ino, p.lstat().st_mtime_ns) for p in versions.copy.rglob("*")}
    with pytest.raises(InvalidInput, match="would replace changes in the copy"):
        versions.update()
    found = {p: (p.lstat().st_ino, p.lstat().st_mtime_ns) for p in versions.copy.rglob("*")}
    assert found == before


def test_local_changes_elsewhere_stay(versions: Versions) -> None:
    """A file that is equal in both versions, and one that was removed, are the user's matter."""
    (versions.copy / "same" / "other").write_text("mine")
    (versions.copy / "changed").unlink()
    versions.update()
    check(versions.copy, {**NEW, b"same/other": b"mine"})


def test_a_directory_that_the_user_removed_comes_back(tmp_path: Path) -> None:
    """As far as something in it changed, also after an update that did not end; what did not change
    stays removed."""
    store = create_store(MemoryObjects())
    made = Handmade(store)
    old = made.commit("r", {b"d/e/x": b"1", b"d/e/same": b"1", b"d/f/y": b"1", b"a": b"1"})
    pull(store, Spec("r"), tmp_path / "copy")
    made.commit("r", {b"d/e/x": b"2", b"d/e/same": b"1", b"d/f/l": Link(b"x"), b"a": b"2"})
    shutil.rmtree(tmp_path / "copy" / "d")
    pull(store, Spec("r"), tmp_path / "copy")
    check(tmp_path / "copy", {b"d/e/x": b"2", b"d/f/l": Link(b"x"), b"a": b"2"})
    pull(store, Spec("r", old.hex()), tmp_path / "copy")
    check(tmp_path / "copy", {b"d/e/x": b"1", b"d/f/y": b"1", b"a": b"1"})


@pytest.mark.parametrize("is_link", [False, True])
def test_a_directory_that_the_user_replaced(versions: Versions, *, is_link: bool) -> None:
    """By a file, or by a symlink to another directory, is named before anything is changed, if
    something has to go into it; if all of it is the same, or goes, it is the user's matter."""
    Handmade(versions.store).commit("r", {**NEW, b"same/deep/file": b"other"})
    same, aside = versions.copy / "same", versions.copy.parent / "aside"
    same.rename(aside)
    if is_link:
        same.symlink_to(aside)
    else:
        same.write_text("mine")
    before = {p: (p.lstat().st_ino, p.lstat().st_mtime_ns) for p in versions.copy.rglob("*")}
    with pytest.raises(InvalidInput, match=r"in the copy: same\. "):
        versions.update()
    found = {p: (p.lstat().st_ino, p.lstat().st_mtime_ns) for p in versions.copy.rglob("*")}
    assert found == before
    pull(versions.store, Spec("r", versions.new.hex()), versions.copy)
    assert same.is_symlink() if is_link else same.read_text() == "mine"


def test_an_update_to_a_dataset_with_the_name_of_the_state(versions: Versions) -> None:
    """Is refused before anything is changed."""
    Handmade(versions.store).commit("r", {**NEW, STATE_DIR.encode() + b"/zzz": b"1"})
    with pytest.raises(InvalidInput, match=f"has an entry {STATE_DIR} at its top"):
        versions.update()
    check(versions.copy, OLD)


@pytest.mark.parametrize("nth", [1, 3, 5])
def test_an_interrupted_update_goes_on(versions: Versions, nth: int) -> None:
    """Repeated, it ends as if nothing had happened; until then no other version can be pulled over
    it."""
    versions.objects.forget()
    other = Versions(versions.copy.parent / "other")
    other.objects.forget()
    other.update()
    reads = other.objects.count("get", keys.PACKS)  # of a whole update
    versions.objects.add(fail(Unavailable("gone")), "get", keys.PACKS, first=reads - nth, times=1)
    with pytest.raises(Unavailable):
        versions.update()
    assert (versions.copy / STATE_DIR).exists() or nth == 5
    if (versions.copy / STATE_DIR).exists():
        with pytest.raises(InvalidInput, match="interrupted pull of r"):
            versions.update("old")
    versions.update()
    check(versions.copy, NEW)


def test_a_copy_that_does_not_know_its_version(
    versions: Versions, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without extended attributes the version has to be told."""
    os.removexattr(versions.copy, update.NAME)
    with pytest.raises(InvalidInput, match="say with --from which revision"):
        versions.update()
    assert versions.update(since=versions.old)[0] == 6


def test_one_file_becomes_one_file(versions: Versions, tmp_path: Path) -> None:
    """Under any name; the same again is nothing to do, another file is left alone."""
    place = tmp_path / "one.txt"
    pull_file(versions.store, Spec("r", path=b"changed"), place)
    assert place.read_bytes() == b"newer"
    assert pull_file(versions.store, Spec("r", path=b"changed"), place).unchanged
    with pytest.raises(InvalidInput, match="exists, and differs from"):
        pull_file(versions.store, Spec("r", "old", b"changed"), place)
    assert place.read_bytes() == b"newer"
    assert {path.name for path in tmp_path.iterdir()} == {"one.txt", "copy"}
    with pytest.raises(NotFound):
        pull_file(versions.store, Spec("r", path=b"changed"), tmp_path / "none" / "x")


def test_a_state_that_others_have_put_there_is_not_followed(tmp_path: Path) -> None:
    """Root restores into directories of users: a symlink at the name of the state, or of its
    directory, may lead to a device, or to a file that only root may read."""
    (tmp_path / "private").mkdir()
    (tmp_path / "private/state.json").write_text('{"from": "secret"}')
    (tmp_path / "one").mkdir()
    (tmp_path / "one" / STATE_DIR).symlink_to(tmp_path / "private")
    (tmp_path / "two" / STATE_DIR).mkdir(parents=True)
    (tmp_path / "two" / STATE_DIR / "state.json").symlink_to(tmp_path / "private/state.json")
    assert updated_from(tmp_path / "one") is updated_from(tmp_path / "two") is None
    (tmp_path / "private").rename(tmp_path / STATE_DIR)
    assert updated_from(tmp_path) == "secret"
