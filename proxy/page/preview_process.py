"""A process that makes one preview.

Its input may be crafted to attack it. So it has little memory and time, no credentials, and may
write only its answer: a PreviewView as JSON on standard output. Standard input has a PreviewOrder
as one line of JSON, and the bytes.
"""

from __future__ import annotations

import csv
import io
import os
import resource
import sys
from collections.abc import Callable
from itertools import islice

import msgspec

from lodefs.chunkstore.errors import InvalidInput
from lodefs.chunkstore.format.decoding import json_decoder
from lodefs.proxy.page.preview_view import (
    COLUMNS_MAX,
    ROWS_MAX,
    TEXT_CHARS_MAX,
    Format,
    PreviewOrder,
    PreviewView,
    cell,
    none,
)

MEMORY_BYTES_MAX = 512 * 1024 * 1024
ARROW_MEMORY_BYTES_MAX = 2048 * 1024 * 1024  # Arrow's allocator and libraries use address space
CPU_S_MAX = 2
OPEN_FILES_MAX = 64


def main() -> None:
    line = sys.stdin.buffer.readline(4096)
    order = json_decoder(PreviewOrder).decode(line)
    limit(order)
    view = none("there is not enough memory to show this file")
    try:
        view = view_of(order, sys.stdin.buffer.read())
    except InvalidInput as error:
        view = none(str(error))
    except MemoryError:
        pass
    sys.stdout.buffer.write(msgspec.json.encode(view))
    sys.stdout.buffer.flush()
    os._exit(0)  # Arrow's threads may still be starting; a normal exit sometimes aborts then


def limit(order: PreviewOrder) -> None:
    """Restricts this process from now on."""
    memory = ARROW_MEMORY_BYTES_MAX if order.format == "parquet" else MEMORY_BYTES_MAX
    for what, most in (
        (resource.RLIMIT_AS, memory),
        (resource.RLIMIT_CPU, CPU_S_MAX),
        (resource.RLIMIT_CORE, 0),
        (resource.RLIMIT_FSIZE, 0),  # for files; pipes do not count
        (resource.RLIMIT_NOFILE, OPEN_FILES_MAX),
    ):
        resource.setrlimit(what, (most, most))


def view_of(order: PreviewOrder, data: bytes) -> PreviewView:
    """Returns the preview. Raises: InvalidInput if the bytes do not have the format;
    MemoryError."""
    if order.format == "patch":
        return patch_view(data[: order.before_bytes], data[order.before_bytes :])
    show = _archive_view(order.format) or {
        "csv": csv_view,
        "json": json_view,
        "markdown": markdown_view,
        "parquet": parquet_view,
    }.get(order.format, text_view)
    return show(data, is_whole=order.is_whole)


def _archive_view(form: Format) -> Callable[..., PreviewView] | None:
    if form not in ("tar", "zip"):
        return None
    from lodefs.proxy.page import archive_members  # takes a while, and few files are archives

    return archive_members.tar_view if form == "tar" else archive_members.zip_view


_DELIMITERS = (",", "\t", ";", "|")
_BINARY_SHARE = 0.1  # share of control characters


def text_view(data: bytes, *, is_whole: bool) -> PreviewView:
    """Returns the beginning of a text, or bytes in hex if it is not a text."""
    if not data:
        return PreviewView("text", "the file is empty")
    if _is_binary(data):
        return PreviewView("binary", "not a text; its first bytes:", text=_hex(data[:512]))
    text = decoded(data)
    is_cut = not is_whole or len(text) > TEXT_CHARS_MAX
    note = "the beginning of the file" if is_cut else ""
    return PreviewView("text", note, text=text[:TEXT_CHARS_MAX], is_cut=is_cut)


