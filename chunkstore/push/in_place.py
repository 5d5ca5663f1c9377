"""Decides which chunks of an import in place stay in their objects, and on which earlier chunks it
may rely."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import NamedTuple

from lodefs.chunkstore.format.names import PackId
from lodefs.chunkstore.format.virtual_pack import SourceObject, is_condition
from lodefs.chunkstore.push.index.push_index import PushIndex, split
from lodefs.chunkstore.push.workers.pipeline import CutFile


class PlacedChunk(NamedTuple):
    """A chunk lies in ``object`` from ``offset`` on."""

    object: SourceObject
    offset: int


@dataclass(frozen=True, slots=True)
class InPlace:
    """Chunks of objects of at least ``copy_below_bytes`` stay in the source with this name, in
    objects whose keys begin with ``prefix`` and end with the file's path."""

    source: str
    prefix: str
    copy_below_bytes: int

    def places(self, file: CutFile, wanted: Sequence[bool]) -> Iterator[PlacedChunk] | None:
        """Returns where the wanted ones of a file's chunks lie; None if they must be copied: those
        of small objects, and of any without an ETag that a request can have as its condition."""
        origin = file.origin
        if origin is None or origin.size_bytes < self.copy_below_bytes:
            return None
        key, state = self.prefix + origin.path.decode(), origin.condition
        if not is_condition(state.etag) or not is_condition(state.version or "none"):
            return None
        there = SourceObject(self.source, key, origin.size_bytes, state.etag, state.version)
        sizes = [chunk.raw_size_bytes for chunk in file.chunks]
        offsets = accumulate(sizes[:-1], initial=origin.offset)
        places = zip(offsets, wanted, strict=True) if sizes else ()
        return (PlacedChunk(there, at) for at, stays in places if stays)


class SoundPlaces:
    """Places of chunks in a push index, without those in objects that are not what they were: an
    import that finds these again stores them in their new place. For one thread."""

    def __init__(self, index: PushIndex, lost: Callable[[PackId], int]) -> None:
        """``lost`` returns such chunks of a pack (bits of their numbers)."""
        self._index = index
        self._lost = lost
        self._known: dict[int, int] = {}  # by a pack's number

    def __contains__(self, place: object) -> bool:
        assert isinstance(place, int)
        number, n = split(place)
        lost = self._known.get(number)
        if lost is None:
            pack_id = self._index.pack_id(number)
            lost = 0 if pack_id in self._index.added() else self._lost(pack_id)
            self._known[number] = lost
        return not lost >> n & 1
