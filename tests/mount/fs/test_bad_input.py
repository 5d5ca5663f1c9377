"""What applications do to a mount that they had better not, through the real kernel."""

from __future__ import annotations

import ctypes
import errno
import fcntl
import mmap
import os
import stat
import subprocess
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import pytest

from lodefs.chunkstore.format.inodes import ROOT_INO, child_ino
from tests.support.mount.dict_tree import DictTree
from tests.support.mount.fake_proxy import FakeProxy
from tests.support.mount.listing import opened
from tests.support.mount.mounts import BIG, SAMPLE, Mounts, in_child

pytestmark = [pytest.mark.fuse, pytest.mark.slow]

FAR = 2**63 - 1
SECOND_NAME = b"n" * 200


def errno_of(attempt: Callable[[], object]) -> str:
    """What an attempt fails with; "none" where it does not."""
    try:
        attempt()
    except OSError as error:
        return errno.errorcode[error.errno or 0]
    return "none"


# --- writing

WRITES = """
import errno, mmap, os, stat, sys
def code(attempt):
    try:
        attempt()
    except OSError as error:
        return errno.errorcode[error.errno]
    return "none"
os.chdir(sys.argv[1])
if sys.argv[2] != "0":
    os.setgroups([]), os.setgid(int(sys.argv[2])), os.setuid(int(sys.argv[2]))
fd = os.open("a", os.O_RDONLY)
folder = os.open("none", os.O_RDONLY)
opens = {
    "O_WRONLY": os.O_WRONLY, "O_RDWR": os.O_RDWR, "O_APPEND": os.O_WRONLY | os.O_APPEND,
    "O_TRUNC": os.O_RDONLY | os.O_TRUNC, "O_CREAT": os.O_RDONLY | os.O_CREAT,
}
for name, flags in opens.items():
    where = "new" if name == "O_CREAT" else "a"
    print(name, code(lambda: os.open(where, flags)))
print("O_TMPFILE", code(lambda: os.open("none", os.O_RDWR | os.O_TMPFILE)))
attempts = {
    "mkdir": lambda: os.mkdir("new"), "rmdir": lambda: os.rmdir("none"),
    "unlink": lambda: os.unlink("a"), "rename": lambda: os.rename("a", "b"),
    "exchange": lambda: os.replace("a", "big"), "symlink": lambda: os.symlink("x", "new"),
    "link": lambda: os.link("a", "new"), "mkfifo": lambda: os.mkfifo("new"),
    "mknod": lambda: os.mknod("new", stat.S_IFREG | 0o600),
    "chmod": lambda: os.chmod("a", 0o777), "fchmod": lambda: os.fchmod(fd, 0o777),
    "chown": lambda: os.chown("a", 1, 1), "lchown": lambda: os.lchown("link", 1, 1),
    "fchown": lambda: os.fchown(folder, 1, 1), "utime": lambda: os.utime("a"),
    "utime of a link": lambda: os.utime("link", (0, 0), follow_symlinks=False),
    "futime": lambda: os.utime(fd, (0, 0)), "truncate": lambda: os.truncate("a", 0),
    "grow": lambda: os.truncate("a", 1 << 40),
    "setxattr": lambda: os.setxattr("a", "user.x", b"y"),
    "setxattr of ours": lambda: os.setxattr("a", "user.lodefs.commit", b"y"),
    "fsetxattr": lambda: os.setxattr(folder, "user.x", b"y"),
    "removexattr": lambda: os.removexattr("a", "user.lodefs.digest"),
}
for name, attempt in attempts.items():
    print(name, code(attempt))
# not for writing: the descriptor says so before the file system is asked
print("write", code(lambda: os.write(fd, b"x")))
print("fallocate", code(lambda: os.posix_fallocate(fd, 0, 10)))
print("ftruncate", code(lambda: os.ftruncate(fd, 0)))
print("shared map", code(lambda: mmap.mmap(fd, 0, mmap.MAP_SHARED, mmap.PROT_WRITE)))
print("there", code(lambda: os.open("a", os.O_RDONLY | os.O_CREAT)))
print("exclusive", code(lambda: os.open("a", os.O_RDONLY | os.O_CREAT | os.O_EXCL)))
with mmap.mmap(fd, 0, mmap.MAP_PRIVATE, mmap.PROT_WRITE | mmap.PROT_READ) as own:
    own[0] = 0
print(open("a").read())
"""
NOT_THE_FILE_SYSTEM = {
    "write": "EBADF",
    "fallocate": "EBADF",
    "ftruncate": "EINVAL",
    "shared map": "EACCES",
    "there": "none",
    "exclusive": "EEXIST",
}


