"""What applications see of a mount through the real kernel."""

from __future__ import annotations

import errno
import hashlib
import os
import stat
from collections.abc import Callable
from pathlib import Path

import pytest

from lodefs.chunkstore.format.inodes import ROOT_INO, child_ino
from tests.support.mount.kernels import DISTINCT
from tests.support.mount.mounts import AWKWARD, BIG, SAMPLE, Mounts, in_child

pytestmark = [
    pytest.mark.fuse,
    pytest.mark.slow,
    pytest.mark.parametrize("kernel", ["this one", *DISTINCT], indirect=True),
]


def test_files_and_ranges(root: Path) -> None:
    """Whole files and ranges of them are what they were, also the second time."""
    for _ in range(2):
        assert (root / "a").read_bytes() == b"hello"
        assert (root / "empty").read_bytes() == b""
        assert (root / "big").read_bytes() == BIG
        assert (root / "deep/er/est/f").read_bytes() == b"bottom"
    fd = os.open(root / "big", os.O_RDONLY)
    for first in (0, 1, 4095, 4096, 1 << 20, len(BIG) - 3, len(BIG), len(BIG) + 9):
        assert os.pread(fd, 70_000, first) == BIG[first : first + 70_000]
    os.close(fd)


def test_mapped_file(root: Path) -> None:
    """A mapped file shows its bytes; a page fault asks us for them."""
    script = (
        "import sys, mmap, hashlib\n"
        "with open(sys.argv[1], 'rb') as f, mmap.mmap(f.fileno(), 0, prot=mmap.PROT_READ) as m:\n"
        "    print(hashlib.sha256(m).hexdigest())"
    )
    assert in_child(script, str(root / "big")) == hashlib.sha256(BIG).hexdigest()


def test_programs_run(root: Path) -> None:
    """The executable bit is kept, and what has it can be run; what has it not, cannot."""
    script = (
        "import subprocess, sys\n"
        "print(subprocess.run([sys.argv[1] + '/program'], stdout=-1).stdout)\n"
        "try:\n    subprocess.run([sys.argv[1] + '/a'])\n"
        "except PermissionError:\n    print('refused')"
    )
    assert in_child(script, str(root)).splitlines() == ["b'ran\\n'", "refused"]


def test_large_directory(root: Path) -> None:
    """A directory of 5,000 entries is listed whole, with their attributes, again and again."""
    expected = {f"{n:05}": len(str(n)) for n in range(5000)}
    for _ in range(2):
        with os.scandir(root / "many") as entries:
            assert {entry.name: entry.stat().st_size for entry in entries} == expected
    assert (root / "many/04321").read_bytes() == b"4321"


def test_listing_names_inodes_of_stat(root: Path) -> None:
    """A listing and stat agree on inode numbers and kinds; the empty directory is empty."""
    with os.scandir(root) as entries:
        for entry in entries:
            status = os.lstat(root / entry.name)
            assert entry.inode() == status.st_ino == child_ino(ROOT_INO, os.fsencode(entry.name))
            assert entry.is_dir(follow_symlinks=False) == stat.S_ISDIR(status.st_mode)
            assert entry.is_symlink() == stat.S_ISLNK(status.st_mode)
    assert os.listdir(root / "none") == []


def test_awkward_names(root: Path) -> None:
    """Names are bytes: any of them can be listed and opened."""
    folder = os.fsencode(root / "awkward")
    assert sorted(os.listdir(folder)) == sorted(AWKWARD)
    for name in AWKWARD:
        with open(os.path.join(folder, name), "rb") as file:
            assert file.read() == name
    for name in (b"none", b"n" * 254, b"\xff"):
        for _ in range(2):
            with pytest.raises(FileNotFoundError):
                os.stat(os.path.join(folder, name))
    with pytest.raises(OSError) as caught:
        os.stat(os.path.join(folder, b"n" * 256))
    assert caught.value.errno == errno.ENAMETOOLONG


def test_symlinks_are_kept_as_they_are(root: Path) -> None:
    """Links are read, followed by the kernel alone, and may loop or lead out of the mount."""
    assert os.readlink(root / "link") == "a"
    assert (root / "link").read_bytes() == b"hello"
    assert os.readlink(root / "out") == "/etc/hostname"
    with pytest.raises(OSError) as caught:
        (root / "loop").read_bytes()
    assert caught.value.errno == errno.ELOOP


def test_nothing_can_be_written(root: Path) -> None:
    """Every way to change something fails with EROFS."""
    attempts: list[Callable[[], object]] = [
        lambda: os.open(root / "a", os.O_WRONLY),
        lambda: os.open(root / "new", os.O_WRONLY | os.O_CREAT),
        lambda: os.mkdir(root / "newdir"),
        lambda: os.unlink(root / "a"),
        lambda: os.rmdir(root / "none"),
        lambda: os.rename(root / "a", root / "b"),
        lambda: os.symlink("x", root / "newlink"),
        lambda: os.link(root / "a", root / "hard"),
        lambda: os.chmod(root / "a", 0o777),
        lambda: os.truncate(root / "a", 0),
        lambda: os.utime(root / "a"),
        lambda: os.setxattr(root / "a", "user.x", b"y"),
    ]
    for attempt in attempts:
        with pytest.raises(OSError) as caught:
            attempt()
        assert caught.value.errno == errno.EROFS


def test_attributes(root: Path) -> None:
    """Modes, owner, times and the file system's own figures."""
    status = os.stat(root / "big")
    assert status.st_mode == 0o100444
    assert (status.st_uid, status.st_gid) == (os.getuid(), os.getgid())
    assert status.st_mtime == status.st_ctime == SAMPLE.snapshot.time_s
    assert status.st_size == len(BIG)
    assert os.stat(root / "program").st_mode == 0o100555
    assert os.stat(root).st_mode == os.stat(root / "many").st_mode == 0o040555
    figures = os.statvfs(root)
    assert figures.f_blocks * figures.f_frsize >= SAMPLE.snapshot.size_bytes
    assert (figures.f_bfree, figures.f_bavail, figures.f_namemax) == (0, 0, 255)
    assert figures.f_files == SAMPLE.snapshot.files + SAMPLE.snapshot.directories
    assert figures.f_flag & os.ST_RDONLY
    assert figures.f_flag & os.ST_NOSUID


def test_extended_attributes(root: Path) -> None:
    """Every node says which repository, commit and content it is of."""
    assert os.getxattr(root / "a", "user.lodefs.repo") == b"demo"
    assert os.getxattr(root, "user.lodefs.commit") == SAMPLE.snapshot.commit.encode()
    digest = SAMPLE.nodes[child_ino(ROOT_INO, b"a")].digest
    assert os.getxattr(root / "a", "user.lodefs.digest") == digest.hex().encode()
    assert len(os.listxattr(root)) == 3
    assert len(os.listxattr(root / "a")) == 4
    with pytest.raises(OSError) as caught:
        os.getxattr(root / "a", "user.none")
    assert caught.value.errno == errno.ENODATA


def test_owner_and_directory_inside(mounts: Mounts) -> None:
    """A directory of the snapshot can be mounted, and given to another user."""
    mounted = mounts.mount(path=b"deep/er", uid=1234, gid=4321)
    assert mounted.path == b"deep/er"
    assert os.listdir(mounts.place) == ["est"]
    status = os.stat(mounts.place / "est/f")
    assert (status.st_uid, status.st_gid) == (1234, 4321)
    assert (mounts.place / "est/f").read_bytes() == b"bottom"
    assert (mounts.place / "est/../est/f").read_bytes() == b"bottom"
