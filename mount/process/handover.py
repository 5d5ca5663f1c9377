"""Hands a mount from one supervisor to the next: its descriptors and its job, over a socket.

Only the user can enter the socket's directory, and both sides check the user of the other. One
packet asks (STATE or TAKE_OVER), and one answers; the answer to TAKE_OVER also has descriptors
(SCM_RIGHTS, unix(7)). A living supervisor ends when it then receives TAKEN, and otherwise stays.
Workers without a supervisor answer in its place.
"""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Callable, Iterable, Mapping, Sequence

import msgspec

from lodefs.chunkstore.errors import (
    Denied,
    InvalidInput,
    Unavailable,
    UnknownFormat,
)
from lodefs.chunkstore.format.decoding import from_msgpack
from lodefs.chunkstore.protocol import rpc
from lodefs.chunkstore.protocol.wire import Failure
from lodefs.chunkstore.system.sockets import peer_of
from lodefs.mount.kernel.session import Session
from lodefs.mount.mount_spec import Job
from lodefs.mount.process import control_socket
from lodefs.mount.shm.traffic_counters import Traffic

VERSION = 1
STATE, TAKE_OVER, TAKEN, TRACE = b"state", b"take over", b"taken", b"trace"
ASK_BYTES_MAX = 64
FDS_MAX = 253  # SCM_MAX_FD
SERVE_TIMEOUT_S = 2.0  # for a client to send its request
LEAVE_TIMEOUT_S = 10.0  # for a replaced supervisor to end

DEVICE, CLONE, LISTENER, MEMORY = "device", "clone", "listener", "memory."


class HandoverState(msgspec.Struct, frozen=True):
    """All that a supervisor must know besides the descriptors."""

    version: int
    job: Job
    session: Session
    number: str = ""


class MountResources(msgspec.Struct, frozen=True):
    """All that holds a mount: a process that has it can answer for the mount.

    ``device``: the connection's first descriptor; ``clones``: those that workers read.
    ``memories``: named memory files that workers share. ``listener``: -1 if the mount cannot be
    taken over. ``number``: MAJOR:MINOR of the mount, which is unique while it lives; "" if it was
    not found in the mount table.
    """

    job: Job
    session: Session
    device: int
    clones: tuple[int, ...] = ()
    memories: Mapping[str, int] = msgspec.field(default_factory=dict)
    listener: int = -1
    place: control_socket.Place | None = None
    number: str = ""

    def handover_state(self) -> bytes:
        """Returns the part without descriptors."""
        return msgspec.msgpack.encode(HandoverState(VERSION, self.job, self.session, self.number))

    def named_fds(self) -> list[tuple[str, int]]:
        """Returns the descriptors, by name."""
        found = [(DEVICE, self.device), *((CLONE, fd) for fd in self.clones)]
        found += [(MEMORY + name, fd) for name, fd in self.memories.items()]
        return [*found, (LISTENER, self.listener)] if self.listener >= 0 else found

    def close(self) -> None:
        """Closes all. The mount ends with the last process that holds it."""
        for _, fd in self.named_fds():
            os.close(fd)


def resources_of(
    handover_state: bytes,
    named_fds: Iterable[tuple[str, int]],
    place: control_socket.Place | None = None,
) -> MountResources:
    """Joins the two parts. Raises: UnknownFormat; Unavailable without a device."""
    try:
        version = from_msgpack(handover_state, _Versioned).version
        if version != VERSION:
            raise UnknownFormat(
                f"another version of lodefs serves the mount (hand-over {version}, this one "
                f"speaks {VERSION}): unmount it and mount it again"
            )
        papers = from_msgpack(handover_state, HandoverState)
    except InvalidInput as error:
        raise UnknownFormat(f"the mount's hand-over cannot be read: {error}") from error
    fds = list(named_fds)
    device = next((fd for name, fd in fds if name == DEVICE), -1)
    if device < 0:
        raise Unavailable("the mount handed over no device")
    return MountResources(
        papers.job,
        papers.session,
        device,
        tuple(fd for name, fd in fds if name == CLONE),
        {name.removeprefix(MEMORY): fd for name, fd in fds if name.startswith(MEMORY)},
        next((fd for name, fd in fds if name == LISTENER), -1),
        place,
        papers.number,
    )


class _Versioned(msgspec.Struct, frozen=True):
    version: int


class State(msgspec.Struct, frozen=True):
    """The state of the process that answers for a mount: its supervisor, or a worker that has lost
    it. ``traffic``: None if it is not counted. Not ``ready``: no requester knows yet that the root
    can be read, so the mount may still be taken away. ``proxy``: the one that it reads through."""

    pid: int
    supervised: bool
    traffic: Traffic | None = None
    ready: bool = True
    proxy: str = ""


class _Answer(msgspec.Struct, frozen=True):
    state: State
    failure: Failure | None = None
    handover_state: bytes = msgspec.field(default=b"", name="passport")  # the name in all versions
    names: tuple[str, ...] = ()


