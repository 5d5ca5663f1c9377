"""Messages of the kernel and their answers."""

from __future__ import annotations

import errno
import struct
from collections.abc import Callable

import pytest

from lodefs.chunkstore import errors
from lodefs.chunkstore.errors import LodefsError
from lodefs.chunkstore.format.inodes import ROOT_INO, child_ino
from lodefs.mount.fs.dispatch import READ_ONLY, Dispatcher, errno_of
from lodefs.mount.fs.filesystem import FileSystem, MountView
from lodefs.mount.kernel import fuse_abi
from lodefs.mount.kernel.fuse_abi import Opcode
from lodefs.mount.kernel.session import Session
from tests.support.mount.dict_tree import DictTree, Link

TREE = DictTree(
    {b"f": b"0123456789", b"l": Link(b"f"), b"d": {b"%03d" % n: b"" for n in range(300)}}
)
FILE, DIRECTORY = (child_ino(ROOT_INO, name) for name in (b"f", b"d"))
NEW = Session(minor=44, no_open=True, no_opendir=True, resend=True, epochs=True)
OLD = Session(minor=31, no_open=False, no_opendir=False, resend=False, epochs=False)


class FailingTree(DictTree):
    """Every question about a node or its bytes raises ``error``."""

    error: Exception = LodefsError("unset")

    def node(self, ino: int) -> object:  # type: ignore[override]
        raise self.error

    lookup = children = read = lambda self, *_: self.node(0)  # type: ignore[assignment]


class Asker:
    """Asks a dispatcher and takes its answers apart."""

    def __init__(self, tree: DictTree = TREE, session: Session = NEW) -> None:
        self.failures: list[str] = []
        view = MountView(tree.snapshot, tree.snapshot.root, uid=0, gid=0)
        self.dispatcher = Dispatcher(
            FileSystem(tree, view), session, lambda what, error: self.failures.append(what)
        )

    def __call__(self, opcode: int, node: int, body: bytes = b"") -> tuple[int, bytes]:
        size = fuse_abi.IN_HEADER_BYTES + len(body)
        header = fuse_abi.IN_HEADER.pack(size, opcode, 77, node, 0, 0, 1, 0, 0)
        answer = self.dispatcher.answer(memoryview(header + body))
        assert answer is not None
        length, error, unique = fuse_abi.OUT_HEADER.unpack(answer[0])
        assert unique == 77
        assert length == fuse_abi.OUT_HEADER_BYTES + len(answer[1])
        return -error, bytes(answer[1])


def read_in(first: int, size: int) -> bytes:
    return fuse_abi.READ_IN.pack(0, first, size) + bytes(20)


@pytest.fixture
def ask() -> Asker:
    return Asker()


def test_lookup(ask: Asker) -> None:
    """A name is answered with its node, valid forever."""
    code, body = ask(Opcode.LOOKUP, ROOT_INO, b"f\0")
    assert code == 0
    fields = fuse_abi.ENTRY_OUT.unpack(body)
    assert fields[:4] == (FILE, 0, fuse_abi.FOREVER_S, fuse_abi.FOREVER_S)
    assert fields[6:8] == (FILE, 10)


def test_a_missing_name_is_remembered_too(ask: Asker) -> None:
    """A name that is not there is answered with node 0, valid forever."""
    assert ask(Opcode.LOOKUP, ROOT_INO, b"none\0") == (0, fuse_abi.NO_ENTRY)
    assert fuse_abi.ENTRY_OUT.unpack(fuse_abi.NO_ENTRY)[:3] == (0, 0, fuse_abi.FOREVER_S)
    assert ask(Opcode.LOOKUP, FILE, b"none\0")[0] == errno.ENOTDIR
    assert ask(Opcode.LOOKUP, ROOT_INO, b"n" * 256 + b"\0")[0] == errno.ENAMETOOLONG


