"""Benchmark of pushes to a store that has too many chunks for a machine to know them all."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from blake3 import blake3

from loadtests import corpora
from loadtests.measure import run
from loadtests.results import Result
from lodefs.chunkstore.format import keys
from lodefs.chunkstore.format.index_shard import (
    HEAD,
    HOOKS_HEAD,
    MAGIC,
    PACK_HEAD,
    ROW_SIZE_BYTES,
    VERSION,
)
from lodefs.chunkstore.objects.delegating import DelegatingStore
from lodefs.chunkstore.objects.directory import DirectoryObjects
from lodefs.chunkstore.objects.interface import ObjectInfo, Part
from lodefs.chunkstore.push.index import push_index
from lodefs.chunkstore.push.parts.finish import finish_plan
from lodefs.chunkstore.push.parts.part_row import do_part
from lodefs.chunkstore.push.parts.plan import make_plan
from lodefs.chunkstore.push.push import PushOptions, push
from lodefs.chunkstore.repo.store import Store, create_store, open_store

CHUNKS = 1_000_000_000
PACKS, PACK_CHUNKS = 256, 512  # of a made-up shard: a part of 8 GiB, in packs of 32 MiB
HOOKS = 9  # of a pack: its first chunk, and one in 64 of the others
VERSIONS = 3
PACKAGES = {"django": "Django-5.0.{}", "scikit-learn": "scikit-learn-1.3.{}"}
_ETAG = "made-up"


def push_large_store(scratch: Path) -> Result:
    """Three versions by machines that know hooks, and a worker's memory with 10^9 chunks."""
    result = Result("push-large-store")
    known = push_index.CHUNKS_MAX
    plain_bytes = _stored_bytes(scratch / "plain", in_parts=False)
    result.add("stored by plain pushes that know all chunks", plain_bytes / 1e6, "MB")
    for what, chunks_max, in_parts in (
        ("in parts, all chunks known", known, True),
        ("by plain pushes, hooks", 0, False),
        ("in parts, hooks", 0, True),
    ):
        push_index.CHUNKS_MAX = chunks_max
        stored_bytes = _stored_bytes(scratch / what, in_parts=in_parts)
        result.add(f"stored {what} / plain", stored_bytes / plain_bytes, "x", at_most=1.03)
    push_index.CHUNKS_MAX = known
    module = ["-m", "loadtests.bench.largestores"]
    worker = run([sys.executable, *module, scratch / "large", str(CHUNKS)], watch_memory=True)
    found = json.loads(worker.output)
    result.add("chunks of a made-up store", CHUNKS, "")
    result.add("memory of a worker", worker.memory_bytes / 2**20, "MiB", at_most=500)
    result.add("time of its first part, a small one", found["seconds"], "s")
    result.add("processor time of the worker", worker.cpu_s, "s")
    result.add("read", found["read_bytes"] / 1e6, "MB")
    result.add("its push index", found["index_bytes"] / 1e6, "MB")
    return result


def _stored_bytes(directory: Path, *, in_parts: bool) -> int:
    """Pushes the versions of each package, each by machines that are new, and returns the bytes of
    all packs."""
    store = create_store(DirectoryObjects(str(directory / "store")))
    for version in range(VERSIONS):
        for repo, name in PACKAGES.items():
            source = sorted(corpora.wheels().glob(name.format("*")))[version]
            machine = directory / f"{repo}-{version}"
            if in_parts:
                _push_in_parts(store, source, repo, machine)
            else:
                push(store, source, repo, "main", _options(machine))
    return sum(path.stat().st_size for path in (directory / "store/packs").rglob("*/*"))


def _push_in_parts(store: Store, source: Path, repo: str, machine: Path) -> None:
    """Two machines do the parts in turns."""
    name = machine.name
    plan = make_plan(store, name, source, repo, "main", _options(machine)).plan
    for number in range(plan.parts):
        do_part(store, name, number, _options(machine / str(number % 2)))
    finish_plan(store, name, _options(machine))


def _options(machine: Path) -> PushOptions:
    return PushOptions("", "", 0, machine, workers=0)


class _LargeStore(DelegatingStore):
    """A store that seems to have many more index shards. Of each only the hooks can be read."""

    read_bytes = 0
    shards = 0

    def list(
        self, prefix: str, *, after: str = "", limit: int | None = None
    ) -> Iterator[ObjectInfo]:
        yield from self.inner.list(prefix, after=after, limit=limit)
        if prefix == keys.INDEX:
            size_bytes = (
                len(_hooks(0)) + PACKS * (PACK_HEAD.size + PACK_CHUNKS * ROW_SIZE_BYTES) + 32
            )
            for number in range(self.shards):
                yield ObjectInfo(keys.shard(f"{number:016x}-0000000f"), size_bytes, _ETAG)

    def get(self, key: str, *, offset: int = 0, size: int, if_match: str | None = None) -> Part:
        if not key.startswith(keys.INDEX) or not key.endswith("-0000000f"):
            return self.inner.get(key, offset=offset, size=size, if_match=if_match)
        data = _hooks(int(key[len(keys.INDEX) :].split("-")[0], 16))
        self.read_bytes += len(data)
        return Part(data.ljust(size, b"\0"), PACKS * PACK_CHUNKS * ROW_SIZE_BYTES, _ETAG)


def _hooks(number: int) -> bytes:
    """Returns the head of a made-up shard."""
    ids = bytearray(blake3(b"%d" % number).digest(length=PACKS * (1 + HOOKS) * 32))
    for hook in range(2, 1 + HOOKS):  # their ids end with six or eight zero bits
        ids[32 * hook + 31 :: 32 * (1 + HOOKS)] = bytes([64 * (hook % 4)]) * PACKS
    numbers = b"".join(n.to_bytes(4, "little") for n in range(HOOKS))
    size = (1 + HOOKS) * 32
    body = HEAD.pack(MAGIC, VERSION, 0, PACKS) + HOOKS_HEAD.pack(PACKS * HOOKS)
    body += b"".join(
        PACK_HEAD.pack(ids[at : at + 32], HOOKS) + ids[at + 32 : at + size] + numbers
        for at in range(0, len(ids), size)
    )
    return body + blake3(body).digest()


def _worker(directory: Path, chunks: int) -> None:
    """Pushes a small directory into the large store, as one part."""
    objects = _LargeStore(DirectoryObjects(str(directory / "store")))
    create_store(objects)
    objects.shards = chunks // (PACKS * PACK_CHUNKS)
    store = open_store(objects)
    source = min(corpora.wheels().glob("Django*"))
    machine = directory / "machine"
    make_plan(store, "p", source, "django", "main", _options(machine))
    before = time.perf_counter()
    do_part(store, "p", 0, _options(machine))
    seconds = time.perf_counter() - before
    index_bytes = sum(path.stat().st_size for path in machine.glob("*.sqlite*"))
    print(json.dumps({"seconds": seconds, "read_bytes": objects.read_bytes,
                      "index_bytes": index_bytes}))  # fmt: skip


if __name__ == "__main__":
    _worker(Path(sys.argv[1]), int(sys.argv[2]))
