"""What the page shows of a file's content, and the limits of it."""

from __future__ import annotations

from typing import Literal

import msgspec

HEAD_BYTES_MAX = 256 * 1024  # of a file that are looked at
WHOLE_BYTES_MAX = 16 * 1024 * 1024  # of a Parquet file whose rows are shown
VIEW_BYTES_MAX = 1024 * 1024  # of a view, as JSON
TEXT_CHARS_MAX = 64 * 1024
ROWS_MAX = 50
COLUMNS_MAX = 60
CELL_CHARS_MAX = 200

Format = Literal["text", "csv", "parquet"]


class PreviewView(msgspec.Struct, frozen=True, omit_defaults=True):
    """A preview. ``kind`` says which of the fields hold it; ``note`` is for people."""

    kind: Literal["text", "table", "image", "binary", "none"]
    note: str = ""
    text: str = ""
    columns: list[str] = []
    types: list[str] = []  # of the columns, where they are known
    rows: list[list[str]] = []
    is_cut: bool = False
    media: str = ""
    width: int = 0
    height: int = 0
    may_retry: bool = False  # this machine was too busy: asked for again, it may be more


class PreviewOrder(msgspec.Struct, frozen=True):
    """What a preview process is to do with the bytes that follow."""

    format: Format
    is_whole: bool  # whether the bytes are all of the file; of a Parquet file: else its end


def cell(value: object) -> str:
    """A value of a table as it is shown."""
    text = str(value)
    return text if len(text) <= CELL_CHARS_MAX else text[:CELL_CHARS_MAX] + "…"


def none(note: str) -> PreviewView:
    """Nothing can be shown; ``note`` says why."""
    return PreviewView("none", note)