def test_getattr_readlink_read(ask: Asker) -> None:
    """Attributes, targets and bytes."""
    code, body = ask(Opcode.GETATTR, FILE, bytes(16))
    assert (code, fuse_abi.ATTR_OUT.unpack(body)[4]) == (0, 10)
    assert ask(Opcode.READLINK, child_ino(ROOT_INO, b"l")) == (0, b"f")
    assert ask(Opcode.READ, FILE, read_in(2, 5)) == (0, b"23456")
    assert ask(Opcode.READ, FILE, read_in(8, 4096)) == (0, b"89")
    assert ask(Opcode.READ, FILE, read_in(10, 4096)) == (0, b"")
    code, body = ask(Opcode.STATFS, ROOT_INO)
    assert (code, len(body)) == (0, 80)


def test_open_is_the_kernels_business_where_it_can() -> None:
    """A kernel that opens files by itself is told so with ENOSYS; another gets an answer."""
    for opcode, flags in (
        (Opcode.OPEN, fuse_abi.FOPEN_KEEP_CACHE | fuse_abi.FOPEN_NOFLUSH),
        (Opcode.OPENDIR, fuse_abi.FOPEN_KEEP_CACHE | fuse_abi.FOPEN_CACHE_DIR),
    ):
        assert Asker()(opcode, FILE, bytes(8)) == (errno.ENOSYS, b"")
        assert Asker(session=OLD)(opcode, FILE, bytes(8)) == (0, fuse_abi.encode_open(flags))
    for opcode in (Opcode.RELEASE, Opcode.RELEASEDIR):
        assert Asker(session=OLD)(opcode, FILE, bytes(24)) == (0, b"")


@pytest.mark.parametrize("opcode", sorted(READ_ONLY))
def test_writes_are_refused(ask: Asker, opcode: int) -> None:
    """Whatever would change something is answered with EROFS."""
    assert ask(opcode, FILE, bytes(64)) == (errno.EROFS, b"")


@pytest.mark.parametrize(
    "opcode",
    [Opcode.FLUSH, Opcode.FSYNC, Opcode.ACCESS, Opcode.STATX, Opcode.LSEEK, 9999],
)
def test_what_is_not_done_is_not_asked_again(ask: Asker, opcode: int) -> None:
    """Requests that are of no use, and unknown ones, are answered with ENOSYS."""
    assert ask(opcode, FILE, bytes(64)) == (errno.ENOSYS, b"")
    assert ask.failures == []


@pytest.mark.parametrize("opcode", sorted(fuse_abi.UNANSWERED - {Opcode.INTERRUPT}))
def test_forgetting_has_no_answer(ask: Asker, opcode: int) -> None:
    """Some messages are not answered at all."""
    header = fuse_abi.IN_HEADER.pack(48, opcode, 5, FILE, 0, 0, 1, 0, 0)
    assert ask.dispatcher.answer(memoryview(header + bytes(8))) is None


def test_extended_attributes(ask: Asker) -> None:
    """Size first, then the value; too little room and unknown names are said."""

    def get(name: bytes, size: int) -> tuple[int, bytes]:
        return ask(Opcode.GETXATTR, FILE, fuse_abi.XATTR_IN.pack(size, 0) + name + b"\0")

    assert get(b"user.lodefs.repo", 0) == (0, fuse_abi.XATTR_IN.pack(4, 0))
    assert get(b"user.lodefs.repo", 4) == (0, b"demo")
    assert get(b"user.lodefs.repo", 3) == (errno.ERANGE, b"")
    assert get(b"security.capability", 100) == (errno.ENODATA, b"")
    names = b"user.lodefs.commit\0user.lodefs.digest\0user.lodefs.repo\0user.lodefs.read_path\0"
    assert ask(Opcode.LISTXATTR, FILE, fuse_abi.XATTR_IN.pack(0, 0)) == (
        0,
        fuse_abi.XATTR_IN.pack(len(names), 0),
    )
    assert ask(Opcode.LISTXATTR, FILE, fuse_abi.XATTR_IN.pack(4096, 0)) == (0, names)
    assert ask(Opcode.LISTXATTR, FILE, fuse_abi.XATTR_IN.pack(5, 0)) == (errno.ERANGE, b"")


