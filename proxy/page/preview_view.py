"""The preview of a file's content on the page, and its limits."""

from __future__ import annotations

from typing import Literal

import msgspec

HEAD_BYTES_MAX = 256 * 1024  # of a file that are read
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
    """A preview. ``kind`` says which of the fields have it; ``note`` is a text for the user."""

    kind: Literal["text", "table", "image", "binary", "document", "patch", "none"]
    note: str = ""
    text: str = ""
    columns: list[str] = []
    types: list[str] = []  # types of the columns, if known
    rows: list[list[str]] = []
    parts: list[DocumentPart] = []  # of a document
    is_cut: bool = False
    media: str = ""
    width: int = 0
    height: int = 0
    may_retry: bool = False  # this machine was too busy: another try may show more


class PreviewOrder(msgspec.Struct, frozen=True):
    """The task of a preview process for the bytes that follow."""

    format: Format
    is_whole: bool  # whether the bytes are the whole file; else, for Parquet and zip, its end
    before_bytes: int = 0  # of a patch: how many of the bytes are the old content


def cell(value: object) -> str:
    """Returns a value of a table as text."""
    text = str(value)
    return text if len(text) <= CELL_CHARS_MAX else text[:CELL_CHARS_MAX] + "…"


def none(note: str) -> PreviewView:
    """Returns a preview that shows nothing; ``note`` says why."""
    return PreviewView("none", note)