@pytest.mark.parametrize("user", ["0", "65534"])
def test_nobody_can_write(root: Path, user: str) -> None:
    """Every way to change something fails with EROFS, as root and as somebody else, and the file is
    what it was; a private map may be written, and is private."""
    *lines, content = in_child(WRITES, str(root), user).splitlines()
    logged = dict(line.rsplit(" ", 1) for line in lines)
    assert len(logged) == 35
    refused = {name: code for name, code in logged.items() if name not in NOT_THE_FILE_SYSTEM}
    if user != "0":  # owners alone; the kernel asks for that first
        assert refused.pop("mknod") in ("EROFS", "EPERM")
    assert set(refused.values()) == {"EROFS"}, refused
    assert {name: logged[name] for name in NOT_THE_FILE_SYSTEM} == NOT_THE_FILE_SYSTEM
    assert content == "hello"
    assert (root / "a").read_bytes() == b"hello"


def test_remounting_does_not_make_it_writable(root: Path) -> None:
    """Where an administrator takes the "ro" off, lodefs itself still says EROFS."""
    subprocess.run(["mount", "-i", "-o", "remount,rw", str(root)], check=True, timeout=60)
    assert not os.statvfs(root).f_flag & os.ST_RDONLY
    attempts = {
        "create": lambda: os.open(root / "new", os.O_WRONLY | os.O_CREAT),
        "mkdir": lambda: os.mkdir(root / "new"),
        "unlink": lambda: os.unlink(root / "a"),
        "rename": lambda: os.rename(root / "a", root / "b"),
        "symlink": lambda: os.symlink("x", root / "new"),
        "link": lambda: os.link(root / "a", root / "new"),
        "mknod": lambda: os.mknod(root / "new"),
        "chmod": lambda: os.chmod(root / "a", 0o777),
        "chown": lambda: os.chown(root / "a", 1, 1),
        "utime": lambda: os.utime(root / "a"),
        "truncate": lambda: os.truncate(root / "a", 0),
        "O_TRUNC": lambda: os.open(root / "a", os.O_WRONLY | os.O_TRUNC),
        "setxattr": lambda: os.setxattr(root / "a", "user.x", b"y"),
        "removexattr": lambda: os.removexattr(root / "a", "user.lodefs.digest"),
    }
    assert {errno_of(attempt) for attempt in attempts.values()} == {"EROFS"}
    fd = os.open(root / "a", os.O_RDONLY)
    try:
        assert os.pread(fd, 99, 0) == b"hello"
    finally:
        os.close(fd)


# --- names


def test_names_that_no_directory_has(root: Path) -> None:
    """'.', '..', empty and overlong names and paths mean what they mean everywhere."""
    outside = os.stat(root.parent).st_ino
    for path, ino in {
        "deep/..": ROOT_INO,
        "deep/er/est/../..": child_ino(ROOT_INO, b"deep"),
        "./././deep/./": child_ino(ROOT_INO, b"deep"),
        "..": outside,
        "deep/../..": outside,
        f"../{root.name}": ROOT_INO,
        f"deep/../../{root.name}/deep//er/..": child_ino(ROOT_INO, b"deep"),
        "link/": None,
        "a/": None,
        "a/.": None,
        "a/..": None,
    }.items():
        for _ in range(2):
            if ino is None:
                assert errno_of(lambda path=path: os.stat(f"{root}/{path}")) == "ENOTDIR"
            else:
                assert os.stat(f"{root}/{path}").st_ino == ino
    assert errno_of(lambda: os.stat(f"{root}/...")) == "ENOENT"
    assert errno_of(lambda: os.stat(f"{root}/deep/.../..")) == "ENOENT"
    assert errno_of(lambda: os.stat(f"{root}/{'n' * 255}")) == "ENOENT"
    for name in ("n" * 256, "n" * 4000, "\N{EURO SIGN}" * 86):
        assert errno_of(lambda name=name: os.stat(f"{root}/{name}")) == "ENAMETOOLONG"
    assert errno_of(lambda: os.stat(f"{root}/{'./' * 2100}")) == "ENAMETOOLONG"
    assert errno_of(lambda: os.stat(f"{root}/{'deep/../' * 400}a")) == "none"
    assert errno_of(lambda: os.getxattr(root / "a", "user." + "x" * 251)) != "none"
    assert errno_of(lambda: os.getxattr(root / "a", "user.lodefs." + "x" * 200)) == "ENODATA"


