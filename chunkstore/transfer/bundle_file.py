"""A bundle as a stream: written and read from beginning to end, never held in memory."""

from __future__ import annotations

from collections.abc import Iterator
from typing import BinaryIO, NamedTuple

from blake3 import blake3

from lodefs.chunkstore.errors import Corrupt
from lodefs.chunkstore.format.bundle import (
    COMMIT,
    END,
    HEAD,
    PACK,
    RECORD,
    BundleHead,
    bundle_head_size,
    decode_bundle_head,
    encode_bundle_head,
)
from lodefs.chunkstore.format.commit import SIZE_BYTES_MAX as COMMIT_SIZE_BYTES_MAX
from lodefs.chunkstore.format.commit import commit_id_of, decode_commit
from lodefs.chunkstore.format.names import ID_BYTES
from lodefs.chunkstore.format.pack import PACK_CHUNKS_LIMIT, ROW_SIZE_BYTES, TRAILER_SIZE_BYTES
from lodefs.chunkstore.repo.pack_reader import PAYLOAD_SIZE_BYTES_MAX
from lodefs.chunkstore.types import Buffer

READ_SIZE_BYTES = 8 << 20
_PACK_SIZE_BYTES_MAX = (
    ID_BYTES + PAYLOAD_SIZE_BYTES_MAX + PACK_CHUNKS_LIMIT * ROW_SIZE_BYTES + TRAILER_SIZE_BYTES
)
_SIZES_BYTES_MAX = {COMMIT: COMMIT_SIZE_BYTES_MAX, PACK: _PACK_SIZE_BYTES_MAX, END: ID_BYTES}


class BundleRecord(NamedTuple):
    """A commit's document; or a pack, as its id and the whole object."""

    kind: int
    data: bytearray


class CheckedBundle(NamedTuple):
    """A complete bundle. ``size_bytes`` counts the files of its version; None if it does not have
    that version's tree."""

    head: BundleHead
    size_bytes: int | None


class BundleWriter:
    """Writes a bundle to ``file``. Errors of the file stay OSErrors, since the caller knows it."""

    def __init__(self, file: BinaryIO, head: BundleHead) -> None:
        self._file = file
        self._hasher = blake3()
        self.size_bytes = 0
        self._write(encode_bundle_head(head))

    def add(self, kind: int, *parts: Buffer) -> None:
        """Writes one record: the joined parts."""
        self._write(RECORD.pack(kind, sum(memoryview(part).nbytes for part in parts)))
        for part in parts:
            self._write(part)

    def end(self) -> None:
        """Writes the end, without which the bundle is invalid."""
        self._write(RECORD.pack(END, ID_BYTES))
        self._write(self._hasher.digest())
        self._file.flush()

    def _write(self, data: Buffer) -> None:
        self._hasher.update(data)
        self._file.write(data)
        self.size_bytes += memoryview(data).nbytes


class BundleReader:
    """Reads a bundle from ``file``, which ``what`` names in errors.

    Raises: Corrupt, UnknownFormat. The head is valid once it is read; only after the last record it
    is certain that the bundle is complete.
    """

    def __init__(self, file: BinaryIO, what: str) -> None:
        self._file = file
        self.what = what
        self._hasher = blake3()
        size_bytes = bundle_head_size(self._take(HEAD.size), what)
        self.head = decode_bundle_head(self._take(size_bytes), what)

    def records(self) -> Iterator[BundleRecord]:
        """Yields all records, one in memory at a time. Raises: Corrupt, even at the end."""
        while True:
            kind, size_bytes = RECORD.unpack(self._take(RECORD.size))
            if size_bytes > _SIZES_BYTES_MAX.get(kind, -1):
                raise Corrupt(
                    f"{self.what} is damaged: it has a record of kind {kind} and {size_bytes} bytes"
                )
            checksum = self._hasher.digest()
            data = self._take(size_bytes)
            if kind != END:
                yield BundleRecord(kind, data)
                continue
            if data != checksum:
                raise Corrupt(f"{self.what} is damaged: it does not match its checksum")
            if self._file.read(1):
                raise Corrupt(f"{self.what} is damaged: there are bytes after its end")
            return

    def _take(self, size_bytes: int) -> bytearray:
        """Returns ``size_bytes``. It allocates memory only for bytes that exist."""
        data = bytearray()
        while left := size_bytes - len(data):
            piece = self._file.read(min(left, READ_SIZE_BYTES))
            if not piece:
                raise Corrupt(f"{self.what} is truncated")
            data += piece
        self._hasher.update(data)
        return data


def check_bundle(file: BinaryIO, what: str) -> CheckedBundle:
    """Reads a bundle to its end. Raises: Corrupt, UnknownFormat."""
    reader, size_bytes = BundleReader(file, what), None
    for record in reader.records():
        if record.kind == COMMIT and commit_id_of(record.data) == reader.head.commit:
            size_bytes = decode_commit(record.data, what).size_bytes
    return CheckedBundle(reader.head, size_bytes)
