"""Benchmarks of the node's proxy by itself."""

from __future__ import annotations

import socket
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from time import perf_counter

from loadtests import corpora
from loadtests.bench.origins import ceph_origin
from loadtests.cli import Lodefs, Proxy
from loadtests.measure import MemoryWatch, run
from loadtests.results import Result
from loadtests.services.nginx import nginx
from lodefs.chunkstore.nodecache import layout
from lodefs.chunkstore.nodecache.kv_rocks import RocksSecondary
from lodefs.chunkstore.protocol.wire import FILES, file_path

CONNECTIONS = 8
SECONDS = 4.0
ROUNDS = 3
CHUNKS = 1_000_000  # of corpora.million, in which each file is a chunk of its own
KIB = 1 << 10
SIZES = {"1 MiB": (1 << 20, 0.9), "64 KiB": (64 * KIB, 0.35), "4 KiB": (4 * KIB, 0.3)}


def range_get(scratch: Path) -> Result:
    """Requests a second for ranges that hit, in turn with nginx (one worker), one file."""
    result = Result("range-get")
    source = corpora.random_file()
    lodefs = _store_with(source.parent, scratch)
    with lodefs.proxy(scratch / "node", "--listen", "127.0.0.1:0", "--allow-anonymous") as proxy, \
            nginx(source.parent) as server:  # fmt: skip
        commit = lodefs.commits("bench")[0]
        ours = (proxy_address(proxy), file_path(FILES, "bench", commit, source.name.encode()))
        theirs = (("127.0.0.1", server.port), f"/{source.name}")
        get_whole(*ours)
        get_whole(*theirs)
        for name, (size, asked) in SIZES.items():
            best: dict[str, float] = {"lodefs": 0, "nginx": 0}
            for _ in range(ROUNDS):
                best["lodefs"] = max(best["lodefs"], _rate(*ours, size, scratch))
                best["nginx"] = max(best["nginx"], _rate(*theirs, size, scratch))
            result.add(f"lodefs {name}", best["lodefs"], "/s")
            result.add(f"nginx {name}", best["nginx"], "/s")
            result.add(f"{name}: lodefs / nginx", best["lodefs"] / best["nginx"], "x",
                       at_least=asked)  # fmt: skip
    return result


def restart(scratch: Path) -> Result:
    """A cache of 1,000,000 chunks: time to be ready again after a stop, and after kill -9."""
    result = Result("proxy-restart")
    source = corpora.million(distinct=True)
    lodefs = _store_with(source, scratch)
    folder = scratch / "node"
    with lodefs.proxy(folder) as proxy:
        start = perf_counter()
        status = lodefs.json("--proxy", proxy.url, "warm", "bench")
        result.add("filled", status["files_done"] / (perf_counter() - start), "files/s")
    again = Proxy.start(lodefs, folder)
    again.kill()
    result.add("ready after a stop", again.ready_s, "s", at_most=2)
    last = Proxy.start(lodefs, folder)
    last.stop()
    result.add("ready after kill -9", last.ready_s, "s", at_most=2)
    result.add("chunks in the index", _chunk_rows(folder / "cache"), at_least=CHUNKS)
    return result


def _chunk_rows(cache_dir: Path) -> int:
    """The number of chunks in the index of a cache."""
    with tempfile.TemporaryDirectory() as log_dir:
        kv = RocksSecondary(cache_dir / layout.INDEX_DIR, Path(log_dir))
        try:
            return sum(1 for _ in kv.scan(layout.CHUNKS))
        finally:
            kv.close()