class ControlServer:
    """Answers requests at a mount's socket. ``supervised``: the supervisor answers. ``traffic``
    returns what was read."""

    def __init__(
        self,
        resources: MountResources,
        *,
        supervised: bool,
        traffic: Callable[[], Traffic] | None = None,
    ) -> None:
        self._resources = resources
        self._supervised = supervised
        self._traffic = traffic
        self._listener = socket.socket(fileno=os.dup(resources.listener))

    def fileno(self) -> int:
        """Returns a descriptor that is readable when a client connects."""
        return self._listener.fileno()

    def close(self) -> None:
        """Stops answering."""
        self._listener.close()

    def answer(self, *, busy: bool = False, ready: bool = True) -> socket.socket | None:
        """Answers one client. The result, if any, must be closed; TAKEN arrives on it at the end.

        ``busy``: nothing is handed over now. ``ready``: the mount is complete. A client that
        misbehaves gets no answer.
        """
        try:
            client, _ = self._listener.accept()
        except OSError:
            return None  # another worker was faster
        try:
            client.settimeout(SERVE_TIMEOUT_S)
            if peer_of(client).uid in (os.geteuid(), 0):
                asked = rpc.receive(client, ASK_BYTES_MAX).data
                answer, fds = self._answer(asked, busy=busy, ready=ready)
                if answer is not None:
                    rpc.send(client, answer, fds)
                if answer is not None and answer.handover_state:
                    return client
        except (OSError, InvalidInput):
            pass
        client.close()
        return None

    def _answer(
        self, asked: bytes, *, busy: bool, ready: bool
    ) -> tuple[_Answer | None, Sequence[int]]:
        """Returns the answer, and the descriptors to send with it."""
        state, resources = self._state(ready=ready), self._resources
        if asked == STATE:
            return _Answer(state), ()
        if asked == TRACE:
            fd = resources.memories.get(TRACE.decode())
            return (_Answer(state), ()) if fd is None else (_Answer(state, names=("trace",)), [fd])
        if asked != TAKE_OVER:
            return None, ()
        refusal = self._refusal(busy=busy, ready=ready)
        if refusal is not None:
            return _Answer(state, refusal), ()
        names, fds = zip(*resources.named_fds(), strict=True)
        return _Answer(state, None, resources.handover_state(), names), fds

    def _refusal(self, *, busy: bool, ready: bool) -> Failure | None:
        """Returns the reason why the mount is not handed over now; None if it is."""
        if not self._resources.session.resend:
            return Failure("Unavailable", "the kernel cannot hand this mount over (before Linux "
                           "6.9): unmount it and mount it again")  # fmt: skip
        if not ready:
            return Failure("InUse", "the mount is still being made")
        if busy:
            return Failure("InUse", "another take-over of this mount is under way")
        return None

    def _state(self, *, ready: bool) -> State:
        traffic = self._traffic() if self._traffic is not None else None
        proxy = self._resources.job.options.proxy
        return State(os.getpid(), self._supervised, traffic, ready, proxy)


class Taken(msgspec.Struct, frozen=True):
    """A message that arrived over the socket, and the process that sent it."""

    resources: MountResources
    giver: State
    connection: socket.socket
    lock: int

    def unlock(self) -> None:
        """Lets the next take-over begin."""
        os.close(self.lock)

    def confirm(self) -> None:
        """Says that all of it works. The former supervisor then ends, and is awaited."""
        with self.connection as giver:
            giver.settimeout(LEAVE_TIMEOUT_S)
            with contextlib.suppress(OSError):
                giver.send(TAKEN)
                giver.recv(1)


def state_of(
    place: control_socket.Place, timeout_s: float = control_socket.CONNECT_TIMEOUT_S
) -> State:
    """Returns the state of a mount. Raises: Unavailable if no process answers in time."""
    with control_socket.connect(place, timeout_s) as client:
        return _ask(client, STATE, place)[0].state


def trace(place: control_socket.Place) -> int:
    """Returns the memory file of mount.shm.request_trace, which the caller closes. Raises:
    Unavailable, Denied (another user's mount)."""
    with control_socket.connect(place) as client:
        _, fds = _ask(client, TRACE, place, fds_max=1)
    if not fds:
        raise Unavailable("the mount keeps no trace: unmount it, and mount it again")
    return fds[0]


def take(place: control_socket.Place) -> Taken:
    """Asks for a mount; the giver continues to serve until ``confirm``.

    Raises: Unavailable, InUse (a take-over is under way), Denied (another user's), UnknownFormat.
    """
    lock, fds = place.lock(), list[int]()
    client: socket.socket | None = None
    try:
        client = control_socket.connect(place)
        answer, fds = _ask(client, TAKE_OVER, place, fds_max=FDS_MAX)
        resources = resources_of(answer.handover_state, zip(answer.names, fds, strict=True), place)
    except BaseException:
        rpc.close_all([lock, *fds])
        if client is not None:
            client.close()
        raise
    return Taken(resources, answer.state, client, lock)


def _ask(
    client: socket.socket, what: bytes, place: control_socket.Place, fds_max: int = 0
) -> tuple[_Answer, list[int]]:
    try:
        if peer_of(client).uid != os.geteuid():
            raise Denied(f"{place.path}: its mount belongs to another user")
        return rpc.ask(client, what, _Answer, fds_max=fds_max)
    except OSError as error:
        raise Unavailable(
            f"{place.path}: the mount's process does not answer ({error.strerror or error}); if it "
            "hangs, kill it and then take over"
        ) from error
    except UnknownFormat as error:
        raise UnknownFormat(f"{place.path}: {error}") from error
