"""Which composites were looked at for purged bytes: one document, which may be lost."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import msgspec

from lodefs.chunkstore.errors import Corrupt, NotFound, UnknownFormat
from lodefs.chunkstore.format import keys
from lodefs.chunkstore.format.envelope import seal, unseal
from lodefs.chunkstore.format.names import CompositeName
from lodefs.chunkstore.objects.interface import ObjectStore, read_whole
from lodefs.chunkstore.types import Buffer

VERSION = 1
SIZE_BYTES_MAX = 64 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class Looked:
    """``purge``: the number of the newest one then. ``unused``: composites in which, of what counts
    no more, nothing had been purged, and how many bytes that was. These only become more, so who
    finds as many finds the same."""

    purge: int = -1
    unused: Mapping[CompositeName, int] = field(default_factory=dict)


class _Document(msgspec.Struct, forbid_unknown_fields=True):
    purge: int
    unused: dict[str, int]


def encode_looked(looked: Looked) -> bytes:
    """The document."""
    unused = {
        keys.composite(name).removeprefix(keys.COMPOSITES): n for name, n in looked.unused.items()
    }
    return seal("composites-looked", VERSION, _Document(looked.purge, unused))


def decode_looked(data: Buffer, what: str) -> Looked:
    """What the document says. Raises: Corrupt, UnknownFormat."""
    body = unseal("composites-looked", {VERSION: _Document}, data, what)
    unused: dict[CompositeName, int] = {}
    for text, size_bytes in body.unused.items():
        name = keys.composite_of(keys.COMPOSITES + text)
        if name is None:
            raise Corrupt(f"{what}: {text!r} is no composite")
        unused[name] = size_bytes
    return Looked(body.purge, unused)


def read_looked(objects: ObjectStore) -> Looked:
    """The document of a store; nothing, if it is not there, damaged, or a newer version's. Raises:
    what the store does."""
    try:
        data = read_whole(objects, keys.COMPOSITES_LOOKED, SIZE_BYTES_MAX).data
        return decode_looked(data, keys.COMPOSITES_LOOKED)
    except (NotFound, Corrupt, UnknownFormat):
        return Looked()
