"""The files of a DVC repository: those of its directory, and in place of pointers, their data."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from urllib.parse import quote, unquote

from lodefs.chunkstore.errors import InvalidInput, NotFound
from lodefs.chunkstore.push.dvc.objects import DvcObjects, LocalFiles
from lodefs.chunkstore.push.dvc.pointers import LOCK, SUFFIX, Out, manifest_of, outs_of, settings_of
from lodefs.chunkstore.push.remote.remote_files import Listing, Piece, RemoteFile, Unreadable
from lodefs.chunkstore.push.workers.source_files import show_path

SCHEME = "dvc"
POINTER_BYTES_MAX = 64 << 20
MANIFEST_BYTES_MAX = 1 << 30
_OWN = frozenset((b".dvc", b".git"))


def dvc_url(directory: str | os.PathLike[str]) -> str | None:
    """Returns the URL of a directory that is a DVC repository; None if it is none."""
    if not os.path.isfile(os.path.join(directory, ".dvc", "config")):
        return None
    return f"{SCHEME}://{quote(os.path.abspath(directory))}"


def open_dvc_files(url: str) -> DvcFiles:
    """Opens the repository at ``dvc:///DIRECTORY``. Raises: NotFound, Denied, InvalidInput."""
    return DvcFiles(Path(unquote(url.partition("://")[2])))


class DvcFiles:
    """Implements RemoteFiles. Symlinks of the directory cannot be read."""

    survives_fork = True  # DVC has no remotes of the kinds that do not

    def __init__(self, root: Path) -> None:
        self._root = root
        self._files = LocalFiles(root)
        texts = [self._text(name) for name in (b".dvc/config", b".dvc/config.local")]
        self._objects = DvcObjects(root, settings_of(texts))
        self._outs: dict[bytes, Out] = {}
        self._pointers: set[bytes] = set()
        self._lacking: dict[bytes, str] = {}  # directories whose list of files is missing
        self._learn()
        self._children: dict[bytes, set[bytes]] = {}  # names of what is named by pointers
        for path in (*self._outs, *self._lacking):
            self._note(path)

    @property
    def url(self) -> str:
        return str(self._root)

    @property
    def location(self) -> str:
        return f"{SCHEME}://{quote(str(self._root))}"

    def list(self, path: bytes) -> Listing:
        listing = Listing([], [])
        named = self._children.get(path, set())
        for name in sorted(named):
            below = path + b"/" + name if path else name
            if below in self._lacking:
                listing.unreadable.append(Unreadable(name, self._lacking[below]))
            elif below not in self._outs:
                listing.subdirectories.append(name)
            elif (found := self._objects.find(self._outs[below])) is None:
                reason = self._objects.missing(self._outs[below])
                listing.unreadable.append(Unreadable(name, reason))
            else:
                listing.files.append(found._replace(name=name))
        for name, is_directory in self._files.names(path):
            below = path + b"/" + name if path else name
            if name in named or name in _OWN or below in self._pointers:
                continue
            self._add(listing, below, name, is_directory=is_directory)
        return listing

    def read(self, path: bytes, offset: int, size_bytes: int) -> Piece:
        out = self._outs.get(path)
        if out is not None:
            return self._objects.read(out, offset, size_bytes)
        return self._files.read(path, offset, size_bytes)

    def find(self, path: bytes) -> RemoteFile | None:
        out = self._outs.get(path)
        if out is None:
            return self._files.find(path) if path else None
        found = self._objects.find(out)
        return found._replace(name=path.rpartition(b"/")[2]) if found else None

    def holds(self, place: str) -> bool:
        own, other = os.path.realpath(self._root), os.path.realpath(place)
        return os.path.commonpath([own, other]) in (own, other)

    def close(self) -> None:
        self._objects.close()
        self._files.close()

    def _add(self, listing: Listing, path: bytes, name: bytes, *, is_directory: bool) -> None:
        if is_directory:
            listing.subdirectories.append(name)
        elif (found := self._files.find(path)) is not None:
            listing.files.append(found)
        else:
            reason = f"{show_path(path)} is a symlink or no file, or nobody may read it"
            listing.unreadable.append(Unreadable(name, reason))

    def _learn(self) -> None:
        """Reads all pointers. Data that lies in the directory as well is not looked at."""
        outs = [out for path in self._walk() for out in self._outs_at(path)]
        for out in outs:
            if not out.is_directory:
                self._name(out)
                continue
            if self._objects.find(out) is None:
                self._lacking[out.path] = self._objects.missing(out)
                continue
            piece = self._objects.read(out, 0, MANIFEST_BYTES_MAX)
            for one in manifest_of(out, bytes(piece.data)):
                self._name(one)

    def _name(self, out: Out) -> None:
        """Notes a file. Raises: InvalidInput if another pointer names other data for its path."""
        if self._outs.setdefault(out.path, out).md5 != out.md5:
            raise InvalidInput(
                f"{show_path(out.path)} is named twice by pointers of DVC, with different MD5s: "
                "remove the pointer that is out of date"
            )

    def _walk(self) -> Iterator[bytes]:
        """Yields the paths of files that may be pointers."""
        waiting = [b""]
        while waiting:
            path = waiting.pop()
            for name, is_directory in self._files.names(path):
                below = path + b"/" + name if path else name
                if is_directory:
                    if name not in _OWN:
                        waiting.append(below)
                elif name == LOCK or name.endswith(SUFFIX):
                    yield below

    def _outs_at(self, path: bytes) -> Sequence[Out]:
        found = self._files.find(path)
        if found is None:
            return []
        if found.size_bytes > POINTER_BYTES_MAX:
            raise InvalidInput(f"{show_path(path)} is too large for a pointer of DVC")
        outs = outs_of(path, bytes(self._files.read(path, 0, found.size_bytes).data))
        if not path.endswith(LOCK):
            self._pointers.add(path)
        return outs

    def _note(self, path: bytes) -> None:
        while path:
            above, _, name = path.rpartition(b"/")
            if above in self._outs:
                raise InvalidInput(
                    f"{show_path(path)} and {show_path(above)} are both named by pointers of DVC: "
                    "a file cannot lie below another one, so remove one of the pointers"
                )
            if name in self._children.setdefault(above, set()):
                return
            self._children[above].add(name)
            path = above

    def _text(self, path: bytes) -> str:
        try:
            return bytes(self._files.read(path, 0, POINTER_BYTES_MAX).data).decode()
        except NotFound:
            return ""
        except UnicodeDecodeError as error:
            raise InvalidInput(f"{show_path(path)} is not UTF-8") from error
