"""What overlayfs writes into an upper directory, read as changes of a commit: random edits through
a real overlayfs, and what they do not reach."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from lodefs.chunkstore.errors import Denied, InvalidInput, NotFound, SourceChanged
from lodefs.chunkstore.format.names import Spec
from lodefs.chunkstore.format.tree import Kind
from lodefs.chunkstore.push.changes import upper_directory
from lodefs.chunkstore.push.changes.branch_commits import ChangesResult
from lodefs.chunkstore.push.changes.change import CopyFrom, MakeDirectory, Put, Remove
from lodefs.chunkstore.push.changes.commit_changes import commit_changes
from lodefs.chunkstore.push.changes.upper_changes import Renamed, UpperChanges, read_upper
from lodefs.chunkstore.push.changes.upper_directory import AS_ROOT, AS_USER, UpperBase, walk_upper
from tests.support.chunkstore import directories
from tests.support.chunkstore.directories import in_commit, in_directory, write_files
from tests.support.chunkstore.overlay_mounts import OverlayMount, needs_overlay, overlay
from tests.support.chunkstore.upper_histories import (
    HISTORIES,
    MEMORY,
    Edit,
    UpperWorld,
    make_directory,
    remove_tree,
    rename,
    write,
)


@pytest.fixture(scope="module")
def world() -> Iterator[UpperWorld]:
    with tempfile.TemporaryDirectory(dir=MEMORY) as place:
        yield UpperWorld(Path(place))


@pytest.fixture
def mounted(world: UpperWorld, tmp_path: Path) -> Iterator[OverlayMount]:
    with overlay(world.lower, tmp_path / "overlay") as made:
        yield made


def commit(world: UpperWorld, found: UpperChanges, branch: str) -> ChangesResult:
    options = replace(world.options, message=branch)
    return commit_changes(world.store, "r", branch, found.changes, options, base=world.commit)


def listed(found: UpperChanges) -> list[str]:
    """As ``lodefs diff`` shows them, without sizes."""
    return [
        f"renamed {os.fsdecode(one.source)} -> {os.fsdecode(one.path)}"
        if isinstance(one, Renamed)
        else f"{one.what.value} {os.fsdecode(one.path)}"
        for one in found.listed()
    ]


SWAPPED: list[Edit] = [(rename, "d", "t"), (rename, "b", "d"), (rename, "t", "b")]
RENAMED_TWICE: list[Edit] = [(rename, "d/s", "s"), (rename, "d", "t"), (rename, "s", "t/s")]
INTO_A_NEW_ONE: list[Edit] = [(make_directory, "t"), (rename, "d", "t/d"), (write, "t/d/x", b"")]
REPLACED: list[Edit] = [(remove_tree, "d"), (rename, "b", "d"), (make_directory, "b")]


@needs_overlay
@pytest.mark.slow
@settings(max_examples=150)
@example(SWAPPED, True)
@example(RENAMED_TWICE, True)
@example(INTO_A_NEW_ONE, True)
@example(REPLACED, True)
@example(REPLACED, False)
@given(HISTORIES, st.booleans())
def test_a_commit_of_any_edits_is_the_directory(
    world: UpperWorld, edits: list[Edit], renames_directories: bool
) -> None:
    """Whatever programs do, the commit has what the directory shows, and the list of differences is
    that of `lodefs diff`."""
    world.play(edits, renames_directories=renames_directories)


@needs_overlay
def test_a_renamed_directory_is_not_read(world: UpperWorld, mounted: OverlayMount) -> None:
    """In its directory (a relative redirect) and elsewhere (an absolute one) it is a copy of the
    base's entry, with what was changed below it; the list says where it was."""
    os.rename(mounted.merged / "d", mounted.merged / "renamed")
    os.rename(mounted.merged / "b/s", mounted.merged / "s")
    (mounted.merged / "renamed/x").write_bytes(b"other")
    found = world.read(mounted)
    copies = {one.to: one.source for one in found.changes if isinstance(one, CopyFrom)}
    rev = world.commit.hex()
    assert copies == {b"renamed": Spec("r", rev, b"d"), b"s": Spec("r", rev, b"b/s")}
    assert listed(found) == ["renamed d -> renamed", "changed renamed/x", "renamed b/s -> s"]
    result = commit(world, found, "renamed")
    assert (result.files_read, result.new_bytes) == (1, len(b"other"))
    assert in_commit(world.store, "r", result.commit) == in_directory(mounted.merged)


