"""A real node under a real mount, and what may happen to its cache meanwhile."""

from __future__ import annotations

import contextlib
import json
import mmap
import os
import random
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from lodefs.proxies.own_proxy import ask
from tests.support.chunkstore.child_process import Child, private_directory
from tests.support.mount.mounts import Mounts, until
from tests.support.proxy.node_process import REPO, NodeProcess

pytestmark = [pytest.mark.fuse, pytest.mark.slow]

MIB = 1 << 20
FILES = {
    **{f"big{n}": random.Random(n).randbytes(3 * MIB + n) for n in range(4)},
    **{f"small/{n:02}": random.Random(9 + n).randbytes(4_000 * n) for n in range(60)},
}

Makes = Callable[..., tuple[NodeProcess, Mounts]]


@pytest.fixture(scope="module")
def source() -> Iterator[Path]:
    """FILES as a directory."""
    with private_directory() as folder:
        for name, content in FILES.items():
            path = folder / name
            path.parent.mkdir(exist_ok=True)
            path.write_bytes(content)
        yield folder


@pytest.fixture
def make(source: Path) -> Iterator[Makes]:
    """Makes a node with a cache of so many bytes, and a mount through it."""
    with private_directory() as folder, contextlib.ExitStack() as stack:

        def made(size_bytes_max: int = 64 * MIB, **more: Path) -> tuple[NodeProcess, Mounts]:
            node = NodeProcess(folder, source, size_bytes_max=size_bytes_max, **more)
            stack.callback(node.kill)
            mounts = Mounts(folder, node)
            stack.callback(mounts.close)
            mounts.mount(repo=REPO)
            return node, mounts

        yield made


def forget(path: Path) -> None:
    """The kernel drops what it has of a file."""
    fd = os.open(path, os.O_RDONLY)
    os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
    os.close(fd)


def read_again(place: Path, name: str) -> bytes:
    """A file's bytes, asked for anew."""
    forget(place / name)
    return (place / name).read_bytes()


def fill(node: NodeProcess, mounts: Mounts) -> None:
    """All files are read, and the proxy is at rest afterwards."""
    for name, content in FILES.items():
        assert (mounts.place / name).read_bytes() == content
    until(lambda: status(node)["in_flight_bytes"] == 0)


def status(node: NodeProcess) -> dict[str, object]:
    """The node's figures."""
    figures = ask(node.address, "/status")["node"]
    assert isinstance(figures, dict)
    return figures


def flip(path: Path) -> None:
    """Turns a bit in each piece of 16 KiB of a cache file around, so that no chunk is whole."""
    path.chmod(0o644)
    with path.open("r+b") as file:
        for at in range(0, path.stat().st_size, 16384):
            file.seek(at)
            byte = file.read(1)[0]
            file.seek(at)
            file.write(bytes([byte ^ 2]))


def verify(node: NodeProcess, *words: str) -> tuple[int, dict[str, Any]]:
    """Exit code and answer of ``lodefs verify --cache`` for the cache of the running proxy."""
    command = [sys.executable, "-m", "lodefs.main", "--proxy", node.address]
    with Child([*command, "verify", "--cache", "--json", *words]) as child:
        code = child.wait()
        return code, json.loads(child.output)


