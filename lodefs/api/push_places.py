"""Decides which path each source of a push goes to: sources become changes."""

from __future__ import annotations

import io
import os
import re
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO
from urllib.parse import quote, unquote_to_bytes

from lodefs.chunkstore.errors import InvalidInput, NotFound
from lodefs.chunkstore.format.names import Spec, split_path
from lodefs.chunkstore.push.dvc.dvc_files import dvc_url
from lodefs.chunkstore.push.remote.remote_files import is_url

if TYPE_CHECKING:
    from lodefs.chunkstore.push.changes.change import Change

STDIN = "-"
_BUFFER_BYTES = 1 << 20
_QUOTED = re.compile("(?i)(s3|https?)://")  # URLs in which %20 is a space
IsDirectory = Callable[[bytes], bool]


@dataclass(frozen=True, slots=True)
class PushPlace:
    """``REPO[@BRANCH]:PATH``. ``is_inside``: PATH ends with a slash or is empty, so that sources go
    into it and keep their names."""

    spec: Spec
    is_inside: bool


@dataclass(frozen=True, slots=True)
class FileList:
    """Paths below one source directory that are to be pushed, each ended by ``end``."""

    stream: BinaryIO
    end: bytes = b"\n"

    def names(self) -> list[bytes]:
        """Returns the paths. Raises: InvalidInput for a path that is absolute or leads upwards."""
        found: dict[bytes, None] = {}
        for line in self.stream.read().split(self.end):
            if line:
                if line.startswith(b"/"):
                    shown = os.fsdecode(line)
                    raise InvalidInput(f"{shown!r}: the list takes paths below the directory")
                found[b"/".join(split_path(line))] = None
        found.pop(b"", None)
        return list(found)


def changes_for(sources: Sequence[str], place: PushPlace, is_there: IsDirectory) -> list[Change]:
    """Returns one change for each source: a directory, a file, or "-" for standard input.
    ``is_there``: whether a path of the branch is a directory now. Raises: InvalidInput,
    NotFound."""
    path = place.spec.path
    if len(sources) > 1:
        names = [_name_of(source) for source in sources]
        if twice := sorted({os.fsdecode(one) for one in names if names.count(one) > 1}):
            raise InvalidInput(f"two sources have the name {twice[0]}: push them one by one")
        places = [_joined(path, name) for name in names]
        return [_change(source, at) for source, at in zip(sources, places, strict=True)]
    word = sources[0]
    content, is_directory = _content_of(word)
    is_file = not is_directory and word != STDIN
    if place.is_inside or (is_file and is_there(path)):
        path = path if not path and is_directory else _joined(path, _name_of(word))
    return [_put(path, content, is_directory=is_directory)]


def changes_of_archives(
    words: Sequence[str], place: PushPlace, size_bytes_max: int | None
) -> list[Change]:
    """Returns one change, for archives that are unpacked into one directory. Raises: NotFound,
    InvalidInput; what opening a URL raises."""
    from lodefs.chunkstore.push.changes.change import PutArchive

    archives = []
    for word in words:
        content, is_directory = _content_of(word)
        if is_directory:
            raise InvalidInput(f"{word} is a directory, and only an archive can be unpacked")
        if isinstance(content, Path):
            content = content.open("rb")
        assert not isinstance(content, str)
        name = "standard input" if word == STDIN else _name_of(word).decode(errors="replace")
        archives.append((name, _buffered(content)))
    return [PutArchive(place.spec.path, archives, size_bytes_max)]


def _buffered(stream: BinaryIO) -> BinaryIO:
    """Returns a stream whose reads are full."""
    return io.BufferedReader(stream, _BUFFER_BYTES) if isinstance(stream, io.RawIOBase) else stream


def changes_of_list(directory: str, names: Iterable[bytes], place: PushPlace) -> list[Change]:
    """Returns a change for each path below ``directory``, or a URL, that a list names. Raises:
    NotFound; InvalidInput for a path through a symlink, which may lead out of the directory."""
    from lodefs.chunkstore.push.changes.change import PutLink

    if is_url(directory):
        return _changes_below_url(directory, names, place)
    changes: list[Change] = []
    plain: set[bytes] = {b""}  # directories whose path has no symlink
    for name in names:
        _check_way(os.fsencode(directory), name, plain)
        source, at = os.path.join(directory, os.fsdecode(name)), _joined(place.spec.path, name)
        if os.path.islink(source):
            changes.append(PutLink(at, os.readlink(os.fsencode(source))))
        else:
            changes.append(_change(source, at))
    return changes


def _changes_below_url(url: str, names: Iterable[bytes], place: PushPlace) -> list[Change]:
    from lodefs.chunkstore.push.remote.remote_stream import open_listed

    changes = []
    for name, stream in open_listed(url, names):
        content: str | BinaryIO = _url_below(url, name) if stream is None else stream
        at = _joined(place.spec.path, name)
        changes.append(_put(at, content, is_directory=stream is None))
    return changes


def _url_below(url: str, path: bytes) -> str:
    """Returns the URL of a directory below another one."""
    base, mark, query = url.partition("?")
    below = quote(path) if _QUOTED.match(url) else os.fsdecode(path)
    return f"{base.rstrip('/')}/{below}{mark}{query}"


def _check_way(directory: bytes, name: bytes, plain: set[bytes]) -> None:
    way, parent = [], name.rpartition(b"/")[0]
    while parent not in plain:
        way.append(parent)
        parent = parent.rpartition(b"/")[0]
    for above in reversed(way):
        if os.path.islink(os.path.join(directory, above)):
            raise InvalidInput(
                f"{os.fsdecode(name)!r} leads through the symlink {os.fsdecode(above)!r}, and "
                "push follows none: list its target, or the symlink itself"
            )
        plain.add(above)


def _change(word: str, path: bytes) -> Change:
    content, is_directory = _content_of(word)
    return _put(path, content, is_directory=is_directory)


def _put(path: bytes, content: str | Path | BinaryIO, *, is_directory: bool) -> Change:
    from lodefs.chunkstore.push.changes.change import Put, PutDirectory

    if is_directory:
        assert isinstance(content, str | Path)
        return PutDirectory(path, content)
    assert not isinstance(content, str)
    return Put(path, content)


def _content_of(word: str) -> tuple[str | Path | BinaryIO, bool]:
    """Returns what a word names, and whether that is a directory. Raises: NotFound; what opening a
    URL raises."""
    if word == STDIN:
        return sys.stdin.buffer, False
    if is_url(word):
        from lodefs.chunkstore.push.remote.remote_stream import open_remote_file

        stream = open_remote_file(word)
        return (word, True) if stream is None else (stream, False)
    if not os.path.lexists(word):
        raise NotFound(f"{word} does not exist")
    if (url := dvc_url(word)) is not None:
        return url, True
    return Path(word), os.path.isdir(word)


def _name_of(source: str) -> bytes:
    if source == STDIN:
        raise InvalidInput("standard input has no name: give the whole path, REPO[@BRANCH]:PATH")
    if is_url(source):
        name = os.fsencode(source).partition(b"?")[0].rstrip(b"/").rpartition(b"/")[2]
        return unquote_to_bytes(name) if _QUOTED.match(source) else name
    return os.path.basename(os.path.abspath(os.fsencode(source)))


def _joined(path: bytes, name: bytes) -> bytes:
    return path + b"/" + name if path else name