@needs_overlay
def test_what_is_touched_is_not_changed(world: UpperWorld, mounted: OverlayMount) -> None:
    """Copied up by chmod or touch, a file is read and found to be as it was."""
    (mounted.merged / "d/x").chmod(0o600)
    os.utime(mounted.merged / "a")
    found = world.read(mounted)
    assert [type(one) for one in found.changes] == [Put, Put]
    assert listed(found) == []
    commit(world, found, "touched")
    again = commit(world, found, "touched")
    assert again.unchanged
    head = world.store.commit("r", world.store.resolve("r", "touched"))
    assert head.root == world.base().root


@needs_overlay
def test_what_a_commit_does_not_keep_is_said(world: UpperWorld, mounted: OverlayMount) -> None:
    """Special files are left out by name; hard links, and setuid bits, are told of; names of any
    bytes and files that nobody may read are kept."""
    directories.awkward(mounted.merged / "awkward")
    names = directories.special(mounted.merged)
    (mounted.merged / "closed").write_bytes(b"closed")
    (mounted.merged / "closed").chmod(0)
    (mounted.merged / "program").write_bytes(b"p")
    (mounted.merged / "program").chmod(0o4755)
    (mounted.merged / "d/x").unlink()
    os.mkfifo(mounted.merged / "d/x")
    found = world.read(mounted)
    assert sorted(one.path for one in found.skipped) == sorted([*names, b"d/x"])
    assert found.set_id_files == 1
    assert found.hard_linked_files == 2
    assert "removed d/x" in listed(found)
    result = commit(world, found, "kept")
    assert in_commit(world.store, "r", result.commit) == in_directory(mounted.merged)


class Upper:
    """An upper directory that is written by hand, without a mount."""

    def __init__(self, world: UpperWorld, path: Path, prefix: bytes) -> None:
        self._world = world
        self._prefix = prefix
        self.path = path
        self.path.mkdir()

    def set(self, path: str, attribute: str, value: bytes) -> None:
        os.setxattr(self.path / path, self._prefix + attribute.encode(), value)

    def read(self, base: UpperBase | None = None) -> UpperChanges:
        return read_upper(self.path, base or self._world.base(), xattr_prefix=self._prefix)


PREFIXES = [
    pytest.param(AS_ROOT, marks=needs_overlay, id="trusted"),
    pytest.param(AS_USER, id="user"),
]


@pytest.fixture(params=PREFIXES)
def upper(request: pytest.FixtureRequest, world: UpperWorld, tmp_path: Path) -> Upper:
    return Upper(world, tmp_path / "upper", request.param)


def test_whiteouts_that_are_files(upper: Upper) -> None:
    """In a directory that says so, an empty file with the attribute is a whiteout; elsewhere it is
    a file."""
    write_files(upper.path, {"d/x": b"", "d/y": b"", "b/x": b""})
    upper.set("d", "opaque", b"x")
    for path in ("d/x", "b/x"):
        upper.set(path, "whiteout", b"y")
    assert listed(upper.read()) == ["changed b/x", "removed d/x", "changed d/y"]


