"""Benchmarks of push, into a store in a directory."""

from __future__ import annotations

import os
import shutil
import statistics
from pathlib import Path

from loadtests import corpora
from loadtests.cli import Lodefs
from loadtests.measure import Run, read_all, size_of
from loadtests.peers import PEERS, push_with, versions
from loadtests.results import Result

MB = 1e6
ROUNDS = 3  # of each program, in turn; the median is reported, because machines are noisy


def tree(scratch: Path) -> Result:
    """A real tree: bytes a second and bytes stored."""
    result = Result("push-tree")
    source = corpora.wheels()
    size_bytes, stored = _against_peers(result, source, scratch)
    smallest = min(stored[name] for name in PEERS)
    for name, figure in stored.items():
        asked = smallest / MB if name == "lodefs" else None
        result.add(f"stored by {name}", figure / MB, "MB", at_most=asked)
    files = sum(len(names) for _, _, names in os.walk(source))
    result.notes.append(f"{files:,} files, {size_bytes / MB:,.0f} MB; {versions()}")
    return result


def random_file(scratch: Path) -> Result:
    """1 GiB of incompressible data: bytes a second."""
    result = Result("push-random")
    _against_peers(result, corpora.random_file().parent, scratch)
    result.notes.append(versions())
    return result


def unchanged(scratch: Path) -> Result:
    """A second push of the tree: files a second, and proof that it does nothing else."""
    result = Result("push-unchanged")
    source = corpora.wheels()
    lodefs = _new_store(scratch)
    first = lodefs.json("push", source, "bench")
    before = size_of(scratch / "store")
    runs = [lodefs.run("push", source, "bench", "--json") for _ in range(2 * ROUNDS)]
    second = lodefs.json("push", source, "bench")
    seconds = statistics.median(taken.seconds for taken in runs)
    result.add("files a second", first["files"] / seconds, "/s", at_least=50_000)
    result.add("files read", second["files_read"], "", at_most=0)
    result.add("bytes sent", size_of(scratch / "store") - before, "B", at_most=0)
    result.add("new commits", len(lodefs.commits("bench")) - 1, "", at_most=0)
    result.notes.append(f"{first['files']:,} files in {seconds:.3f} s, start of Python included")
    return result


def one_byte(scratch: Path) -> Result:
    """One byte changed in the middle of 1 GiB: bytes sent."""
    result = Result("push-one-byte")
    source = scratch / "source"
    source.mkdir()
    shutil.copy(corpora.random_file(), source / "data.bin")
    lodefs = _new_store(scratch)
    lodefs.run("push", source, "bench")
    before = size_of(scratch / "store")
    with (source / "data.bin").open("r+b") as file:
        file.seek(corpora.GIB // 2 + 12345)
        old = file.read(1)
        file.seek(-1, os.SEEK_CUR)
        file.write(bytes([old[0] ^ 1]))
    taken = lodefs.run("push", source, "bench")
    sent = size_of(scratch / "store") - before
    result.add("sent", sent / 1024, "KiB", at_most=512)
    result.add("seconds", taken.seconds, "s")
    return result


def million(scratch: Path) -> Result:
    """One file changed among a million: bytes sent, memory, time."""
    result = Result("push-million")
    source = corpora.million()
    lodefs = _new_store(scratch)
    first = lodefs.run("push", source, "bench", watch_memory=True)
    before = size_of(scratch / "store")
    changed = source / "part-0500" / "sample-0500500.txt"
    changed.write_text(changed.read_text() + "changed\n")
    second = lodefs.run("push", source, "bench", watch_memory=True)
    sent = size_of(scratch / "store") - before
    third = lodefs.run("push", source, "bench")
    result.add("sent", sent / 1024, "KiB", at_most=1024)
    result.add("memory of the first push", first.memory_bytes / 2**20, "MiB", at_most=500)
    result.add("memory of the second", second.memory_bytes / 2**20, "MiB", at_most=500)
    result.add("first push", 1e6 / first.seconds, "files/s")
    result.add("one changed", 1e6 / second.seconds, "files/s")
    result.add("nothing changed", 1e6 / third.seconds, "files/s", at_least=50_000)
    return result


def _against_peers(result: Result, source: Path, scratch: Path) -> tuple[int, dict[str, int]]:
    """Pushes with all programs in turn; adds speeds and the ratio. Returns source and stored
    bytes."""
    size_bytes = read_all(source)
    taken: dict[str, list[float]] = {name: [] for name in ("lodefs", *PEERS)}
    stored: dict[str, int] = {}
    for _ in range(ROUNDS):
        for name, seconds in taken.items():
            if name == "lodefs":
                run, stored[name] = _push(source, scratch)
            else:
                run, stored[name] = push_with(name, source, scratch)
            seconds.append(run.seconds)
    speeds = {name: size_bytes / MB / statistics.median(s) for name, s in taken.items()}
    for name, speed in speeds.items():
        result.add(name, speed, "MB/s")
    result.ratio("lodefs", speeds.pop("lodefs"), speeds, at_least=2)
    return size_bytes, stored


def _push(source: Path, scratch: Path) -> tuple[Run, int]:
    """Pushes once into a new store. Returns its cost and the bytes stored."""
    lodefs = _new_store(scratch)
    taken = lodefs.run("push", source, "bench")
    stored = size_of(scratch / "store")
    shutil.rmtree(scratch / "store")
    shutil.rmtree(lodefs.home)
    return taken, stored


def _new_store(scratch: Path) -> Lodefs:
    lodefs = Lodefs(str(scratch / "store"), scratch / "home", {})
    lodefs.run("init", scratch / "store")
    return lodefs
