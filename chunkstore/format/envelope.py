"""Small JSON documents with a checksum: commits, refs and store.json.

One line: ``{"lodefs":KIND,"version":N,"body":{...},"blake3":"<64 hex>"}`` and a newline. The
checksum covers every byte before ``,"blake3"``. docs/format.md has the bodies.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeVar

import msgspec
from blake3 import blake3

from lodefs.chunkstore.errors import Corrupt, InvalidInput, UnknownFormat
from lodefs.chunkstore.format.decoding import from_json
from lodefs.chunkstore.types import Buffer

_SEAL = b',"blake3":"'
_END = b'"}\n'
_SEAL_SIZE_BYTES = len(_SEAL) + 64 + len(_END)

T = TypeVar("T")


class _Envelope(msgspec.Struct, forbid_unknown_fields=True):
    lodefs: str
    version: int
    body: msgspec.Raw


def seal(kind: str, version: int, body: object) -> bytes:
    """Returns the document. msgspec encodes ``body``; the fields of a Struct keep their order."""
    raw = msgspec.Raw(msgspec.json.encode(body, order="deterministic"))
    head = msgspec.json.encode(_Envelope(kind, version, raw))[:-1]
    return b"".join((head, _SEAL, blake3(head).hexdigest().encode(), _END))


def unseal(kind: str, bodies: Mapping[int, type[T]], data: Buffer, what: str) -> T:
    """Returns the body of a document. ``bodies`` are its types by version; ``what`` names it in
    errors.

    Raises: Corrupt; UnknownFormat for another version.
    """
    document = bytes(data)
    head, tail = document[:-_SEAL_SIZE_BYTES], document[-_SEAL_SIZE_BYTES:]
    if tail != b"".join((_SEAL, blake3(head).hexdigest().encode(), _END)):
        raise Corrupt(f"{what} does not match its checksum, or is not a document of lodefs")
    try:
        envelope = from_json(head + b"}", _Envelope)
        if envelope.lodefs != kind:
            raise Corrupt(f"{what} is a {envelope.lodefs!r}, not a {kind}")
        body_type = bodies.get(envelope.version)
        if body_type is None:
            is_newer = envelope.version > max(bodies)
            way_out = "a newer lodefs is needed" if is_newer else "push the data into a new store"
            raise UnknownFormat(
                f"{what} is of format version {envelope.version}, which this lodefs does not "
                f"know: {way_out}"
            )
        return from_json(envelope.body, body_type)
    except InvalidInput as error:
        raise Corrupt(f"{what} is not a {kind}: {error}") from error
