"""HTTP as dockerd speaks it, and as others might: every answer is JSON, and comes in time."""

from __future__ import annotations

import json
import logging
import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from lodefs.chunkstore.errors import Unavailable
from lodefs.chunkstore.protocol.figures.component_counts import ComponentCounts
from lodefs.mount.docker import http_server
from lodefs.mount.docker.http_server import Limits
from lodefs.mount.docker.status import by_state
from lodefs.mount.docker.volume_files import Damaged
from lodefs.mount.helper.interface import Traffic
from lodefs.mount.volumes.changes import key_of
from tests.support.docker.memory_mounts import MemoryMounts
from tests.support.docker.rig import OLD, Dockerd, Rig, answer_of, request, served

CATS = {"repo": "vision/cats"}
SECRET = "hunter2-0123456789"
METHODS = [
    "Plugin.Activate",
    "VolumeDriver.Capabilities",
    "VolumeDriver.Create",
    "VolumeDriver.Remove",
    "VolumeDriver.Mount",
    "VolumeDriver.Unmount",
    "VolumeDriver.Path",
    "VolumeDriver.Get",
    "VolumeDriver.List",
]


@pytest.fixture
def dockerd(rig: Rig, tmp_path: Path) -> Iterator[Dockerd]:
    with served(rig, tmp_path / "s.sock") as made:
        yield made


def test_handshake(dockerd: Dockerd) -> None:
    """The plugin is a volume driver of this machine. dockerd sends no body here."""
    assert dockerd.post("/Plugin.Activate", b"") == (200, {"Implements": ["VolumeDriver"]})
    assert dockerd.post("/VolumeDriver.Capabilities", b"{}") == (
        200,
        {"Capabilities": {"Scope": "local"}},
    )


def test_calls_count(rig: Rig, tmp_path: Path) -> None:
    """Each call of a method counts once, with its error, also one that is malformed; other paths
    do not. Volumes have the state that they are in."""
    counts = ComponentCounts("docker")
    with served(rig, tmp_path / "s.sock", counts=counts) as dockerd:
        assert "Err" in dockerd.call("VolumeDriver.Get", Name="a")
        for name in ("a", "b", "c"):
            dockerd.call("VolumeDriver.Create", Name=name, Opts=CATS)
        for name in ("a", "b"):
            dockerd.call("VolumeDriver.Mount", Name=name, ID="1")
        assert dockerd.post("/VolumeDriver.Mount", b"[")[0] == 400
        assert dockerd.post("/VolumeDriver.Nothing", b"{}")[0] == 404
    found = counts.figures({}).calls
    assert found["Get"].errors == {"NotFound": 1}
    assert (found["Create"].count, found["Create"].errors) == (3, {})
    assert (found["Mount"].count, found["Mount"].errors) == (3, {"InvalidInput": 1})
    assert set(found) == {"Get", "Create", "Mount"}
    rig.round()
    found_states = {"mounted": 2, "unmounted": 1, "dead": 0, "damaged": 0}
    assert by_state(rig.volumes.list()) == found_states
    [shown] = [one for one in rig.volumes.list() if one.record.name == "b"]
    dead = msgspec.structs.replace(shown, held=msgspec.structs.replace(shown.held, is_dead=True))
    damaged = msgspec.structs.replace(shown, record=Damaged("b", "b", "rubbish"))
    assert by_state([dead, damaged]) == dict.fromkeys(found_states, 0) | {"dead": 1, "damaged": 1}


