"""A plugin over mounts in memory, whose process can die and start again, and a dockerd for it."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from lodefs.chunkstore.protocol.figures.component_counts import ComponentCounts
from lodefs.chunkstore.system import sockets
from lodefs.mount.docker.http_server import Limits, Server
from lodefs.mount.docker.plugin import answering
from lodefs.mount.docker.upkeep import Upkeep
from lodefs.mount.docker.volume_files import Records
from lodefs.mount.docker.volumes import Volumes
from lodefs.mount.helper.deadline_calls import Calls
from lodefs.mount.helper.interface import NodeMounts
from lodefs.mount.helper.tokens import read_token
from lodefs.mount.service.machine_clock import Clock
from lodefs.mount.service.mount_files import MountFiles
from lodefs.mount.service.shared_mounts import SharedMounts
from lodefs.mount.service.upkeep import MountUpkeep
from lodefs.mount.volumes.changes import VolumeWriter
from tests.support.docker.memory_mounts import Gate, MemoryMounts, Repo

WAIT_S = 60.0
LATE_S = 0.05
OLD, NEW = "c1" * 32, "c2" * 32
DIRECTORIES = frozenset({b"", b"train"})


def memory_mounts() -> MemoryMounts:
    """A node with repositories ``vision/cats`` (branch main, tag v1) and ``secret``."""
    return MemoryMounts(
        {
            "vision/cats": Repo({"main": OLD, "v1": OLD}, DIRECTORIES),
            "secret": Repo({"main": OLD}, token="right-token"),
        }
    )


def split_url(url: str) -> tuple[str, str]:
    """``s3://BUCKET/REPO``."""
    store, _, repo = url.rpartition("/")
    return store, repo


class Hands:
    """A clock that a test sets."""

    def __init__(self) -> None:
        self.now_s = 1_700_000_000.0
        self.uptime_s = 1000.0
        self.boot = "boot-1"

    def forward(self, seconds: float) -> None:
        """Let time pass."""
        self.now_s += seconds
        self.uptime_s += seconds

    def reboot(self) -> None:
        """Another start of the machine."""
        self.boot += "+"
        self.uptime_s = 10.0

    def clock(self) -> Clock:
        """As the plugin reads it."""
        return Clock(lambda: self.now_s, lambda: self.uptime_s)


class GatedCalls(Calls):
    """Work whose callers begin to wait when it has reached ``gate``, if that is set: a test that
    makes them late does not depend on how soon a thread starts."""

    gate: Gate | None = None

    def _join(self, *arguments: Any, **more: Any) -> Any:
        call = super()._join(*arguments, **more)
        assert self.gate is None or self.gate.reached.wait(WAIT_S)
        return call


class TellingVolumes(Volumes):
    """Volumes whose last call has reached ``told`` when it has said what it waits for."""

    told = Gate()

    def _answer(self, call: Any, what: Any, work: Any, *late: Any) -> Any:
        self.told.reached.clear()

        def telling(say: Callable[[str], None]) -> Any:
            return work(lambda why: (say(why), self.told.reached.set()))

        return super()._answer(call, what, telling, *late)


