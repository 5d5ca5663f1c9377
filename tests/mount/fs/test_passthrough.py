"""Which files are opened in passthrough mode, without a kernel; with one: test_passing.py."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from lodefs.chunkstore.errors import Unavailable
from lodefs.chunkstore.format.inodes import ROOT_INO, child_ino
from lodefs.chunkstore.protocol.wire import Snapshot
from lodefs.chunkstore.system import libc
from lodefs.mount.fs import passthrough
from lodefs.mount.fs.dispatch import Dispatcher
from lodefs.mount.fs.filesystem import LARGE, FileSystem, MountView
from lodefs.mount.fs.passthrough import (
    DISK_BYTES_BY_FILE_MIN,
    MEMORY_BYTES_BY_FILE_MIN,
    PassthroughFiles,
    objection,
)
from lodefs.mount.kernel import device, fuse_abi
from lodefs.mount.kernel.fuse_abi import Opcode
from lodefs.mount.kernel.session import Session
from lodefs.mount.shm.open_files import CACHED, OpenFileTable
from tests.support.mount.dict_tree import DictTree

TREE = DictTree({b"big": bytes(1 << 20), b"small": bytes((1 << 20) - 1), b"d": {}})
BIG, SMALL, DIRECTORY = (child_ino(ROOT_INO, name) for name in (b"big", b"small", b"d"))
SESSION = Session(
    minor=44, no_open=False, no_opendir=True, resend=True, epochs=True, passthrough=True
)
CACHED_FLAGS = fuse_abi.FOPEN_KEEP_CACHE | fuse_abi.FOPEN_NOFLUSH
PASSED_FLAGS = fuse_abi.FOPEN_PASSTHROUGH | fuse_abi.FOPEN_NOFLUSH


@dataclass
class FakeFlats:
    """Files whose inode numbers are in ``complete`` have descriptor 5, if they are not ``cut``."""

    complete: set[int] = field(default_factory=set)
    cut: set[int] = field(default_factory=set)
    asked: list[int] = field(default_factory=list)
    error: Exception | None = None

    def complete_flat(self, ino: int) -> int | None:
        self.asked.append(ino)
        if self.error is not None:
            raise self.error
        return 5 if ino in self.complete - self.cut else None

    def is_cut(self, ino: int) -> bool:
        return ino in self.cut


@dataclass
class FakeDevice:
    """Backing files of a connection, or the errno with which they are refused."""

    refusal: int = 0
    ids: list[int] = field(default_factory=list)
    closed: list[int] = field(default_factory=list)

    def open_backing(self, _device: int, fd: int) -> int:
        assert fd == 5
        if self.refusal:
            raise OSError(self.refusal, os.strerror(self.refusal))
        self.ids.append(len(self.ids) + 1)
        return self.ids[-1]

    def close_backing(self, _device: int, backing: int) -> None:
        self.closed.append(backing)


class Mount:
    """A dispatcher with passthrough, on a device that is a fake."""

    def __init__(self, handles: OpenFileTable) -> None:
        self.handles = handles
        self.flats = FakeFlats({BIG})
        self.logged: list[str] = []
        self.opens = PassthroughFiles(3, handles, self.flats, self.logged.append)
        view = MountView(TREE.snapshot, TREE.snapshot.root, uid=0, gid=0)
        self.fs = FileSystem(TREE, view, opens=self.opens)
        self.dispatcher = Dispatcher(self.fs, SESSION, lambda what, error: self.logged.append(what))

    def ask(self, opcode: int, node: int, unique: int, body: bytes = b"") -> tuple[int, bytes]:
        header = fuse_abi.IN_HEADER.pack(40 + len(body), opcode, unique, node, 0, 0, 1, 0, 0)
        answer = self.dispatcher.answer(memoryview(header + body))
        assert answer is not None
        _, error, answered = fuse_abi.OUT_HEADER.unpack(answer[0])
        assert answered == unique
        return -error, bytes(answer[1])

    def open(self, node: int, unique: int) -> tuple[int, int, int]:
        """Handle, flags and backing id."""
        code, body = self.ask(Opcode.OPEN, node, unique, bytes(8))
        assert code == 0
        handle, flags, backing = fuse_abi.OPEN_OUT.unpack(body)
        return handle, flags, backing

    def release(self, node: int, handle: int) -> None:
        assert (
            self.ask(Opcode.RELEASE, node, 999, fuse_abi.RELEASE_IN.pack(handle) + bytes(16))[0]
            == 0
        )


@pytest.fixture
def kernel(monkeypatch: pytest.MonkeyPatch) -> FakeDevice:
    made = FakeDevice()
    monkeypatch.setattr(device, "open_backing", made.open_backing)
    monkeypatch.setattr(device, "close_backing", made.close_backing)
    return made


@pytest.fixture
def handles() -> Iterator[OpenFileTable]:
    made = OpenFileTable.create(rows_max=64)
    yield made
    os.close(made.fd)


@pytest.fixture
def mount(handles: OpenFileTable, kernel: FakeDevice) -> Mount:
    return Mount(handles)


def test_large_files_have_a_mark_in_their_node(mount: Mount) -> None:
    """The kernel names files of 1 MiB and more so that they are known at once; stat does not."""
    for name, node in ((b"big", BIG | LARGE), (b"small", SMALL), (b"d", DIRECTORY)):
        code, body = mount.ask(Opcode.LOOKUP, ROOT_INO, 2, name + b"\0")
        fields = fuse_abi.ENTRY_OUT.unpack(body)
        assert (code, fields[0], fields[6]) == (0, node, node & ~LARGE)
    assert mount.ask(Opcode.GETATTR, BIG | LARGE, 4, bytes(16))[0] == 0
    assert len(mount.ask(Opcode.READ, BIG | LARGE, 6, fuse_abi.READ_IN.pack(0, 0, 9))[1]) == 9


def test_small_files_cost_nothing(mount: Mount) -> None:
    """They are opened in cached mode without a look at the cache or the table."""
    assert mount.open(SMALL, 2) == (0, CACHED_FLAGS, 0)
    mount.release(SMALL, 0)
    assert mount.flats.asked == []


def test_a_complete_file_is_passed_through_with_one_backing_file(
    mount: Mount, kernel: FakeDevice
) -> None:
    """All who have it open share one id, which ends with the last of them."""
    first, flags, backing = mount.open(BIG | LARGE, 2)
    assert (flags, backing) == (PASSED_FLAGS, 1)
    second, flags, backing = mount.open(BIG | LARGE, 4)
    assert (flags, backing, second != first) == (PASSED_FLAGS, 1, True)
    mount.release(BIG | LARGE, first)
    assert kernel.closed == []
    mount.release(BIG | LARGE, second)
    mount.release(BIG | LARGE, second)
    assert (kernel.ids, kernel.closed) == ([1], [1])
    assert mount.open(BIG | LARGE, 6)[2] == 2


def test_a_request_that_is_sent_again_is_one_open(mount: Mount, kernel: FakeDevice) -> None:
    """RESEND marks the request's number; the file is open once all the same."""
    first = mount.open(BIG | LARGE, 2)
    assert mount.open(BIG | LARGE, 2 | fuse_abi.UNIQUE_RESEND) == first
    mount.release(BIG | LARGE, first[0])
    assert kernel.closed == [1]


