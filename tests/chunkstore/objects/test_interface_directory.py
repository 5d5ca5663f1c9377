"""What is particular to objects that are files."""

from __future__ import annotations

import errno
import os
import socket
import subprocess
import time
from itertools import pairwise
from pathlib import Path
from random import Random

import pytest

from lodefs.chunkstore.errors import (
    AlreadyExists,
    Denied,
    InvalidInput,
    LodefsError,
    NoSpace,
    NotFound,
    Unavailable,
    Unsupported,
)
from lodefs.chunkstore.objects import direct_io, directory
from lodefs.chunkstore.objects.direct_io import (
    BLOCK_SIZE_BYTES,
    DIRECT_SIZE_BYTES_MIN,
    DirectWriter,
)
from lodefs.chunkstore.objects.directory import TEMPORARY, TEMPORARY_AGE_S_MAX, DirectoryObjects
from tests.support.chunkstore.object_store_suite import MUCH

WINDOW = 4 << 20
SIZES = [
    DIRECT_SIZE_BYTES_MIN - 1,
    DIRECT_SIZE_BYTES_MIN,
    DIRECT_SIZE_BYTES_MIN + 1,
    DIRECT_SIZE_BYTES_MIN + BLOCK_SIZE_BYTES,
    WINDOW - 1,
    WINDOW,
    WINDOW + 1,
    2 * WINDOW + BLOCK_SIZE_BYTES - 1,
]


@pytest.fixture
def objects(tmp_path: Path) -> DirectoryObjects:
    return DirectoryObjects(tmp_path / "store")


def temporaries(objects: DirectoryObjects) -> list[str]:
    return os.listdir(Path(objects.url) / TEMPORARY)


@pytest.mark.parametrize("size", SIZES)
def test_sizes_around_blocks(objects: DirectoryObjects, size: int) -> None:
    """Objects of sizes around a block, the write window and the threshold of O_DIRECT are whole."""
    data = Random(size).randbytes(size)
    view = memoryview(data)
    cuts = [0, 3, size // 3, size // 3 + 4097, size]
    objects.put("packs/ab/x", [view[first:last] for first, last in pairwise(cuts)])
    assert objects.get("packs/ab/x", size=MUCH).data == data
    assert (Path(objects.url) / "packs/ab/x").stat().st_size == size
    assert temporaries(objects) == []


@pytest.mark.parametrize("refused_at", [0, WINDOW])
def test_direct_writes_fall_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, refused_at: int
) -> None:
    """Where O_DIRECT is refused, or a write stops short, the rest goes through the page cache."""
    data = Random(1).randbytes(2 * WINDOW + 5)
    pwrite = os.pwrite
    direct: list[bool] = []

    def refuse_direct(fd: int, buffer: memoryview, offset: int) -> int:
        if offset >= refused_at and direct[-1]:
            raise OSError(errno.EINVAL, "refused")
        return pwrite(fd, buffer[: WINDOW // 2 + 1], offset)

    monkeypatch.setattr(direct_io, "_set_direct", lambda fd, *, on: direct.append(on))
    monkeypatch.setattr(direct_io, "_is_direct", lambda fd: direct[-1])
    monkeypatch.setattr(os, "pwrite", refuse_direct)
    with (tmp_path / "file").open("wb") as file:
        DirectWriter().write(file.fileno(), [data[:100], data[100:]])
    assert (tmp_path / "file").read_bytes() == data
    assert direct == [True, False]


def test_no_direct_writes_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file system without O_DIRECT gets the whole object through the page cache."""

    def refuse(fd: int, *, on: bool) -> None:
        raise OSError(errno.EINVAL, "refused")

    data = Random(2).randbytes(WINDOW + 5)
    monkeypatch.setattr(direct_io, "_set_direct", refuse)
    with (tmp_path / "file").open("wb") as file:
        DirectWriter().write(file.fileno(), [data[:100], data[100:]])
    assert (tmp_path / "file").read_bytes() == data


def test_many_small_buffers(objects: DirectoryObjects) -> None:
    """More buffers than one system call takes are written in order."""
    objects.put("many", [b"%d," % number for number in range(5000)])
    assert objects.get("many", size=MUCH).data == b"".join(
        b"%d," % number for number in range(5000)
    )


def test_leftovers(objects: DirectoryObjects) -> None:
    """What dead writers left is no object, and is removed when it is older than a day."""
    folder = Path(objects.url) / TEMPORARY
    folder.mkdir(parents=True)
    (folder / "young").write_bytes(b"x")
    (folder / "old").write_bytes(b"x")
    long_ago = time.time() - TEMPORARY_AGE_S_MAX - 60
    os.utime(folder / "old", (long_ago, long_ago))
    assert list(objects.list("")) == []
    objects.put("a", [b"1"])
    assert temporaries(objects) == ["young"]
    assert [info.key for info in objects.list("")] == ["a"]


def test_writer_that_fails_leaves_nothing(
    objects: DirectoryObjects, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A write that fails in its middle leaves neither an object nor a temporary file."""

    def full(fd: int, *_: object, **__: object) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "pwritev", full)
    with pytest.raises(NoSpace, match=r"cannot write a/b .*No space"):
        objects.put("a/b", [b"data"])
    with pytest.raises(NotFound):
        objects.get("a/b", size=MUCH)
    assert temporaries(objects) == []


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        (errno.ENOSPC, NoSpace),
        (errno.EDQUOT, NoSpace),
        (errno.EACCES, Denied),
        (errno.EROFS, Denied),
        (errno.EIO, Unavailable),
        (errno.ESTALE, Unavailable),
        (errno.EXDEV, Unsupported),
        (errno.EOPNOTSUPP, Unsupported),
        (errno.ENOTDIR, InvalidInput),
        (errno.ENAMETOOLONG, InvalidInput),
    ],
)
def test_errors_by_number(
    objects: DirectoryObjects,
    monkeypatch: pytest.MonkeyPatch,
    code: int,
    expected: type[LodefsError],
) -> None:
    """Each errno of a write becomes the error that says what to do, and names key and store."""

    def failing(*_: object, **__: object) -> None:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(os, "rename", failing)
    with pytest.raises(expected, match="a/b in /") as caught:
        objects.put("a/b", [b"data"])
    assert type(caught.value) is expected


