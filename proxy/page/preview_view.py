"""What the page shows of a file's content, and the limits of it."""

from __future__ import annotations

from typing import Literal

import msgspec

HEAD_BYTES_MAX = 256 * 1024  # of a file that are looked at
ARCHIVE_BYTES_MAX = 8 * 1024 * 1024  # of an archive: a tar's beginning, a zip's end
PATCH_BYTES_MAX = 1024 * 1024  # of each of two files that are compared
WHOLE_BYTES_MAX = 16 * 1024 * 1024  # of a Parquet file whose rows are shown
VIEW_BYTES_MAX = 1024 * 1024  # of a view, as JSON
TEXT_CHARS_MAX = 64 * 1024
ROWS_MAX = 50
COLUMNS_MAX = 60
CELL_CHARS_MAX = 200

Format = Literal["text", "csv", "parquet", "json", "markdown", "tar", "zip", "patch"]
Part = Literal[
    "text", "paragraph", "heading", "bullets", "numbers", "item", "quote", "block", "rule",
    "strong", "emphasis", "struck", "code", "link", "image", "break",
    "table", "row", "head", "cell",
]  # fmt: skip


class DocumentPart(msgspec.Struct, omit_defaults=True):
    """A part of a document, of a kind that the page knows how to make an element of.

    ``text``: of a text, code, a block of code; what stands for an image. ``href``: of a link, to a
    web page or relative to the file; of an image, relative to the file. ``level``: of a heading,
    from 1, none left out; the first number of numbers.
    """

    part: Part
    text: str = ""
    href: str = ""
    level: int = 0
    parts: list[DocumentPart] = []


class PreviewView(msgspec.Struct, frozen=True, omit_defaults=True):
    """A preview. ``kind`` says which of the fields hold it; ``note`` is for people."""

    kind: Literal["text", "table", "image", "binary", "document", "patch", "none"]
    note: str = ""
    text: str = ""
    columns: list[str] = []
    types: list[str] = []  # of the columns, where they are known
    rows: list[list[str]] = []
    parts: list[DocumentPart] = []  # of a document
    is_cut: bool = False
    media: str = ""
    width: int = 0
    height: int = 0
    may_retry: bool = False  # this machine was too busy: asked for again, it may be more


class PreviewOrder(msgspec.Struct, frozen=True):
    """What a preview process is to do with the bytes that follow."""

    format: Format
    is_whole: bool  # whether the bytes are all of the file; of Parquet and zip files: else its end
    before_bytes: int = 0  # of a patch: how many of the bytes are what was there before


def cell(value: object) -> str:
    """A value of a table as it is shown."""
    text = str(value)
    return text if len(text) <= CELL_CHARS_MAX else text[:CELL_CHARS_MAX] + "…"


def none(note: str) -> PreviewView:
    """Nothing can be shown; ``note`` says why."""
    return PreviewView("none", note)
