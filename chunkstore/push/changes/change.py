"""What can be changed in a branch: one class for each kind of change. They are applied in order."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import BinaryIO

from lodefs.chunkstore.errors import InvalidInput
from lodefs.chunkstore.format.names import Spec, split_path

Path = str | bytes


@dataclass(frozen=True, slots=True)
class Put:
    """A file with this content: bytes, a local file (os.PathLike), or a stream that is read to its
    end. A file or symlink that is there is replaced, and directories above are made.

    ``executable`` None: as the local file is; of bytes and streams no.
    """

    path: Path
    content: bytes | os.PathLike[str] | BinaryIO
    executable: bool | None = None


@dataclass(frozen=True, slots=True)
class PutLink:
    """A symlink, as Put."""

    path: Path
    target: bytes


@dataclass(frozen=True, slots=True)
class PutDirectory:
    """A local directory as it is, in place of whatever is there. The path "" is all of the
    branch."""

    path: Path
    source: os.PathLike[str]


@dataclass(frozen=True, slots=True)
class MakeDirectory:
    """A directory, unless there is one. Directories above are made. Only an empty one needs it."""

    path: Path


@dataclass(frozen=True, slots=True)
class Remove:
    """Whatever is there, which must be something."""

    path: Path


@dataclass(frozen=True, slots=True)
class Rename:
    """A file or directory gets another path. A file that is there is replaced."""

    path: Path
    to: Path


@dataclass(frozen=True, slots=True)
class CopyFrom:
    """What ``REPO@REV:PATH`` is, of any repository, in place of whatever is at ``to``: no byte of
    it is read."""

    source: str | Spec
    to: Path


Change = Put | PutLink | PutDirectory | MakeDirectory | Remove | Rename | CopyFrom


def names_of(path: Path, *, is_root_fine: bool = False) -> tuple[bytes, ...]:
    """The names in a path of a change. Raises: InvalidInput for what is no path in a snapshot."""
    names = tuple(split_path(os.fsencode(path)))
    if not names and not is_root_fine:
        raise InvalidInput("a change needs a path; the empty one is the root of the branch")
    return names


def shown(names: tuple[bytes, ...]) -> str:
    """A path for messages."""
    return b"/".join(names).decode("utf-8", "backslashreplace") or "the root"
