"""The processor time of reads in one process, without HTTP: hits, and bytes that are not cached."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Coroutine
from pathlib import Path
from statistics import median
from time import process_time
from typing import Any

from loadtests.results import Result
from lodefs.proxy.node import Located
from lodefs.proxy.service.store_node import StoreNode
from tests.support.proxy.rig import MIB, Rig, file_of, read_file

ROUNDS = 5
HITS = 16_000
HIT_BYTES = 64 << 10
FILE_BYTES = 256 * MIB
HIT_FILE_BYTES = 4 * MIB
PATH, HIT_PATH = b"file", b"hit"


def read_path(scratch: Path) -> Result:
    """Reads by a node over a store in memory, in turns; compare with another version by its own
    checkout, in turns as well."""
    result = Result("read-path")
    files = {PATH: os.urandom(FILE_BYTES), HIT_PATH: os.urandom(HIT_FILE_BYTES)}
    rig = Rig(scratch, files, chunk_size_bytes=64 << 10, pack_chunks=512)
    ways: dict[str, Callable[[StoreNode], Coroutine[Any, Any, float]]] = {
        "256 MiB cold": _read,
        "256 MiB cold, by places": _locate,
        f"{HITS:,} hits": _hit,
    }
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    for number in range(ROUNDS):
        for name, way in ways.items():
            rig.directory = scratch / f"{number} {name}"
            seconds[name].append(asyncio.run(_measured(rig, way)))
    for name, found in seconds.items():
        result.add(name, 1e3 * median(found), "ms")
        result.add(f"{name}, least", 1e3 * min(found), "ms")
    result.notes.append("Processor time of all threads.")
    return result


async def _measured(rig: Rig, way: Callable[[StoreNode], Coroutine[Any, Any, float]]) -> float:
    async with rig.node(rig.settings(4 * FILE_BYTES)) as node:
        return await way(node)


async def _read(node: StoreNode) -> float:
    file = await file_of(node, PATH)
    begun_s = process_time()
    for first in range(0, FILE_BYTES, MIB):
        data, _ = await read_file(node, file, first, MIB)
        assert len(data) == MIB
    return process_time() - begun_s


async def _locate(node: StoreNode) -> float:
    file = await file_of(node, PATH)
    begun_s = process_time()
    at = 0
    while at < FILE_BYTES:
        found = await node.files.locate(file, at, min(MIB, FILE_BYTES - at))
        if isinstance(found, Located):
            at += min(found.place.size_bytes, MIB)
        else:
            at += len(found.first)
            await found.aclose()
    return process_time() - begun_s


async def _hit(node: StoreNode) -> float:
    file = await file_of(node, HIT_PATH)
    await read_file(node, file)
    begun_s = process_time()
    for number in range(HITS):
        first = number * HIT_BYTES % HIT_FILE_BYTES
        assert node.files.hit(file.content_id, first, HIT_BYTES) is not None
    return process_time() - begun_s
