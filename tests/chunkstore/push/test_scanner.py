"""What a scan of a source directory finds."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from lodefs.chunkstore.errors import Denied, InvalidInput, NotADirectory, NotFound
from lodefs.chunkstore.push.ignore_rules import IgnoreRules
from lodefs.chunkstore.push.scanner import (
    EXECUTABLE,
    FILE,
    SYMLINK,
    Private,
    Scan,
    ScannedDirectory,
    open_root,
    read_link,
)
from tests.support.chunkstore.directories import as_nobody, awkward, deep, open_directory, special


def scan(root: Path, *, skip_unreadable: bool = False) -> tuple[list[ScannedDirectory], Scan]:
    found = Scan(os.fsencode(root), skip_unreadable)
    return list(found), found


def test_directories_come_in_the_order_of_their_paths(tmp_path: Path) -> None:
    """Parents come first, and NUL stands for '/' in the order, so that 'a-b' is behind 'a/c'."""
    for name in ("a/c/d", "a-b", "a.b/x", "b", "a/a"):
        (tmp_path / name).mkdir(parents=True)
    directories, _ = scan(tmp_path)
    paths = [directory.path for directory in directories]
    assert paths == [b"", b"a", b"a/a", b"a/c", b"a/c/d", b"a-b", b"a.b", b"a.b/x", b"b"]
    keys = [path.replace(b"/", b"\0") for path in paths]
    assert keys == sorted(keys)
    assert [directory.depth for directory in directories] == [0, 1, 2, 2, 3, 1, 1, 2, 1]


def test_names_are_bytes_and_sorted(tmp_path: Path) -> None:
    """Names in any bytes come out as they are, files and symlinks together, by their bytes."""
    awkward(tmp_path)
    root = scan(tmp_path)[0][0]
    expected = [
        entry.name for entry in os.scandir(os.fsencode(tmp_path)) if not entry.is_dir(
            follow_symlinks=False)
    ]  # fmt: skip
    assert root.columns.names == sorted(expected)
    assert root.subdirectories == [
        b"dir", b"dir-", b"dir.d", b"empty directory", b"\xff dir\n",
    ]  # fmt: skip


def test_columns_say_what_lstat_says(tmp_path: Path) -> None:
    """Every column holds what lstat says of the name in that row."""
    awkward(tmp_path)
    columns = scan(tmp_path)[0][0].columns
    for n, name in enumerate(columns.names):
        seen = os.lstat(os.fsencode(tmp_path) + b"/" + name)
        assert columns.sizes[n] == seen.st_size
        assert columns.mtimes_ns[n] == seen.st_mtime_ns
        assert columns.inodes[n] == seen.st_ino
        assert columns.ctimes_ns[n] == seen.st_ctime_ns
    kinds = dict(zip(columns.names, columns.modes, strict=True))
    assert (kinds[b"program"], kinds[b"plain"], kinds[b"loop"]) == (EXECUTABLE, FILE, SYMLINK)


def test_special_files_are_named_and_left_out(tmp_path: Path) -> None:
    """Sockets, FIFOs and devices are no error; each is named with what it is."""
    (tmp_path / "d").mkdir()
    names = special(tmp_path / "d")
    directories, found = scan(tmp_path)
    assert directories[1].columns.names == []
    assert sorted(item.path for item in found.skipped) == [b"d/" + name for name in names]
    reasons = {item.path: str(item) for item in found.skipped}
    assert reasons[b"d/a fifo"] == "d/a fifo is a FIFO"
    assert reasons[b"d/socket"] == "d/socket is a socket"


def private_tree(root: Path) -> None:
    """Files that others may not read, by their own mode or that of a directory above."""
    for name in ("open", "key", "group", "d/in", "d/e/deep", "d2/open", "out/gone"):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(name)
        (root / name).chmod(0o644)
    (root / "link").symlink_to("key")
    (root / "key").chmod(0o600)
    (root / "group").chmod(0o640)
    (root / "out/gone").chmod(0o600)
    for directory, mode in (("d/e", 0o755), ("d", 0o700), ("d2", 0o711), ("out", 0o755)):
        (root / directory).chmod(mode)


def test_private_files_are_counted(tmp_path: Path) -> None:
    """A file counts that others may not read in the source, by its mode or by a directory's above
    it; the first few are named; what patterns leave out does not count."""
    private_tree(tmp_path)
    found = Scan(os.fsencode(tmp_path), ignore=IgnoreRules([b"/out"]))
    assert len(list(found)) == 4
    assert found.notes.private_files == 4
    assert found.notes.private_named == [b"group", b"key", b"d/in"]
    assert found.skipped == []


def test_private_files_can_be_left_out_or_refused(tmp_path: Path) -> None:
    """Left out, they and directories that others cannot enter are named; refused, the first one
    ends the scan before the files beside it are handed out."""
    private_tree(tmp_path)
    found = Scan(os.fsencode(tmp_path), private=Private.SKIP)
    directories = list(found)
    names = {directory.path: directory.columns.names for directory in directories}
    assert names == {b"": [b"link", b"open"], b"d2": [b"open"], b"out": []}
    assert sorted(item.path for item in found.skipped) == [b"d", b"group", b"key", b"out/gone"]
    assert "key is private (mode 0600)" in {str(item) for item in found.skipped}
    assert found.notes.private_files == 0
    with pytest.raises(InvalidInput, match=r"^(key|group) is private \(mode 06[04]0\)"):
        list(Scan(os.fsencode(tmp_path), private=Private.REFUSE))
    for name in ("key", "group", "out/gone"):
        (tmp_path / name).chmod(0o644)
    with pytest.raises(InvalidInput, match=r"^d is private \(mode 0700\)"):
        list(Scan(os.fsencode(tmp_path), private=Private.REFUSE))


def test_the_mode_of_the_source_itself_does_not_count(tmp_path: Path) -> None:
    """A directory that was made for a push is often private, and what is in it is meant."""
    (tmp_path / "a").write_text("a")
    (tmp_path / "a").chmod(0o644)
    tmp_path.chmod(0o700)
    for private in Private:
        found = Scan(os.fsencode(tmp_path), private=private)
        assert [directory.columns.names for directory in found] == [[b"a"]]
        assert found.notes.private_files == 0


def test_hard_links_and_what_is_often_left_out_are_counted(tmp_path: Path) -> None:
    """Both are in the push, unless patterns leave them out."""
    for name in ("a", "tmp/b", ".git/HEAD", "sub/.git", "sub/__pycache__/x.pyc", "sub/.DS_Store"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(name)
    os.link(tmp_path / "a", tmp_path / "tmp/a")
    found = Scan(os.fsencode(tmp_path))
    assert sum(b".git" in directory.subdirectories for directory in found) == 1
    assert found.notes.hard_linked_files == 2
    assert found.notes.often_excluded == {".git": 2, "__pycache__": 1, ".DS_Store": 1}
    rules = IgnoreRules([b".git", b"__pycache__", b".DS_Store", b"tmp/a"])
    found = Scan(os.fsencode(tmp_path), ignore=rules)
    list(found)
    assert found.notes.hard_linked_files == 1
    assert not found.notes.often_excluded


def test_symlinks_to_directories_are_not_followed(tmp_path: Path) -> None:
    """A link to the directory above is a link, so that the scan ends."""
    (tmp_path / "d").mkdir()
    (tmp_path / "d" / "up").symlink_to("..")
    directories, _ = scan(tmp_path)
    assert [directory.path for directory in directories] == [b"", b"d"]
    root_fd = open_root(os.fsencode(tmp_path))
    try:
        assert read_link(root_fd, b"d/up") == b".."
    finally:
        os.close(root_fd)


@pytest.mark.parametrize(
    ("levels", "name"),
    [(1300, b"d"), (70, b"n" * 255)],
    ids=["1300 levels", "paths over PATH_MAX"],
)
def test_deep_directories(levels: int, name: bytes) -> None:
    """Neither Python's stack, nor PATH_MAX, nor the limit of open files ends a scan."""
    with open_directory() as root:
        deep(root, levels=levels, name=name)
        directories, _ = scan(root)
        assert len(directories) == levels + 1
        assert directories[-1].path == b"/".join([name] * levels)
        assert all(directory.columns.names == [b"f"] for directory in directories[1:])


