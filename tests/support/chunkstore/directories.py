"""Directories for tests of push, pull and mount: awkward names, deep ones, special files; and what
is in a directory or in a commit, in one form that can be compared."""

from __future__ import annotations

import os
import stat
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from random import Random
from typing import NamedTuple

from lodefs.chunkstore.format.names import CommitId
from lodefs.chunkstore.format.tree import Kind
from lodefs.chunkstore.repo.store import Store

MEMORY = "/dev/shm" if Path("/dev/shm").is_dir() else None  # for files that are synced very often
NOBODY_UID = 65534
_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW


class Seen(NamedTuple):
    """What is under one path: a file's content, a symlink's target, b"" for a directory."""

    kind: Kind
    executable: bool
    content: bytes


def write_files(root: Path, files: Mapping[str, bytes]) -> None:
    """Writes files by their path below ``root``, with the directories they need."""
    for name, content in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)


def random_files(root: Path, *, files: int, size_bytes_max: int, seed: int = 1) -> None:
    """``files`` files of random bytes in a few directories; the same every time."""
    random = Random(seed)
    write_files(
        root,
        {
            f"d{n % 7}/e{n % 3}/file{n:05d}": random.randbytes(random.randrange(size_bytes_max + 1))
            for n in range(files)
        },
    )


def awkward(root: Path) -> None:
    """All that a push must keep: names in any bytes, empty things, links of all kinds, holes."""
    base = os.fsencode(root)
    os.makedirs(base, exist_ok=True)

    def path(name: bytes) -> bytes:
        return base + b"/" + name

    names = [
        b"plain", b"\xff\xfe not UTF-8", b"new\nline", b"\r\t\x01", b"n" * 255, b" ", b"-rf",
        "ü".encode(), "u\u0308".encode(), b"back\\slash", b"%2e%2e", b"...", b"a", b"a.b", b"a-b",
        b"a\x7f",
    ]  # fmt: skip
    for name in names:
        _write(path(name), b"content of " + name)
    _write(path(b"empty"), b"")
    _write(path(b"program"), b"#!/bin/sh\n")
    os.chmod(path(b"program"), 0o755)
    os.link(path(b"plain"), path(b"hard link"))
    with open(path(b"sparse"), "wb") as file:
        file.write(b"head")
        file.truncate(3 << 20)
        file.seek(0, os.SEEK_END)
        file.write(b"tail")
    os.mkdir(path(b"empty directory"))
    for name in (b"dir", b"dir-", b"dir.d", b"\xff dir\n"):  # '-' and '.' sort before '/'
        os.mkdir(path(name))
        _write(path(name) + b"/inside", b"inside " + name)
    os.symlink(b"plain", path(b"link"))
    os.symlink(b"nowhere", path(b"dangling"))
    os.symlink(b"loop", path(b"loop"))
    os.symlink(b"../..", path(b"dir/out of the tree"))
    os.symlink(b"/etc/passwd", path(b"absolute"))
    os.symlink(b".", path(b"dir/self"))
    os.symlink(b"x" * 4095, path(b"longest target"))


def special(root: Path) -> list[bytes]:
    """Makes a FIFO, a socket and, where it is allowed, a device; their names, sorted."""
    base = os.fsencode(root)
    names = [b"a fifo", b"socket"]
    os.mkfifo(base + b"/a fifo")
    os.mknod(base + b"/socket", stat.S_IFSOCK | 0o600)
    try:
        os.mknod(base + b"/null", stat.S_IFCHR | 0o666, os.makedev(1, 3))
        names.insert(1, b"null")
    except PermissionError:
        pass  # only root may
    return names


def deep(root: Path, *, levels: int, name: bytes = b"d") -> None:
    """Directories one in the other, ``levels`` of them, each with a file; no path is too long for
    this, because it goes down step by step."""
    fd = os.open(root, _DIRECTORY)
    try:
        for level in range(levels):
            os.mkdir(name, dir_fd=fd)
            below = os.open(name, _DIRECTORY, dir_fd=fd)
            os.close(fd)
            fd = below
            with os.fdopen(os.open(b"f", os.O_WRONLY | os.O_CREAT, dir_fd=fd), "wb") as file:
                file.write(b"level %d" % level)
    finally:
        os.close(fd)


def in_directory(root: Path) -> dict[bytes, Seen]:
    """What is below ``root``, by path; special files are left out."""
    found: dict[bytes, Seen] = {}
    base = os.fsencode(root)
    for above, names, files in os.walk(base):
        for name in [*names, *files]:
            path = above + b"/" + name
            mode = os.lstat(path).st_mode
            if stat.S_ISLNK(mode):
                seen = Seen(Kind.SYMLINK, executable=False, content=os.readlink(path))
            elif stat.S_ISDIR(mode):
                seen = Seen(Kind.DIRECTORY, executable=False, content=b"")
            elif stat.S_ISREG(mode):
                with open(path, "rb") as file:
                    seen = Seen(Kind.FILE, bool(mode & 0o111), file.read())
            else:
                continue
            found[path[len(base) + 1 :]] = seen
    return found


def in_commit(store: Store, repo: str, commit: str) -> dict[bytes, Seen]:
    """What is in a commit (64 hex characters), in the same form. Every byte is verified."""
    root = store.commit(repo, CommitId(bytes.fromhex(commit))).root
    found: dict[bytes, Seen] = {}
    for path, entry in store.packs.walk(root):
        content = entry.target
        if entry.kind is Kind.FILE:
            content = b"".join(store.packs.read_file(entry))
        found[path] = Seen(entry.kind, entry.executable, content)
    return found


@contextmanager
def as_nobody() -> Iterator[None]:
    """The body runs without root's right to read everything; for other users nothing changes."""
    if os.geteuid() != 0:
        yield
        return
    os.seteuid(NOBODY_UID)
    try:
        yield
    finally:
        os.seteuid(0)


@contextmanager
def open_directory() -> Iterator[Path]:
    """A new directory that every user may enter and write, removed at the end, however deep."""
    path = Path(tempfile.mkdtemp(prefix="lodefs-source-"))
    try:
        path.chmod(0o777)
        yield path
    finally:
        remove(path)


def remove(root: Path) -> None:
    """Removes a directory and all in it. What lies deep is moved up first, so that no path is too
    long, and nothing too deep for Python's stack."""
    base = os.fsencode(root)
    moved = 0
    while names := os.listdir(base):
        for name in names:
            path = base + b"/" + name
            if not os.path.isdir(path) or os.path.islink(path):
                os.unlink(path)
                continue
            os.chmod(path, 0o700)
            for inside in os.listdir(path):
                moved += 1
                os.rename(path + b"/" + inside, base + b"/moved %d" % moved)
            os.rmdir(path)
    os.rmdir(base)


def _write(path: bytes, content: bytes) -> None:
    with open(path, "wb") as file:
        file.write(content)