def memory(scratch: Path) -> Result:
    """The proxy's memory while 4 GiB are read cold from Ceph RGW at full speed."""
    result = Result("proxy-memory")
    sources = scratch / "source"
    sources.mkdir()
    files = [corpora.random_file(seed=seed) for seed in (1, 2, 3, 4)]
    for number, file in enumerate(files):
        (sources / f"{number}.bin").hardlink_to(file)
    with ceph_origin(scratch) as origin:
        origin.lodefs.run("push", sources, "bench")
        with origin.lodefs.proxy(scratch / "node") as proxy:
            commit = origin.lodefs.commits("bench")[0]
            watch = MemoryWatch(proxy.process.pid)
            start = perf_counter()
            with ThreadPoolExecutor(len(files)) as pool:
                list(pool.map(
                    lambda number: get_whole(
                        proxy.socket,
                        file_path(FILES, "bench", commit, f"{number}.bin".encode()),
                    ),
                    range(len(files)),
                ))  # fmt: skip
            seconds = perf_counter() - start
            result.add("memory", watch.stop() / 2**20, "MiB", at_most=300)
            result.add("cold read", 4096 / seconds, "MiB/s")
    return result


Address = Path | tuple[str, int]


def proxy_address(proxy: Proxy) -> tuple[str, int]:
    """The proxy's TCP address, from its log; nginx is measured over TCP, too."""
    for line in proxy.log.read_text().splitlines():
        _, found, tail = line.partition("http://127.0.0.1:")
        if found:
            digits = "".join(islice(iter(tail), 5)).rstrip('",} \t/')
            return "127.0.0.1", int("".join(c for c in digits if c.isdigit()))
    raise RuntimeError(f"no TCP address in {proxy.log}")


def _store_with(source: Path, scratch: Path) -> Lodefs:
    lodefs = Lodefs(str(scratch / "store"), scratch / "home", {})
    lodefs.run("init", scratch / "store")
    lodefs.run("push", source, "bench")
    return lodefs


@contextmanager
def connection(address: Address) -> Iterator[socket.socket]:
    family = socket.AF_UNIX if isinstance(address, Path) else socket.AF_INET
    with socket.socket(family) as client:
        client.settimeout(120)
        client.connect(str(address) if isinstance(address, Path) else address)
        yield client


def answer(client: socket.socket, request: bytes, buffer: bytearray) -> int:
    """Sends a GET and discards its answer. Returns the body's length. Fails unless 200 or 206."""
    client.sendall(request)
    filled = 0
    while (end := buffer.find(b"\r\n\r\n", 0, filled)) < 0:
        got = client.recv_into(memoryview(buffer)[filled:])
        if not got:
            raise RuntimeError("connection closed in the header")
        filled += got
    head = bytes(buffer[:end]).lower()
    if not head.startswith((b"http/1.1 200", b"http/1.1 206")):
        raise RuntimeError(head.decode("latin-1"))
    length = int(head.split(b"content-length:")[1].split(b"\r\n")[0])
    left = length - (filled - end - 4)
    while left > 0:
        got = client.recv_into(buffer)
        if not got:
            raise RuntimeError("connection closed in the body")
        left -= got
    return length


def get_whole(address: Address, path: str) -> int:
    """Reads a file once. Returns its size."""
    with connection(address) as client:
        request = f"GET {path} HTTP/1.1\r\nHost: node\r\n\r\n".encode()
        return answer(client, request, bytearray(1 << 20))


def _rate(address: tuple[str, int], path: str, size: int, scratch: Path) -> float:
    """Requests a second that wrk reaches for random ranges of ``size`` bytes."""
    script = scratch / "ranges.lua"
    script.write_text(
        "request = function()\n"
        f"  local first = math.random(0, {(corpora.GIB - size) // 4096}) * 4096\n"
        f'  return wrk.format("GET", nil, {{["Range"] = "bytes=" .. first .. "-" .. '
        f"(first + {size - 1})}})\n"
        "end\n"
    )
    url = f"http://{address[0]}:{address[1]}{path}"
    words = ["wrk", "-t", "2", "-c", str(CONNECTIONS), "-d", f"{SECONDS:.0f}s"]
    words += ["-s", str(script), url]
    output = run(words).output
    if "Non-2xx" in output or "Socket errors" in output:
        raise RuntimeError(output)
    return float(output.split("Requests/sec:")[1].split()[0])
