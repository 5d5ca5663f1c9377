"""Text and CSV as they are shown. Pure; run in a process of its own."""

from __future__ import annotations

import csv
from itertools import islice

from lodefs.proxy.page.preview_view import (
    COLUMNS_MAX,
    ROWS_MAX,
    TEXT_CHARS_MAX,
    PreviewView,
    cell,
    none,
)

_DELIMITERS = (",", "\t", ";", "|")
_BINARY_SHARE = 0.1  # of control characters


def text_view(data: bytes, *, is_whole: bool) -> PreviewView:
    """The beginning of a text; bytes in hex if it is none."""
    if not data:
        return PreviewView("text", "the file is empty")
    if _is_binary(data):
        return PreviewView("binary", "not a text; its first bytes:", text=_hex(data[:512]))
    text = decoded(data)
    is_cut = not is_whole or len(text) > TEXT_CHARS_MAX
    note = "the beginning of the file" if is_cut else ""
    return PreviewView("text", note, text=text[:TEXT_CHARS_MAX], is_cut=is_cut)


def csv_view(data: bytes, *, is_whole: bool) -> PreviewView:
    """The first rows of a CSV file, its first one as names of columns."""
    if _is_binary(data):
        return none("this is no CSV file: it has bytes that no text has")
    lines = decoded(data).splitlines(keepends=True)
    if not is_whole and len(lines) > 1:
        lines.pop()  # it may be cut
    if not lines:
        return none("the file is empty")
    delimiter = max(_DELIMITERS, key=lines[0].count)
    try:
        rows = list(islice(csv.reader(lines, delimiter=delimiter, strict=True), ROWS_MAX + 2))
    except csv.Error as error:
        return none(f"this is no CSV file as it should be: {error}")
    if not rows:
        return none("the file is empty")
    is_cut = not is_whole or len(rows) > ROWS_MAX + 1
    width = max(map(len, rows))
    wide = f"; {width} columns, the first {COLUMNS_MAX} are shown" if width > COLUMNS_MAX else ""
    return PreviewView(
        "table",
        f"the first {len(rows[1 : ROWS_MAX + 1])} rows{wide}",
        columns=[cell(name) for name in rows[0][:COLUMNS_MAX]],
        rows=[[cell(value) for value in row[:COLUMNS_MAX]] for row in rows[1 : ROWS_MAX + 1]],
        is_cut=is_cut or width > COLUMNS_MAX,
    )


def decoded(data: bytes) -> str:
    """Text of bytes: UTF-8, or UTF-16 with a mark; U+FFFD stands for what is neither."""
    if data[:2] in (b"\xff\xfe", b"\xfe\xff"):
        return data.decode("utf-16", "replace")
    return data.removeprefix(b"\xef\xbb\xbf").decode("utf-8", "replace")


def _is_binary(data: bytes) -> bool:
    if data[:2] in (b"\xff\xfe", b"\xfe\xff"):
        return False
    sample = data[:8192]
    control = sum(byte < 32 and byte not in b"\t\n\r\f\x1b" for byte in sample)
    return b"\0" in sample or control > _BINARY_SHARE * len(sample)


def _hex(data: bytes) -> str:
    lines = []
    for start in range(0, len(data), 16):
        row = data[start : start + 16]
        shown = "".join(chr(byte) if 32 <= byte < 127 else "." for byte in row)
        lines.append(f"{start:08x}  {row.hex(' '):<47}  {shown}")
    return "\n".join(lines)
