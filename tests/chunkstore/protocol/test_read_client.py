"""The client of the proxy, against one that misbehaves."""

from __future__ import annotations

import fcntl
import socket
import sys
import termios
from collections.abc import Callable, Iterator
from pathlib import Path
from threading import Event, Thread

import msgspec
import pytest

from lodefs.chunkstore.errors import (
    Corrupt,
    DeadlineExceeded,
    Denied,
    InvalidInput,
    LodefsError,
    NotADirectory,
    NotFound,
    TooLarge,
    Unavailable,
    UnknownFormat,
)
from lodefs.chunkstore.format.inodes import ROOT_INO, child_ino
from lodefs.chunkstore.protocol import wire
from lodefs.chunkstore.protocol.connection import Address, Connection, parse_address
from lodefs.chunkstore.protocol.read_client import UNMET_S_MAX, Client, Outage
from tests.support.mount.dict_tree import DictTree
from tests.support.mount.fake_proxy import FakeProxy, HangUpError, failure, http

TREE = DictTree({b"f": bytes(range(256)) * 5000, b"\xff\n%&?#": b"awkward", b"d": {b"x": b""}})
FILE = child_ino(ROOT_INO, b"f")
DATA = TREE.data[FILE]


class Clock:
    """Time that passes only when somebody sleeps."""

    def __init__(self) -> None:
        self.now_s = 1000.0
        self.pauses: list[float] = []
        self.on_sleep: Callable[[], None] = lambda: None

    def __call__(self) -> float:
        return self.now_s

    monotonic = __call__

    def sleep(self, seconds: float) -> None:
        self.now_s += seconds
        self.pauses.append(seconds)
        self.on_sleep()


@pytest.fixture
def proxy(tmp_path: Path) -> Iterator[FakeProxy]:
    with FakeProxy(TREE, tmp_path) as made:
        yield made


@pytest.fixture
def clients() -> Iterator[Callable[..., Client]]:
    made: list[Client] = []

    def make(proxy: FakeProxy, **more: object) -> Client:
        client = Client(parse_address(proxy.address), **{"timeout_s": 60.0, **more})  # type: ignore[arg-type]
        made.append(client)
        return client.mounted(TREE.snapshot)

    yield make
    for client in made:
        client.close()


def test_questions(proxy: FakeProxy, clients: Callable[..., Client]) -> None:
    """Snapshots, nodes, names of any bytes, pages and ranges come as the proxy has them."""
    client = clients(proxy)
    assert client.snapshot("demo", "main") == TREE.snapshot
    assert client.node(FILE) == TREE.nodes[FILE]
    assert client.lookup(ROOT_INO, b"\xff\n%&?#").size_bytes == 7
    page = client.children(ROOT_INO, b"", 2)
    assert [node.name for node in page.nodes] == [b"d", b"f"]
    assert page.more
    rest = client.children(ROOT_INO, b"f", 2)
    assert [node.name for node in rest.nodes] == [b"\xff\n%&?#"]
    assert not rest.more


@pytest.mark.parametrize(
    ("first", "size"),
    [(0, 1), (0, 65536), (100, 1 << 20), (0, 1 << 21), (len(DATA) - 1, 10), (len(DATA), 5), (7, 0)],
)
def test_ranges(proxy: FakeProxy, clients: Callable[..., Client], first: int, size: int) -> None:
    """Any range is read, cut at the end of the file, empty behind it."""
    assert bytes(clients(proxy).read(FILE, first, size)) == DATA[first : first + size]


def test_one_connection_is_kept(proxy: FakeProxy, clients: Callable[..., Client]) -> None:
    """A hundred requests travel over one connection."""
    client = clients(proxy)
    for first in range(100):
        assert bytes(client.read(FILE, first, 3)) == DATA[first : first + 3]
    assert proxy.connections == 1


