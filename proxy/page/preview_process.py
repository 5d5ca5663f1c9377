"""A process that makes one preview.

What it reads may be made to harm its reader. So it has little memory and time, no credentials, and
may write nothing but its answer: a PreviewView as JSON on standard output. Standard input holds a
PreviewOrder as one line of JSON, and the bytes.
"""

from __future__ import annotations

import os
import resource
import sys

import msgspec

from lodefs.chunkstore.errors import InvalidInput
from lodefs.chunkstore.format.decoding import json_decoder
from lodefs.proxy.page import parquet_footer, parquet_rows, text_preview
from lodefs.proxy.page.preview_view import PreviewOrder, PreviewView, none

MEMORY_BYTES_MAX = 512 * 1024 * 1024
ARROW_MEMORY_BYTES_MAX = 2048 * 1024 * 1024  # its allocator and libraries take up addresses
CPU_S_MAX = 2
OPEN_FILES_MAX = 64


def main() -> None:
    """Reads an order, writes a view."""
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
    os._exit(0)  # Arrow's threads may be starting still: ending with them aborts now and then


def limit(order: PreviewOrder) -> None:
    """From now on this process may do little."""
    memory = ARROW_MEMORY_BYTES_MAX if order.format == "parquet" else MEMORY_BYTES_MAX
    for what, most in (
        (resource.RLIMIT_AS, memory),
        (resource.RLIMIT_CPU, CPU_S_MAX),
        (resource.RLIMIT_CORE, 0),
        (resource.RLIMIT_FSIZE, 0),  # of files; what goes into pipes is none
        (resource.RLIMIT_NOFILE, OPEN_FILES_MAX),
    ):
        resource.setrlimit(what, (most, most))


def view_of(order: PreviewOrder, data: bytes) -> PreviewView:
    """The preview. Raises: InvalidInput (the bytes are not of the format), MemoryError."""
    if order.format == "csv":
        return text_preview.csv_view(data, is_whole=order.is_whole)
    if order.format == "parquet-footer":
        return parquet_footer.footer_view(data)
    if order.format == "parquet":
        return parquet_rows.rows_view(data)
    return text_preview.text_view(data, is_whole=order.is_whole)