def test_an_unreadable_directory_is_named() -> None:
    """It is an error that names it, or it is skipped by name, and the rest is found."""
    with open_directory() as root:
        (root / "good").mkdir()
        (root / "secret").mkdir(mode=0o000)
        with as_nobody():
            with pytest.raises(Denied, match="secret cannot be read"):
                scan(root)
            directories, found = scan(root, skip_unreadable=True)
        assert [directory.path for directory in directories] == [b"", b"good"]
        assert [item.path for item in found.skipped] == [b"secret"]


def test_roots_that_cannot_be_scanned(tmp_path: Path) -> None:
    """A root that is missing or no directory is told so, by name."""
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(NotFound, match="nothing does not exist"):
        scan(tmp_path / "nothing")
    with pytest.raises(NotADirectory, match="file is not a directory"):
        scan(tmp_path / "file")


def test_the_signature_tells_any_change(tmp_path: Path) -> None:
    """Another name, size, time, inode, mode or subdirectory gives another signature."""
    signatures = set()

    def take() -> None:
        root = scan(tmp_path)[0][0]
        signatures.add(root.columns.signature(root.subdirectories))

    file = tmp_path / "a"
    file.write_bytes(b"1")
    take()
    take()
    assert len(signatures) == 1
    file.write_bytes(b"12")
    take()
    os.utime(file, ns=(1, 1))
    take()
    file.chmod(0o755)
    take()
    file.rename(tmp_path / "b")
    take()
    (tmp_path / "c").mkdir()
    take()
    (tmp_path / "c").rename(tmp_path / "d")
    take()
    assert len(signatures) == 7
