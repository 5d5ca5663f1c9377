"""The modules of lodefs that one miss goes through: a GET, and a READ of a mount."""

from __future__ import annotations

import os
import random
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any

from loadtests.results import Result
from loadtests.services.moto import moto_server
from lodefs.chunkstore.format.inodes import ROOT_INO, child_ino
from lodefs.chunkstore.objects.open_url import open_objects
from lodefs.chunkstore.protocol.connection import parse_address
from lodefs.chunkstore.protocol.read_client import Client
from lodefs.mount.fs.filesystem import MountView
from lodefs.mount.fs.pending_requests import PendingRequests
from lodefs.mount.fs.worker import Worker
from lodefs.mount.kernel import fuse_abi
from lodefs.mount.kernel.session import Session
from lodefs.mount.options import MountOptions
from lodefs.mount.process.serving.worker_tasks import reader_factory
from tests.support.mount.kernel import FakeKernel
from tests.support.proxy.fake_node import RunningProxy
from tests.support.proxy.rig import MIB, REPO, Rig, serve_rig

READ_BYTES = CHUNK_BYTES = 64 << 10
FILE_BYTES = 8 * MIB  # two packs of PACK_CHUNKS
PACK_CHUNKS = 64
ROUNDS = 3  # what runs in all of them runs for the miss; other tasks and threads run in some
GOT, MOUNTED = ([b"%s%d" % (kind, n) for n in range(ROUNDS + 1)] for kind in (b"got", b"mounted"))
FILES = {name: random.Random(name).randbytes(FILE_BYTES) for name in (*GOT, *MOUNTED)}
THREADS = 4
MOUNT, PROXY = "mount", "proxy"
FUSE = "fuse-"  # how the names of a worker's threads begin
SHOWN = ("proxy.http", "proxy.api", "proxy.read", "proxy.fetch", "proxy.cache", "proxy.data")

Lines = dict[str, set[int]]  # the numbers of lines that ran, by module


class Crossing:
    """Notes the lines of lodefs that run in threads of this process."""

    def __init__(self) -> None:
        self._lines: dict[str, Lines] | None = None

    def watch(self, read: Callable[[bytes], None], paths: Sequence[bytes]) -> dict[str, Lines]:
        """Returns what runs at each read of a path but the first, in the threads of MOUNT, and in
        those of PROXY."""
        read(paths[0])
        rounds: list[dict[str, Lines]] = []
        for path in paths[1:]:
            rounds.append({MOUNT: {}, PROXY: {}})
            self._lines = rounds[-1]
            read(path)
            self._lines = None
        return {side: _in_all([lines[side] for lines in rounds]) for side in (MOUNT, PROXY)}

    def trace(self, frame: FrameType, event: str, _argument: Any) -> Callable[..., Any] | None:
        """Implements threading.settrace."""
        module = frame.f_globals.get("__name__", "")
        lines = self._lines
        if lines is None or not module.startswith("lodefs."):
            return None
        if event == "line":
            side = MOUNT if threading.current_thread().name.startswith(FUSE) else PROXY
            name = module.removeprefix("lodefs.")
            lines[side].setdefault(name, set()).add(frame.f_lineno)
        return self.trace


def miss_modules(scratch: Path) -> Result:
    """64 KiB of a large file in an S3 store: its directory is known, and its pack is not."""
    result = Result("miss-modules")
    crossing = Crossing()
    with moto_server() as server:
        os.environ.update(server.environment)
        url = f"s3://{server.make_bucket()}/store?endpoint_url={server.endpoint_url}"
        objects = open_objects(url)
        rig = Rig(
            scratch, FILES, chunk_size_bytes=CHUNK_BYTES, pack_chunks=PACK_CHUNKS, below=objects
        )
        threading.settrace(crossing.trace)  # of threads that are started from now on
        try:
            with serve_rig(rig) as (proxy, _):
                get = crossing.watch(partial(_get, proxy), GOT)
                with _mounted(proxy) as read:
                    both = crossing.watch(read, MOUNTED)
        finally:
            threading.settrace(None)
            objects.close()
    _report(result, "GET", get[PROXY])
    _report(result, "READ, in the mount", both[MOUNT])
    _report(result, "READ, in the proxy", both[PROXY])
    result.add("READ: modules", len(both[MOUNT].keys() | both[PROXY].keys()))
    return result


def _in_all(rounds: Sequence[Lines]) -> Lines:
    modules = set.intersection(*(set(lines) for lines in rounds))
    return {name: set.intersection(*(lines[name] for lines in rounds)) for name in modules}


def _get(proxy: RunningProxy, path: bytes) -> None:
    with proxy.client() as client:
        reply = client.get(f"/files/{REPO}@main/{path.decode()}", Range=f"bytes=0-{READ_BYTES - 1}")
    assert reply.body == FILES[path][:READ_BYTES]


@contextmanager
def _mounted(proxy: RunningProxy) -> Iterator[Callable[[bytes], None]]:
    """Yields what reads the beginning of a file, by a worker in a thread of this process."""
    kernel, ended = FakeKernel(), threading.Event()
    client = Client(parse_address(proxy.address), timeout_s=60.0)
    snapshot = client.snapshot(REPO, "main")
    client.close()
    options = MountOptions(repo=REPO, mountpoint="/mnt", proxy=proxy.address)
    Worker(
        fd=kernel.device,
        session=Session(minor=44, no_open=True, no_opendir=True, resend=True, epochs=True),
        readers=reader_factory(options, MountView(snapshot, snapshot.root, uid=0, gid=0), print),
        threads=THREADS,
        marks=[0.0] * THREADS,
        log=print,
        ended=ended,
        pending=PendingRequests(THREADS),
    ).start()
    request = fuse_abi.READ_IN.pack(0, 0, READ_BYTES) + bytes(20)

    def read(path: bytes) -> None:
        assert kernel.ask(fuse_abi.Opcode.LOOKUP, ROOT_INO, path + b"\0")[0] == 0
        answer = kernel.ask(fuse_abi.Opcode.READ, child_ino(ROOT_INO, path), request)
        assert answer == (0, FILES[path][:READ_BYTES])

    try:
        yield read
    finally:
        kernel.close()
        ended.wait(60.0)
        kernel.release()


def _report(result: Result, what: str, lines: Mapping[str, set[int]]) -> None:
    folders = Counter(".".join(module.split(".")[:2]) for module in lines)
    result.add(f"{what}: modules", len(lines))
    for folder in SHOWN:
        if folders[folder]:
            result.add(f"{what}: {folder}", folders.pop(folder))
    for package in ("proxy", "mount", "chunkstore"):
        others = sum(count for folder, count in folders.items() if folder.startswith(package))
        if others:
            result.add(f"{what}: other modules of {package}", others)
    by_lines = sorted((len(numbers), module) for module, numbers in lines.items())
    listed = ", ".join(f"{module} {count}" for count, module in by_lines)
    result.notes.append(f"{what}, lines of each: {listed}")