def test_a_life(dockerd: Dockerd, rig: Rig, memory: MemoryMounts) -> None:
    """All calls of a volume's life, as dockerd makes them."""
    assert dockerd.call("VolumeDriver.Create", Name="a", Opts=CATS) == {}
    assert dockerd.call("VolumeDriver.Path", Name="a") == {"Mountpoint": ""}
    mounted = dockerd.call("VolumeDriver.Mount", Name="a", ID="5f" * 32)
    place = rig.place("a")
    assert mounted == {"Mountpoint": place}
    assert dockerd.call("VolumeDriver.Path", Name="a") == {"Mountpoint": place}
    [listed] = dockerd.call("VolumeDriver.List")["Volumes"]
    assert listed == {"Name": "a", "Mountpoint": place, "CreatedAt": "2023-11-14T22:13:20Z"}
    assert dockerd.call("VolumeDriver.Unmount", Name="a", ID="5f" * 32) == {}
    assert dockerd.call("VolumeDriver.Remove", Name="a") == {}
    assert dockerd.call("VolumeDriver.List") == {"Volumes": []}


def test_what_inspect_shows(dockerd: Dockerd, rig: Rig, memory: MemoryMounts) -> None:
    """Status says what the volume is, whether it is mounted, and where its bytes came from."""
    options = CATS | {"path": "train", "follow": "1h", "cache_pin": "true", "store": "s3://b"}
    dockerd.call("VolumeDriver.Create", Name="a", Opts=options)
    rig.round()
    status = {
        "repo": "vision/cats",
        "asked_for": "main",
        "commit": OLD,
        "files": 3,
        "size_bytes": 3000,
        "references": 0,
        "store": "s3://b",
        "path": "train",
        "follow_s": 3600,
        "looked_at": "2023-11-14T22:13:20Z",
        "pinned_until": "2023-11-15T22:13:20Z",
        "state": "not mounted",
    }
    assert dockerd.call("VolumeDriver.Get", Name="a")["Volume"]["Status"] == status
    dockerd.call("VolumeDriver.Mount", Name="a", ID="one")
    memory.mounts[rig.place("a")].traffic = None
    shown = dockerd.call("VolumeDriver.Get", Name="a")["Volume"]["Status"]
    assert "read" not in shown  # zeros would be a lie
    memory.mounts[rig.place("a")].traffic = Traffic(1, 2, 3, 4)
    read = {"cache_bytes": 1, "peers_bytes": 2, "store_bytes": 3, "kernel_opens": 4}
    shown = dockerd.call("VolumeDriver.Get", Name="a")["Volume"]["Status"]
    assert shown == status | {"state": "mounted", "references": 1, "read": read}
    memory.mounts[rig.place("a")].traffic = None
    again = dockerd.call("VolumeDriver.Get", Name="a")["Volume"]["Status"]
    assert again == shown  # the counts that were seen last
    memory.kill(rig.place("a"))
    memory.fail("mount", RuntimeError("not now"))
    rig.round()
    shown = dockerd.call("VolumeDriver.Get", Name="a")["Volume"]["Status"]
    assert shown["state"] == "dead"


def test_a_damaged_volume_is_shown(dockerd: Dockerd, rig: Rig, tmp_path: Path) -> None:
    """dockerd hears of it, with the reason: an error would mean to it that there is none."""
    dockerd.call("VolumeDriver.Create", Name="a", Opts=CATS)
    (tmp_path / "state" / "volumes" / f"{key_of('a')}.json").write_bytes(b"{")
    rig.close()
    other = Rig(tmp_path / "state", rig.node)
    with served(other, tmp_path / "t.sock") as again:
        volume = again.call("VolumeDriver.Get", Name="a")["Volume"]
        assert volume["Status"]["state"].startswith("damaged: ")
        assert volume["Name"] == "a"
        assert "damaged" in again.call("VolumeDriver.Mount", Name="a", ID="one")["Err"]
        assert again.call("VolumeDriver.Remove", Name="a") == {}
    other.close()