def test_tcp_and_token(clients: Callable[..., Client]) -> None:
    """Over TCP a token is sent, and one that is wrong is an error that does not hold it."""
    with FakeProxy(TREE, token="right") as proxy:
        assert clients(proxy, token="right").node(FILE) == TREE.nodes[FILE]
        with pytest.raises(Denied) as caught:
            clients(proxy, token="wrong-secret").node(FILE)
        assert "secret" not in str(caught.value)


def test_missing_names(proxy: FakeProxy, clients: Callable[..., Client]) -> None:
    """What is not there is NotFound; what is no directory says so."""
    client = clients(proxy)
    with pytest.raises(NotFound):
        client.lookup(ROOT_INO, b"none")
    with pytest.raises(NotFound):
        client.node(12345)
    with pytest.raises(NotFound):
        client.snapshot("demo", "nobranch")
    with pytest.raises(NotADirectory):
        client.lookup(FILE, b"x")


def test_a_proxy_without_the_snapshot_hides_no_names(
    proxy: FakeProxy, clients: Callable[..., Client]
) -> None:
    """A 404 of a proxy that lost the snapshot says nothing of names: that would last forever."""
    client = clients(proxy)
    status, headers, body = failure(404, NotFound("no such repository"))
    proxy.hook = lambda _path: http(status, headers, len(body)) + body
    with pytest.raises(Unavailable, match="snapshot"):
        client.lookup(ROOT_INO, b"f")


@pytest.mark.parametrize("status", [429, 502, 503])
def test_later_is_tried_again(
    proxy: FakeProxy, clients: Callable[..., Client], status: int
) -> None:
    """A proxy that cannot answer now is asked again, with growing pauses."""
    clock = Clock()
    client = clients(proxy, clock=clock)
    left = 5

    def hook(_path: str) -> bytes | None:
        nonlocal left
        left -= 1
        return http(status, b"", 0) if left >= 0 else None

    proxy.hook = hook
    assert bytes(client.read(FILE, 0, 4)) == DATA[:4]
    assert clock.pauses == sorted(clock.pauses)
    assert len(clock.pauses) == 5


def test_later_ends_with_the_deadline(proxy: FakeProxy, clients: Callable[..., Client]) -> None:
    """Repeating ends when the time is up, and the reason is the proxy's."""
    clock = Clock()
    client = clients(proxy, timeout_s=7.0, clock=clock)
    status, headers, body = failure(503, Unavailable("the store is away"))
    proxy.hook = lambda _path: http(status, headers, len(body)) + body
    with pytest.raises(Unavailable, match="the store is away"):
        client.node(FILE)
    assert clock.now_s <= 1007.0


@pytest.mark.parametrize(
    ("told", "error"),
    [
        (500, Corrupt("bad bytes")),
        (502, Corrupt("bad bytes")),
        (502, TooLarge("a huge object")),
        (502, UnknownFormat("a newer lodefs is needed")),
        (504, DeadlineExceeded("too slow")),
    ],
)
def test_final_failures_are_not_repeated(
    proxy: FakeProxy, clients: Callable[..., Client], told: int, error: LodefsError
) -> None:
    """Damage, and time that ran out behind the proxy, are reported as they are, at once, with the
    statuses that the proxy has for them."""
    client = clients(proxy)
    kind = type(error)
    status, headers, body = failure(told, error)
    proxy.hook = lambda _path: http(status, headers, len(body)) + body
    with pytest.raises(kind, match=str(error)):
        client.read(FILE, 0, 10)
    assert proxy.requests == 1


SPAN = b"Content-Range: bytes 0-9/1280000\r\n"