@pytest.mark.fuse
def test_full_file_system(tmp_path: Path) -> None:
    """A file system that is really full is NoSpace for small and big objects, and stays usable."""
    mount = tmp_path / "small"
    mount.mkdir()
    subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=3m", "none", str(mount)], check=True, timeout=60
    )
    try:
        objects = DirectoryObjects(mount / "store")
        objects.put("small", [b"x"])
        with pytest.raises(NoSpace):
            objects.put("big", [bytes(5 << 20)])
        assert [info.key for info in objects.list("")] == ["small"]
        objects.put("fits", [bytes(2 << 20)])
        assert objects.head("fits").size_bytes == 2 << 20
        subprocess.run(["mount", "-o", "remount,ro", str(mount)], check=True, timeout=60)
        with pytest.raises(Denied):
            objects.put("late", [b"x"])
        with pytest.raises(Denied):
            DirectoryObjects(mount / "store").put("late", [b"x"])
        assert objects.get("small", size=MUCH).data == b"x"
    finally:
        subprocess.run(["umount", str(mount)], check=True, timeout=60)


def test_symbolic_links_are_not_followed(objects: DirectoryObjects, tmp_path: Path) -> None:
    """A link inside the store leads nowhere: not to be read, listed, or written through."""
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "secret").write_bytes(b"secret")
    objects.put("a/b", [b"1"])
    root = Path(objects.url)
    (root / "folder").symlink_to(outside)
    (root / "a/file").symlink_to(outside / "secret")
    for key in ("folder/secret", "a/file"):
        with pytest.raises(NotFound, match="symbolic link"):
            objects.get(key, size=MUCH)
    with pytest.raises(InvalidInput, match="symbolic link"):
        objects.put("folder/new", [b"x"])
    assert os.listdir(outside) == ["secret"]
    assert [info.key for info in objects.list("")] == ["a/b"]
    with pytest.raises(AlreadyExists):
        objects.put("a/file", [b"x"], if_absent=True)
    objects.put("a/file", [b"own"])
    assert (outside / "secret").read_bytes() == b"secret"
    assert objects.get("a/file", size=MUCH).data == b"own"


def test_root_may_be_a_link_and_missing(tmp_path: Path) -> None:
    """A root that is a link is the user's wish; one that is missing is empty, and made by a put."""
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "real")
    DirectoryObjects(tmp_path / "link").put("a", [b"1"])
    assert (tmp_path / "real/a").read_bytes() == b"1"
    missing = DirectoryObjects(tmp_path / "no/such")
    assert list(missing.list("")) == []
    with pytest.raises(NotFound):
        missing.get("a", size=MUCH)
    missing.put("a", [b"1"])
    assert (tmp_path / "no/such/a").read_bytes() == b"1"


def test_root_is_a_file(tmp_path: Path) -> None:
    """A file where the store should be is named as the problem."""
    (tmp_path / "file").write_bytes(b"x")
    with pytest.raises(LodefsError, match=str(tmp_path / "file")):
        DirectoryObjects(tmp_path / "file").put("a", [b"1"])


def test_etag_changes_with_same_size_and_inode(objects: DirectoryObjects) -> None:
    """An object replaced often by others of its size never has an ETag again."""
    etags = set()
    for number in range(200):
        etags.add(objects.put("a", [b"%04d" % number]))
        objects.delete("a")
    assert len(etags) == 200