def json_view(data: bytes, *, is_whole: bool) -> PreviewView:
    """Returns a JSON file with a line for each value; numbers and keys stay as they are. An
    incomplete file, or one that is not JSON, is shown as a text."""
    try:
        formatted = msgspec.json.format(data, indent=2) if is_whole else b""
    except (msgspec.DecodeError, RecursionError):
        formatted = b""
    if not formatted:
        return text_view(data, is_whole=is_whole)
    text = decoded(formatted)
    is_cut = len(text) > TEXT_CHARS_MAX
    note = "formatted; the beginning of the file" if is_cut else "formatted"
    return PreviewView("text", note, text=text[:TEXT_CHARS_MAX], is_cut=is_cut)


def markdown_view(data: bytes, *, is_whole: bool) -> PreviewView:
    """Returns a Markdown file as a document; a binary or empty file as a text."""
    from lodefs.proxy.page import markdown_document

    if not data or _is_binary(data):
        return text_view(data, is_whole=is_whole)
    text = decoded(data)
    most = markdown_document.CHARS_MAX
    is_cut = not is_whole or len(text) > most
    parts = markdown_document.document_of(text[:most])
    note = "the beginning of the file" if is_cut else ""
    return PreviewView("document", note, parts=parts, is_cut=is_cut)


def patch_view(before: bytes, after: bytes) -> PreviewView:
    """Returns the lines in which two contents of a file differ."""
    from lodefs.chunkstore.repo.text_diff import text_diff

    found = text_diff(before, after)
    if found.not_shown:
        return none("this is no text: its differences are not shown")
    if not found.lines:
        return none("the content is the same")
    text = "\n".join(found.lines)
    is_cut = len(text) > TEXT_CHARS_MAX
    note = "the beginning of the differences" if is_cut else ""
    return PreviewView("patch", note, text=text[:TEXT_CHARS_MAX], is_cut=is_cut)


def csv_view(data: bytes, *, is_whole: bool) -> PreviewView:
    """Returns the first rows of a CSV file; its first row names the columns."""
    if _is_binary(data):
        return none("this is not a CSV file: it has bytes that no text has")
    lines = decoded(data).splitlines(keepends=True)
    if not is_whole and len(lines) > 1:
        lines.pop()  # it may be incomplete
    if not lines:
        return none("the file is empty")
    delimiter = max(_DELIMITERS, key=lines[0].count)
    try:
        rows = list(islice(csv.reader(lines, delimiter=delimiter, strict=True), ROWS_MAX + 2))
    except csv.Error as error:
        return none(f"this is not a valid CSV file: {error}")
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
    """Returns bytes as text: UTF-8, or UTF-16 with a mark; U+FFFD replaces anything else."""
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


def parquet_view(data: bytes, *, is_whole: bool) -> PreviewView:
    """Returns the first rows of a whole file, or the columns in its footer. Raises:
    InvalidInput."""
    import pyarrow as pa  # lodefs[preview]
    import pyarrow.parquet as pq

    try:
        file = pq.ParquetFile(io.BytesIO(data))
        total, schema = file.metadata.num_rows, file.schema_arrow
        names = [str(name) for name in schema.names]
        if not is_whole:
            groups = file.metadata.num_row_groups
            shown = list(zip(names, map(str, schema.types), strict=True))[: COLUMNS_MAX * 4]
            return PreviewView(
                "table",
                f"{total:,} rows in {groups} row groups, {len(names)} columns",
                columns=["column", "type"],
                rows=[[cell(name), cell(kind)] for name, kind in shown],
                is_cut=len(names) > len(shown),
            )
        batches = file.iter_batches(ROWS_MAX, columns=names[:COLUMNS_MAX], use_threads=False)
        batch = next(iter(batches), None)
        rows = [] if batch is None else [list(row.values()) for row in batch.to_pylist()]
    except (pa.ArrowException, OSError, ValueError) as error:
        raise InvalidInput(f"this Parquet file cannot be read: {str(error)[:300]}") from error
    return PreviewView(
        "table",
        f"the first {len(rows)} of {total:,} rows, {len(names)} columns",
        columns=[cell(name) for name in names[:COLUMNS_MAX]],
        types=[cell(one) for one in schema.types[:COLUMNS_MAX]],
        rows=[[cell(value) for value in row] for row in rows],
        is_cut=total > len(rows) or len(names) > COLUMNS_MAX,
    )
