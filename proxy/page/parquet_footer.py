"""Names and types of a Parquet file's columns, from its footer. Pure.

The footer is FileMetaData of parquet.thrift (apache/parquet-format) in Thrift's compact protocol
(thrift/doc/specs/thrift-compact-protocol.md). Only its beginning is read: the schema, the number of
rows and of row groups, whose own records are not needed.
"""

from __future__ import annotations

import struct

from lodefs.chunkstore.errors import InvalidInput
from lodefs.proxy.page.preview_view import COLUMNS_MAX, PreviewView, cell

MAGIC = b"PAR1"
TRAILER_BYTES = 8  # length of the footer, u32, little-endian; MAGIC
_DEPTH_MAX = 12
_TYPES = ("boolean", "int32", "int64", "int96", "float", "double", "bytes", "fixed bytes")
_CONVERTED = {0: "text", 4: "enum", 5: "decimal", 6: "date", 9: "timestamp (ms)",
              10: "timestamp (us)", 1: "map", 3: "list", 19: "JSON"}  # fmt: skip
_REPETITION = {1: "optional", 2: "repeated"}
_TRUE, _FALSE, _BYTE, _I16, _I32, _I64, _DOUBLE, _BINARY, _LIST, _SET, _MAP, _STRUCT = range(1, 13)

Value = object
Fields = dict[int, Value]


def footer_bytes(trailer: bytes) -> int:
    """How long the footer is, by the last bytes of a file. Raises: InvalidInput."""
    if len(trailer) != TRAILER_BYTES or trailer[4:] != MAGIC:
        raise InvalidInput("this is no Parquet file: it does not end in PAR1")
    size: int = struct.unpack("<I", trailer[:4])[0]
    return size


def footer_view(data: bytes) -> PreviewView:
    """What a footer, or its beginning, says. Raises: InvalidInput."""
    found = _Compact(data).file_metadata()
    schema, rows, groups = found.get(2), found.get(3), found.get(4)
    if not isinstance(schema, list) or not isinstance(rows, int) or not schema:
        raise InvalidInput("the footer of this Parquet file has no schema")
    leaves = [_column(one) for one in schema[1:] if isinstance(one, dict)]
    return PreviewView(
        "table",
        f"{rows:,} rows in {groups if isinstance(groups, int) else 0} row groups, "
        f"{len(leaves)} columns.",
        columns=["column", "type"],
        rows=leaves[: COLUMNS_MAX * 4],
        is_cut=len(leaves) > COLUMNS_MAX * 4,
    )


def _column(element: Fields) -> list[str]:
    name = element.get(4)
    text = name.decode("utf-8", "replace") if isinstance(name, bytes) else "?"
    kind, converted = element.get(1), element.get(6)
    shown = _TYPES[kind] if isinstance(kind, int) and 0 <= kind < len(_TYPES) else "group"
    if isinstance(converted, int):
        shown = _CONVERTED.get(converted, shown)
    repetition = element.get(3)
    more = _REPETITION.get(repetition) if isinstance(repetition, int) else None
    return [cell(text), f"{shown}, {more}" if more else shown]


class _Compact:
    """A reader of Thrift's compact protocol, strict and bounded by its bytes."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    def file_metadata(self) -> Fields:
        """The fields up to the row groups, of which only the number is read."""
        return self._fields(0, count_only=4)

    def _fields(self, depth: int, *, count_only: int = -1) -> Fields:
        if depth > _DEPTH_MAX:
            raise InvalidInput("the footer of this Parquet file is nested too deeply")
        found: Fields = {}
        number = 0
        while (head := self._byte()) != 0:
            delta, kind = head >> 4, head & 15
            number = number + delta if delta else _unzigzag(self._varint())
            if number == count_only:
                found[number] = self._list_head()[0]
                return found
            found[number] = self._value(kind, depth)
        return found

    def _value(self, kind: int, depth: int) -> Value:
        if kind in (_TRUE, _FALSE):
            return kind == _TRUE
        if kind == _BYTE:
            return self._byte()
        if kind in (_I16, _I32, _I64):
            return _unzigzag(self._varint())
        if kind == _DOUBLE:
            return self._take(8)
        if kind == _BINARY:
            return self._take(self._varint())
        if kind in (_LIST, _SET):
            count, of = self._list_head()
            return [self._item(of, depth) for _ in range(count)]
        if kind == _STRUCT:
            return self._fields(depth + 1)
        raise InvalidInput("the footer of this Parquet file is damaged")

    def _item(self, kind: int, depth: int) -> Value:
        return self._byte() == _TRUE if kind in (_TRUE, _FALSE) else self._value(kind, depth + 1)

    def _list_head(self) -> tuple[int, int]:
        head = self._byte()
        count = head >> 4 if head >> 4 < 15 else self._varint()
        if count > len(self._data):
            raise InvalidInput("the footer of this Parquet file is damaged")
        return count, head & 15

    def _varint(self) -> int:
        value = 0
        for shift in range(0, 70, 7):
            byte = self._byte()
            value |= (byte & 127) << shift
            if byte < 128:
                return value
        raise InvalidInput("the footer of this Parquet file is damaged")

    def _byte(self) -> int:
        return self._take(1)[0]

    def _take(self, size: int) -> bytes:
        if self._at + size > len(self._data):
            raise InvalidInput("the footer of this Parquet file is cut off, or too large to show")
        self._at += size
        return self._data[self._at - size : self._at]


def _unzigzag(value: int) -> int:
    return (value >> 1) ^ -(value & 1)
