"""Where the objects of a DVC repository lie: its cache, and its remotes. Bytes are checked."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Protocol

from lodefs.chunkstore.errors import Corrupt, NotFound, SourceChanged
from lodefs.chunkstore.push.dvc.pointers import DvcSettings, Out
from lodefs.chunkstore.push.remote.remote_files import (
    Piece,
    RemoteFile,
    RemoteFiles,
    is_url,
    open_remote,
)
from lodefs.chunkstore.push.workers.source_files import Source, read_full, show_path, stat_of

BLOCK_BYTES = 1 << 20  # that in which DVC hashes text


class Objects(Protocol):
    """Files below a root, as of RemoteFiles."""

    @property
    def url(self) -> str: ...

    def find(self, path: bytes) -> RemoteFile | None: ...

    def read(self, path: bytes, offset: int, size_bytes: int) -> Piece: ...

    def close(self) -> None: ...


class LocalFiles:
    """Implements Objects for a directory. A symlink below it is as good as nothing."""

    def __init__(self, root: Path) -> None:
        """Raises: NotFound, Denied."""
        self._root = root
        self._source = Source(os.fsencode(root))

    @property
    def url(self) -> str:
        return str(self._root)

    def find(self, path: bytes) -> RemoteFile | None:
        try:
            fd = self._source.open(path)
        except OSError:
            return None
        try:
            stat = stat_of(fd)
        except OSError:
            return None
        finally:
            os.close(fd)
        state = f"{stat.mtime_ns}-{stat.ctime_ns}-{stat.inode}"
        return RemoteFile(path.rpartition(b"/")[2], stat.size_bytes, state)

    def read(self, path: bytes, offset: int, size_bytes: int) -> Piece:
        try:
            fd = self._source.open(path)
        except OSError as error:
            raise NotFound(f"{self.url}/{show_path(path)}: {error.strerror}") from error
        try:
            stat = stat_of(fd)
            room = memoryview(bytearray(min(size_bytes, max(stat.size_bytes - offset, 0))))
            got = read_full(fd, room, offset, len(room))
        except OSError as error:
            raise SourceChanged(f"{self.url}/{show_path(path)}: {error.strerror}") from error
        finally:
            os.close(fd)
        return Piece(room[:got], stat.size_bytes, f"{stat.mtime_ns}-{stat.ctime_ns}-{stat.inode}")

    def names(self, path: bytes) -> list[tuple[bytes, bool]]:
        """Returns the names in a directory, sorted, each with whether it is one itself; nothing if
        it cannot be read."""
        try:
            fd = self._source.open(path or b".")
        except OSError:
            return []
        try:
            with os.scandir(fd) as found:
                rows = [(os.fsencode(one.name), one.is_dir(follow_symlinks=False)) for one in found]
        except OSError:
            return []
        finally:
            os.close(fd)
        return sorted(rows)

    def close(self) -> None:
        self._source.close()


class _Remote:
    """Implements Objects for a URL. It lists a directory once, instead of asking for each file."""

    def __init__(self, remote: RemoteFiles) -> None:
        self._remote = remote
        self._listed: dict[bytes, dict[bytes, RemoteFile]] = {}
        self.url = remote.url
        self.read = remote.read
        self.close = remote.close

    def find(self, path: bytes) -> RemoteFile | None:
        folder, _, name = path.rpartition(b"/")
        if folder not in self._listed:
            files = self._remote.list(folder).files
            self._listed[folder] = {file.name: file for file in files}
        return self._listed[folder].get(name)


class DvcObjects:
    """The objects of one repository. Many threads may read; one finds."""

    def __init__(self, root: Path, settings: DvcSettings) -> None:
        """Opens nothing before it is needed, except the cache. A missing cache is an empty one."""
        self._above = root / ".dvc"  # relative paths in the settings begin there
        self._settings = settings
        self._opened: dict[str, Objects] = {}
        self._found: dict[tuple[str, bytes], Objects] = {}
        self._checked: set[str] = set()
        self._cache: Objects | None = None
        with suppress(NotFound):
            self._cache = LocalFiles(self._above / (settings.cache or "cache"))

    def find(self, out: Out) -> RemoteFile | None:
        """Returns the object of a file; None if it is nowhere. Raises: what a remote raises."""
        for place in self._places(out.remote):
            found = place.find(out.object_path)
            if found is not None:
                self._found[out.remote, out.object_path] = place
                return RemoteFile(b"", found.size_bytes, f"md5:{out.md5}")
        return None

    def read(self, out: Out, offset: int, size_bytes: int) -> Piece:
        """Returns a part of an object. With its beginning, the whole is checked. Raises: NotFound;
        Corrupt if it does not have its MD5; what a remote raises."""
        if (out.remote, out.object_path) not in self._found and self.find(out) is None:
            raise NotFound(self.missing(out))
        place = self._found[out.remote, out.object_path]
        piece = place.read(out.object_path, offset, size_bytes)
        if offset == 0 and out.md5 not in self._checked:
            is_all = len(piece.data) == piece.file_size_bytes
            blocks = [bytes(piece.data)] if is_all else _blocks(place, out, piece.file_size_bytes)
            check(out, place.url, blocks)
            if not is_all:
                self._checked.add(out.md5)
        return Piece(piece.data, piece.file_size_bytes, f"md5:{out.md5}")

    def missing(self, out: Out) -> str:
        """Returns a message about an object that is nowhere."""
        places = " and ".join(place.url for place in self._places(out.remote))
        return (
            f"{show_path(out.path)}: DVC's object {out.md5} is not in {places or 'any cache'}: "
            "dvc fetch gets it, or dvc push on the machine that has it"
        )

    def close(self) -> None:
        for place in (self._cache, *self._opened.values()):
            if place is not None:
                place.close()

    def _places(self, name: str) -> Iterator[Objects]:
        if self._cache is not None:
            yield self._cache
        name = name or self._settings.default
        url = self._settings.remotes.get(name, "")
        if not url:
            return
        if name not in self._opened:
            try:
                place = open_place(url, self._above)
            except NotFound:
                return
            self._opened[name] = place
        yield self._opened[name]


def open_place(url: str, above: Path) -> Objects:
    """Opens a cache or remote at a URL or path. Raises: NotFound; what opening a URL raises."""
    return _Remote(open_remote(url)) if is_url(url) else LocalFiles(above / url)


def _blocks(place: Objects, out: Out, size_bytes: int) -> Iterator[bytes]:
    for offset in range(0, size_bytes, 8 * BLOCK_BYTES):
        yield bytes(place.read(out.object_path, offset, 8 * BLOCK_BYTES).data)


def check(out: Out, url: str, blocks: Iterable[bytes]) -> None:
    """Checks the bytes of an object from a place. Raises: Corrupt."""
    plain, text = hashlib.md5(usedforsecurity=False), hashlib.md5(usedforsecurity=False)
    for data in blocks:
        plain.update(data)
        if out.is_legacy:
            for start in range(0, len(data), BLOCK_BYTES):
                block = data[start : start + BLOCK_BYTES]
                text.update(block.replace(b"\r\n", b"\n"))
    if out.md5 not in (plain.hexdigest(), text.hexdigest()):
        raise Corrupt(
            f"{show_path(out.path)}: DVC's object in {url} has other bytes than {out.md5} "
            "says: remove it there, and dvc fetch gets it again"
        )
