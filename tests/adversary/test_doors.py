"""Attacks through one door of the proxy on those who come through another."""

from __future__ import annotations

import json
import re
import socket
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from lodefs.chunkstore.objects.open_url import open_objects
from lodefs.chunkstore.repo.store import create_store, open_store
from lodefs.proxy.http.tokens import create_token
from lodefs.proxy.peers.security.tls import PeerTls
from tests.adversary.hostile_client import clients_that_do_not_read, silent_clients
from tests.proxy.peers.certificates import Authority
from tests.support.chunkstore.child_process import Child, private_directory
from tests.support.chunkstore.handmade import Handmade, Link
from tests.support.proxy.fake_node import Client

ROOT = Path(__file__).parents[2]
SCRIPT = (
    "import sys, json; from lodefs.proxy.config import Config; "
    "from lodefs.proxy.service.main import main;"
    "main(Config.from_mapping(json.loads(sys.argv[1])))"
)
TARGET = "/files/team/demo@main/a"


@pytest.fixture
def folder() -> Iterator[Path]:
    with private_directory() as made:
        objects = open_objects(str(made / "store"))
        Handmade(create_store(objects)).commit("team/demo", {b"a": b"hello"})
        objects.close()
        yield made


def start(folder: Path, *, files_max: int | None = None, **more: object) -> Child:
    """A proxy with a Unix socket and TCP, which needs tokens."""
    settings = {
        "store": str(folder / "store"),
        "cache_dir": str(folder / "cache"),
        "cache_size_bytes_max": "1GiB",
        "socket_path": str(folder / "sock"),
        "listen": "127.0.0.1:0",
        "tokens_file": str(folder / "tokens"),
        **more,
    }
    limit = f"import resource; resource.setrlimit(resource.RLIMIT_NOFILE, ({files_max},) * 2);"
    script = SCRIPT if files_max is None else limit + SCRIPT
    return Child([sys.executable, "-c", script, json.dumps(settings)], cwd=ROOT)


def port_of(child: Child, kind: str = "http") -> int:
    """Where the proxy listens, once it is ready."""
    return int(child.wait_for(rf"ready: .*{kind}://127\.0\.0\.1:([0-9]+)")[1])


def local(folder: Path) -> Client:
    """A client of the Unix socket."""
    connected = socket.socket(socket.AF_UNIX)
    connected.settimeout(60)
    connected.connect(str(folder / "sock"))
    return Client(connected)


def remote(port: int) -> Client:
    """A client of TCP."""
    return Client(socket.create_connection(("127.0.0.1", port), timeout=60))


@pytest.mark.slow
def test_idle_tcp_connections_do_not_lock_out_the_unix_socket(folder: Path) -> None:
    """4,500 connections without a token, more than TCP may have, try to use up what the proxy has:
    every request on the Unix socket is answered, and so is one over TCP with a token."""
    token = create_token(folder / "tokens", "one", ["*"], now_s=1)
    with start(folder) as child:
        port = port_of(child)
        with silent_clients(("127.0.0.1", port), 4500):
            for _ in range(50):
                with local(folder) as client:
                    assert client.get(TARGET).body == b"hello"
            with remote(port) as client:
                assert client.get(TARGET, Authorization=f"Bearer {token}").body == b"hello"
            with local(folder) as client:
                metrics = client.get("/metrics").body.decode()
        found = re.search(r'lodefs_http_connections\{listener="tcp"\} ([0-9.]+)', metrics)
        assert found and float(found[1]) <= 4096
        assert child.terminate() == 0


@pytest.mark.slow
def test_connections_leave_the_proxy_its_descriptors(folder: Path) -> None:
    """1,000 connections try to use up the 512 files that the proxy may open: it still takes local
    clients, and opens its cache's files for them."""
    create_token(folder / "tokens", "one", ["*"], now_s=1)
    with start(folder, files_max=512) as child:
        port = port_of(child)
        with silent_clients(("127.0.0.1", port), 1000):
            for _ in range(50):
                with local(folder) as client:
                    assert client.get(TARGET).body == b"hello"
        assert "accepting no connections" not in child.output
        assert child.terminate() == 0


@pytest.mark.slow
def test_handshakes_that_do_not_begin_lock_nobody_out(folder: Path) -> None:
    """Clients of the peers' TLS door that never begin the handshake try to take all of its room,
    uncounted: they are counted from the start, and another one's handshake is done."""
    create_token(folder / "tokens", "one", ["*"], now_s=1)
    files = Authority().files(folder / "node")
    settings: dict[str, Any] = {
        "listen": "",
        "peer_listen": "127.0.0.1:0",
        "peers": ["127.0.0.1:7441"],
        "peer_tls_cert_file": str(files.cert),
        "peer_tls_key_file": str(files.key),
        "peer_tls_ca_file": str(files.ca),
        "connections_max": 20,
    }
    with start(folder, **settings) as child:
        port = port_of(child, "peers")
        with silent_clients(("127.0.0.1", port), 30):
            plain = socket.create_connection(("127.0.0.1", port), timeout=60)
            with Client(PeerTls(files).client().wrap_socket(plain)) as client:
                assert client.get("/healthz").status == 200
                with local(folder) as other:
                    metrics = other.get("/metrics").body.decode()
        assert 'lodefs_http_connections{listener="peers"} 20\n' in metrics
        assert child.terminate() == 0


@pytest.mark.slow
def test_listings_that_nobody_reads_are_little_memory(folder: Path) -> None:
    """100 clients ask for a directory of 4,000 symlinks with targets that grow sixfold in JSON, and
    read nothing, to have 48 MB held for each: the proxy answers others, and stays below 600 MiB."""
    create_token(folder / "tokens", "one", ["*"], now_s=1)
    objects = open_objects(str(folder / "store"))
    links = {b"d/%04d" % n: Link(b"\xff" * 4000) for n in range(4000)}
    Handmade(open_store(objects), pack_chunks=5000).commit("x", links)
    objects.close()
    request = b"GET /list/x@main/d?limit=4096 HTTP/1.1\r\nHost: x\r\n\r\n"
    with start(folder) as child:
        port_of(child)
        with clients_that_do_not_read(folder / "sock", request, 100):
            for _ in range(20):
                with local(folder) as client:
                    assert client.get(TARGET).body == b"hello"
            with local(folder) as client:  # after all of theirs
                assert len(client.get("/list/x@main/d?limit=4096").body) < 1 << 20
        status = Path(f"/proc/{child.pid}/status").read_text()
        found = re.search(r"VmHWM:\s+([0-9]+) kB", status)
        assert found and int(found[1]) < 600 * 1024
        assert child.terminate() == 0
