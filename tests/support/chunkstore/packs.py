"""Packs that tests make of chunks, in memory."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from blake3 import blake3

from lodefs.chunkstore.format.names import ChunkId, PackId
from lodefs.chunkstore.format.pack import PackIndex
from lodefs.chunkstore.types import Buffer


def pack_id_of(ids_and_sizes: Iterable[tuple[ChunkId, int]]) -> PackId:
    """The id of a pack with these chunks, as docs/format.md has it."""
    rows = [chunk_id + size.to_bytes(4, "little") for chunk_id, size in ids_and_sizes]
    return PackId(blake3(b"".join(rows)).digest())


@dataclass(frozen=True, slots=True)
class FinishedPack:
    """A pack to put under ``keys.pack(pack_id)``: its bytes are the joined buffers."""

    pack_id: PackId
    index: PackIndex
    buffers: Sequence[Buffer]


class PackBuilder:
    """Gathers chunks; a pack of any size, unlike those of a push (pack_writer.py)."""

    def __init__(self) -> None:
        self._ids: list[bytes] = []
        self._raw_sizes = array("I")
        self._stored_sizes = array("I")
        self._codecs = bytearray()
        self._buffers: list[Buffer] = []

    @property
    def count(self) -> int:
        """Chunks so far."""
        return len(self._ids)

    def add(self, chunk_id: ChunkId, codec: int, stored: Buffer, raw_size_bytes: int) -> int:
        """The number of the chunk in the pack."""
        self._ids.append(chunk_id)
        self._raw_sizes.append(raw_size_bytes)
        self._stored_sizes.append(len(stored))
        self._codecs.append(codec)
        self._buffers.append(stored)
        return len(self._ids) - 1

    def finish(self) -> FinishedPack:
        """The pack. The builder is not used afterwards."""
        index = PackIndex(
            b"".join(self._ids), self._raw_sizes, self._stored_sizes, bytes(self._codecs)
        )
        return FinishedPack(index.pack_id, index, [*self._buffers, index.encode()])
