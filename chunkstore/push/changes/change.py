"""The kinds of change that a branch can get, one class each. They are applied in their order."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import BinaryIO

from lodefs.chunkstore.errors import InvalidInput
from lodefs.chunkstore.format.names import Spec, split_path

Path = str | bytes


@dataclass(frozen=True, slots=True)
class Put:
    """Puts a file with this content: bytes, a local file (os.PathLike), or a stream that is read to
    its end. It replaces a file or symlink at the path, and makes the directories above.

    ``executable`` None: a local file keeps its own mode, bytes and streams are not executable.
    """

    path: Path
    content: bytes | os.PathLike[str] | BinaryIO
    executable: bool | None = None


@dataclass(frozen=True, slots=True)
class PutLink:
    """Puts a symlink, as Put puts a file."""

    path: Path
    target: bytes


@dataclass(frozen=True, slots=True)
class PutDirectory:
    """Puts a local directory as it is, or the files below a URL (a string), in place of whatever is
    at the path. The path "" is the root of the branch."""

    path: Path
    source: str | os.PathLike[str]


@dataclass(frozen=True, slots=True)
class PutArchive:
    """Puts the directory that tar or zip archives unpack to, in place of whatever is at the path.
    Each archive has a name for messages, and a stream. ``size_bytes_max`` bounds what each may
    unpack to; None refuses what grows as if to do harm."""

    path: Path
    archives: Sequence[tuple[str, BinaryIO]]
    size_bytes_max: int | None = None


@dataclass(frozen=True, slots=True)
class MakeDirectory:
    """Makes a directory unless there is one, and the directories above. Only empty ones need it."""

    path: Path


@dataclass(frozen=True, slots=True)
class Remove:
    """Removes whatever is at the path. Something must be there."""

    path: Path


@dataclass(frozen=True, slots=True)
class Rename:
    """Moves a file or directory to another path, where it replaces a file."""

    path: Path
    to: Path


@dataclass(frozen=True, slots=True)
class CopyFrom:
    """Copies what ``REPO@REV:PATH`` names, in any repository, over whatever is at ``to``. It reads
    no byte of the content."""

    source: str | Spec
    to: Path


Change = Put | PutLink | PutDirectory | PutArchive | MakeDirectory | Remove | Rename | CopyFrom


def names_of(path: Path, *, is_root_fine: bool = False) -> tuple[bytes, ...]:
    """Returns the names in the path of a change. Raises: InvalidInput for an invalid path."""
    names = tuple(split_path(os.fsencode(path)))
    if not names and not is_root_fine:
        raise InvalidInput("a change needs a path; the empty one is the root of the branch")
    return names


def shown(names: tuple[bytes, ...]) -> str:
    """Returns a path as text for messages."""
    return b"/".join(names).decode("utf-8", "backslashreplace") or "the root"
