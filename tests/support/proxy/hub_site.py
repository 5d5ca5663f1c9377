"""Proxies of one site that mirror a hub: processes over one store, with caches of their own."""

from __future__ import annotations

import json
import socket
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from lodefs.chunkstore.objects.directory import DirectoryObjects
from lodefs.chunkstore.repo.store import create_store
from tests.support.chunkstore.child_process import Child

SERVE = (
    "import sys, json; from lodefs.proxy.config import Config; "
    "from lodefs.proxy.service.main import main;"
    "main(Config.from_mapping(json.loads(sys.argv[1])))"
)


def free_ports(count: int) -> list[int]:
    """Ports of the loopback interface that nobody uses."""
    with ExitStack() as stack:
        made = [stack.enter_context(socket.socket()) for _ in range(count)]
        for one in made:
            one.bind(("127.0.0.1", 0))
        return [one.getsockname()[1] for one in made]


@contextmanager
def hub_site(folder: Path, upstream: str, nodes: int = 1, **more: object) -> Iterator[list[str]]:
    """Proxies over one store, in one cluster if there are several; yields their endpoints."""
    store = folder / "store"
    create_store(DirectoryObjects(str(store)))
    ports = free_ports(2 * nodes)
    peers = [f"127.0.0.1:{port}" for port in ports[nodes:]]
    with ExitStack() as stack:
        for number, port in enumerate(ports[:nodes]):
            settings: dict[str, object] = {
                "store": "store",  # seen from the folder: it need not be absolute
                "cache_dir": str(folder / f"cache-{number}"),
                "cache_size_bytes_max": "128MiB",
                "socket_path": "",
                "listen": f"127.0.0.1:{port}",
                "allow_anonymous": True,
                "hub_upstream": upstream,
                "data_processes": 0,
                **more,
            }
            if nodes > 1:
                own = {"peer_listen": peers[number], "peers": peers, "peer_allow_anonymous": True}
                settings |= own
            child = Child([sys.executable, "-c", SERVE, json.dumps(settings)], cwd=folder)
            stack.callback(child.kill)
            child.wait_for("ready: ")
        yield [f"http://127.0.0.1:{port}/hf" for port in ports[:nodes]]
