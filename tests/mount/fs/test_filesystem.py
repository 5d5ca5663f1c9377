"""The file system without FUSE, against a real directory."""

from __future__ import annotations

import os
import stat
import tempfile
from collections.abc import Iterator, Mapping
from itertools import islice
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lodefs.chunkstore.errors import InvalidInput, NotADirectory, NotFound
from lodefs.chunkstore.format.inodes import child_ino
from lodefs.chunkstore.protocol.wire import Entry
from lodefs.mount.fs.filesystem import PAGE_ENTRIES, ROOT_INO, FileSystem, Listed, Memory, MountView
from tests.support.mount.dict_tree import DictTree, Link, Program, Tree

names = st.binary(min_size=1, max_size=255).filter(
    lambda name: name not in (b".", b"..") and not {0, 47} & set(name)
)
targets = st.binary(min_size=1, max_size=300).filter(lambda target: 0 not in target)
contents = st.binary(max_size=5000)
leaves = st.one_of(contents, contents.map(Program), targets.map(Link))
trees: st.SearchStrategy[Tree] = st.dictionaries(
    names,
    st.recursive(leaves, lambda inner: st.dictionaries(names, inner, max_size=5), max_leaves=12),
    max_size=6,
)


def view_of(tree: DictTree, root: Entry | None = None) -> MountView:
    return MountView(tree.snapshot, root or tree.snapshot.root, uid=7, gid=8, pid=99)


def write(tree: Tree, folder: bytes) -> None:
    """Make a tree in a real directory."""
    for name, what in tree.items():
        path = os.path.join(folder, name)
        if isinstance(what, Mapping):
            os.mkdir(path)
            write(what, path)
        elif isinstance(what, Link):
            os.symlink(what.target, path)
        else:
            data = what.data if isinstance(what, Program) else what
            Path(os.fsdecode(path)).write_bytes(data)
            os.chmod(path, 0o555 if isinstance(what, Program) else 0o444)


def listing(fs: FileSystem, ino: int) -> Iterator[Listed]:
    return (entry for entry in fs.readdir(ino, 0) if entry.name not in (b".", b".."))