def test_modes_never_mix(mount: Mount, kernel: FakeDevice) -> None:
    """A file that becomes complete while it is open stays cached until its last close; one that
    is evicted stays passed through."""
    mount.flats.complete.clear()
    cached, flags, _ = mount.open(BIG | LARGE, 2)
    assert flags == CACHED_FLAGS
    mount.flats.complete.add(BIG)
    second, flags, _ = mount.open(BIG | LARGE, 4)
    assert flags == CACHED_FLAGS
    assert mount.fs.getxattr(BIG | LARGE, b"user.lodefs.read_path") == b"daemon"
    mount.release(BIG | LARGE, cached)
    mount.release(BIG | LARGE, second)
    assert mount.fs.getxattr(BIG | LARGE, b"user.lodefs.read_path") == b"passthrough"
    third, flags, _ = mount.open(BIG | LARGE, 6)
    assert flags == PASSED_FLAGS
    mount.flats.complete.clear()
    assert mount.open(BIG | LARGE, 8)[1:] == (PASSED_FLAGS, 1)
    assert mount.fs.getxattr(BIG | LARGE, b"user.lodefs.read_path") == b"passthrough"
    assert third
    assert kernel.closed == []


def test_a_file_that_was_cut_is_not_opened_again_while_it_is_open(
    mount: Mount, kernel: FakeDevice
) -> None:
    """The kernel would read short; also when the cache has a good one by then. After the last
    close it is read by the workers, who see that it is short."""
    first = mount.open(BIG | LARGE, 2)[0]
    mount.flats.cut.add(BIG)
    assert mount.ask(Opcode.OPEN, BIG | LARGE, 4, bytes(8)) == (errno.EIO, b"")
    mount.flats.cut.clear()
    assert mount.ask(Opcode.OPEN, BIG | LARGE, 6, bytes(8)) == (errno.EIO, b"")
    mount.flats.cut.add(BIG)
    mount.release(BIG | LARGE, first)
    assert kernel.closed == [1]
    assert mount.open(BIG | LARGE, 8)[1] == CACHED_FLAGS


