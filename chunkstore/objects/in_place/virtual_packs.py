"""An object store in which a virtual pack looks like an ordinary one: bytes, index, trailer.

Its ETag says that it is virtual, and gives the state of its own object. A range of it is read from
that object and from those of sources that the reader's settings name, each under the condition that
it has not changed. So readers of packs need not know of this; a list and ``head`` show the size and
the ETag of the pack's own object, which the store keeps.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import accumulate

from lodefs.chunkstore.errors import Changed, Corrupt, SourceLost, SourceUnknown
from lodefs.chunkstore.format import keys
from lodefs.chunkstore.format.names import PackId
from lodefs.chunkstore.format.pack import TAIL_SIZE_BYTES, TRAILER_SIZE_BYTES, Trailer, is_virtual
from lodefs.chunkstore.format.virtual_pack import OWN, Piece, SourceObject, VirtualPack
from lodefs.chunkstore.objects.delegating import DelegatingStore
from lodefs.chunkstore.objects.in_place.source_objects import Sources
from lodefs.chunkstore.objects.interface import ObjectStore, Part
from lodefs.chunkstore.objects.ranges.order import RangeOrder, range_order
from lodefs.chunkstore.system.lru import SingleFlightCache
from lodefs.chunkstore.types import Buffer

_PREFIX = "virtual:"
_PACKS_MAX = 1024  # kept in memory
_CHUNKS_MAX = 512 * 1024  # of all of them; about 80 bytes each


class VirtualPacks(DelegatingStore):
    """An ObjectStore over ``inner`` that reads virtual packs from ``sources``. ``get`` also raises
    SourceLost and SourceUnknown; a range that is counted from the end of a virtual pack begins at
    its index at the earliest."""

    def __init__(self, inner: ObjectStore, sources: Sources) -> None:
        super().__init__(inner)
        self.sources = sources
        self._shown: SingleFlightCache[tuple[str, str], _Shown] = SingleFlightCache(
            _PACKS_MAX, weigh=lambda shown: len(shown.pack.index), weight_max=_CHUNKS_MAX
        )

    def get(self, key: str, *, offset: int = 0, size: int, if_match: str | None = None) -> Part:
        pack_id = keys.pack_of(key)
        if if_match is not None and is_virtual_etag(if_match):
            assert pack_id is not None, "only packs are virtual"
            return self._read(self.at(pack_id, if_match), offset, size)
        part = self.inner.get(key, offset=offset, size=size, if_match=if_match)
        if pack_id is None or if_match is not None or not self._is_virtual(key, part, offset):
            return part
        return self._read(self.at(pack_id, _PREFIX + part.etag), offset, size)

    def close(self) -> None:
        self.sources.close()
        self.inner.close()

    @contextmanager
    def range_order(
        self, key: str, offset: int, size_bytes: int, if_match: str
    ) -> Iterator[RangeOrder | None]:
        """Implements OrderSource, also for a range of a virtual pack that lies in one object."""
        if not is_virtual_etag(if_match):
            with range_order(self.inner, key, offset, size_bytes, if_match) as order:
                yield order
            return
        pack_id = keys.pack_of(key)
        assert pack_id is not None, "only packs are virtual"
        shown = self.at(pack_id, if_match)
        pieces = shown.cut(offset, offset + size_bytes)
        if len(pieces) != 1 or pieces[0].object == OWN:
            yield None
            return
        found = shown.pack.objects[pieces[0].object]
        source = self.sources[found.source]
        with source.range_order(found, pieces[0].offset, size_bytes) as order:
            yield order

    def at(self, pack_id: PackId, etag: str) -> _Shown:
        """Returns the virtual pack that has this ETag. Raises: Changed, NotFound, Corrupt."""
        key = keys.pack(pack_id)
        return self._shown.get((key, etag), lambda: self._load(pack_id, etag))

    def _load(self, pack_id: PackId, etag: str) -> _Shown:
        key, own_etag = keys.pack(pack_id), stored_etag(etag)
        part = self.inner.get(key, offset=-TAIL_SIZE_BYTES, size=TAIL_SIZE_BYTES, if_match=own_etag)
        tail_bytes = Trailer.decode(pack_id, part.data, virtual=True).tail_size_bytes
        if tail_bytes > len(part.data):
            part = self.inner.get(key, offset=-tail_bytes, size=tail_bytes, if_match=own_etag)
        pack = VirtualPack.decode(pack_id, part.data)
        if pack.own_size_bytes + tail_bytes != part.object_size_bytes:
            raise Corrupt(f"{key} has {part.object_size_bytes} bytes, which contradicts its end")
        return _Shown(pack, etag)

    def _is_virtual(self, key: str, part: Part, offset: int) -> bool:
        """Whether the object of which ``part`` is from ``offset`` on is a virtual pack."""
        first = max(0, part.object_size_bytes + offset) if offset < 0 else offset
        is_end = part.data and first + len(part.data) == part.object_size_bytes
        if is_end and len(part.data) >= TRAILER_SIZE_BYTES:
            return is_virtual(part.data)
        size = TRAILER_SIZE_BYTES
        return is_virtual(self.inner.get(key, offset=-size, size=size, if_match=part.etag).data)

    def _read(self, shown: _Shown, offset: int, size: int) -> Part:
        """Returns a range of the ordinary pack. Raises: what the stores raise."""
        payload_bytes = shown.pack.index.offsets[-1]
        first = offset
        if offset < 0:  # the index can be read without the sources
            first = max(payload_bytes, shown.size_bytes + offset)
        end = min(first + size, shown.size_bytes)
        parts = [self._piece(shown, piece) for piece in shown.cut(first, end)]
        if end > payload_bytes:
            parts.append(shown.tail[max(0, first - payload_bytes) : end - payload_bytes])
        data = parts[0] if len(parts) == 1 else b"".join(parts)
        return Part(data, shown.size_bytes, shown.etag)

    def _piece(self, shown: _Shown, piece: Piece) -> Buffer:
        key, etag = keys.pack(shown.pack.index.pack_id), stored_etag(shown.etag)
        if piece.object != OWN:
            found = shown.pack.objects[piece.object]
            try:
                return self.sources[found.source].read(found, piece.offset, piece.size_bytes)
            except (SourceLost, SourceUnknown) as error:
                if self.inner.head(key).etag != etag:
                    raise Changed(f"{key} was rewritten, perhaps with these bytes") from error
                if isinstance(error, SourceUnknown):
                    raise  # one error for all packs
                raise SourceLost(f"{error}; it has bytes of {key}") from error
        part = self.inner.get(key, offset=piece.offset, size=piece.size_bytes, if_match=etag)
        if len(part.data) != piece.size_bytes:
            raise Changed(f"{key} is shorter than it was")
        return part.data


class _Shown:
    """A virtual pack as an ordinary one. Immutable."""

    def __init__(self, pack: VirtualPack, etag: str) -> None:
        self.pack = pack
        self.etag = etag
        self.tail = pack.index.encode()
        self.size_bytes = pack.index.offsets[-1] + len(self.tail)
        self._begins = [*accumulate((piece.size_bytes for piece in pack.pieces), initial=0)]

    def cut(self, first: int, end: int) -> list[Piece]:
        """Returns the pieces of the bytes [first, end), as far as these are before the index."""
        end = min(end, self._begins[-1])
        number = bisect_right(self._begins, first) - 1
        found: list[Piece] = []
        while first < end:
            begin, piece = self._begins[number], self.pack.pieces[number]
            stop = min(end, self._begins[number + 1])
            found.append(Piece(stop - first, piece.object, piece.offset + first - begin))
            first, number = stop, number + 1
        return found


def virtual_pack_of(objects: ObjectStore, pack_id: PackId, etag: str) -> VirtualPack | None:
    """Returns the virtual pack that has this ETag in the store; None for another pack. Raises:
    Changed, NotFound, Corrupt."""
    return _wrapper_of(objects).at(pack_id, etag).pack if is_virtual_etag(etag) else None


def check_in_place(objects: ObjectStore, found: SourceObject) -> None:
    """Checks that an object of a source is unchanged. Raises: SourceLost, SourceUnknown, Denied,
    Unavailable."""
    _wrapper_of(objects).sources[found.source].check(found)


def _wrapper_of(objects: ObjectStore) -> VirtualPacks:
    while not isinstance(objects, VirtualPacks):
        assert isinstance(objects, DelegatingStore), "the ETag says that there is one"
        objects = objects.inner
    return objects


def is_virtual_etag(etag: str) -> bool:
    """Whether a pack with this ETag is virtual."""
    return etag.startswith(_PREFIX)


def stored_etag(etag: str) -> str:
    """Returns the ETag of the pack's own object."""
    return etag.removeprefix(_PREFIX)