def test_more_names_than_a_commit_has_memory_for(
    upper: Upper, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are refused before they are read, also in one directory: a user may make any number of
    empty files, and root's process commits them."""
    write_files(upper.path, {"new/1": b"", "new/2": b"", "3": b""})
    monkeypatch.setattr(upper_directory, "NAMES_MAX", 4)
    assert len(upper.read().entries) == 4
    (upper.path / "new/4").touch()
    with pytest.raises(InvalidInput, match="more than 4 names were changed"):
        upper.read()


def test_opaque_directories_hide_the_base(upper: Upper) -> None:
    """What such a directory has is all there is; an empty one is made."""
    write_files(upper.path, {"d/x": b"new"})
    (upper.path / "empty").mkdir()
    (upper.path / "new").mkdir()
    for path in ("d", "empty"):
        upper.set(path, "opaque", b"y")
    found = upper.read()
    assert listed(found) == [
        "removed d/s", "removed d/s/x", "removed d/s/z", "removed d/y", "changed d/x", "added new",
    ]  # fmt: skip
    assert [one for one in found.changes if not isinstance(one, Put)] == [
        Remove(b"d"), MakeDirectory(b"d"), Remove(b"empty"), MakeDirectory(b"empty"),
        MakeDirectory(b"new"),
    ]  # fmt: skip


def test_content_that_is_elsewhere_is_refused(upper: Upper) -> None:
    """A file that was copied up without its content (metacopy) has none to commit."""
    (upper.path / "a").touch()
    os.truncate(upper.path / "a", 5000)
    upper.set("a", "metacopy", b"")
    with pytest.raises(InvalidInput, match="a has no content in the upper directory"):
        upper.read()


def test_a_directory_of_a_repository(world: UpperWorld, upper: Upper) -> None:
    """Where REPO@REV:PATH was mounted, changes are below PATH, and redirects lead from there."""
    (entry,) = (one for one in world.store.packs.read_tree(world.base().root) if one.name == b"b")
    base = UpperBase(Spec("r", world.commit.hex(), b"b"), entry, world.store.packs)
    write_files(upper.path, {"x": b"changed"})
    (upper.path / "moved").mkdir()
    upper.set("moved", "redirect", b"/s")
    found = upper.read(base)
    assert [getattr(one, "to", None) or getattr(one, "path", None) for one in found.changes] == [
        b"b/x", b"b/moved",
    ]  # fmt: skip
    seen = in_commit(world.store, "r", commit(world, found, "b-only").commit)
    assert seen[b"b/moved/t/u"].content == b"deep"
    assert seen[b"b/x"].content == b"changed"


def test_files_that_cannot_be_read_are_named(world: UpperWorld) -> None:
    """A user who may not read a file gets its name, and nothing is committed."""
    with directories.open_directory() as place:
        upper = Upper(world, place / "upper", AS_USER)
        write_files(upper.path, {"a": b"b" * 700})
        (upper.path / "a").chmod(0)
        found = upper.read()
        options = replace(world.options, index_dir=place / "index")
        with directories.as_nobody():
            with pytest.raises(Denied, match="a cannot be read"):
                listed(found)
            with pytest.raises(Denied, match="upper/a cannot be read"):
                commit_changes(
                    world.store, "r", "closed", found.changes, options, base=world.commit
                )
    with pytest.raises(NotFound):
        world.store.resolve("r", "closed")


def test_a_directory_that_becomes_a_symlink_leads_nowhere(world: UpperWorld, upper: Upper) -> None:
    """Somebody changes the mount while its changes are listed, or committed: what lies elsewhere is
    not read, however deep the path to it."""
    write_files(upper.path, {"n/s/t/u": b"changed"})
    write_files(upper.path.parent / "elsewhere", {"s/t/u": b"secret!"})
    walk = walk_upper(os.fsencode(upper.path), world.base(), AS_USER)
    assert next(walk).path == b"n"
    found = upper.read()
    os.rename(upper.path / "n", upper.path / "was")
    (upper.path / "n").symlink_to(upper.path.parent / "elsewhere")
    with pytest.raises(SourceChanged, match="n/s"):
        list(walk)
    with pytest.raises(SourceChanged, match="n/s/t/u"):
        commit(world, found, "elsewhere")


def test_directories_of_any_depth(world: UpperWorld, upper: Upper) -> None:
    """Paths that are longer than the kernel takes are read, and committed."""
    directories.deep(upper.path, levels=40, name=b"deeper" * 40)
    found = upper.read()
    assert len(found.entries) == 80
    result = commit(world, found, "deep")
    seen = in_commit(world.store, "r", result.commit)
    assert seen[(b"deeper" * 40 + b"/") * 40 + b"f"].kind is Kind.FILE
    directories.remove(upper.path)