def test_dots_of_an_open_directory(root: Path) -> None:
    """'..' of a directory that was reached step by step is the one above, up out of the mount."""
    fds = [os.open(root, os.O_RDONLY)]
    for name in ("deep", "er", "est"):
        fds.append(os.open(name, os.O_RDONLY | os.O_DIRECTORY, dir_fd=fds[-1]))
    try:
        for above, below in pairwise(fds):
            assert os.stat("..", dir_fd=below).st_ino == os.fstat(above).st_ino
            assert os.stat(".", dir_fd=below).st_ino == os.fstat(below).st_ino
        assert os.stat("..", dir_fd=fds[0]).st_dev == os.stat(root.parent).st_dev
    finally:
        for fd in fds:
            os.close(fd)


def test_paths_longer_than_path_max(tmp_path: Path) -> None:
    """What lies deeper than PATH_MAX is reached step by step, and read."""
    levels = 40
    inner: dict[bytes, object] = {b"f": b"bottom"}
    for _ in range(levels):
        inner = {SECOND_NAME: inner}
    with FakeProxy(DictTree(inner), tmp_path) as proxy:  # type: ignore[arg-type]
        mounts = Mounts(tmp_path, proxy)
        try:
            mounts.mount()
            path = os.path.join(mounts.place, *[os.fsdecode(SECOND_NAME)] * levels, "f")
            assert len(path) > 4096
            assert errno_of(lambda: os.stat(path)) == "ENAMETOOLONG"
            fd = os.open(mounts.place, os.O_RDONLY)
            for _ in range(levels):
                assert os.listdir(fd) == [os.fsdecode(SECOND_NAME)]
                below = os.open(SECOND_NAME, os.O_RDONLY, dir_fd=fd)
                os.close(fd)
                fd = below
            file = os.open("f", os.O_RDONLY, dir_fd=fd)
            os.close(fd)
            assert os.read(file, 99) == b"bottom"
            os.close(file)
        finally:
            mounts.close()


# --- positions


def test_positions_that_no_file_has(root: Path) -> None:
    """Reads at and past the end are empty, reads before the beginning EINVAL, as on any disk."""
    fd = os.open(root / "big", os.O_RDONLY)
    native = os.open(root.parent / "same", os.O_RDWR | os.O_CREAT)
    os.write(native, BIG)
    try:
        for at in (len(BIG), len(BIG) + 1, 1 << 40, FAR - 4096):
            assert os.pread(fd, 10, at) == os.pread(native, 10, at) == b""
        for first in (len(BIG) - 1, len(BIG) - 4097):
            assert os.pread(fd, 1 << 20, first) == BIG[first:]
        for call in (
            lambda one: os.pread(one, 10, -1),
            lambda one: os.pread(one, 10, -FAR),
            lambda one: os.pread(one, 10, FAR),
            lambda one: os.pread(one, 0, FAR),
            lambda one: os.preadv(one, [bytearray(9), bytearray(9)], FAR - 9),
            lambda one: os.lseek(one, -1, os.SEEK_SET),
            lambda one: os.lseek(one, -len(BIG) - 1, os.SEEK_END),
            lambda one: os.lseek(one, FAR, os.SEEK_END),
            lambda one: os.lseek(one, len(BIG), os.SEEK_DATA),
            lambda one: os.posix_fadvise(one, FAR - 1, 1, os.POSIX_FADV_WILLNEED),
            lambda one: os.posix_fadvise(one, 0, 0, os.POSIX_FADV_DONTNEED),
        ):
            assert errno_of(lambda call=call: call(fd)) == errno_of(lambda call=call: call(native))
        assert os.lseek(fd, 10, os.SEEK_END) == len(BIG) + 10
        assert os.read(fd, 10) == b""
        assert os.lseek(fd, 0, os.SEEK_HOLE) == len(BIG)
        assert os.lseek(fd, 77, os.SEEK_DATA) == 77
        assert os.pread(fd, 0, 5) == b""
        os.lseek(fd, -5, os.SEEK_END)
        assert os.read(fd, 1 << 30) == BIG[-5:]
    finally:
        os.close(fd)
        os.close(native)


