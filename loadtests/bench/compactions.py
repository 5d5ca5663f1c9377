"""``./run bench compaction``: compactions of a store on Ceph RGW while a mount reads the packs, and
pushes use again what is being dropped.

Files of random bytes, of which branches come and go; every byte that the mount gives is compared.
"""

from __future__ import annotations

import random
import shutil
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from time import monotonic

from blake3 import blake3

from loadtests.bench.origins import Origin, ceph_origin
from loadtests.cli import Lodefs
from loadtests.measure import CommandError
from loadtests.results import Result

FILES = 240
SIZE_BYTES = 1024 * 1024
ROUNDS = 6
CACHE = "64MiB"  # for the mount's proxy; smaller than a branch, so that packs are read repeatedly
MIN_USED = "0.9"
REPO = "data/set"


@dataclass(slots=True)
class Readers:
    """The results of reads through the mount."""

    reads: int = 0
    wrong: int = 0
    errors: list[str] = field(default_factory=list)


def compactions(scratch: Path) -> Result:
    """Rounds: a branch is deleted, another is pushed, gc runs twice; reads go on all the while."""
    result = Result(f"compaction on Ceph RGW, {ROUNDS} rounds, --min-used {MIN_USED}")
    files = _write_files(scratch / "files")
    with ceph_origin(scratch) as origin:
        lodefs = origin.lodefs
        lodefs.run("push", _link(scratch, files, "all", range(FILES)), f"{REPO}@all")
        kept = range(0, FILES, 3)
        lodefs.run("push", _link(scratch, files, "kept", kept), REPO)
        began_s = monotonic()
        with _reading(scratch, lodefs, {n: files[n] for n in kept}) as readers:
            figures = _rounds(scratch, origin, files)
        result.add("time", monotonic() - began_s, "s")
        for _ in range(2):
            _collect(lodefs)
        problems = lodefs.json("verify", "--data")["problems"]
        size_bytes = _stored_bytes(origin)
    used = set(kept) | figures.used
    result.add("reads of whole files through the mount", readers.reads, at_least=FILES)
    result.add("of these, wrong", readers.wrong, at_most=0)
    result.add("of these, failed", len(readers.errors), at_most=0)
    for error in readers.errors[:3]:
        print(error)
    result.add("pushes meanwhile", figures.pushes, at_least=ROUNDS)
    result.add("of these, failed", figures.failed_pushes, at_most=0)
    result.add("packs that were compacted", figures.compacted, at_least=1)
    result.add("bytes that this freed", figures.freed_bytes)
    result.add("problems of verify --data at the end", len(problems), at_most=0)
    share = size_bytes / (len(used) * SIZE_BYTES)
    result.add("bytes on S3 / bytes of the files in use", share, "x", at_most=1.1)
    return result


@dataclass(slots=True)
class _Figures:
    pushes: int = 0
    failed_pushes: int = 0
    compacted: int = 0
    freed_bytes: int = 0
    used: set[int] = field(default_factory=set)  # files of the last branch


def _rounds(scratch: Path, origin: Origin, files: list[Path]) -> _Figures:
    """A third and another third of the files by turns, pushed by a machine that knows nothing
    while packs are written again."""
    figures, lodefs = _Figures(), origin.lodefs
    names = ["all"]
    for n in range(ROUNDS):
        lodefs.run("branch", "--delete", REPO, names.pop())
        _collect(lodefs)  # tombstones
        figures.used = set(range(1 + n % 2, FILES, 3)) | set(range(0, FILES, 7))
        source = _link(scratch, files, f"round{n}", sorted(figures.used))
        other = replace(lodefs, home=scratch / f"machine{n % 2}")
        push = threading.Thread(target=_push, args=(other, source, f"{REPO}@b{n}", figures))
        push.start()
        for _ in range(2):
            answer = _collect(lodefs)
            figures.compacted += answer["compacted_packs"]
            figures.freed_bytes += answer["compacted_bytes"]
        push.join()
        names.append(f"b{n}")
        shutil.rmtree(source)
    return figures


def _push(lodefs: Lodefs, source: Path, branch: str, figures: _Figures) -> None:
    figures.pushes += 1
    try:
        lodefs.run("push", source, branch)
    except CommandError as error:
        print(error)
        figures.failed_pushes += 1


def _collect(lodefs: Lodefs) -> dict[str, int]:
    answer: dict[str, int] = lodefs.json("gc", "--min-used", MIN_USED, "--grace", "1s")
    return answer


@contextmanager
def _reading(scratch: Path, lodefs: Lodefs, files: dict[int, Path]) -> Iterator[Readers]:
    """A mount of the branch main, from which a thread reads files in random order until the end."""
    digests = {f"{n:04}": blake3(path.read_bytes()).digest() for n, path in files.items()}
    readers, ended, mounted = Readers(), threading.Event(), scratch / "mount"
    mounted.mkdir()

    def read() -> None:
        order = random.Random(1)
        while not ended.is_set():
            name = order.choice(list(digests))
            try:
                data = (mounted / name).read_bytes()
            except OSError as error:
                readers.errors.append(f"{name}: {error}")
                continue
            readers.reads += 1
            readers.wrong += blake3(data).digest() != digests[name]

    with lodefs.proxy(scratch / "node", "--cache-size", CACHE) as proxy:
        lodefs.run("mount", REPO, mounted, "--proxy", proxy.url)
        thread = threading.Thread(target=read)
        thread.start()
        try:
            yield readers
        finally:
            ended.set()
            thread.join()
            lodefs.run("unmount", mounted)


def _write_files(folder: Path) -> list[Path]:
    folder.mkdir()
    source = random.Random(7)
    paths = [folder / f"{n:04}" for n in range(FILES)]
    for path in paths:
        path.write_bytes(source.randbytes(SIZE_BYTES))
    return paths


def _link(scratch: Path, files: list[Path], name: str, chosen: range | list[int]) -> Path:
    """A directory with some of the files."""
    folder = scratch / f"source-{name}"
    folder.mkdir()
    for n in chosen:
        (folder / files[n].name).hardlink_to(files[n])
    return folder


def _stored_bytes(origin: Origin) -> int:
    """The bytes of all packs in the bucket."""
    pages = origin.client.get_paginator("list_objects_v2").paginate(
        Bucket=origin.bucket, Prefix="store/packs/"
    )
    return sum(entry["Size"] for page in pages for entry in page.get("Contents", ()))
