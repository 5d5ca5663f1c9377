"""The proxy as a whole: from settings to a serving process, and its end."""

from __future__ import annotations

import asyncio
import json
import re
import signal
import socket
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from chunkstore.errors import InUse, InvalidInput, NotFound
from chunkstore.location import open_objects
from chunkstore.sdnotify import SystemdNotifier
from chunkstore.store import create_store
from chunkstore.testing.children import Child, private_directory
from chunkstore.testing.handmade import Handmade
from proxy.app import Opened, open_doors, serve
from proxy.config import Config
from proxy.listeners import Listeners
from proxy.metrics import StoreCalls
from proxy.testing import Client, DictNode
from proxy.tokens import create_token

ROOT = Path(__file__).parents[2]
BIG = bytes(range(256)) * 1000
FILES = {b"a": b"hello", b"d/big": BIG}
SCRIPT = (
    "import sys, json; from proxy.config import Config; from proxy.main import main;"
    "main(Config.from_mapping(json.loads(sys.argv[1])))"
)


@pytest.fixture
def folder() -> Iterator[Path]:
    with private_directory() as made:
        yield made


def connect(path: Path) -> Client:
    made = socket.socket(socket.AF_UNIX)
    made.settimeout(60)
    made.connect(str(path))
    return Client(made)


def settings(folder: Path, **more: object) -> dict[str, object]:
    return {
        "store": str(folder / "store"),
        "cache_dir": str(folder / "cache"),
        "cache_size_bytes_max": "1GiB",
        "socket_path": str(folder / "sock"),
        **more,
    }


def make_store(folder: Path) -> str:
    objects = open_objects(str(folder / "store"))
    try:
        return Handmade(create_store(objects)).commit("team/demo", FILES).hex()
    finally:
        objects.close()


def start(folder: Path, **more: object) -> Child:
    return Child(
        [sys.executable, "-c", SCRIPT, json.dumps(settings(folder, **more))],
        cwd=ROOT,
    )


@pytest.mark.slow
def test_a_process_serves_a_real_store_until_it_is_told_to_end(folder: Path) -> None:
    """It says when it is ready, serves a store over its socket, fills its cache, ends with 0 on
    SIGTERM, removes its socket, and serves again from the same cache."""
    commit = make_store(folder)
    for start_number in range(2):
        with start(folder) as child:
            ready = child.wait_for(r'^.*"event": ?"ready: .*$')
            line = json.loads(ready[0])
            assert str(folder / "sock") in line["event"]
            assert (line["level"], line["pid"]) == ("info", child.pid)
            with connect(folder / "sock") as client:
                assert client.get("/readyz").status == 200
                assert client.get("/files/team/demo@main/a").body == b"hello"
                target = f"/files/team/demo@{commit}/d/big"
                for first in range(0, len(BIG), 50_000):
                    reply = client.get(target, Range=f"bytes={first}-{first + 49_999}")
                    assert reply.body == BIG[first : first + 50_000]
                status = client.get("/status").json()
                assert status["store"] == str(folder / "store")
                assert status["node"]["cache_used_bytes"] > 0
                metrics = client.get("/metrics").body.decode()
                assert 'lodefs_store_calls_total{operation="get",outcome="ok"}' in metrics
                fetched = int(status["node"]["store_fetches"])
                assert (fetched > 0) is (start_number == 0)
            assert child.terminate() == 0
            assert not (folder / "sock").exists()
            assert '"stopped"' in child.output


@pytest.mark.slow
def test_an_interrupted_start_and_a_killed_proxy_leave_nothing_in_the_way(folder: Path) -> None:
    """After kill -9 the socket's file is stale: the next proxy takes its place."""
    make_store(folder)
    with start(folder) as child:
        child.wait_for("ready: ")
        child.kill()
    assert (folder / "sock").exists()
    with start(folder, log_format="console", log_level="debug") as child:
        child.wait_for("ready: ")
        with connect(folder / "sock") as client:
            assert client.get("/files/team/demo@main/a").body == b"hello"
        child.wait_for("GET /files/team/demo@main/a")
        assert child.terminate() == 0


@pytest.mark.slow
def test_a_second_proxy_is_refused(folder: Path) -> None:
    """A living socket and a cache in use are each named."""
    make_store(folder)
    with start(folder) as child:
        child.wait_for("ready: ")
        with start(folder) as second:
            assert second.wait() != 0
            assert "InUse" in second.output
            assert str(folder / "sock") in second.output
        with start(folder, socket_path=str(folder / "other")) as third:
            assert third.wait() != 0
            assert "InUse" in third.output
            assert str(folder / "cache") in third.output
        assert not (folder / "other").exists()
        with connect(folder / "sock") as client:
            assert client.get("/healthz").status == 200
        assert child.terminate() == 0


def test_a_store_that_is_not_there_is_an_error(folder: Path) -> None:
    """The proxy does not start, and leaves no socket behind."""
    config = Config.from_mapping(settings(folder))
    with pytest.raises(NotFound, match="store"):
        asyncio.run(serve(config, asyncio.Event(), environ={}))
    assert not (folder / "sock").exists()