def test_other_ways_to_read(root: Path) -> None:
    """sendfile, splice, vectors and direct reads give the same bytes."""
    pipe = os.pipe()
    fd = os.open(root / "big", os.O_RDONLY)
    out = os.open(root.parent / "copy", os.O_RDWR | os.O_CREAT)
    try:
        for first in (0, 12_345, len(BIG) - 10):
            os.ftruncate(out, 0)
            os.lseek(out, 0, os.SEEK_SET)
            sent = os.sendfile(out, fd, first, 100_000)
            assert os.pread(out, 200_000, 0) == BIG[first : first + sent]
            moved = os.splice(fd, pipe[1], 10, offset_src=first)
            assert os.read(pipe[0], 20) == BIG[first : first + moved]
        parts = [bytearray(1), bytearray(5000), bytearray(3)]
        assert os.preadv(fd, parts, 4090) == 5004
        assert b"".join(parts) == BIG[4090 : 4090 + 5004]
    finally:
        for one in (fd, out, *pipe):
            os.close(one)
    script = (
        "import mmap, os, sys\n"
        "fd = os.open(sys.argv[1], os.O_RDONLY | os.O_DIRECT)\n"
        "page = mmap.mmap(-1, 8192)\n"
        "print(os.preadv(fd, [page], 4096), page[:8].hex(), os.preadv(fd, [page], 4999168))"
    )
    assert in_child(script, str(root / "big")).split() == ["8192", BIG[4096:4104].hex(), "832"]


def test_a_map_ends_with_its_file(root: Path) -> None:
    """Beyond the last page of a file a map raises SIGBUS; in it, what is behind the end is 0."""
    script = (
        "import ctypes, mmap, os, sys\n"
        "fd = os.open(sys.argv[1], os.O_RDONLY)\n"
        "libc = ctypes.CDLL(None, use_errno=True)\n"
        "libc.mmap.restype = ctypes.c_void_p\n"
        "at = libc.mmap(None, ctypes.c_size_t(3 << 12), 1, 2, fd, ctypes.c_long(0))\n"
        "print(ctypes.string_at(at, 8).hex(), flush=True)\n"
        "pid = os.fork()\n"
        "if not pid:\n"
        "    ctypes.string_at(at + 4096, 1)\n"
        "    os._exit(0)\n"
        "print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))"
    )
    assert in_child(script, str(root / "a")).split() == [b"hello\0\0\0".hex(), "-7"]
    fd = os.open(root / "empty", os.O_RDONLY)
    with pytest.raises(ValueError, match="empty"):
        mmap.mmap(fd, 0, prot=mmap.PROT_READ)
    os.close(fd)


def test_ten_thousand_open_files(root: Path) -> None:
    """10,000 descriptors at once, each with its file's bytes; a directory is no file to read."""
    script = """
import os, resource, sys
limit = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
if limit < 10100:
    limit = 10100
resource.setrlimit(resource.RLIMIT_NOFILE, (limit, limit))
root = sys.argv[1]
fds = [os.open(f"{root}/many/{n % 5000:05d}", os.O_RDONLY) for n in range(10000)]
wrong = [n for n, fd in enumerate(fds) if os.read(fd, 99) != b"%d" % (n % 5000)]
wrong += [n for n, fd in enumerate(fds) if os.pread(fd, 99, 0) != b"%d" % (n % 5000)]
for fd in fds:
    os.close(fd)
print(len(fds), wrong)
"""
    assert in_child(script, str(root)) == "10000 []"
    fd = os.open(root / "many", os.O_RDONLY)
    assert errno_of(lambda: os.read(fd, 10)) == "EISDIR"
    os.close(fd)


# --- directories


@pytest.mark.parametrize("listed_before", [True, False])
def test_rewound_halfway(root: Path, listed_before: bool) -> None:
    """A directory that is rewound, or set back to any place, lists the same from there on."""
    names = [b"%05d" % n for n in range(5000)]
    if listed_before:
        assert len(os.listdir(root / "many")) == 5000
    with opened(root / "many") as directory:
        first = directory.read(1703)
        assert sorted(first[2:]) == names[:1701]
        middle = directory.tell()
        directory.rewind()
        assert directory.read(1703) == first
        assert directory.tell() == middle
        rest = directory.read()
        assert rest == names[1701:]
        end = directory.tell()
        directory.seek(middle)
        assert directory.read(10) == names[1701:1711]
        directory.seek(end)
        assert directory.read() == []
        directory.seek(middle)
        assert directory.read() == rest
        directory.rewind()
        assert directory.read() == [*first, *rest]


