"""What a push says it changes, and what it does not remove unasked."""

from __future__ import annotations

import os
import shutil
import time
from pathlib import Path

import pytest

from lodefs.chunkstore.errors import Conflict, TooManyRemovals
from lodefs.chunkstore.format import keys
from lodefs.chunkstore.format.names import CommitId
from lodefs.chunkstore.format.tree import Kind, TreeEntry
from lodefs.chunkstore.push.limits import Changes, Removals, allow_all
from lodefs.chunkstore.push.push import PushOptions, PushResult, push
from lodefs.chunkstore.repo.history import ChangeKind, diff
from lodefs.chunkstore.repo.pack_reader import PackReader
from lodefs.chunkstore.repo.store import Store, create_store
from tests.support.chunkstore.directories import random_files, write_files
from tests.support.chunkstore.faulty_store import FaultyObjects
from tests.support.chunkstore.memory_objects import MemoryObjects


class Machine:
    """Somebody who pushes one directory to a store in memory."""

    def __init__(self, tmp_path: Path, store: Store | None = None) -> None:
        self.objects = FaultyObjects(MemoryObjects())
        self.store = store or create_store(self.objects)
        self.index_dir = tmp_path / "index"
        self.source = tmp_path / "source"
        self.asked: list[Removals] = []

    def push(
        self, *, source: Path | None = None, allow: bool = False, index: str = ""
    ) -> PushResult:
        def allows(removals: Removals) -> bool:
            self.asked.append(removals)
            return allow

        options = PushOptions(
            message="",
            author="",
            time_s=0,
            index_dir=self.index_dir / index,
            workers=0,
            clock_ns=lambda: time.time_ns() + 3600 * 10**9,
            allow_removals=allows,
        )
        return push(self.store, source or self.source, "r", "main", options)

    def by_diff(self, commit: str) -> Changes:
        """What ``lodefs diff`` finds between a commit and its parent."""
        after = self.store.commit("r", CommitId(bytes.fromhex(commit)))
        before = self.store.commit("r", after.parents[0])
        found = dict.fromkeys(("added", "changed", "removed"), (0, 0))
        for change in diff(self.store, before.root, after.root):
            what = "changed" if change.what is ChangeKind.TYPE_CHANGED else change.what.value
            entry = change.before if change.what is ChangeKind.REMOVED else change.after
            assert entry is not None
            if entry.kind is not Kind.DIRECTORY:
                files, size_bytes = found[what]
                more = entry.size_bytes if entry.kind is Kind.FILE else 0
                found[what] = files + 1, size_bytes + more
        return Changes(*found["added"], *found["changed"], *found["removed"])


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    machine = Machine(tmp_path)
    random_files(machine.source, files=60, size_bytes_max=2000)
    return machine


def test_a_first_push_adds_all(machine: Machine) -> None:
    """To a branch that is new, and whatever the machine has pushed elsewhere, all is added."""
    result = machine.push()
    assert result.changes == Changes(added_files=60, added_bytes=result.size_bytes)
    assert machine.push().changes == Changes()


@pytest.mark.parametrize("index", ["", "another machine"])
def test_changes_are_those_that_diff_finds(machine: Machine, index: str) -> None:
    """Files and directories that come, go, change, move or become links, at any depth, on a machine
    that knows the branch and on one that does not."""
    source = machine.source
    write_files(source, {"d1/deep/er/x": b"1" * 100, "gone/a/b": b"2" * 50, "top": b"3"})
    os.symlink("top", source / "d2" / "link")
    machine.push()
    write_files(source, {"d1/deep/er/x": b"longer" * 100, "new/a/b/c": b"4" * 70, "d1/n": b""})
    shutil.rmtree(source / "gone")
    (source / "d3").rename(source / "d3 moved")
    (source / "top").chmod(0o755)
    os.unlink(source / "d2" / "link")
    os.symlink("elsewhere", source / "d2" / "link")
    gone = next(path for path in (source / "d4").rglob("*") if path.is_file())
    gone.unlink()
    os.symlink("x", gone)
    result = machine.push(index=index)
    assert result.changes == machine.by_diff(result.commit)
    assert result.changes is not None
    assert result.changes.changed_files == 4
    assert result.changes.removed_files > 5


