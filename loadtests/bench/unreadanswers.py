"""A client with 500 connections that requests much and reads nothing: memory, and others'
latency."""

from __future__ import annotations

import http.client
import random
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Thread
from time import perf_counter, sleep

from loadtests.bench.proxies import proxy_address
from loadtests.cli import Lodefs, Proxy
from loadtests.measure import MemoryWatch, load_note
from loadtests.results import Result

MIB = 1 << 20
CONNECTIONS = 500
FILE_BYTES = 5_000_000
MEASURED_S = 20.0
PAUSE_S = 0.005  # between two requests of one reader
ROUNDS = 2
KINDS = {"range of 6 bytes": "/files/quiet@main/small", "list": "/list/quiet@main/"}


def unread_answers(scratch: Path) -> Result:
    """Requests alone and beside the connections of another token, in turn."""
    result = Result("unread-answers")
    lodefs = Lodefs(str(scratch / "store"), scratch / "home", {})
    lodefs.run("init", lodefs.store)
    tokens = {}
    for repo, name, size in (("loud", "big", FILE_BYTES), ("quiet", "small", 4096)):
        (scratch / repo).mkdir()
        (scratch / repo / name).write_bytes(random.Random(repo).randbytes(size))
        lodefs.run("push", scratch / repo, repo)
        made = lodefs.run("token", "--file", scratch / "tokens", "create", repo, repo)
        tokens[repo] = next(one for one in made.output.split() if one.startswith("lodefs_"))
    words = ("--listen", "127.0.0.1:0", "--tokens", str(scratch / "tokens"))
    with lodefs.proxy(scratch / "node", *words) as proxy:
        address = proxy_address(proxy)
        for repo in tokens:
            lodefs.run("--proxy", proxy.url, "warm", repo)
        took_s: dict[tuple[str, str], list[float]] = {}
        grown: list[int] = []
        _measure(address, tokens["quiet"], MEASURED_S / 4)
        for _ in range(ROUNDS):
            for kind, times in _measure(address, tokens["quiet"], MEASURED_S).items():
                took_s.setdefault((kind, "alone"), []).extend(times)
            with _unread(proxy, address, tokens["loud"]) as grown_bytes:
                for kind, times in _measure(address, tokens["quiet"], MEASURED_S).items():
                    took_s.setdefault((kind, "beside"), []).extend(times)
            grown.append(grown_bytes[0])
    for kind in KINDS:
        for quantile, asked in ((0.5, None), (0.99, 2.0)):
            found = {side: _quantile(took_s[kind, side], quantile) for side in ("alone", "beside")}
            name = f"{kind}: p{quantile * 100:.0f}"
            for side, seconds in found.items():
                result.add(f"{name} {side}", 1e3 * seconds, "ms")
            ratio = found["beside"] / found["alone"]
            result.add(f"{name} beside / alone", ratio, "x", at_most=asked)
        result.add(f"{kind}: longest beside", 1e3 * max(took_s[kind, "beside"]), "ms")
    result.add("memory of the proxy beside - alone", max(grown) / MIB, "MiB", at_most=64)
    result.notes.append(load_note())
    return result


def _measure(address: tuple[str, int], token: str, seconds: float) -> dict[str, list[float]]:
    """The latency of one client's requests, kinds in turn."""
    took_s: dict[str, list[float]] = {kind: [] for kind in KINDS}
    connection = http.client.HTTPConnection(*address, timeout=60)
    headers = {"Authorization": f"Bearer {token}", "Range": "bytes=0-5"}
    ends_s = perf_counter() + seconds
    while perf_counter() < ends_s:
        for kind, target in KINDS.items():
            begun_s = perf_counter()
            connection.request("GET", target, headers=headers)
            connection.getresponse().read()
            took_s[kind].append(perf_counter() - begun_s)
        sleep(PAUSE_S)
    connection.close()
    return took_s


@contextmanager
def _unread(proxy: Proxy, address: tuple[str, int], token: str) -> Iterator[list[int]]:
    """Connections that ask for a file and take nothing of it, opened while the block runs: by how
    much the memory of the proxy's processes is higher at its highest, known at its end."""
    before = MemoryWatch(proxy.process.pid)
    sleep(1)
    before_bytes = before.stop()
    watch = MemoryWatch(proxy.process.pid)
    request = (
        f"GET /files/loud@main/big HTTP/1.1\r\nHost: node\r\nAuthorization: Bearer {token}\r\n\r\n"
    )
    socks: list[socket.socket] = []
    grown = [0]

    def open_all() -> None:
        for _ in range(CONNECTIONS):
            sock = socket.socket()
            socks.append(sock)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            sock.connect(address)
            sock.sendall(request.encode())

    opening = Thread(target=open_all)
    opening.start()
    try:
        yield grown
    finally:
        opening.join()
        grown[0] = watch.stop() - before_bytes
        for sock in socks:
            sock.close()


def _quantile(times: list[float], share: float) -> float:
    return sorted(times)[int(share * (len(times) - 1))]
