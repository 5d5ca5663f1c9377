"""What goes over a mount's socket, and what may not."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from pathlib import Path
from threading import Thread

import msgspec
import pytest

from lodefs.chunkstore.errors import InUse, Unavailable, UnknownFormat
from lodefs.mount.kernel.session import Session
from lodefs.mount.mount_spec import Job
from lodefs.mount.options import MountOptions
from lodefs.mount.process import control_socket, handover, mount_resources
from lodefs.mount.process.handover import (
    ControlServer,
    HandoverState,
    MountResources,
    resources_of,
    state_of,
    take,
)
from lodefs.mount.shm.traffic_counters import Traffic
from tests.support.mount.mounts import SAMPLE

GOLDEN = Path(__file__).parents[2] / "golden" / "handover-answer"
SESSION = Session(minor=44, no_open=True, no_opendir=True, resend=True, epochs=True)
JOB = Job(
    MountOptions(repo="demo", mountpoint="/m", proxy="unix:/p", token="very-secret", path=b"\xff"),
    SAMPLE.snapshot,
    SAMPLE.snapshot.root,
)


class Mount:
    """A grip whose descriptors are memory files, and a door to it."""

    def __init__(self, folder: Path) -> None:
        listener, self.place = control_socket.listen("0:1", [folder / "m"])
        self.fds = [self._file(name) for name in (b"device", b"one", b"two", b"opens")]
        device, one, two, opens = self.fds
        self.resources = MountResources(
            JOB, SESSION, device, (one, two), {"opens": opens}, listener.detach(), self.place
        )
        self.control_server = ControlServer(self.resources, supervised=True)

    @staticmethod
    def _file(content: bytes) -> int:
        fd = os.memfd_create(content.decode())
        os.write(fd, content)
        return fd

    def serve(self, times: int = 1, *, busy: bool = False) -> Thread:
        """Answer so many in another thread."""

        def run() -> None:
            for _ in range(times):
                client = None
                while not self.asked():
                    pass
                client = self.control_server.answer(busy=busy)
                if client is not None:
                    client.close()

        thread = Thread(target=run)
        thread.start()
        return thread

    def asked(self) -> bool:
        import select

        return bool(select.select([self.control_server], [], [], 60)[0])

    def close(self) -> None:
        self.control_server.close()
        self.resources.close()
        self.place.remove()


@pytest.fixture
def mount(tmp_path: Path) -> Iterator[Mount]:
    made = Mount(tmp_path)
    yield made
    made.close()


def test_all_that_holds_a_mount_goes_over(mount: Mount) -> None:
    """Job, session, descriptors and memories by name arrive, as the receiver's own."""
    thread = mount.serve()
    taken = take(mount.place)
    thread.join(60)
    resources = taken.resources
    assert (resources.job, resources.session, resources.place) == (JOB, SESSION, mount.place)
    assert taken.giver == handover.State(os.getpid(), supervised=True, proxy="unix:/p")
    fds = [resources.device, *resources.clones, resources.memories["opens"]]
    assert [os.pread(fd, 99, 0) for fd in fds] == [b"device", b"one", b"two", b"opens"]
    assert not set(fds) & set(mount.fds)
    assert not any(os.get_inheritable(fd) for fd in fds)
    taken.confirm()
    taken.unlock()
    resources.close()


def test_a_mount_of_an_older_lodefs() -> None:
    """What older mounts do not say (a mode, what was read) is as it was for them."""
    papers = msgspec.msgpack.decode(handover.MountResources(JOB, SESSION, 3).handover_state())
    del papers["job"]["options"]["mode"]
    resources = handover.resources_of(msgspec.msgpack.encode(papers), [(handover.DEVICE, 3)])
    assert resources.job == JOB
    assert mount_resources.traffic(resources) is None
    state = msgspec.msgpack.encode({"pid": 7, "supervised": True})
    told = msgspec.msgpack.decode(state, type=handover.State)
    assert told == handover.State(7, supervised=True)
    assert told.ready


def test_an_answer_that_an_older_lodefs_gave(tmp_path: Path) -> None:
    """A mount of an older lodefs is taken over: its recorded answer is understood, in full."""
    listener, place = control_socket.listen("0:1", [tmp_path / "m"])
    listener.settimeout(60)

    def run() -> None:
        client, _ = listener.accept()
        with client:
            client.recv(100)
            socket.send_fds(client, [GOLDEN.read_bytes()], [listener.fileno()] * 4)

    thread = Thread(target=run)
    thread.start()
    taken = take(place)
    thread.join(60)
    resources = taken.resources
    assert taken.giver == handover.State(7, True, Traffic(cache_bytes=5), True, "unix:/p")
    assert (resources.job.options.mountpoint, resources.job.options.path) == ("/m", b"\xff")
    assert (resources.session, resources.number) == (SESSION, "")
    assert [name for name, _ in resources.named_fds()] == [
        "device", "clone", "memory.workers", "listener",
    ]  # fmt: skip
    taken.connection.close()
    taken.unlock()
    resources.close()
    listener.close()