@pytest.mark.parametrize(
    "nonsense",
    [
        b"SSH-2.0-OpenSSH_9.2\r\n\r\n",
        b"HTTP/1.1 2x6 Partial\r\nContent-Length: 10\r\n\r\n0123456789",
        b"HTTP/1.1 206 Partial\r\n" + SPAN + b"\r\n0123456789",
        b"HTTP/1.1 206 Partial\r\n" + SPAN + b"Content-Length: -1\r\n\r\n",
        b"HTTP/1.1 206 Partial\r\n" + SPAN + b"Content-Length: 99999999999\r\n\r\n",
        b"HTTP/1.1 206 Partial\r\n" + SPAN + b"Content-Length: 10\r\n\r\n0123456789more",
        b"HTTP/1.1 206 Partial\r\n" + SPAN + b"Content-Length: 10\r\n\r\n01234",
        b"HTTP/1.1 206 Partial\r\nX: " + b"y" * 20000,
        b"",
    ],
)
def test_nonsense_is_tried_again_and_never_believed(
    proxy: FakeProxy, clients: Callable[..., Client], nonsense: bytes
) -> None:
    """Half, broken and foreign answers lead to another connection, and then to the right bytes."""
    clock = Clock()
    client = clients(proxy, clock=clock)
    proxy.hang_up_after_hook = True
    proxy.hook = lambda _path: nonsense if proxy.requests < 3 else None
    assert bytes(client.read(FILE, 0, 10)) == DATA[:10]
    assert proxy.connections >= 3


@pytest.mark.parametrize(
    "wrong",
    [
        b"HTTP/1.1 206 Partial\r\nContent-Range: bytes 1-10/1280000\r\nContent-Length: 10\r\n\r\n",
        b"HTTP/1.1 206 Partial\r\nContent-Range: bytes 0-8/1280000\r\nContent-Length: 9\r\n\r\n",
        b"HTTP/1.1 206 Partial\r\nContent-Range: bytes 0-10/1280000\r\nContent-Length: 11\r\n\r\n",
        b"HTTP/1.1 206 Partial\r\nContent-Length: 10\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\n",
    ],
)
def test_another_range_is_refused(
    proxy: FakeProxy, clients: Callable[..., Client], wrong: bytes
) -> None:
    """Bytes of another place than the one asked for, or too few of them, never reach a reader."""
    length = int(wrong.partition(b"Content-Length: ")[2])
    proxy.hook = lambda _path: wrong + b"x" * length
    with pytest.raises(Unavailable):
        clients(proxy).read(FILE, 0, 10)


def test_connection_close_is_kept_to(proxy: FakeProxy, clients: Callable[..., Client]) -> None:
    """After "Connection: close" the next request opens another connection."""
    client = clients(proxy)
    head = b"HTTP/1.1 416 No\r\nConnection: close\r\nContent-Length: 0\r\n\r\n"
    proxy.hook = lambda _path: head if proxy.requests == 1 else None
    assert client.read(FILE, 0, 10) == b""
    assert bytes(client.read(FILE, 0, 10)) == DATA[:10]
    assert proxy.connections == 2


def test_proxy_started_anew(proxy: FakeProxy, clients: Callable[..., Client]) -> None:
    """A connection that died while it was idle is opened again, without a pause."""
    clock = Clock()
    client = clients(proxy, clock=clock)
    assert bytes(client.read(FILE, 0, 10)) == DATA[:10]
    proxy.stop()
    proxy.start()
    assert bytes(client.read(FILE, 5, 10)) == DATA[5:15]
    assert clock.pauses == []


def test_proxy_gone_for_a_while(proxy: FakeProxy, clients: Callable[..., Client]) -> None:
    """Requests wait for a proxy that comes back before the deadline."""
    clock = Clock()
    client = clients(proxy, clock=clock)
    proxy.stop()
    clock.on_sleep = lambda: proxy.start() if len(clock.pauses) == 4 else None
    assert bytes(client.read(FILE, 0, 10)) == DATA[:10]
    assert len(clock.pauses) == 4


def test_proxy_gone_for_longer(proxy: FakeProxy, clients: Callable[..., Client]) -> None:
    """A proxy that stays away costs readers that come one after the other one deadline in all, not
    one per request."""
    clock = Clock()
    outage = Outage()
    client = clients(proxy, timeout_s=20.0, clock=clock, outage=outage)
    proxy.stop()
    with pytest.raises(Unavailable):
        client.node(FILE)
    assert 1018.0 < clock.now_s <= 1020.0
    clock.now_s += UNMET_S_MAX - 1
    pauses = len(clock.pauses)
    for _ in range(5):
        with pytest.raises(Unavailable):
            client.node(FILE)
    assert len(clock.pauses) == pauses
    proxy.start()
    assert client.node(FILE) == TREE.nodes[FILE]
    assert outage.since_s is None


