"""Workers on a device that a test holds the other end of."""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterator
from threading import Event, Thread

import pytest

from lodefs.chunkstore.errors import NotFound, Unavailable
from lodefs.chunkstore.format.inodes import ROOT_INO, child_ino
from lodefs.chunkstore.types import Buffer
from lodefs.mount.fs import worker
from lodefs.mount.fs.device_lead import BeforeBlocking
from lodefs.mount.fs.filesystem import FileSystem, MountView
from lodefs.mount.fs.pending_requests import PendingRequests
from lodefs.mount.fs.worker import Failures, ReaderFactory, Renewal, Worker
from lodefs.mount.kernel import device, fuse_abi
from lodefs.mount.kernel.fuse_abi import Opcode
from lodefs.mount.kernel.session import Session
from tests.support.mount.dict_tree import DictTree
from tests.support.mount.kernel import FakeKernel
from tests.support.mount.mounts import until

SESSION = Session(minor=44, no_open=True, no_opendir=True, resend=True, epochs=True)
THREADS = 4
FILE, SLOW = (child_ino(ROOT_INO, name) for name in (b"f", b"slow"))
READ = fuse_abi.READ_IN.pack(0, 0, 4096) + bytes(20)


class SlowTree(DictTree):
    """Reads of SLOW wait until ``warm`` is set, and pass the lead on before."""

    def __init__(self) -> None:
        super().__init__({b"f": b"fast", b"slow": b"at last", b"l": b""})
        self.warm = Event()

    def factory(self, before_blocking: Callable[[], None]) -> tuple[SlowTree, FileSystem]:
        outer = self

        class Mine(DictTree):
            def read(self, ino: int, first: int, size_bytes: int) -> bytes:
                if ino == SLOW:
                    before_blocking()
                    assert outer.warm.wait(60)
                return outer.data[ino][first : first + size_bytes]

        mine = Mine({})
        view = MountView(self.snapshot, self.snapshot.root, uid=0, gid=0)
        return self, FileSystem(mine, view)


class Served:
    """A fake kernel whose device is served by threads of this process."""

    def __init__(
        self,
        factory: ReaderFactory,
        *,
        pending: PendingRequests | None = None,
        on_interrupt: Callable[[int], None] = lambda _unique: None,
        clock: Callable[[], float] = lambda: 100.0,
    ) -> None:
        self.kernel = FakeKernel()
        self.ended = Event()
        self.marks = [0.0] * THREADS
        self.logged: list[str] = []
        worker = Worker(
            fd=self.kernel.device,
            session=SESSION,
            readers=factory,
            threads=THREADS,
            marks=self.marks,
            log=self.logged.append,
            ended=self.ended,
            pending=pending or PendingRequests(THREADS),
            on_interrupt=on_interrupt,
            clock=clock,
        )
        worker.start()
        self.threads: list[Thread] = worker.started

    def close(self) -> None:
        self.kernel.close()
        assert self.ended.wait(60)
        for thread in self.threads:
            thread.join(60)
            assert not thread.is_alive()
        self.kernel.release()


@pytest.fixture
def tree() -> SlowTree:
    return SlowTree()


@pytest.fixture
def served(tree: SlowTree) -> Iterator[Served]:
    made = Served(tree.factory)
    yield made
    tree.warm.set()
    made.close()


def test_requests_are_answered(served: Served) -> None:
    """Requests in a row get their answers; messages without an answer stop nothing."""
    for _ in range(50):
        assert served.kernel.ask(Opcode.READ, FILE, READ) == (0, b"fast")
        served.kernel.send(Opcode.FORGET, FILE, bytes(8))


def test_threads_come_when_one_waits(served: Served, tree: SlowTree) -> None:
    """A worker begins with one thread; each that waits for the first time is followed by one."""
    assert served.kernel.ask(Opcode.READ, FILE, READ) == (0, b"fast")
    assert len(served.threads) == 1
    waiting = {served.kernel.send(Opcode.READ, SLOW, READ) for _ in range(2)}
    assert served.kernel.ask(Opcode.READ, FILE, READ) == (0, b"fast")
    assert len(served.threads) == 3
    tree.warm.set()
    assert {served.kernel.receive()[0] for _ in waiting} == waiting