def test_list_reads_only_what_it_must(
    objects: DirectoryObjects, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A limited list opens the folders on the way to its answer, and no others."""
    for folder in range(20):
        for name in range(3):
            objects.put(f"packs/{folder:02}/{name}", [b"x"])
    listed: list[str] = []
    names = DirectoryObjects._names

    def noted(self: DirectoryObjects, folder: str) -> object:
        listed.append(folder)
        return names(self, folder)

    monkeypatch.setattr(DirectoryObjects, "_names", noted)
    found = objects.list("packs/", after="packs/07/1", limit=2)
    assert [info.key for info in found] == ["packs/07/2", "packs/08/0"]
    assert listed == ["packs", "packs/07", "packs/08"]
    listed.clear()
    assert [info.key for info in objects.list("packs/11/2")] == ["packs/11/2"]
    assert listed == ["packs/11"]


def test_objects_vanish_while_listed(objects: DirectoryObjects) -> None:
    """Objects and folders that go while a list is read are left out."""
    for key in ("a", "b", "c/d", "e"):
        objects.put(key, [b"x"])
    found = objects.list("")
    assert next(found).key == "a"
    objects.delete("b")
    (Path(objects.url) / "c/d").unlink()
    (Path(objects.url) / "c").rmdir()
    assert [info.key for info in found] == ["e"]


def test_new_names_are_on_disk(objects: DirectoryObjects, monkeypatch: pytest.MonkeyPatch) -> None:
    """A put syncs the file, the folder that got its name, and every folder that got a new one."""
    synced: list[str] = []
    fsync = os.fsync

    def noted(fd: int) -> None:
        synced.append(os.readlink(f"/proc/self/fd/{fd}"))
        fsync(fd)

    objects.put("first", [b"x"])
    monkeypatch.setattr(os, "fsync", noted)
    objects.put("a/b/c", [b"x"], if_absent=True)
    root = Path(objects.url)
    assert synced[:2] == [str(root), str(root / "a")]
    assert synced[2].startswith(str(root / TEMPORARY))
    assert synced[3:] == [str(root / "a/b")]


def test_short_reads_are_completed(
    objects: DirectoryObjects, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A read that the kernel cuts short is continued; a file cut short under it is an error."""
    objects.put("a", [b"0123456789"])
    pread = os.pread
    monkeypatch.setattr(os, "pread", lambda fd, size, offset: pread(fd, min(size, 3), offset))
    assert objects.get("a", offset=1, size=MUCH).data == b"123456789"
    with (Path(objects.url) / "a").open("rb") as file, pytest.raises(Unavailable):
        directory._pread(file.fileno(), 5, 6)


@pytest.mark.parametrize("kind", ["fifo", "socket", "loop", "folder"])
def test_what_is_no_file_is_no_object(objects: DirectoryObjects, tmp_path: Path, kind: str) -> None:
    """A FIFO, socket, folder or loop of links in an object's place is NotFound at once:
    nobody waits in open(2) for a writer that never comes."""
    objects.put("a/other", [b"x"])
    path = Path(objects.url) / "a" / "object"
    if kind == "fifo":
        os.mkfifo(path)
    elif kind == "socket":
        folder = os.open(path.parent, os.O_RDONLY)
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(f"/proc/self/fd/{folder}/object")  # the whole path may be too long
        os.close(folder)
    elif kind == "loop":
        path.symlink_to("object")
    else:
        path.mkdir()
    for read in (objects.head, lambda key: objects.get(key, size=MUCH)):
        with pytest.raises(NotFound, match="a/object"):
            read("a/object")
    assert "a/object" not in [info.key for info in objects.list("")]


def test_files_that_are_no_objects_are_not_listed(objects: DirectoryObjects) -> None:
    """Somebody's notes beside objects, or a folder of them, end no list."""
    objects.put("a/key", [b"data"])
    for name in ("a/notes (copy).txt", "a/key~", "my folder/key"):
        path = Path(objects.url) / name
        path.parent.mkdir(exist_ok=True)
        path.touch()
    assert [info.key for info in objects.list("")] == ["a/key"]


def test_only_leftovers_of_the_store_are_removed(objects: DirectoryObjects) -> None:
    """Who may write to the store puts a symlink where leftovers lie: nothing is removed there."""
    elsewhere = Path(objects.url).parent / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "old").write_bytes(b"x")
    os.utime(elsewhere / "old", (0, 0))
    Path(objects.url).mkdir(exist_ok=True)
    (Path(objects.url) / TEMPORARY).symlink_to(elsewhere)
    with pytest.raises(InvalidInput):
        objects.put("a", [b"1"])
    assert os.listdir(elsewhere) == ["old"]
