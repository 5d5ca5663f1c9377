"""``lodefs.changes``: the kinds of changes that ``lodefs.commit_changes`` takes."""

from __future__ import annotations

from lodefs.chunkstore.push.changes.change import (
    Change,
    CopyFrom,
    MakeDirectory,
    Put,
    PutArchive,
    PutDirectory,
    PutLink,
    Remove,
    Rename,
)

__all__ = [
    "Change",
    "CopyFrom",
    "MakeDirectory",
    "Put",
    "PutArchive",
    "PutDirectory",
    "PutLink",
    "Remove",
    "Rename",
]