def test_equal_directories_are_not_read(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the old version only trees on the way to a change are read."""
    machine.push()
    write_files(machine.source, {"d1/e1/new": b"new"})
    read: list[bytes] = []

    def read_tree(packs: PackReader, entry: TreeEntry) -> list[TreeEntry]:
        read.append(entry.name)
        return original(packs, entry)

    original = PackReader.read_tree
    monkeypatch.setattr(PackReader, "read_tree", read_tree)
    assert machine.push().changes == Changes(added_files=1, added_bytes=3)
    assert sorted(set(read)) == [b"", b"d1", b"e1"]


def test_the_wrong_directory_level_is_refused(machine: Machine) -> None:
    """A push of a directory inside of the dataset would remove nearly all: it is refused before
    anything is written, and nothing is committed; allowed, it goes through."""
    first = machine.push()
    write_files(machine.source, {"d1/unpushed": os.urandom(9_000_000)})
    machine.objects.forget()
    with pytest.raises(TooManyRemovals, match=r"remove 60 of the 60 files of r@main"):
        machine.push(source=machine.source / "d1")
    assert machine.objects.count("put") == 0
    assert machine.store.resolve("r", "main").hex() == first.commit
    assert [removals.head.hex() for removals in machine.asked] == [first.commit]
    result = machine.push(source=machine.source / "d1", allow=True)
    assert result.changes is not None
    assert result.changes.removed_files == 60


def test_more_than_half_asks_and_half_does_not(machine: Machine) -> None:
    """The limit is more than half of the files, wherever they lie."""
    machine.source = machine.source.parent / "ten"
    write_files(machine.source, {f"d{n % 2}/f{n}": b"%d" % n for n in range(10)})
    machine.push()
    for n in range(5):
        (machine.source / f"d{n % 2}/f{n}").unlink()
    machine.push()
    assert machine.asked == []
    for n in range(5, 8):
        (machine.source / f"d{n % 2}/f{n}").unlink()
    write_files(machine.source, {f"d0/new{n}": b"%d" % n for n in range(10)})
    with pytest.raises(TooManyRemovals, match="remove 3 of the 5 files"):
        machine.push()


def test_files_that_move_count_as_removed(machine: Machine) -> None:
    """All below another directory is another dataset for those who read it by path."""
    machine.push()
    inner = machine.source / "inner"
    inner.mkdir()
    for path in machine.source.glob("d*"):
        path.rename(inner / path.name)
    with pytest.raises(TooManyRemovals):
        machine.push()


def test_a_branch_that_moved_is_asked_about_anew(machine: Machine, tmp_path: Path) -> None:
    """What may be removed is decided for the head that the commit replaces: a branch that grows
    while a push runs is a conflict, and the repeated push compares with what is there then."""
    machine.push()
    others = Machine(tmp_path / "others", machine.store)
    random_files(others.source, files=60, size_bytes_max=2000)
    write_files(others.source, {f"more/{n}": b"%d" % n for n in range(200)})

    def push_meanwhile(perform: object) -> object:
        machine.objects.rules.clear()
        others.push()
        return perform()  # type: ignore[operator]

    write_files(machine.source, {"d1/mine": b"mine"})
    machine.objects.add(push_meanwhile, "put", keys.commits("r"))
    with pytest.raises(Conflict):
        machine.push()
    assert machine.asked == []
    with pytest.raises(TooManyRemovals, match="remove 200 of the 260 files"):
        machine.push()


def test_a_head_that_cannot_be_read(machine: Machine) -> None:
    """Changes are unknown then, and what is removed at least still counts."""
    machine.push()
    head = machine.store.commit("r", machine.store.resolve("r", "main"))
    for segment in head.root.segments:
        machine.store.objects.delete(keys.pack(segment.pack))
    store = machine.store
    machine.store = Store(store.objects, store.settings)
    write_files(machine.source, {"new": b"new"})
    assert machine.push(index="new").changes is None
    assert machine.asked == []
    for path in list(machine.source.glob("d*"))[1:]:
        shutil.rmtree(path)
    with pytest.raises(TooManyRemovals):
        machine.push(index="new")


def test_allow_all_allows() -> None:
    """The library removes what it is told to."""
    assert allow_all(Removals(CommitId(b"c" * 32), 9, 9))