def test_answers_of_the_commit_before() -> None:
    """What processes of commit c5a46361 answer is understood: who they are, a refusal, and all that
    holds a mount; it has the same bytes today."""
    packets = msgspec.msgpack.decode(
        (GOLDEN.parent / "control-answers").read_bytes(), type=list[bytes]
    )
    answers = [msgspec.msgpack.decode(one, type=handover._Answer) for one in packets]
    assert [msgspec.msgpack.encode(one) for one in answers] == packets
    state, refusal, given, traced = answers
    assert state.state == handover.State(7, True, Traffic(cache_bytes=5), True, "unix:/p")
    assert refusal.failure is not None
    assert refusal.failure.error == "InUse"
    resources = resources_of(given.handover_state, zip(given.names, range(3, 12), strict=True))
    assert (resources.job, resources.session, resources.number) == (JOB, SESSION, "0:53")
    assert resources.memories == {"handles": 6, "counts": 7, "trace": 8, "jobs": 9, "workers": 10}
    assert (resources.device, resources.clones, resources.listener) == (3, (4, 5), 11)
    assert traced.names == ("trace",)
    words = (handover.STATE, handover.TAKE_OVER, handover.TAKEN, handover.TRACE)
    assert words == (b"state", b"take over", b"taken", b"trace")


def test_a_trace(mount: Mount) -> None:
    """Its memory is given to who asks for it; a mount without one says so."""
    thread = mount.serve(2)
    with pytest.raises(Unavailable, match="no trace"):
        handover.trace(mount.place)
    mount.resources.memories["trace"] = mount.fds[0]  # type: ignore[index]
    fd = handover.trace(mount.place)
    del mount.resources.memories["trace"]  # type: ignore[attr-defined]
    assert os.pread(fd, 99, 0) == b"device"
    os.close(fd)
    thread.join(60)


def test_state(mount: Mount) -> None:
    """Who answers is told without anything else."""
    thread = mount.serve()
    assert state_of(mount.place) == handover.State(os.getpid(), supervised=True, proxy="unix:/p")
    thread.join(60)


def test_busy(mount: Mount) -> None:
    """While somebody who has the descriptors has not said that it goes on, nobody gets them."""
    thread = mount.serve(2, busy=True)
    with pytest.raises(InUse, match="under way"):
        take(mount.place)
    assert state_of(mount.place).supervised
    thread.join(60)


@pytest.mark.parametrize("asked", [b"", b"nonsense", b"x" * 500])
def test_bad_questions(mount: Mount, asked: bytes) -> None:
    """They are not answered, and others are, afterwards."""
    thread = mount.serve(2)
    with control_socket.connect(mount.place, 60) as client:
        client.send(asked or b"?")
        assert client.recv(10) == b""
    assert state_of(mount.place).supervised
    thread.join(60)


def test_who_says_nothing_is_not_waited_for_forever(
    mount: Mount, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Somebody who connects and is silent delays others, but not for long."""
    monkeypatch.setattr(handover, "SERVE_TIMEOUT_S", 1.0)
    thread = mount.serve(2)
    with control_socket.connect(mount.place, 60):
        assert state_of(mount.place).supervised
    thread.join(60)


@pytest.mark.parametrize("answer", [b"nonsense", msgspec.msgpack.encode({"state": 5})])
def test_bad_answers(tmp_path: Path, answer: bytes) -> None:
    """What cannot be understood is an error that says so, and leaves the lock free."""
    listener, place = control_socket.listen("0:1", [tmp_path / "m"])
    listener.settimeout(60)

    def run() -> None:
        for _ in range(2):
            client, _ = listener.accept()
            with client:
                client.recv(100)
                client.send(answer)

    thread = Thread(target=run)
    thread.start()
    for _ in range(2):
        with pytest.raises(UnknownFormat):
            take(place)
    thread.join(60)
    listener.close()


def test_other_versions() -> None:
    """A passport of another version, or that is none, is refused with the way out."""
    papers = msgspec.msgpack.encode(HandoverState(2, JOB, SESSION))
    with pytest.raises(UnknownFormat, match="unmount"):
        resources_of(papers, [("device", 5)])
    with pytest.raises(UnknownFormat):
        resources_of(b"\xc1", [("device", 5)])


def test_without_a_device() -> None:
    """Nothing can be held without the connection's descriptor."""
    papers = msgspec.msgpack.encode(HandoverState(1, JOB, SESSION))
    with pytest.raises(Unavailable, match="device"):
        resources_of(papers, [("clone", 5)])


def test_nobody_there(tmp_path: Path) -> None:
    """A socket without a process behind it is Unavailable, for everybody."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as dead:
        dead.bind(str(tmp_path / "s.sock"))
    place = control_socket.Place(tmp_path / "s.sock")
    with pytest.raises(Unavailable):
        state_of(place)
    with pytest.raises(Unavailable):
        take(place)