@pytest.mark.parametrize("harm", ["deleted", "cut", "emptied"])
@pytest.mark.parametrize("restarted", [False, True])
def test_a_cache_file_that_was_damaged(make: Makes, harm: str, restarted: bool) -> None:
    """Cache files that are deleted or cut under a mount are noticed and fetched again: every byte
    is right, with a proxy that had them open and with one that was started since."""
    node, mounts = make()
    fds = {name: os.open(mounts.place / name, os.O_RDONLY) for name in FILES}
    try:
        fill(node, mounts)
        for path in node.cache_files():
            if harm == "deleted":
                path.unlink()
            else:
                os.truncate(path, path.stat().st_blocks * 512 // 2 if harm == "cut" else 0)
        if restarted:
            node.restart()
        for name, content in FILES.items():
            assert read_again(mounts.place, name) == content
            assert os.pread(fds[name], len(content), 0) == content
    finally:
        for fd in fds.values():
            os.close(fd)


def test_a_flipped_bit_is_found_and_repaired(make: Makes) -> None:
    """verify --cache names the files whose bytes rotted, while they are mounted; --repair has the
    proxy drop them, and soon reads are right again."""
    node, mounts = make()
    fill(node, mounts)
    assert verify(node)[0] == 0
    for path in node.cache_files():
        flip(path)
    code, logged = verify(node)
    assert (code, logged["repaired"]) == (1, False)
    files = [file for problem in logged["problems"] for file in problem["dataset_files"]]
    assert {"big0", "big1", "big2", "big3"} <= {file["path"] for file in files}
    assert {file["commit"] for file in files} == {node.commit}
    code, again = verify(node, "--repair")
    assert (code, again["repaired"]) == (1, True)
    assert again["problems"] == logged["problems"]
    assert not any(Path(problem["cache_file"]).exists() for problem in logged["problems"])
    for name, content in FILES.items():  # a mount may hold the dropped file for a moment
        until(lambda name=name, content=content: read_again(mounts.place, name) == content)
    assert verify(node)[0] == 0


@pytest.mark.parametrize("limit_bytes", [8 * MIB, 1 * MIB, 100_000])
def test_a_cache_smaller_than_what_is_open(make: Makes, limit_bytes: int) -> None:
    """Open and mapped files are evicted, a file does not even fit: every byte is right, and the
    cache is no larger than it may be."""
    node, mounts = make(limit_bytes)
    fds = {name: os.open(mounts.place / name, os.O_RDONLY) for name in FILES}
    with open(mounts.place / "big0", "rb") as file:
        mapped = mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)
    try:
        for turn in range(3):
            for name in sorted(FILES, key=lambda name: name[::-1]):
                os.posix_fadvise(fds[name], 0, 0, os.POSIX_FADV_DONTNEED)
                half = len(FILES[name]) // 2
                assert os.pread(fds[name], half, half) == FILES[name][half : 2 * half]
            at = turn * MIB
            assert mapped[at : at + 100_000] == FILES["big0"][at : at + 100_000]
            until(lambda: used_bytes(node) <= limit_bytes + 2 * MIB)
    finally:
        mapped.close()
        for fd in fds.values():
            os.close(fd)


def used_bytes(node: NodeProcess) -> int:
    """What the files of the cache take on the disk."""
    total = 0
    for path in node.cache_files():
        with contextlib.suppress(FileNotFoundError):  # evicted meanwhile
            total += path.stat().st_blocks * 512
    return total


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 12 MiB."""
    target = tmp_path / "disk"
    target.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=12m", "tmpfs", target], check=True)
    yield target
    subprocess.run(["umount", "--lazy", target], check=True)


def test_a_full_disk(make: Makes, small_disk: Path) -> None:
    """A disk that is full, by the cache or by others, reaches no reader; when there is space again
    the cache is used again."""
    node, mounts = make(64 * MIB, cache_dir=small_disk / "cache")
    fill(node, mounts)
    hog = small_disk / "hog"
    with hog.open("wb", buffering=0) as file, contextlib.suppress(OSError):
        while True:
            file.write(bytes(4096))
    for _ in range(2):
        for name, content in FILES.items():
            assert read_again(mounts.place, name) == content
    hog.unlink()

    def is_kept() -> bool:
        for name, content in FILES.items():
            assert read_again(mounts.place, name) == content
        return used_bytes(node) > MIB

    until(is_kept)


def test_the_proxy_is_killed_and_comes_back(make: Makes) -> None:
    """Reads that run while the proxy is killed and started again are right."""
    node, mounts = make(2 * MIB)
    for _ in range(3):
        for name in ("big0", "big1", "small/59"):
            assert read_again(mounts.place, name) == FILES[name]
        node.restart()


@pytest.mark.parametrize("harm", ["removed", "replaced"])
def test_the_cache_directory_is_lost(make: Makes, harm: str) -> None:
    """Files that are open, and paths, are read on while the cache's directory is removed, or
    another one put in its place: all bytes are right, and none of the reads fails."""
    node, mounts = make()
    fds = {name: os.open(mounts.place / name, os.O_RDONLY) for name in FILES}
    try:
        fill(node, mounts)
        elsewhere = node.cache_dir.rename(node.cache_dir.with_name("elsewhere"))
        if harm == "replaced":
            node.cache_dir.mkdir()
        shutil.rmtree(elsewhere)

        def is_begun_anew() -> bool:
            for name, content in FILES.items():
                forget(mounts.place / name)
                assert os.pread(fds[name], len(content), 0) == content
                assert read_again(mounts.place, name) == content
                assert name.partition("/")[0] in os.listdir(mounts.place)
            return bool(node.cache_files()) and "starting a new one" in node.log

        until(is_begun_anew)
        assert is_begun_anew()
    finally:
        for fd in fds.values():
            os.close(fd)