def test_a_thread_that_cannot_be_started_is_tried_again(
    tree: SlowTree, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where the system has no room for another thread, those that are there go on."""
    served = Served(tree.factory)
    start = Thread.start

    def refuse(thread: Thread) -> None:
        raise RuntimeError("can't start new thread")

    tree.warm.set()
    monkeypatch.setattr(Thread, "start", refuse)
    for _ in range(2):
        served.kernel.send(Opcode.READ, SLOW, READ)
        assert served.kernel.receive()[1:] == (0, b"at last")
    assert len(served.threads) == 1
    monkeypatch.setattr(Thread, "start", start)
    served.kernel.send(Opcode.READ, SLOW, READ)
    assert served.kernel.receive()[1:] == (0, b"at last")
    assert len(served.threads) == 2
    served.close()


def test_slow_reads_do_not_block_others(served: Served, tree: SlowTree) -> None:
    """While all threads but one wait for cold bytes, hits and metadata are answered."""
    waiting = {served.kernel.send(Opcode.READ, SLOW, READ) for _ in range(THREADS - 1)}
    for _ in range(20):
        assert served.kernel.ask(Opcode.READ, FILE, READ) == (0, b"fast")
        assert served.kernel.ask(Opcode.STATFS, ROOT_INO)[0] == 0
    assert sum(mark > 0 for mark in served.marks) >= THREADS - 1
    tree.warm.set()
    answers = [served.kernel.receive() for _ in waiting]
    assert {unique for unique, _, _ in answers} == waiting
    assert all(answer[1:] == (0, b"at last") for answer in answers)


def test_a_disk_that_hangs_blocks_no_others(tree: SlowTree) -> None:
    """While reads wait for a disk that does not answer, hits and metadata are answered."""

    def factory(before_blocking: BeforeBlocking) -> tuple[SlowTree, FileSystem]:
        def disk() -> None:
            before_blocking.disk()

        return tree.factory(disk)

    served = Served(factory)
    for _ in range(THREADS - 1):
        served.kernel.send(Opcode.READ, SLOW, READ)
        assert served.kernel.ask(Opcode.READ, FILE, READ) == (0, b"fast")
        assert served.kernel.ask(Opcode.STATFS, ROOT_INO)[0] == 0
    tree.warm.set()
    assert {served.kernel.receive()[1:] for _ in range(THREADS - 1)} == {(0, b"at last")}
    assert served.kernel.ask(Opcode.READ, FILE, READ) == (0, b"fast")
    served.close()


def test_more_slow_reads_than_threads(served: Served, tree: SlowTree) -> None:
    """Requests beyond the number of threads wait in the kernel, and are answered in the end."""
    waiting = {served.kernel.send(Opcode.READ, SLOW, READ) for _ in range(5 * THREADS)}
    tree.warm.set()
    assert {served.kernel.receive()[0] for _ in waiting} == waiting
    assert served.kernel.ask(Opcode.READ, FILE, READ) == (0, b"fast")


def test_the_end_of_the_connection_ends_the_worker(tree: SlowTree) -> None:
    """All threads end when the device says that nothing more will come."""
    served = Served(tree.factory)
    assert served.kernel.ask(Opcode.READ, FILE, READ) == (0, b"fast")
    served.close()
    assert served.marks == [0.0] * THREADS


def test_unknown_nodes_make_the_kernel_look_again(tree: SlowTree) -> None:
    """A node that the proxy lost is stale; the kernel is told once to look all names up anew."""

    def factory(_: Callable[[], None]) -> tuple[DictTree, FileSystem]:
        empty = DictTree({})
        return empty, FileSystem(empty, MountView(tree.snapshot, tree.snapshot.root, 0, 0))

    served = Served(factory)
    unique = served.kernel.send(Opcode.READ, FILE, READ)
    messages = [served.kernel.receive() for _ in range(2)]
    assert (0, fuse_abi.NOTIFY_INC_EPOCH, b"") in messages
    assert (unique, errno.ESTALE, b"") in messages
    assert served.kernel.ask(Opcode.READ, FILE, READ) == (errno.ESTALE, b"")
    served.close()
    assert any("READ" in line for line in served.logged)


def test_renewal_is_rare_and_only_where_known() -> None:
    """The notification is sent again after a while only, and never to an older kernel."""
    kernel = FakeKernel()
    now = [100.0]
    renewal = Renewal(kernel.device, SESSION, lambda: now[0])
    old = Session(minor=40, no_open=True, no_opendir=True, resend=True, epochs=False)
    Renewal(kernel.device, old, lambda: now[0])()
    renewal()
    renewal()
    now[0] += worker.EPOCH_PAUSE_S
    renewal()
    kernel.send(Opcode.STATFS, 1)
    assert [kernel.receive()[1] for _ in range(2)] == [fuse_abi.NOTIFY_INC_EPOCH] * 2
    kernel.close()
    kernel.release()


def test_the_log_is_not_flooded() -> None:
    """A thousand failures at once are a few lines; a later line says how many were left out."""
    now = [0.0]
    lines: list[str] = []
    failures = Failures(lines.append, lambda: now[0])
    for _ in range(1000):
        failures("READ of inode 5", Unavailable("no proxy"))
    assert len(lines) == worker.FAILURES_BURST
    now[0] += 10
    failures("READ of inode 6", NotFound("lost"))
    assert lines[-1].endswith("(and 990 more failures)")
    assert "READ of inode 6: NotFound: lost" in lines[-1]


def test_a_buffer_may_be_any_kind() -> None:
    """Answers from bytes, bytearrays and memoryviews arrive alike."""
    data: list[Buffer] = [b"abc", bytearray(b"abc"), memoryview(b"abc")]

    class Mine(DictTree):
        def read(self, ino: int, first: int, size_bytes: int) -> bytes:
            return data.pop()  # type: ignore[return-value]

    def factory(_: Callable[[], None]) -> tuple[DictTree, FileSystem]:
        mine = Mine({})
        return mine, FileSystem(mine, MountView(mine.snapshot, mine.snapshot.root, 0, 0))

    served = Served(factory)
    for _ in range(3):
        assert served.kernel.ask(Opcode.READ, FILE, READ) == (0, b"abc")
    served.close()


def interrupt(unique: int) -> bytes:
    return fuse_abi.INTERRUPT_IN.pack(unique)


def test_with_all_threads_waiting_others_are_still_heard(tree: SlowTree) -> None:
    """Interrupts are read, what needs no proxy is answered, and the rest waits for a thread."""
    heard: list[int] = []
    served = Served(tree.factory, on_interrupt=heard.append)
    waiting = [served.kernel.send(Opcode.READ, SLOW, READ) for _ in range(THREADS)]
    assert served.kernel.ask(Opcode.STATFS, ROOT_INO)[0] == 0
    queued = [served.kernel.send(Opcode.READ, SLOW, READ) for _ in range(3)]
    served.kernel.send(Opcode.INTERRUPT, 0, interrupt(waiting[0]))
    served.kernel.send(Opcode.INTERRUPT, 0, interrupt(queued[0]))
    assert served.kernel.ask(Opcode.STATFS, ROOT_INO)[0] == 0
    assert heard == [waiting[0], queued[0]]
    tree.warm.set()
    assert {served.kernel.receive()[0] for _ in waiting + queued} == {*waiting, *queued}
    served.close()


def test_interrupted_requests_are_let_go(tree: SlowTree) -> None:
    """A killed reader's request ends where it waits; another's goes on; neither is a failure."""
    pending = PendingRequests(THREADS, is_doomed=lambda _pid: True)
    served = Served(tree.factory, pending=pending)
    first = served.kernel.send(Opcode.READ, SLOW, READ)
    until(lambda: pending.interrupt(first) is True)
    assert pending.interrupt(first) is None
    for _ in range(THREADS - 1):
        served.kernel.send(Opcode.READ, SLOW, READ)
    queued = served.kernel.send(Opcode.READ, SLOW, READ)
    until(lambda: pending.interrupt(queued) is True)
    tree.warm.set()
    # Those that were let go come without an answer: that is for who did it.
    answered = {served.kernel.receive()[0] for _ in range(THREADS - 1)}
    assert not answered & {first, queued}
    assert served.kernel.ask(Opcode.READ, FILE, READ) == (0, b"fast")
    served.close()
    assert served.logged == []


def test_the_end_is_seen_while_all_threads_wait(tree: SlowTree) -> None:
    """A worker whose threads all wait for a stuck proxy notices that it was unmounted."""
    served = Served(tree.factory)
    for _ in range(THREADS):
        served.kernel.send(Opcode.READ, SLOW, READ)
    assert served.kernel.ask(Opcode.STATFS, ROOT_INO)[0] == 0
    served.kernel.end()
    assert served.ended.wait(60)
    tree.warm.set()
    for thread in served.threads:
        thread.join(60)
    served.close()


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_an_error_while_all_threads_wait_ends_the_worker(
    tree: SlowTree, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A worker that cannot give an answer then does not live on without hearing anybody."""
    served = Served(tree.factory)
    waiting = {served.kernel.send(Opcode.READ, SLOW, READ) for _ in range(THREADS)}
    assert served.kernel.ask(Opcode.STATFS, ROOT_INO)[0] == 0
    write_answer = device.write_answer

    def refuse(fd: int, header: bytes, body: Buffer) -> None:
        if fuse_abi.OUT_HEADER.unpack(header)[2] not in waiting:
            raise OSError(errno.ENOMEM, "no memory")
        write_answer(fd, header, body)

    monkeypatch.setattr(device, "write_answer", refuse)
    served.kernel.send(Opcode.STATFS, ROOT_INO)
    assert served.ended.wait(60)
    tree.warm.set()
    assert {served.kernel.receive()[0] for _ in waiting} == waiting
    served.close()


def test_time_in_the_queue_counts(tree: SlowTree) -> None:
    """A request that was queued begins as late as it was read."""
    waited: list[float] = []

    class Noting(DictTree):
        def begin(self, waited_s: float = 0.0) -> None:
            waited.append(waited_s)

    now = [100.0]
    noting = Noting({})

    def factory(before_blocking: Callable[[], None]) -> tuple[DictTree, FileSystem]:
        return noting, tree.factory(before_blocking)[1]

    served = Served(factory, clock=lambda: now[0])
    for _ in range(THREADS):
        served.kernel.send(Opcode.READ, SLOW, READ)
    served.kernel.send(Opcode.READ, SLOW, READ)
    assert served.kernel.ask(Opcode.STATFS, ROOT_INO)[0] == 0
    now[0] += 7.0
    tree.warm.set()
    for _ in range(THREADS + 1):
        served.kernel.receive()
    served.close()
    assert max(waited) == 7.0


def test_a_request_that_was_sent_again_waits_once(tree: SlowTree) -> None:
    """However often the kernel repeats a request, one thread waits with it, and one answers."""

    class Woken(DictTree):
        """Waits until it is cancelled, or all may go on."""

        def __init__(self) -> None:
            super().__init__({})
            self.go = Event()

        def begin(self, waited_s: float = 0.0) -> None:
            self.go.clear()

        def cancel(self) -> None:
            self.go.set()

    made: list[Woken] = []

    def factory(before_blocking: Callable[[], None]) -> tuple[DictTree, FileSystem]:
        mine = Woken()
        made.append(mine)

        def read(ino: int, first: int, size_bytes: int) -> bytes:
            before_blocking()
            assert mine.go.wait(60)
            return b"once"

        mine.read = read  # type: ignore[method-assign]
        return mine, FileSystem(mine, MountView(tree.snapshot, tree.snapshot.root, 0, 0))

    pending = PendingRequests(THREADS, is_doomed=lambda _pid: True)
    served = Served(factory, pending=pending)
    unique = served.kernel.send(Opcode.READ, SLOW, READ) | fuse_abi.UNIQUE_RESEND
    for _ in range(3 * THREADS):
        served.kernel.repeat(unique, Opcode.READ, SLOW, READ)
    assert served.kernel.ask(Opcode.STATFS, ROOT_INO)[0] == 0
    for one in made:
        one.go.set()
    assert served.kernel.receive() == (unique, 0, b"once")
    assert served.kernel.ask(Opcode.STATFS, ROOT_INO)[0] == 0
    until(lambda: not pending._known)  # the thread leaves after its answer is written
    assert pending.interrupt(unique) is None
    served.close()