def compare(fs: FileSystem, ino: int, real: bytes) -> None:
    """A directory of the file system and a real one, all the way down."""
    assert [entry.name for entry in listing(fs, ino)] == sorted(os.listdir(real))
    for entry in list(listing(fs, ino)):
        path = os.path.join(real, entry.name)
        status = os.lstat(path)
        seen = fs.lookup(ino, entry.name)
        assert seen == fs.getattr(seen.ino)
        assert seen.ino == entry.ino
        assert stat.S_IFMT(seen.mode) == stat.S_IFMT(status.st_mode) == stat.S_IFMT(entry.mode)
        if stat.S_ISDIR(status.st_mode):
            compare(fs, seen.ino, path)
        elif stat.S_ISLNK(status.st_mode):
            assert fs.readlink(seen.ino) == os.readlink(path)
            assert seen.size_bytes == status.st_size
        else:
            assert seen.mode == status.st_mode
            assert seen.size_bytes == status.st_size
            data = Path(os.fsdecode(path)).read_bytes()
            for first in (0, 1, len(data) // 2, len(data)):
                assert bytes(fs.read(seen.ino, first, 4096)) == data[first : first + 4096]


@pytest.mark.slow
@given(trees)
@settings(max_examples=60)
def test_like_a_real_directory(tree: Tree) -> None:
    """Names, kinds, modes, sizes, targets and bytes are those of the same tree on disk."""
    with tempfile.TemporaryDirectory() as folder:
        write(tree, os.fsencode(folder))
        made = DictTree(tree)
        compare(FileSystem(made, view_of(made)), ROOT_INO, os.fsencode(folder))


@given(st.sets(names, max_size=40), st.integers(0, 50))
def test_a_listing_goes_on_at_any_cookie_in_any_worker(taken: set[bytes], stop: int) -> None:
    """What one worker began, another one that knows nothing ends, without loss or repetition."""
    made = DictTree({b"d": dict.fromkeys(taken, b"")})
    directory = child_ino(ROOT_INO, b"d")
    first = FileSystem(made, view_of(made))
    begun = list(islice(first.readdir(directory, 0), stop))
    cookie = begun[-1].cookie if begun else 0
    other = FileSystem(made, view_of(made))
    for fs in (first, other):
        rest = list(fs.readdir(directory, cookie))
        seen = [entry.name for entry in [*begun, *rest]]
        assert seen == [b".", b"..", *sorted(taken)]
    cookies = [entry.cookie for entry in first.readdir(directory, 0)]
    assert len(set(cookies)) == len(cookies)
    assert 0 not in cookies


def test_large_directory_comes_in_pages() -> None:
    """A directory of several pages is listed whole, and read once however it is cut."""
    made = DictTree({b"%05d" % number: b"" for number in range(3 * PAGE_ENTRIES + 5)})
    fs = FileSystem(made, view_of(made))
    seen, cookie = [], 0
    while part := list(islice(fs.readdir(ROOT_INO, cookie), 190)):
        seen += [entry.name for entry in part]
        cookie = part[-1].cookie
    assert seen == [b".", b"..", *sorted(node.name for node in made.nodes.values() if node.name)]
    assert made.calls["children"] == 4
    assert made.calls.get("node", 0) <= 4


def test_attributes() -> None:
    """Nobody may write, everybody may read; times are the commit's; directories count no links."""
    made = DictTree({b"f": bytes(70000), b"p": Program(b"x"), b"l": Link(b"f"), b"d": {}})
    fs = FileSystem(made, view_of(made))
    modes = {name: fs.lookup(ROOT_INO, name).mode for name in (b"f", b"p", b"l", b"d")}
    assert modes == {b"f": 0o100444, b"p": 0o100555, b"l": 0o120777, b"d": 0o040555}
    file = fs.lookup(ROOT_INO, b"f")
    assert (file.size_bytes, file.blocks, file.nlink) == (70000, 137, 1)
    assert (file.uid, file.gid, file.time_s) == (7, 8, made.snapshot.time_s)
    assert file.ino == child_ino(ROOT_INO, b"f")
    assert fs.getattr(ROOT_INO).mode == 0o040555
    assert fs.lookup(ROOT_INO, b"d").nlink == 1


def test_extended_attributes() -> None:
    """Commit, repository and digest can be read of every node; the root tells its process."""
    made = DictTree({b"f": b"content"}, repo="vision/set")
    fs = FileSystem(made, view_of(made))
    ino = fs.lookup(ROOT_INO, b"f").ino
    everywhere = [b"user.lodefs.commit", b"user.lodefs.digest", b"user.lodefs.repo"]
    assert fs.listxattr(ROOT_INO) == everywhere
    assert fs.listxattr(ino) == [*everywhere, b"user.lodefs.read_path"]
    assert fs.getxattr(ino, b"user.lodefs.read_path") == b"daemon"
    assert fs.getxattr(ROOT_INO, b"user.lodefs.read_path") is None
    assert fs.getxattr(ino, b"user.lodefs.repo") == b"vision/set"
    assert fs.getxattr(ino, b"user.lodefs.commit") == made.snapshot.commit.encode()
    assert fs.getxattr(ino, b"user.lodefs.digest") == made.nodes[ino].digest.hex().encode()
    assert fs.getxattr(ROOT_INO, b"user.lodefs.pid") == b"99"
    assert fs.getxattr(ino, b"user.lodefs.pid") is None
    assert fs.getxattr(ino, b"security.capability") is None
    assert fs.getxattr(ino, b"user.other") is None


def test_foreign_attributes_are_not_asked_for() -> None:
    """ls -l asks for security labels of every file: that must not reach the proxy."""
    made = DictTree({b"f": b""})
    fs = FileSystem(made, view_of(made))
    assert fs.getxattr(child_ino(ROOT_INO, b"f"), b"security.selinux") is None
    assert made.calls == {}


def test_statistics() -> None:
    """A snapshot is a full file system with as many files as it has."""
    made = DictTree({b"f": bytes(5000), b"d": {b"g": bytes(5000)}})
    statistics = FileSystem(made, view_of(made)).statfs()
    assert (statistics.blocks, statistics.files) == (3, 4)
    assert statistics.name_bytes_max == 255


def test_mount_of_a_directory_inside() -> None:
    """The mounted directory is number 1, is its own parent, and its entries name it so."""
    made = DictTree({b"a": {b"b": {b"c": {b"f": b"deep"}}}, b"z": b""})
    inner = made.nodes[child_ino(child_ino(ROOT_INO, b"a"), b"b")]
    fs = FileSystem(made, view_of(made, inner))
    assert fs.getattr(ROOT_INO).ino == ROOT_INO
    top = list(fs.readdir(ROOT_INO, 0))
    assert [(entry.name, entry.ino) for entry in top[:2]] == [(b".", 1), (b"..", 1)]
    assert [entry.name for entry in top[2:]] == [b"c"]
    child = fs.lookup(ROOT_INO, b"c")
    below = list(fs.readdir(child.ino, 0))
    assert [(entry.name, entry.ino) for entry in below[:2]] == [(b".", child.ino), (b"..", 1)]
    assert bytes(fs.read(fs.lookup(child.ino, b"f").ino, 0, 10)) == b"deep"
    with pytest.raises(NotFound):
        fs.lookup(ROOT_INO, b"z")


def test_wrong_kinds() -> None:
    """A file is not listed, a directory is no symlink, a foreign cookie is refused."""
    made = DictTree({b"f": b"", b"d": {b"x": b""}, b"e": {b"y": b""}})
    fs = FileSystem(made, view_of(made))
    file, d, e = (child_ino(ROOT_INO, name) for name in (b"f", b"d", b"e"))
    with pytest.raises(NotADirectory):
        next(iter(fs.readdir(file, 0)))
    with pytest.raises(NotADirectory):
        fs.lookup(file, b"x")
    with pytest.raises(InvalidInput):
        fs.readlink(d)
    with pytest.raises(InvalidInput):
        next(iter(fs.readdir(d, child_ino(e, b"y"))))


def test_a_new_worker_knows_a_node_by_its_number() -> None:
    """Whatever was learned elsewhere is asked for again, once."""
    made = DictTree({b"l": Link(b"target")})
    ino = child_ino(ROOT_INO, b"l")
    memory = Memory()
    for _ in range(3):
        assert FileSystem(made, view_of(made), memory).readlink(ino) == b"target"
    assert made.calls == {"node": 1}


@pytest.mark.parametrize("mode", [None, 0o555, 0o550, 0o444, 0o100, 0])
def test_presented_modes(mode: int | None) -> None:
    """Directories and programs have the mode that was asked for, files those of its bits that let
    nobody execute; symlinks have their own."""
    tree = DictTree({b"f": b"x", b"p": Program(b"x"), b"l": Link(b"f"), b"d": {}})
    view = MountView(tree.snapshot, tree.snapshot.root, uid=7, gid=8, mode=mode)
    fs = FileSystem(tree, view)
    shown = 0o555 if mode is None else mode
    modes = {name: fs.lookup(ROOT_INO, name).mode for name in (b"f", b"p", b"l", b"d")}
    assert modes == {
        b"f": stat.S_IFREG | (shown & 0o444),
        b"p": stat.S_IFREG | shown,
        b"l": 0o120777,
        b"d": stat.S_IFDIR | shown,
    }
    assert {entry.name: entry.mode for entry in listing(fs, ROOT_INO)} == modes
    assert fs.getattr(ROOT_INO).mode == stat.S_IFDIR | shown
    assert {entry.mode for entry in islice(fs.readdir(ROOT_INO, 0), 2)} == {stat.S_IFDIR | shown}