@pytest.mark.parametrize("idle_s", [UNMET_S_MAX + 1, 3600.0])
def test_a_proxy_that_is_gone_again(
    proxy: FakeProxy, clients: Callable[..., Client], idle_s: float
) -> None:
    """If nobody has read since a reader left during an outage, and the proxy is gone again, a read
    has its whole time, since the proxy may have been back."""
    clock = Clock()
    outage = Outage()
    client = clients(proxy, timeout_s=20.0, clock=clock, outage=outage)
    proxy.stop()
    clock.on_sleep = client.cancel
    with pytest.raises(Unavailable):
        client.node(FILE)
    clock.now_s += idle_s
    began_s = clock.now_s
    clock.on_sleep = lambda: proxy.start() if clock.now_s - began_s > 18 else None
    client.begin()
    assert client.node(FILE) == TREE.nodes[FILE]


def test_an_outage_begins_when_it_is_met(proxy: FakeProxy, clients: Callable[..., Client]) -> None:
    """A proxy that goes while a request has waited for long already is gone since then: the next
    request has its whole time."""
    clock = Clock()
    client = clients(proxy, timeout_s=20.0, clock=clock, outage=Outage())

    def hook(_path: str) -> bytes:
        clock.now_s += 19.95
        raise HangUpError

    proxy.hook = hook
    clock.on_sleep = proxy.stop
    with pytest.raises(Unavailable):
        client.node(FILE)
    proxy.hook = lambda _path: None
    began_s = clock.now_s
    clock.on_sleep = lambda: proxy.start() if clock.now_s - began_s > 18 else None
    assert client.node(FILE) == TREE.nodes[FILE]


def test_nobody_there_is_said_at_the_deadline_too(tmp_path: Path) -> None:
    """A last attempt that comes late, on a busy machine, still says that no proxy runs."""
    connection = Connection(Address(path=str(tmp_path / "nobody")), clock=lambda: 10.0)
    with pytest.raises(Unavailable, match="is the proxy running"):
        connection.ask(b"GET / HTTP/1.1\r\n\r\n", 9.0, lambda: None)


def test_a_silent_proxy_costs_the_deadline(
    proxy: FakeProxy, clients: Callable[..., Client]
) -> None:
    """A proxy that takes a request and says nothing is left when the time is up."""
    told = Event()
    done = Event()

    def hook(_path: str) -> bytes:
        done.wait(60)
        raise HangUpError

    proxy.hook = hook
    client = clients(proxy, timeout_s=0.05, before_blocking=told.set)
    with pytest.raises(DeadlineExceeded):
        client.read(FILE, 0, 10)
    done.set()
    assert told.is_set()


def test_slow_is_told_before_waiting(proxy: FakeProxy, clients: Callable[..., Client]) -> None:
    """Whoever leads hears that an answer takes long while it is still being waited for."""
    told = Event()

    def hook(_path: str) -> None:
        if proxy.requests > 1:
            assert told.wait(60)

    client = clients(proxy, before_blocking=told.set)
    client.node(FILE)
    told.clear()
    proxy.hook = hook
    assert bytes(client.read(FILE, 0, 10)) == DATA[:10]


def test_after_a_slow_answer_slow_is_told_at_once(
    proxy: FakeProxy, clients: Callable[..., Client]
) -> None:
    """Whoever has waited once expects it again, until an answer is quick: cold reads wait side by
    side, not one grace after the other."""
    told = Event()
    clock = Clock()

    def hook(_path: str) -> None:
        clock.now_s += 1

    client = clients(proxy, before_blocking=told.set, clock=clock)
    client.node(FILE)
    assert not client._connection._was_slow
    proxy.hook = hook
    client.node(FILE)
    assert client._connection._was_slow
    proxy.hook = lambda _path: None
    told.clear()
    assert bytes(client.read(FILE, 0, 10)) == DATA[:10]
    assert told.is_set()
    assert not client._connection._was_slow


