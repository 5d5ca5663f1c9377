"""The proxy as a whole: from settings to a serving process, and its end."""

from __future__ import annotations

import asyncio
import json
import re
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from lodefs.chunkstore.errors import InUse, InvalidInput, NotFound, Unavailable
from lodefs.chunkstore.objects.open_url import open_objects
from lodefs.chunkstore.repo.store import create_store
from lodefs.chunkstore.system import fd_limit
from lodefs.chunkstore.system.systemd.notify import SystemdNotifier
from lodefs.proxy.config import Config
from lodefs.proxy.http.tokens import create_token
from lodefs.proxy.metrics.store_calls import StoreCalls
from lodefs.proxy.service.app import (
    OpenedNode,
    limits_of,
    open_endpoints,
    open_store_node,
    serve,
    shares_of,
    upstream_settings,
)
from lodefs.proxy.service.systemd import Listeners
from tests.support.chunkstore.bad_server import Answer, BadServer
from tests.support.chunkstore.child_process import Child, private_directory
from tests.support.chunkstore.handmade import Handmade
from tests.support.proxy.fake_node import Client, DictNode
from tests.support.proxy.rig import read_path

ROOT = Path(__file__).parents[3]
BIG = bytes(range(256)) * 1000
FILES = {b"a": b"hello", b"d/big": BIG}
SCRIPT = (
    "import sys, json; from lodefs.proxy.config import Config; "
    "from lodefs.proxy.service.main import main;"
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


def test_processes_that_write(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """They have another current directory, so the path of the store is absolute for them."""
    monkeypatch.chdir(folder)
    for store, told in (("store", str(folder / "store")), ("s3://b/x", "s3://b/x")):
        config = Config.from_mapping({"store": store, "hub_upstream": "http://localhost"})
        settings = upstream_settings(config)
        assert settings is not None and settings.place.store == told


def test_a_store_with_mirrors(folder: Path) -> None:
    """A node whose store has lost one pack and damaged the others reads every byte from the mirror,
    and metrics tell the two apart."""
    make_store(folder)
    shutil.copytree(folder / "store", folder / "mirror")
    packs = sorted((folder / "store" / "packs").glob("*/*"))
    packs[0].unlink()
    for pack in packs[1:]:
        pack.write_bytes(bytes(byte ^ 1 for byte in pack.read_bytes()))
    calls = StoreCalls()
    values = settings(folder, mirrors=[str(folder / "mirror")], data_processes=0)

    async def read() -> list[bytes]:
        config = Config.from_mapping(values)
        async with open_store_node(config, calls) as opened:
            return [await read_path(opened.node, path, repo="team/demo") for path in FILES]

    assert asyncio.run(read()) == list(FILES.values())
    samples = {family.definition.name: family.samples for family in calls.families()}
    assert len(samples["lodefs_mirror_up"]) == 2


def test_a_node_starts_while_its_store_refuses_it(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A store that answers 403, or 503, is no reason not to start: a mirror serves every byte
    (branches while the store puts off calls after half a minute), and a node without one serves
    what it has cached, by its commit."""
    commit = make_store(folder)
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "wrong")

    async def read(values: dict[str, object], rev: str) -> list[bytes]:
        config = Config.from_mapping({**values, "data_processes": 0})
        async with open_store_node(config, StoreCalls()) as opened:
            started.append(rev)
            return [await read_path(opened.node, path, repo="team/demo", rev=rev) for path in FILES]

    started: list[str] = []
    for status in (403, 503):
        with BadServer(lambda _, status=status: Answer(status)) as server:
            url = f"s3://bucket/store?endpoint_url={server.endpoint_url}"
            values = settings(folder, store=url, cache_dir=str(folder / f"cache-{status}"))
            values["mirrors"] = [str(folder / "store")]
            if status == 403:
                assert asyncio.run(read(values, "main")) == list(FILES.values())
                continue
            with pytest.raises(Unavailable):
                asyncio.run(read(values, "main"))
            assert len(started) == 2
    values = settings(folder)
    assert asyncio.run(read(values, "main")) == list(FILES.values())
    (folder / "store").rename(folder / "away")
    assert asyncio.run(read(values, commit)) == list(FILES.values())


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
                assert 'lodefs_store_request_seconds_count{operation="get",outcome="ok"}' in metrics
                fetched = int(status["node"]["store_fetches"])
                assert (fetched > 0) is (start_number == 0)
            assert child.terminate() == 0
            assert not (folder / "sock").exists()
            assert '"stopped"' in child.output


@pytest.mark.slow
def test_a_start_imports_what_each_proxy_needs() -> None:
    """Not a resolver of DNS, nor a program that cuts files."""
    script = "import sys, lodefs.proxy.service.app; print({'dns', 'fastcdc'} & set(sys.modules))"
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "set()"


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
            async def opener(config: Config, calls: StoreCalls) -> AsyncIterator[OpenedNode]:
                yield OpenedNode(DictNode(FILES))

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
        "from lodefs.chunkstore.system.systemd.notify import SystemdNotifier\n"
        "from lodefs.proxy.service.app import open_endpoints, open_listeners; "
        "from lodefs.proxy.config import Config\n"
        "config = Config.from_mapping({'store': 'x', 'socket_path': sys.argv[1]})\n"
        "environ = {'LISTEN_FDS': sys.argv[2], 'LISTEN_PID': str(os.getpid())}\n"
        "unix, tcp = socket.socket(socket.AF_UNIX), socket.socket()\n"
        "fds = os.dup(unix.fileno()), os.dup(tcp.fileno()); unix.close(); tcp.close()\n"
        "os.dup2(fds[0], 3); os.dup2(fds[1], 4)\n"
        "systemd = SystemdNotifier({})\n"
        "with open_listeners(config, environ, systemd) as listeners, \\\n"
        "        open_endpoints(config, listeners) as doors:\n"
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
        with pytest.raises(InUse), open_endpoints(config, none):
            raise AssertionError("it opened")
    assert not (folder / "sock").exists()
    (folder / "precious").touch()
    bad = Config.from_mapping(settings(folder, socket_path=str(folder / "precious")))
    with pytest.raises(InvalidInput, match="precious"), open_endpoints(bad, none):
        raise AssertionError("it opened")


@pytest.mark.slow
def test_sigint_ends_it_too(folder: Path) -> None:
    """Ctrl-C is no error."""
    make_store(folder)
    with start(folder) as child:
        child.wait_for("ready: ")
        child.process.send_signal(signal.SIGINT)
        assert child.wait() == 0


def test_few_descriptors_mean_few_connections(monkeypatch: pytest.MonkeyPatch) -> None:
    """If a process may open few files, connections, the cache's files and the index together stay
    below that."""
    config = Config.from_mapping({"store": "s3://bucket/data"})
    monkeypatch.setattr(fd_limit, "limit", lambda: 1024)
    found = limits_of(config).sockets_max or 0
    assert 0 < found < 1024 - shares_of(config).cache_files - shares_of(config).index_files
    monkeypatch.setattr(fd_limit, "limit", lambda: 524_288)
    assert (limits_of(config).sockets_max or 0) > 500_000


def test_a_node_in_a_cluster_keeps_descriptors_for_the_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Where a process may open few files, a node in a cluster takes its sockets to the others from
    what is left for clients; a node alone has no use for them."""
    alone = Config.from_mapping({"store": "s3://bucket/data"})
    more = {"peer_listen": "127.0.0.1:0", "peers": ["10.0.0.2:7441"], "peer_allow_anonymous": True}
    member = Config.from_mapping({"store": "s3://bucket/data", **more})
    monkeypatch.setattr(fd_limit, "limit", lambda: 1024)
    assert shares_of(alone).peer_sockets == 0
    kept = shares_of(member).peer_sockets
    assert kept > 0
    assert limits_of(member).sockets_max == (limits_of(alone).sockets_max or 0) - kept


HANGING_SCRIPT = (
    "import os, sys, threading; "
    "from lodefs.chunkstore.objects.directory import DirectoryObjects as Objects\n"
    "get = Objects.get\n"
    "def hung(self, key, **more):\n"
    "    if os.path.exists(sys.argv[2]):\n"
    "        print('it hangs', flush=True); threading.Event().wait()\n"
    "    return get(self, key, **more)\n"
    "Objects.get = hung\n"
)


@pytest.mark.slow
def test_a_store_that_hangs_does_not_hold_up_the_end(folder: Path) -> None:
    """SIGTERM while a read waits for a store that never answers: the proxy ends with 0, and what it
    had cached is on disk."""
    commit = make_store(folder)
    given = json.dumps(settings(folder, shutdown_timeout_s=1))
    argv = [sys.executable, "-c", HANGING_SCRIPT + SCRIPT, given, str(folder / "hang")]
    with Child(argv, cwd=ROOT) as child:
        child.wait_for("ready: ")
        with connect(folder / "sock") as client:
            assert client.get(f"/files/team/demo@{commit}/a").body == b"hello"
        (folder / "hang").touch()
        reader = socket.socket(socket.AF_UNIX)
        with reader:
            reader.connect(str(folder / "sock"))
            reader.sendall(b"GET /files/team/demo@%b/a HTTP/1.1\r\nHost: x\r\n\r\n" % (b"ab" * 32))
            child.wait_for("it hangs")
            assert child.terminate() == 0
        assert '"stopped"' in child.output
        assert "not completely on disk" not in child.output
    (folder / "hang").unlink()
    with start(folder) as child:
        child.wait_for("ready: ")
        with connect(folder / "sock") as client:
            assert client.get(f"/files/team/demo@{commit}/a").body == b"hello"
            assert client.get("/status").json()["node"]["store_fetches"] == 0
        assert child.terminate() == 0


@pytest.mark.slow
@pytest.mark.parametrize("is_ended", [False, True])
def test_a_cache_that_is_removed_is_begun_anew(folder: Path, is_ended: bool) -> None:
    """The cache's directory is removed under a running proxy: it makes a new one and serves every
    file on, on the same sockets; told to end at once it ends with 0."""
    files = {b"f%03d" % n: b"%d" % n * 5000 for n in range(200)}
    objects = open_objects(str(folder / "store"))
    commit = Handmade(create_store(objects)).commit("team/demo", files).hex()
    objects.close()
    with start(folder) as child:
        child.wait_for("ready: ")
        with connect(folder / "sock") as client:
            for name in list(files)[:100]:
                target = f"/files/team/demo@{commit}/{name.decode()}"
                assert client.get(target).body == files[name]
        shutil.rmtree(folder / "cache")
        if not is_ended:
            child.wait_for("ready: (.*\\n)*.*ready: ")
            with connect(folder / "sock") as client:
                for name, content in files.items():
                    target = f"/files/team/demo@{commit}/{name.decode()}"
                    assert client.get(target).body == content
                assert client.get("/status").json()["node"]["cache_used_bytes"] > 0
            assert (folder / "cache" / "VERSION").exists()
        assert child.terminate() == 0


@pytest.mark.parametrize("is_ended", [False, True])
def test_a_lost_node_waits_for_the_store(folder: Path, *, is_ended: bool) -> None:
    """A node that is lost while the store does not answer is opened again until it does, or until
    the proxy is told to end."""
    stop, opened = asyncio.Event(), list[str]()

    @asynccontextmanager
    async def open_node(_config: Config, _calls: StoreCalls) -> AsyncIterator[OpenedNode]:
        opened.append("node")
        if 1 < len(opened) < 4:
            if is_ended:
                stop.set()
            raise Unavailable("503")
        if len(opened) == 4:
            stop.set()
        yield OpenedNode(DictNode({}), is_lost=lambda: True)

    config = Config.from_mapping(settings(folder))
    asyncio.run(serve(config, stop, environ={}, open_node=open_node))
    assert len(opened) == (2 if is_ended else 4)


@pytest.mark.slow
def test_a_users_own_proxy_without_its_directory_ends(folder: Path) -> None:
    """Store, socket, lease and cache are all removed: nobody can come to the proxy, and it ends,
    with 0, long before the time for which it may be unused."""
    make_store(folder)
    with start(folder, unused_timeout_s=600) as child:
        child.wait_for("ready: ")
        with connect(folder / "sock") as client:
            assert client.get("/files/team/demo@main/a").body == b"hello"
        for path in folder.iterdir():
            shutil.rmtree(path) if path.is_dir() else path.unlink()
        assert child.wait() == 0
        assert "exiting" in child.output
        assert not list(folder.iterdir())