def test_a_cut_is_seen_by_who_marks_files_as_used(mount: Mount) -> None:
    """Before somebody opens the file, and though the proxy may have replaced it by then."""
    mount.open(BIG | LARGE, 2)
    mount.flats.cut.add(BIG)
    mount.opens.mark_used()
    mount.flats.cut.clear()
    assert mount.ask(Opcode.OPEN, BIG | LARGE, 4, bytes(8)) == (errno.EIO, b"")


def test_another_worker_was_faster(handles: OpenFileTable, kernel: FakeDevice) -> None:
    """Of two backing files for one inode one is given up."""
    slow, fast = Mount(handles), Mount(handles)
    ask = slow.flats.complete_flat

    def ask_slowly(ino: int) -> int | None:
        fast.open(BIG | LARGE, 2)
        return ask(ino)

    slow.flats.complete_flat = ask_slowly  # type: ignore[method-assign]
    assert slow.open(BIG | LARGE, 4)[2] == 1
    assert (kernel.ids, kernel.closed) == ([1, 2], [2])


@pytest.mark.parametrize("code", [errno.EPERM, errno.ELOOP, errno.EOPNOTSUPP])
def test_refused_once_for_good(mount: Mount, kernel: FakeDevice, code: int) -> None:
    """The first file that the kernel refuses ends it, with one line; the kernel then opens files
    by itself."""
    kernel.refusal = code
    assert mount.fs.getxattr(ROOT_INO, b"user.lodefs.passthrough") == b"on"
    handle, flags, _ = mount.open(BIG | LARGE, 2)
    assert flags == CACHED_FLAGS
    for node in (BIG | LARGE, SMALL):
        assert mount.ask(Opcode.OPEN, node, 4, bytes(8)) == (errno.ENOSYS, b"")
    mount.release(BIG | LARGE, handle)
    assert mount.handles.count() == 0
    assert mount.logged == [f"no passthrough from now on: {os.strerror(code)}"]
    state = mount.fs.getxattr(ROOT_INO, b"user.lodefs.passthrough")
    assert state is not None and state.startswith(b"off: ")
    assert mount.fs.getxattr(BIG | LARGE, b"user.lodefs.read_path") == b"daemon"


def test_refused_later(mount: Mount, kernel: FakeDevice) -> None:
    """After files were passed through, refused ones are opened in cached mode, by us: the kernel
    must not open by itself what is passed through."""
    mount.open(BIG | LARGE, 2)
    kernel.refusal = errno.EPERM
    other = child_ino(ROOT_INO, b"other")
    mount.flats.complete.add(other)
    assert mount.open(other | LARGE, 4)[1] == CACHED_FLAGS
    assert mount.open(BIG | LARGE, 6)[1:] == (PASSED_FLAGS, 1)
    assert mount.open(SMALL, 8)[1] == CACHED_FLAGS
    assert len(mount.logged) == 1


def test_short_of_descriptors(mount: Mount, kernel: FakeDevice) -> None:
    """What may pass is no refusal: the next open is tried again."""
    kernel.refusal = errno.EMFILE
    handle, flags, _ = mount.open(BIG | LARGE, 2)
    assert flags == CACHED_FLAGS
    mount.release(BIG | LARGE, handle)
    kernel.refusal = 0
    assert mount.open(BIG | LARGE, 4)[1] == PASSED_FLAGS
    assert mount.logged == []


def test_a_cache_that_cannot_be_read_fails_no_open(mount: Mount) -> None:
    """Opening works; reading will say what is wrong."""
    mount.flats.error = Unavailable("the index is gone")
    assert mount.open(BIG | LARGE, 2)[1] == CACHED_FLAGS
    mount.opens.mark_used(period_s=5)


def test_files_that_the_kernel_reads_are_marked_as_used(mount: Mount) -> None:
    """Those that are open in passthrough mode, and no others, once a period."""
    mount.open(BIG | LARGE, 2)
    mount.open(child_ino(ROOT_INO, b"other") | LARGE, 4)
    mount.flats.asked.clear()
    for _ in range(3):
        mount.opens.mark_used(period_s=3600)
    assert mount.flats.asked == [BIG]