def test_every_place_of_a_directory(root: Path) -> None:
    """Each position that telldir gave leads back to the same entry, in any order."""
    with opened(root) as directory:
        seen = []
        while True:
            at = directory.tell()
            name = directory.read(1)
            if not name:
                break
            seen.append((at, name))
        assert [name for _, (name,) in seen[:2]] == [b".", b".."]
        for at, name in reversed(seen):
            directory.seek(at)
            assert directory.read(1) == name


def test_readers_of_one_directory_do_not_disturb_each_other(root: Path) -> None:
    """Two open listings of one directory have positions of their own."""
    with opened(root / "many") as one, opened(root / "many") as other:
        first = one.read(100)
        assert other.read(3000)[:100] == first
        one.rewind()
        assert len(other.read()) == 2002
        assert len(one.read()) == 5002


def test_positions_that_no_directory_has(root: Path) -> None:
    """A made-up position is EINVAL or lists nothing wrong; the listing works afterwards."""
    libc = ctypes.CDLL(None, use_errno=True)
    buffer = ctypes.create_string_buffer(4096)
    for position in (3, 12345, child_ino(ROOT_INO, b"a"), FAR):
        fd = os.open(root / "deep", os.O_RDONLY)
        try:
            assert os.lseek(fd, position, os.SEEK_SET) == position
            assert libc.getdents64(fd, buffer, ctypes.c_size_t(4096)) <= 0
            os.lseek(fd, 0, os.SEEK_SET)
            assert os.listdir(fd) == ["er"]
        finally:
            os.close(fd)
    assert errno_of(lambda: os.listdir(root / "a")) == "ENOTDIR"


# --- locks

LOCKS = """
import fcntl, os, sys
fd = os.open(sys.argv[1], os.O_RDONLY)
def free(take):
    try:
        take()
    except BlockingIOError:
        return False
    return True
print(free(lambda: fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)),
      free(lambda: fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)),
      free(lambda: fcntl.lockf(fd, fcntl.LOCK_SH | fcntl.LOCK_NB, 10, 0)))
"""


def test_locks(root: Path) -> None:
    """flock and fcntl locks are granted, and exclude other processes, as on a local disk."""
    fd = os.open(root / "a", os.O_RDONLY)
    try:
        assert in_child(LOCKS, str(root / "a")) == "True True True"
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        assert in_child(LOCKS, str(root / "a")) == "False False True"
        fcntl.flock(fd, fcntl.LOCK_SH)
        assert in_child(LOCKS, str(root / "a")) == "False True True"
        fcntl.flock(fd, fcntl.LOCK_UN)
        fcntl.lockf(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
        assert in_child(LOCKS, str(root / "a")) == "True True True"
        # an exclusive fcntl lock needs a descriptor for writing, which nobody can have here
        assert errno_of(lambda: fcntl.lockf(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)) == "EBADF"
        assert in_child(LOCKS, str(root / "empty")) == "True True True"
    finally:
        os.close(fd)


# --- df


def test_df(root: Path) -> None:
    """df shows a full file system of the snapshot's size, with a free share of nothing."""
    words = ["df", "-B1", "--output=fstype,size,used,avail,pcent,itotal,iavail,target", str(root)]
    line = subprocess.run(words, capture_output=True, text=True, check=True).stdout.splitlines()[1]
    kind, size, used, free, share, files, files_free, target = line.split()
    assert (kind, free, share, files_free) == ("fuse.lodefs", "0", "100%", "0")
    assert int(size) == int(used) >= SAMPLE.snapshot.size_bytes
    assert int(size) - SAMPLE.snapshot.size_bytes < 4096
    assert (int(files), target) == (SAMPLE.snapshot.files + SAMPLE.snapshot.directories, str(root))


def test_figures_of_an_empty_snapshot(tmp_path: Path) -> None:
    """A snapshot of nothing has figures too, and is a directory that is empty."""
    with FakeProxy(DictTree({}), tmp_path) as proxy:
        mounts = Mounts(tmp_path, proxy)
        try:
            mounts.mount()
            figures = os.statvfs(mounts.place)
            assert (figures.f_blocks, figures.f_bfree, figures.f_ffree) == (0, 0, 0)
            assert os.listdir(mounts.place) == []
            assert stat.S_ISDIR(os.stat(mounts.place).st_mode)
        finally:
            mounts.close()