def test_errors_of_volumes(dockerd: Dockerd) -> None:
    """One sentence that says what is wrong, in the field that dockerd reads."""
    dockerd.call("VolumeDriver.Create", Name="a", Opts=CATS)
    cases: list[tuple[str, dict[str, Any], str]] = [
        ("Create", {"Name": "b"}, "option repo is missing"),
        ("Create", {"Name": "b", "Opts": None}, "option repo is missing"),
        ("Create", {"Name": "b", "Opts": {"repo": "no/such"}}, "no repository no/such"),
        ("Create", {"Name": "b", "Opts": CATS | {"commit": "v9"}}, "no revision v9"),
        ("Create", {"Name": "a", "Opts": CATS | {"commit": "v1"}}, "other options"),
        ("Create", {"Name": "", "Opts": CATS}, "1 to 255 bytes"),
        ("Create", {"Name": "n" * 256, "Opts": CATS}, "1 to 255 bytes"),
        ("Mount", {"Name": "b", "ID": "one"}, "no volume 'b'"),
        ("Mount", {"Name": "a", "ID": ""}, "ID must be"),
        ("Unmount", {"Name": "b", "ID": "one"}, "no volume 'b'"),
        ("Remove", {"Name": "b"}, "no volume 'b'"),
        ("Get", {"Name": "b"}, "no volume 'b'"),
        ("Path", {"Name": "b"}, "no volume 'b'"),
    ]
    for method, fields, why in cases:
        answer = dockerd.call(f"VolumeDriver.{method}", **fields)
        assert list(answer) == ["Err"]
        assert why in answer["Err"]
        assert "\n" not in answer["Err"]


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"[]",
        b"null",
        b"\xff\xfe",
        b'{"Name":1,"ID":"x"}',
        b'{"Name":"a"}{"Name":"a"}',
        b'{"ID":"x"}',
        b'{"Name":"\\ud800","ID":"x","Opts":{}}',
        b"[" * 10_000,
        b'{"x":' + b"[" * 10_000,
    ],
)
def test_malformed_json(dockerd: Dockerd, body: bytes) -> None:
    """What is no request is refused, and the connection can go on."""
    with dockerd.connect() as connection:
        status, answer = dockerd.ask(connection, request("/VolumeDriver.Mount", body))
        assert status in (200, 400)
        assert answer["Err"]
        again = dockerd.ask(connection, request("/VolumeDriver.List", b"{}"))
        assert again == (200, {"Volumes": []})


def test_an_empty_body_is_explained(dockerd: Dockerd) -> None:
    """dockerd's own second try after a broken connection has none. The answer leaves the method's
    name to dockerd, which puts it in front."""
    status, answer = dockerd.post("/VolumeDriver.Mount", b"")
    assert status == 400
    assert answer["Err"].startswith("the request has no body, since its first try was interrupted")


@pytest.mark.parametrize(
    ("kind", "status"),
    [
        ("application/json", 200),
        ("application/JSON; charset=utf-8", 200),
        ("application/vnd.docker.plugins.v1.2+json", 200),
        ("application/x-www-form-urlencoded", 415),
        ("text/plain", 415),
        ("multipart/form-data; boundary=x", 415),
    ],
)
def test_content_types(dockerd: Dockerd, kind: str, status: int) -> None:
    """JSON under any of its names; another type is refused, as JSON."""
    found, answer = dockerd.post("/VolumeDriver.List", b"{}", f"Content-Type: {kind}")
    assert found == status
    assert ("Err" in answer) == (status != 200)


