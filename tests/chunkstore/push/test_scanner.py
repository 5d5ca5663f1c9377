"""What a scan of a source directory finds."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from lodefs.chunkstore.errors import Denied, NotADirectory, NotFound
from lodefs.chunkstore.push.scanner import (
    EXECUTABLE,
    FILE,
    SYMLINK,
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