def test_serve_with_every_door(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Unix socket and TCP serve at once, systemd is told, and all is gone at the end."""
    tokens = folder / "tokens"
    token = create_token(tokens, "t", ["demo"], now_s=1)
    config = Config.from_mapping(
        settings(folder, listen="127.0.0.1:0", tokens_file=str(tokens), socket_mode="0600")
    )

    async def ask(port: int) -> list[int]:
        def calls() -> list[int]:
            with Client(socket.create_connection(("127.0.0.1", port), timeout=60)) as client:
                statuses = [
                    client.get("/stat/demo@main").status,
                    client.get("/stat/demo@main", Authorization=f"Bearer {token}").status,
                ]
            with connect(folder / "sock") as client:
                return [*statuses, client.get("/stat/demo@main").status]

        return await asyncio.to_thread(calls)

    def until(systemd: socket.socket, last: bytes) -> list[bytes]:
        heard: list[bytes] = []
        while last not in heard:
            heard.append(systemd.recv(1000))
        return heard

    async def run() -> tuple[list[int], list[list[bytes]]]:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as systemd:
            systemd.bind(str(folder / "notify"))
            systemd.settimeout(60)
            stop = asyncio.Event()

            @asynccontextmanager
            async def opener(config: Config, calls: StoreCalls) -> AsyncIterator[Opened]:
                yield Opened(DictNode(FILES))

            environ = {"NOTIFY_SOCKET": str(folder / "notify")}
            task = asyncio.create_task(serve(config, stop, environ=environ, open_node=opener))
            messages = [await asyncio.to_thread(until, systemd, b"READY=1")]
            port = re.search(r"http://127\.0\.0\.1:([0-9]+)", caplog.text)
            assert port
            statuses = await ask(int(port[1]))
            stop.set()
            await task
            messages.append(await asyncio.to_thread(until, systemd, b"STOPPING=1"))
            return statuses, messages

    with caplog.at_level("INFO", "lodefs.proxy"):
        statuses, messages = asyncio.run(run())
    assert statuses == [401, 200, 200]
    assert [one.partition(b"=")[0] for one in messages[0]] == [b"FDSTORE", b"STATUS", b"READY"]
    assert [one.partition(b"=")[0] for one in messages[1]] == [b"STATUS", b"STOPPING"]
    assert messages[1][0].startswith(b"STATUS=Serving ")
    assert not (folder / "sock").exists()


def test_sockets_of_systemd_come_first(folder: Path) -> None:
    """A Unix socket that systemd hands over is used instead of an own one; its TCP socket needs
    the same permission as an own one."""
    script = (
        "import os, socket, sys\n"
        "from chunkstore.sdnotify import SystemdNotifier\n"
        "from proxy.app import open_doors, open_listeners; from proxy.config import Config\n"
        "config = Config.from_mapping({'store': 'x', 'socket_path': sys.argv[1]})\n"
        "environ = {'LISTEN_FDS': sys.argv[2], 'LISTEN_PID': str(os.getpid())}\n"
        "unix, tcp = socket.socket(socket.AF_UNIX), socket.socket()\n"
        "fds = os.dup(unix.fileno()), os.dup(tcp.fileno()); unix.close(); tcp.close()\n"
        "os.dup2(fds[0], 3); os.dup2(fds[1], 4)\n"
        "systemd = SystemdNotifier({})\n"
        "with open_listeners(config, environ, systemd) as listeners, \\\n"
        "        open_doors(config, listeners) as doors:\n"
        "    print(len(doors), doors[0].listener.fileno(), os.path.exists(sys.argv[1]))\n"
    )
    path = str(folder / "sock")
    with Child([sys.executable, "-c", script, path, "1"], cwd=ROOT) as child:
        assert child.wait() == 0, child.output
        assert child.output.split() == ["1", "3", "False"]
    with Child([sys.executable, "-c", script, path, "2"], cwd=ROOT) as child:
        assert child.wait() != 0
        assert "InvalidInput" in child.output


def test_doors_are_closed_when_one_cannot_be_opened(folder: Path) -> None:
    """What was opened before the mistake is closed and removed."""
    none = Listeners({}, SystemdNotifier({}), {})
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        listen = f"127.0.0.1:{taken.getsockname()[1]}"
        config = Config.from_mapping(settings(folder, listen=listen, allow_anonymous=True))
        with pytest.raises(InUse), open_doors(config, none):
            raise AssertionError("it opened")
    assert not (folder / "sock").exists()
    (folder / "precious").touch()
    bad = Config.from_mapping(settings(folder, socket_path=str(folder / "precious")))
    with pytest.raises(InvalidInput, match="precious"), open_doors(bad, none):
        raise AssertionError("it opened")


@pytest.mark.slow
def test_sigint_ends_it_too(folder: Path) -> None:
    """Ctrl-C is no error."""
    make_store(folder)
    with start(folder) as child:
        child.wait_for("ready: ")
        child.process.send_signal(signal.SIGINT)
        assert child.wait() == 0
