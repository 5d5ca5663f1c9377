"""Opening and reading the files of a push."""

from __future__ import annotations

import errno
import os
import random
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from lodefs.chunkstore.errors import Denied, LodefsError, NotFound, SourceChanged, Unavailable
from lodefs.chunkstore.push.workers import source_files
from lodefs.chunkstore.push.workers.source_files import (
    FileStat,
    Source,
    read_data,
    read_full,
    source_error,
    stat_of,
)


@pytest.fixture
def source(tmp_path: Path) -> Iterator[Source]:
    opened = Source(os.fsencode(tmp_path))
    yield opened
    opened.close()


def problem(source: Source, path: bytes) -> LodefsError:
    """The error that opening ``path`` and looking at it gives."""
    with pytest.raises(OSError) as caught:
        look(source, path)
    return source_error(caught.value, path)


def look(source: Source, path: bytes) -> None:
    fd = source.open(path)
    try:
        stat_of(fd)
    finally:
        os.close(fd)


def test_stat_is_that_of_the_open_file(tmp_path: Path, source: Source) -> None:
    """The state of a file is its size, times and inode."""
    (tmp_path / "a").write_bytes(b"abc")
    fd = source.open(b"a")
    seen = stat_of(fd)
    os.close(fd)
    real = (tmp_path / "a").stat()
    assert seen == FileStat(3, real.st_mtime_ns, real.st_ctime_ns, real.st_ino)


def test_missing_root_is_not_found(tmp_path: Path) -> None:
    """A root that is not there is told by its name."""
    with pytest.raises(NotFound, match="nowhere"):
        Source(os.fsencode(tmp_path / "nowhere"))


def test_root_that_is_a_file_is_not_found(tmp_path: Path) -> None:
    """A root must be a directory."""
    (tmp_path / "a").write_bytes(b"")
    with pytest.raises(NotFound):
        Source(os.fsencode(tmp_path / "a"))


def test_symlink_is_not_followed(tmp_path: Path, source: Source) -> None:
    """A symlink in place of a file is refused, wherever it points."""
    (tmp_path / "target").write_bytes(b"secret")
    (tmp_path / "link").symlink_to("target")
    assert isinstance(problem(source, b"link"), SourceChanged)


def test_fifo_does_not_hang(tmp_path: Path, source: Source) -> None:
    """A FIFO in place of a file is refused at once, though nobody writes to it."""
    os.mkfifo(tmp_path / "fifo")
    assert isinstance(problem(source, b"fifo"), SourceChanged)


def test_directory_is_refused(tmp_path: Path, source: Source) -> None:
    """A directory in place of a file is refused."""
    (tmp_path / "sub").mkdir()
    assert isinstance(problem(source, b"sub"), SourceChanged)


def test_missing_file_is_not_found(source: Source) -> None:
    """A file that vanished is NotFound, by its name."""
    assert isinstance(problem(source, b"gone/file"), NotFound)
    assert "gone/file" in str(problem(source, b"gone/file"))


def test_path_longer_than_path_max(tmp_path: Path, source: Source) -> None:
    """A file deeper than the kernel takes a path for is opened all the same."""
    names = [b"d" * 200] * 25
    fd = os.open(tmp_path, os.O_RDONLY)
    for name in names:
        os.mkdir(name, dir_fd=fd)
        below = os.open(name, os.O_RDONLY, dir_fd=fd)
        os.close(fd)
        fd = below
    os.close(os.open(b"file", os.O_WRONLY | os.O_CREAT, dir_fd=fd))
    os.close(fd)
    opened = source.open(b"/".join([*names, b"file"]))
    assert stat_of(opened).size_bytes == 0
    os.close(opened)
    assert isinstance(problem(source, b"/".join([*names, b"gone"])), NotFound)
    assert isinstance(problem(source, b"/".join([b"gone", *names])), NotFound)
    shutil.rmtree(tmp_path / os.fsdecode(names[0]))  # not every tool that tidies up can do that


@pytest.mark.parametrize(
    ("number", "kind"),
    [
        (errno.EACCES, Denied),
        (errno.ENOENT, NotFound),
        (errno.ELOOP, SourceChanged),
        (errno.EIO, Unavailable),
    ],
)
def test_errors_are_translated(number: int, kind: type[LodefsError]) -> None:
    """Each errno becomes the error that says what to do, with a readable path."""
    error = source_error(OSError(number, os.strerror(number)), b"x/\xff")
    assert type(error) is kind
    assert "x/\\xff" in str(error)


def test_read_full_sees_the_end(tmp_path: Path, source: Source) -> None:
    """Reading gives no more than the buffer holds, and what there is when the file is shorter."""
    (tmp_path / "a").write_bytes(b"0123456789")
    fd = source.open(b"a")
    buffer = memoryview(bytearray(20))
    assert read_full(fd, buffer[:4], 3, 4) == 4
    assert bytes(buffer[:4]) == b"3456"
    assert read_full(fd, buffer, 0, 9) == 10
    assert read_full(fd, buffer, 0, 15) == 10
    os.close(fd)


def test_holes_are_zeros_and_are_not_read(
    tmp_path: Path, source: Source, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever lies where, also at the end, each part of a file is what reading it gives."""
    page, pages, chance = 4096, 64, random.Random(5)
    for number in range(20):
        path = tmp_path / str(number)
        with open(path, "wb") as file:
            for at in sorted(chance.sample(range(pages), number)):
                file.seek(at * page + chance.randrange(page))
                file.write(os.urandom(chance.randrange(1, page)))
            file.truncate(pages * page - chance.randrange(page))
        content = path.read_bytes()
        fd = source.open(os.fsencode(path.name))
        for _ in range(20):
            start, end = sorted(chance.sample(range(len(content)), 2))
            buffer = memoryview(bytearray(b"x" * (end - start)))
            assert read_data(fd, buffer, start, end - start) == end - start
            assert bytes(buffer) == content[start:end]
        rest = memoryview(bytearray(len(content)))
        assert read_data(fd, rest, 100, len(content)) in (len(content) - 100, len(content))
        os.close(fd)
    (tmp_path / "hole").touch()
    os.truncate(tmp_path / "hole", 1 << 40)
    fd = source.open(b"hole")
    monkeypatch.setattr(source_files, "read_full", lambda *given: given[3] and pytest.fail("read"))
    assert read_data(fd, memoryview(bytearray(100)), 1 << 39, 100) == 100
    os.close(fd)