class Rig:
    """A plugin and the mount service in it, without a server. Rounds of upkeep are made by hand."""

    def __init__(
        self,
        state: Path,
        node: NodeMounts,
        hands: Hands | None = None,
        *,
        answer_timeout_s: float = WAIT_S,
        records: Records | None = None,
        files: MountFiles | None = None,
    ) -> None:
        self.state = state
        self.hands = hands or Hands()
        self.node = node
        self.records = records or Records(state)
        self.files = files or mount_files(state)
        clock = self.hands.clock()
        self.service = SharedMounts(self.files, node, boot=self.hands.boot, clock=clock)
        self.calls, self.chores = GatedCalls(), Calls()
        self.service_upkeep = MountUpkeep(self.service, self.chores, threading.Event())
        self.volumes = TellingVolumes(
            self.records,
            self.service,
            self.calls,
            split_url=split_url,
            read_token=lambda source: read_token(source, {}, lambda _line: None),
            now_s=clock.now_s,
            answer_timeout_s=answer_timeout_s,
        )
        self.upkeep = Upkeep(self.volumes, self.service, self.chores, clock.now_s)

    def write_with(self, writer: VolumeWriter) -> None:
        """Volumes may take changes from now on."""
        self.volumes._openings = self.volumes.openings_of(writer)

    @contextmanager
    def late_at(self, gate: Gate | None = None) -> Iterator[None]:
        """Inside the block a caller's time is over soon after his work has reached the gate."""
        answer_timeout_s, self.volumes._answer_timeout_s = self.volumes._answer_timeout_s, LATE_S
        self.calls.gate = gate
        try:
            yield
        finally:
            self.volumes._answer_timeout_s = answer_timeout_s
            self.calls.gate = None

    def round(self, times: int = 1) -> None:
        """Look and do, to the end."""
        for _ in range(times):
            for upkeep in (self.upkeep, self.service_upkeep):
                upkeep.round()
                assert self.chores.wait_idle(WAIT_S)

    def settle(self) -> None:
        """Enough rounds, and time between them, for everything to be as it should be."""
        for _ in range(4):
            self.round()
            self.hands.forward(20)

    def place(self, name: str) -> str:
        """Where the only mount is, or where a volume is mounted."""
        [*places] = [slot.place for slot in self.service.slots()]
        return places[0] if len(places) == 1 else self.volumes.path(name)

    def references(self, name: str = "a") -> int:
        """How many mounts dockerd has not taken back."""
        return self.volumes.get(name).held.references

    def close(self) -> None:
        """The process ends."""
        self.records.close()
        self.files.close()


def mount_files(state: Path) -> MountFiles:
    """The files of the mount service in a plugin."""
    return MountFiles(state / "mounter", state.with_name("run"), state / "mounts")


class Dockerd:
    """Speaks to a plugin's socket as dockerd does. ``server``, if it is of this process."""

    def __init__(self, path: Path, server: Server | None = None) -> None:
        self._path = path
        self._server = server

    @property
    def busy_connections(self) -> int:
        """Those that are at a request."""
        assert self._server is not None
        return len(self._server._open) - len(self._server._idle)

    def connect(self) -> socket.socket:
        """A new connection."""
        connection = socket.socket(socket.AF_UNIX)
        connection.settimeout(WAIT_S)
        connection.connect(str(self._path))
        return connection

    def call(self, method: str, **fields: Any) -> dict[str, Any]:
        """The answer to a call on a connection of its own."""
        status, answer = self.post(f"/{method}", json.dumps(fields).encode())
        assert status == 200, answer
        return answer

    def post(self, path: str, body: bytes, *headers: str) -> tuple[int, dict[str, Any]]:
        """Status and answer of one POST."""
        with self.connect() as connection:
            return self.ask(connection, request(path, body, *headers))

    def ask(self, connection: socket.socket, data: bytes) -> tuple[int, dict[str, Any]]:
        """Send bytes, and read one answer; what does not fit into the socket is sent no more."""
        with suppress(OSError):
            connection.sendall(data)
        return answer_of(connection)


def request(path: str, body: bytes, *headers: str) -> bytes:
    """The bytes of a POST, as Go's client writes them; more headers may be given."""
    lines = [
        f"POST {path} HTTP/1.1",
        "Host: plugin.moby.localhost",
        "User-Agent: Go-http-client/1.1",
        f"Content-Length: {len(body)}",
        "Accept: application/vnd.docker.plugins.v1.2+json",
        *headers,
    ]
    return "\r\n".join([*lines, "", ""]).encode() + body


def answer_of(connection: socket.socket) -> tuple[int, dict[str, Any]]:
    """Status and JSON of the next answer."""
    data = b""
    while b"\r\n\r\n" not in data:
        data += _more(connection)
    head, _, body = data.partition(b"\r\n\r\n")
    lines = head.decode().split("\r\n")
    headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in lines)}
    while len(body) < int(headers["content-length"]):
        body += _more(connection)
    answer = json.loads(body)
    assert isinstance(answer, dict)
    return int(lines[0].split()[1]), answer


def _more(connection: socket.socket) -> bytes:
    data = connection.recv(65536)
    assert data, "the connection ended without an answer"
    return data


@contextmanager
def served(
    rig: Rig, path: Path, limits: Limits | None = None, counts: ComponentCounts | None = None
) -> Iterator[Dockerd]:
    """The rig's volumes behind a socket."""
    with sockets.listen_unix(path, mode=0o600) as listener:
        server = Server(listener, answering(rig.volumes, counts), limits)
        server.start()
        try:
            yield Dockerd(path, server)
        finally:
            server.stop(WAIT_S)
