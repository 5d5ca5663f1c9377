"""Virtual packs that tests make of chunks, some of which lie in objects of a source."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from typing import NamedTuple

from hypothesis import strategies as st

from lodefs.chunkstore.format.compression import RAW, compress
from lodefs.chunkstore.format.names import PackId, digest_of
from lodefs.chunkstore.format.pack import PackIndex
from lodefs.chunkstore.format.virtual_pack import PlacedRun, SourceObject, VirtualPack
from tests.support.chunkstore.memory_objects import etag_of

SOURCE = "field-7"


class MadePack(NamedTuple):
    """A virtual pack, its own object, and the objects of the source that it needs."""

    pack: VirtualPack
    stored: bytes
    objects: dict[str, bytes]

    @property
    def pack_id(self) -> PackId:
        return self.pack.index.pack_id


class PlacedChunk(NamedTuple):
    """A chunk, and the object in which it lies, after ``skipped`` other bytes; "" for the pack."""

    raw: bytes
    key: str = ""
    skipped: int = 0


def virtual_pack_of(chunks: Sequence[PlacedChunk]) -> MadePack:
    """Makes a pack of chunks, at least one of which lies in an object."""
    objects: dict[str, bytes] = {}
    stored: list[bytes] = []
    codecs, sizes, own = bytearray(), array("I"), b""
    found: list[tuple[int, str, int]] = []  # chunk, key, offset
    for n, (raw, key, skipped) in enumerate(chunks):
        codec, data = (RAW, raw) if key else compress(raw)
        codecs.append(codec)
        sizes.append(len(data))
        if key:
            before = objects.get(key, b"") + b"?" * skipped
            objects[key] = before + raw
            found.append((n, key, len(before)))
        else:
            stored.append(bytes(data))
    names = list(objects)
    index = PackIndex(
        b"".join(digest_of(one.raw) for one in chunks),
        array("I", [len(one.raw) for one in chunks]),
        sizes,
        bytes(codecs),
    )
    own = b"".join(stored)
    described = [SourceObject(SOURCE, k, len(objects[k]), etag_of(objects[k]), "") for k in names]
    runs = [PlacedRun(n, 1, names.index(key), offset) for n, key, offset in found]
    pack = VirtualPack(index, described, runs)
    return MadePack(pack, own + pack.encode_tail(), objects)


_chunk = st.builds(
    PlacedChunk,
    st.one_of(st.binary(min_size=1, max_size=40), st.just(b"abc" * 100)),
    st.sampled_from(["", "", "a", "b/c"]),
    st.integers(0, 2),
)
virtual_packs = (
    st.lists(_chunk, min_size=1, max_size=9)
    .filter(lambda chunks: any(one.key for one in chunks))
    .map(virtual_pack_of)
)