def test_a_body_of_100_mb(dockerd: Dockerd) -> None:
    """It is refused without being kept, whoever sends it whole or asks before."""
    size_bytes = 100_000_000
    piece = b" " * 1_000_000
    head = request("/VolumeDriver.Create", b"").replace(
        b"Content-Length: 0", b"Content-Length: %d" % size_bytes
    )
    with dockerd.connect() as connection:
        connection.sendall(head)
        for _ in range(size_bytes // len(piece)):
            connection.sendall(piece)
        status, answer = answer_of(connection)
    assert status == 413
    assert "1048576 bytes" in answer["Err"]
    asking = head.replace(b"\r\n\r\n", b"\r\nExpect: 100-continue\r\n\r\n")
    with dockerd.connect() as connection:
        assert dockerd.ask(connection, asking)[0] == 413


def test_a_body_that_is_asked_for(dockerd: Dockerd) -> None:
    """Whoever waits for a word before sending gets it."""
    whole = request("/VolumeDriver.List", b"{}", "Expect: 100-continue")
    with dockerd.connect() as connection:
        connection.sendall(whole[:-2])
        assert connection.recv(1000).startswith(b"HTTP/1.1 100")
        assert dockerd.ask(connection, b"{}") == (200, {"Volumes": []})


@pytest.mark.parametrize(
    ("data", "status"),
    [
        (b"GET /VolumeDriver.List HTTP/1.1\r\nHost: x\r\n\r\n", 405),
        (b"PUT /VolumeDriver.List HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\n\r\n", 405),
        (request("/VolumeDriver.Explode", b"{}"), 404),
        (request("/", b"{}"), 404),
        (request("/VolumeDriver.List?x=1", b"{}"), 404),
        (b"POST /VolumeDriver.List HTTP/1.1\r\nContent-Length: -1\r\n\r\n", 400),
        (b"POST /VolumeDriver.List HTTP/1.1\r\nContent-Length: x\r\n\r\n", 400),
        (b"POST / HTTP/1.1\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n", 400),
        (b"POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n", 411),
        (b"POST / HTTP/9.9\r\n\r\n", 505),
        (b"NONSENSE\r\n\r\n", 400),
        (b"\x16\x03\x01 / HTTP/1.1\r\n\r\n", 405),
        (b"POST /" + b"x" * 70_000 + b" HTTP/1.1\r\n\r\n", 414),
        (b"POST / HTTP/1.1\r\n" + b"X: y\r\n" * 200 + b"\r\n", 431),
        (b"POST / HTTP/1.1\r\nX: " + b"y" * 70_000 + b"\r\n\r\n", 431),
    ],
)
def test_what_is_no_call(dockerd: Dockerd, data: bytes, status: int) -> None:
    """Every refusal has its status and an ``Err``."""
    with dockerd.connect() as connection:
        found, answer = dockerd.ask(connection, data)
    assert found == status
    assert answer["Err"]


def test_a_connection_stays(dockerd: Dockerd) -> None:
    """Many calls on one connection, also in one piece."""
    with dockerd.connect() as connection:
        for _ in range(20):
            assert dockerd.ask(connection, request("/VolumeDriver.List", b"{}"))[0] == 200
        two = request("/VolumeDriver.List", b"{}") + request("/Plugin.Activate", b"")
        connection.sendall(two)
        data = b""
        while data.count(b"HTTP/1.1 200") < 2 or not data.endswith(b"}"):
            data += connection.recv(65536)


def test_a_fault_of_ours_is_an_answer(dockerd: Dockerd, memory: MemoryMounts) -> None:
    """An exception that nobody foresaw is told by its kind alone."""
    memory.fail("resolve", RuntimeError(SECRET))
    status, answer = dockerd.post(
        "/VolumeDriver.Create", json.dumps({"Name": "a", "Opts": CATS}).encode()
    )
    assert status == 500
    assert "RuntimeError" in answer["Err"]
    assert SECRET not in answer["Err"]


class TestLimits:
    """A server with small limits."""

    @pytest.fixture
    def dockerd(self, rig: Rig, tmp_path: Path) -> Iterator[Dockerd]:
        with served(rig, tmp_path / "s.sock", Limits(request_timeout_s=0.2)) as made:
            yield made

    @pytest.mark.parametrize("keep", [10, 60, -1])
    def test_half_a_request(self, dockerd: Dockerd, keep: int) -> None:
        """A head or a body that does not come ends its connection."""
        with dockerd.connect() as connection:
            connection.sendall(request("/VolumeDriver.List", b"{}")[:keep])
            while connection.recv(65536):
                pass

    def test_a_request_that_trickles(self, dockerd: Dockerd) -> None:
        """Every byte in time does not make a request that is."""
        ended = threading.Event()
        with dockerd.connect() as connection:

            def trickle() -> None:
                try:
                    while not ended.wait(0.02):
                        connection.sendall(b"P")
                except OSError:
                    ended.set()

            sender = threading.Thread(target=trickle, daemon=True)
            sender.start()
            try:
                while connection.recv(65536):
                    pass
            except ConnectionError:
                pass
            ended.set()
            sender.join(60)

    def test_an_idle_connection_ends(self, rig: Rig, tmp_path: Path) -> None:
        """One that asks nothing for long."""
        with (
            served(rig, tmp_path / "idle.sock", Limits(idle_timeout_s=1.0)) as dockerd,
            dockerd.connect() as connection,
        ):
            connection.sendall(request("/VolumeDriver.List", b"{}"))
            assert connection.recv(4096).startswith(b"HTTP/1.1 200 ")
            while connection.recv(4096):  # the rest, and then the end
                pass

    def test_a_client_more_takes_the_place_of_an_idle_one(self, rig: Rig, tmp_path: Path) -> None:
        """Where all connections are taken, the one that is idle for longest ends."""
        with (
            served(rig, tmp_path / "two.sock", Limits(connections_max=2)) as dockerd,
            dockerd.connect() as one,
            dockerd.connect() as two,
        ):
            for connection in (one, two):
                assert dockerd.ask(connection, request("/VolumeDriver.List", b"{}"))[0] == 200
                until(lambda: dockerd.busy_connections == 0)
            with dockerd.connect() as three:
                assert dockerd.ask(three, request("/VolumeDriver.List", b"{}"))[0] == 200
                assert one.recv(1) == b""
                assert dockerd.ask(two, request("/VolumeDriver.List", b"{}"))[0] == 200

    def test_a_client_more_waits_for_busy_ones(
        self, rig: Rig, memory: MemoryMounts, tmp_path: Path
    ) -> None:
        """Where all connections are taken and none is idle, one more is not refused: it is answered
        when one of them ends."""
        rig.volumes.create("a", CATS)
        mount = request("/VolumeDriver.Mount", b'{"Name":"a","ID":"one"}', "Connection: close")
        with (
            served(rig, tmp_path / "two.sock", Limits(connections_max=2)) as dockerd,
            dockerd.connect() as one,
            dockerd.connect() as two,
        ):
            with memory.hold("mount") as gate:
                for connection in (one, two):
                    connection.sendall(mount)
                assert gate.reached.wait(60)
                until(lambda: dockerd.busy_connections == 2)
                three = dockerd.connect()
                three.sendall(request("/VolumeDriver.List", b"{}"))
            for connection in (one, two, three):
                assert answer_of(connection)[0] == 200
            three.close()


def test_a_mount_whose_client_has_gone_leaves_no_reference(
    dockerd: Dockerd, rig: Rig, memory: MemoryMounts
) -> None:
    """A client that disconnects while its Mount is under way will never unmount: nothing counts."""
    rig.volumes.create("a", CATS)
    with memory.hold("mount") as gate, dockerd.connect() as gone:
        gone.sendall(request("/VolumeDriver.Mount", b'{"Name":"a","ID":"one"}'))
        assert gate.reached.wait(60)
    until(lambda: references(rig) == 0 and memory.calls["mount"] == 1 and is_mounted(rig))


def test_a_mount_whose_answer_nobody_read_leaves_no_reference(dockerd: Dockerd, rig: Rig) -> None:
    """A client that disconnects with the answer to its Mount unread: nothing counts. One that read
    it and goes has its reference."""
    rig.volumes.create("a", CATS)
    mount = request("/VolumeDriver.Mount", b'{"Name":"a","ID":"one"}')
    with dockerd.connect() as heard:
        assert dockerd.ask(heard, mount)[0] == 200
    assert references(rig) == 1
    with dockerd.connect() as gone:
        gone.sendall(mount)
        assert gone.recv(1, socket.MSG_PEEK)
        assert references(rig) == 2
    until(lambda: references(rig) == 1)


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A client that is slow to read, as on a busy machine, is no client that does not read."""
    monkeypatch.setattr(http_server, "_READ_TIMEOUT_S", 60.0)


MOUNT = request("/VolumeDriver.Mount", b'{"Name":"a","ID":"one"}')
CLOSING = request("/VolumeDriver.Mount", b'{"Name":"a","ID":"one"}', "Connection: close")


@pytest.mark.parametrize(("ask", "is_half"), [(MOUNT, True), (CLOSING, True), (CLOSING, False)])
@pytest.mark.parametrize("read_bytes", [0, 20])
def test_a_client_that_ended_its_side_and_did_not_read_leaves_no_reference(
    dockerd: Dockerd, rig: Rig, patient: None, ask: bytes, is_half: bool, read_bytes: int
) -> None:
    """A client that says that it sends no more, and closes when the answer has come without having
    read it, or after a part: nothing counts."""
    rig.volumes.create("a", CATS)
    with dockerd.connect() as gone:
        gone.sendall(ask)
        if is_half:
            gone.shutdown(socket.SHUT_WR)
        assert gone.recv(1, socket.MSG_PEEK)
        assert references(rig) == 1
        if read_bytes:
            assert len(gone.recv(read_bytes)) == read_bytes
    until(lambda: references(rig) == 0)


@pytest.mark.parametrize("ask", [MOUNT, CLOSING])
def test_a_client_that_ended_its_side_and_reads_keeps_its_reference(
    dockerd: Dockerd, rig: Rig, memory: MemoryMounts, patient: None, ask: bytes
) -> None:
    """The end of what a client sends is not its end: it reads its answer, sees the connection end,
    and its mount counts."""
    rig.volumes.create("a", CATS)
    with dockerd.connect() as half:
        with memory.hold("mount") as gate:
            half.sendall(ask)
            half.shutdown(socket.SHUT_WR)
            assert gate.reached.wait(60)
        assert answer_of(half)[0] == 200
        assert half.recv(1) == b""
    until(lambda: not [t for t in threading.enumerate() if t.name == "lodefs-connection"])
    assert rig.calls.wait_idle(60)
    assert references(rig) == 1


def test_a_client_that_ended_its_side_and_stays_leaves_no_reference(
    dockerd: Dockerd, rig: Rig
) -> None:
    """One that neither reads nor goes is waited for a while; then it has its reference no more."""
    rig.volumes.create("a", CATS)
    with dockerd.connect() as half:
        half.sendall(MOUNT)
        half.shutdown(socket.SHUT_WR)
        assert half.recv(1, socket.MSG_PEEK)
        until(lambda: references(rig) == 0)


def references(rig: Rig) -> int:
    """Of the volume "a"."""
    return rig.references()


def is_mounted(rig: Rig) -> bool:
    """Whether the volume "a" is, and nothing is under way any more."""
    return bool(rig.service.slots()) and rig.calls.wait_idle(0)


def until(holds: Callable[[], bool]) -> None:
    """Returns when something holds; AssertionError after a minute."""
    ends_s, pause = time.monotonic() + 60, threading.Event()
    while not holds():
        assert time.monotonic() < ends_s
        pause.wait(0.005)


def test_the_end(rig: Rig, memory: MemoryMounts, tmp_path: Path) -> None:
    """What was asked before the end is answered; idle connections are closed."""
    answers: list[tuple[int, dict[str, Any]]] = []
    rig.volumes.create("a", CATS)
    with served(rig, tmp_path / "s.sock") as dockerd:
        idle = dockerd.connect()
        assert dockerd.ask(idle, request("/VolumeDriver.List", b"{}"))[0] == 200
        with memory.hold("mount") as gate:
            body = json.dumps({"Name": "a", "ID": "one"}).encode()
            asker = threading.Thread(
                target=lambda: answers.append(dockerd.post("/VolumeDriver.Mount", body))
            )
            asker.start()
            assert gate.reached.wait(60)
    asker.join(60)
    assert answers == [(200, {"Mountpoint": rig.place("a")})]
    assert idle.recv(1) == b""
    idle.close()
    with socket.socket(socket.AF_UNIX) as late, pytest.raises(OSError):
        late.connect(str(tmp_path / "s.sock"))


def test_secrets_are_nowhere(
    dockerd: Dockerd, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """What people put where secrets do not belong is in no answer, log or file; a token's file is
    read, and its content kept nowhere."""
    caplog.set_level(logging.DEBUG)
    (tmp_path / "token").write_text("right-token")
    given = [
        CATS | {"pat": SECRET, "username": SECRET},
        CATS | {"password": SECRET, "api_key": SECRET},
        {"repo": f"https://u:{SECRET}@xethub.com/u/r"},
        CATS | {"token_file": SECRET},
        {"repo": "secret", "token_file": str(tmp_path / "token")},
    ]
    answers = [dockerd.call("VolumeDriver.Create", Name="a", Opts=options) for options in given]
    assert answers[4] == {}
    dockerd.call("VolumeDriver.Mount", Name="a", ID="one")
    answers += [
        dockerd.post("/VolumeDriver.Create", b'{"Opts":{"pat":"%s"' % SECRET.encode())[1],
        dockerd.post("/VolumeDriver.Create", SECRET.encode())[1],
        dockerd.call("VolumeDriver.Get", Name="a"),
        dockerd.call("VolumeDriver.List"),
    ]
    state = b"".join(
        path.read_bytes() for path in (tmp_path / "state").rglob("*") if path.is_file()
    )
    for secret in (SECRET, "right-token"):
        assert secret not in json.dumps(answers)
        assert secret not in caplog.text
        assert secret.encode() not in state


def test_lines_about_a_volume(
    dockerd: Dockerd, rig: Rig, memory: MemoryMounts, caplog: pytest.LogCaptureFixture
) -> None:
    """They carry its name as a field of its own; those about its mount name that."""
    caplog.set_level(logging.DEBUG)
    dockerd.call("VolumeDriver.Create", Name="a", Opts=CATS)
    dockerd.call("VolumeDriver.Create", Name="b", Opts={"repo": "none"})
    dockerd.call("VolumeDriver.Mount", Name="a", ID="one")
    place = rig.place("a")
    memory.kill(place)
    memory.fail("mount", Unavailable("busy"))
    rig.round(2)
    dockerd.call("VolumeDriver.List")
    lines = [(getattr(r, "volume", ""), r.getMessage()) for r in caplog.records]
    for name, beginning in (
        ("a", "created volume a"),
        ("b", "VolumeDriver.Create: there is no repository none"),
        ("a", "VolumeDriver.Mount took"),
        ("", f"MountAgain of {Path(place).name}"),
        ("", f"{Path(place).name} was mounted again"),
        ("", "VolumeDriver.List took"),
    ):
        assert any(n == name and line.startswith(beginning) for n, line in lines), beginning


@pytest.mark.parametrize("method", METHODS)
def test_answers_while_everything_is_stuck(
    tmp_path: Path, memory: MemoryMounts, method: str
) -> None:
    """Each call is answered while no call of the node returns."""
    rig = Rig(tmp_path / "state", memory)
    rig.volumes.create("a", CATS)
    rig.volumes.mount("a", "one")
    rig.volumes._answer_timeout_s = 0.3
    gates = [memory.hold(name) for name in ("resolve", "mount", "unmount", "standing", "traffic")]
    with served(rig, tmp_path / "s.sock") as dockerd:
        for gate in gates:
            gate.__enter__()
        fields = {"Name": "b" if "Create" in method else "a", "ID": "one", "Opts": CATS}
        status, _ = dockerd.post(f"/{method}", json.dumps(fields).encode())
        for gate in gates:
            gate.__exit__(None, None, None)
    assert status == 200
    assert rig.calls.wait_idle(60)
    rig.close()