def names_of(body: bytes, head: int) -> list[tuple[bytes, int]]:
    """Names and cookies of a listing whose entries begin with ``head`` other bytes."""
    found = []
    place = 0
    while place < len(body):
        _, cookie, length, _ = fuse_abi.DIRENT.unpack_from(body, place + head)
        start = place + head + fuse_abi.DIRENT.size
        found.append((body[start : start + length], cookie))
        place = (start + length + 7) & ~7
    return found


@pytest.mark.parametrize(("opcode", "head"), [(Opcode.READDIR, 0), (Opcode.READDIRPLUS, 128)])
def test_listing_in_pieces(ask: Asker, opcode: Opcode, head: int) -> None:
    """Answers keep to the room that is given, and together hold every name once."""
    seen: list[bytes] = []
    cookie = 0
    while True:
        code, body = ask(opcode, DIRECTORY, read_in(cookie, 4096))
        assert code == 0
        assert len(body) <= 4096
        if not body:
            break
        names = names_of(body, head)
        seen += [name for name, _ in names]
        cookie = names[-1][1]
    assert seen == [b".", b"..", *(b"%03d" % n for n in range(300))]


def test_listing_with_attributes_takes_no_reference_on_dots(ask: Asker) -> None:
    """'.' and '..' carry node 0, so that the kernel counts no reference to them."""
    _, body = ask(Opcode.READDIRPLUS, DIRECTORY, read_in(0, 4096))
    first = struct.unpack_from("=Q", body, 0)[0]
    second = struct.unpack_from("=Q", body, 160)[0]
    third = struct.unpack_from("=Q", body, 320)[0]
    assert (first, second) == (0, 0)
    assert third == child_ino(DIRECTORY, b"000")


ERRORS = {
    errors.NotFound: errno.ENOENT,
    errors.NotADirectory: errno.ENOTDIR,
    errors.Unavailable: errno.EIO,
    errors.DeadlineExceeded: errno.EIO,
    errors.Corrupt: errno.EIO,
    errors.UnknownFormat: errno.EIO,
    errors.NoSpace: errno.EIO,
    errors.Denied: errno.EACCES,
    errors.InvalidInput: errno.EINVAL,
    errors.Unsupported: errno.EOPNOTSUPP,
}


@pytest.mark.parametrize(("kind", "code"), ERRORS.items())
def test_errno_table(kind: type[LodefsError], code: int) -> None:
    """Every error has its errno."""
    assert errno_of(kind("text")) == code


@pytest.mark.parametrize("error", [errors.Unavailable("gone"), ZeroDivisionError("a mistake")])
def test_failures_are_eio_and_heard_of(error: Exception) -> None:
    """What fails, even by a mistake of ours, is answered with EIO, and said with what it was."""
    tree = FailingTree({b"f": b""})
    tree.error = error
    ask = Asker(tree)
    assert ask(Opcode.READ, FILE, read_in(0, 10)) == (errno.EIO, b"")
    assert ask(Opcode.LOOKUP, ROOT_INO, b"f\0") == (errno.EIO, b"")
    assert ask.failures == [f"READ of inode {FILE}", f"LOOKUP of inode {ROOT_INO}"]


def test_a_node_that_the_proxy_lost_is_stale() -> None:
    """A number that the kernel holds and the proxy does not know has to be looked up anew."""
    ask = Asker()
    for opcode, body in (
        (Opcode.GETATTR, bytes(16)),
        (Opcode.READ, read_in(0, 10)),
        (Opcode.READDIR, read_in(0, 4096)),
    ):
        assert ask(opcode, 424242, body) == (errno.ESTALE, b"")
    assert len(ask.failures) == 3


def test_bodies_are_passed_uncopied() -> None:
    """The bytes that the reader received are the ones that are written to the kernel."""
    data = memoryview(bytearray(b"0123456789"))
    tree = DictTree({b"f": b""})
    read: Callable[[int, int, int], memoryview] = lambda ino, first, size: data  # noqa: E731
    tree.read = read  # type: ignore[method-assign,assignment]
    ask = Asker(tree)
    header = fuse_abi.IN_HEADER.pack(80, Opcode.READ, 5, FILE, 0, 0, 1, 0, 0)
    answer = ask.dispatcher.answer(memoryview(header + read_in(0, 10)))
    assert answer is not None
    assert answer[1] is data