def test_begin_bounds_all_requests_together(
    proxy: FakeProxy, clients: Callable[..., Client]
) -> None:
    """Requests of one question share its time."""
    clock = Clock()
    client = clients(proxy, timeout_s=10.0, clock=clock)
    client.begin()
    clock.now_s += 9
    proxy.hook = lambda _path: http(503, b"", 0)
    with pytest.raises(Unavailable):
        client.node(FILE)
    assert clock.now_s <= 1010.0


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("unix:/run/lodefs/proxy.sock", Address(path="/run/lodefs/proxy.sock")),
        ("http://node7", Address(host="node7", port=7440)),
        ("http://127.0.0.1:81/", Address(host="127.0.0.1", port=81)),
        ("http://[::1]:81", Address(host="::1", port=81)),
        ("https://host", Address(host="host", port=7440, tls=True)),
        ("https://h:1?ca=/c%20a", Address(host="h", port=1, tls=True, ca_file="/c a")),
    ],
)
def test_addresses(text: str, address: Address) -> None:
    """The addresses that a proxy can have."""
    assert parse_address(text) == address


@pytest.mark.parametrize(
    "text", ["", "unix:relative", "host:80", "https:/h", "http://", "http://h:x", "http://h/p"]
)
def test_wrong_addresses(text: str) -> None:
    """Anything else is refused with an example."""
    with pytest.raises(InvalidInput, match="unix:/PATH"):
        parse_address(text)


def test_a_kept_connection_has_the_time_of_each_request(tmp_path: Path) -> None:
    """A connection that was made with a millisecond left still sends a large body later, to a
    proxy that is slow to read it."""
    large = b"POST " + bytes(4 << 20)
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(str(tmp_path / "s"))
    listener.listen()
    connection = Connection(Address(path=str(tmp_path / "s")), clock=lambda: 0.0)

    def serve() -> None:
        client, _ = listener.accept()
        with client:
            client.recv(100)
            client.sendall(http(200, b"", 0))
            waiting = -1
            while waiting != (waiting := unread(client)) or not waiting:
                Event().wait(0.05)  # until the sender cannot go on
            left = len(large)
            while left:
                left -= len(client.recv(1 << 20))
            client.sendall(http(200, b"", 0))

    server = Thread(target=serve)
    server.start()
    with listener:
        assert connection.ask(b"GET", 0.001, lambda: None).status == 200
        assert connection.ask(large, 60.0, lambda: None).status == 200
        connection.close()
        server.join(60.0)


def unread(sock: socket.socket) -> int:
    count = fcntl.ioctl(sock, termios.FIONREAD, bytes(4))
    return int.from_bytes(count, sys.byteorder)


def _unavailable(lasting_s: float) -> bytes:
    body = msgspec.json.encode(wire.Failure("Unavailable", "SlowDown", lasting_s=lasting_s))
    return b"HTTP/1.1 503 Later\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body)


@pytest.mark.parametrize(("lasted_s", "waits_s"), [(0.0, 20.0), (12.0, 8.0), (30.0, 0.0)])
def test_a_store_that_is_away_counts_from_when_it_went(
    proxy: FakeProxy, clients: Callable[..., Client], lasted_s: float, waits_s: float
) -> None:
    """A request waits for a store that answers nothing until that has lasted for its time; later
    ones are tried once, so that what the kernel asks again costs no second time."""
    clock = Clock()
    client = clients(proxy, timeout_s=20.0, clock=clock)
    begun_s = clock.now_s
    proxy.hook = lambda _path: _unavailable(lasted_s + clock.now_s - begun_s)
    with pytest.raises(Unavailable, match="SlowDown"):
        client.read(FILE, 0, 10)
    assert waits_s - 0.5 <= clock.now_s - begun_s <= waits_s
    assert bool(clock.pauses) == bool(waits_s)