def snapshot(*, files: int, size_bytes: int, large_size_bytes: int | None = None) -> Snapshot:
    """By default all bytes are those of large files."""
    large = size_bytes if large_size_bytes is None else large_size_bytes
    return Snapshot("r", "ab" * 32, TREE.snapshot.root, 1, files, 1, size_bytes, large)


def test_objections(tmp_path: Path) -> None:
    """A mount without passthrough, or that would not gain by it, needs no look at the machine."""
    large = snapshot(files=10, size_bytes=10 * DISK_BYTES_BY_FILE_MIN)
    small = snapshot(files=10, size_bytes=10 * DISK_BYTES_BY_FILE_MIN - 1)
    none = snapshot(files=0, size_bytes=0)

    def nowhere() -> None:
        raise AssertionError("asked in vain")

    assert objection("off", large, nowhere, fits_memory=False) == "it is switched off"
    assert objection("auto", small, nowhere, fits_memory=False) == "most files are small"
    for wanted, of in (("auto", large), ("on", small), ("on", large)):
        reason = objection(wanted, of, lambda: None, fits_memory=False)  # type: ignore[arg-type]
        assert reason == "the node's cache is not visible here"
    assert objection("auto", none, nowhere, fits_memory=False) == "most files are small"


def test_what_fits_into_memory_needs_more_large_bytes() -> None:
    """It comes from the disk but once: passthrough has less to save. Who wants it has it."""
    files = 10
    enough = snapshot(files=files, size_bytes=files * MEMORY_BYTES_BY_FILE_MIN)
    fewer = snapshot(files=files, size_bytes=files * MEMORY_BYTES_BY_FILE_MIN - 1)
    assert objection("auto", fewer, lambda: None, fits_memory=True) == "most files are small"
    for wanted, of, fits in (("auto", enough, True), ("on", fewer, True), ("auto", fewer, False)):
        reason = objection(wanted, of, lambda: None, fits_memory=fits)  # type: ignore[arg-type]
        assert reason != "most files are small"


def test_bytes_that_can_be_passed_through_count_alone() -> None:
    """Files under 1 MiB are no reason for passthrough, however many bytes they have together: the
    photos of a dataset have 100 KB each."""
    many = 1000 * DISK_BYTES_BY_FILE_MIN
    photos = snapshot(files=1000, size_bytes=2 * many, large_size_bytes=0)
    mixed = snapshot(files=1000, size_bytes=2 * many, large_size_bytes=many)
    fewer = snapshot(files=1000, size_bytes=2 * many, large_size_bytes=many - 1)
    for small in (photos, fewer):
        assert objection("auto", small, lambda: None, fits_memory=False) == "most files are small"
    for wanted, of in (("auto", mixed), ("on", photos)):
        reason = objection(wanted, of, lambda: None, fits_memory=False)  # type: ignore[arg-type]
        assert reason != "most files are small"


def test_obstacles(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The right is missing, or the file system is stacked or gone: the reason says which."""
    monkeypatch.setattr(passthrough, "is_admin", lambda: True)
    known = {0x794C7630: "overlayfs", 0x65735546: "FUSE", 0xEF53: None, 0x58465342: None}
    for kind, name in known.items():
        monkeypatch.setattr(libc, "file_system_of", lambda _, kind=kind: kind)
        expected = f"the node's cache {tmp_path} is on {name}" if name else None
        assert passthrough.obstacle(tmp_path) == expected
    monkeypatch.undo()
    monkeypatch.setattr(passthrough, "is_admin", lambda: True)
    assert "cannot be read" in str(passthrough.obstacle(tmp_path / "gone"))
    monkeypatch.setattr(passthrough, "is_admin", lambda: False)
    assert "CAP_SYS_ADMIN" in str(passthrough.obstacle(tmp_path))


def test_who_is_admin(tmp_path: Path) -> None:
    """The capability counts in the first user namespace only."""
    (tmp_path / "ns").mkdir()
    (tmp_path / "ns/user").touch()
    (tmp_path / "status").write_text("CapEff:\t000001ffffffffff\n")
    assert not passthrough.is_admin(tmp_path)  # a namespace with another number
    assert not passthrough.is_admin(tmp_path / "none")


def test_opens_is_what_file_systems_take(handles: OpenFileTable) -> None:
    """Where nobody has a file open and there is no flat file, it is opened in cached mode."""
    opens = PassthroughFiles(3, handles, FakeFlats(), print)
    opened = opens.open(BIG, 2)
    assert opened.backing == CACHED
    assert not opens.passes_through(BIG)
    opens.release(opened.handle)
    assert handles.count() == 0
