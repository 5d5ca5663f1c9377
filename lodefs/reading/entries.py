"""The entries of a snapshot by path. Entries never change, so both found and missing ones are
cached.

Symlinks are followed within the snapshot, as by open(2). One that leads out of it is an error.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator

from lodefs.chunkstore.errors import InvalidInput, NotADirectory, NotFound
from lodefs.chunkstore.format.tree import Kind
from lodefs.chunkstore.nodecache.cached_snapshot import CachedSnapshot
from lodefs.chunkstore.protocol.wire import CHILDREN_MAX, Entry, Page
from lodefs.reading.proxy_clients import ProxyClients
from lodefs.reading.urls import decoded_path

LINKS_MAX = 40  # followed for one path, as in Linux
REMEMBERED_MAX = 1_000_000  # cached paths; beyond this the cache is emptied

_DIRECTORY, _SYMLINK = int(Kind.DIRECTORY), int(Kind.SYMLINK)
_UNKNOWN = object()


class Entries:
    """The entries of one snapshot. For any thread; without locks, so that a fork finds none held.

    Paths are bytes, relative to the root, without slashes at their ends; b"" is the root. Methods
    raise NotFound, NotADirectory, and errors of reading.
    """

    def __init__(self, clients: ProxyClients, cache: CachedSnapshot) -> None:
        self._clients = clients
        self._cache = cache
        self._snapshot = cache.snapshot
        self.forget()

    def forget(self) -> None:
        """Forgets everything but the root."""
        self._known: dict[bytes, Entry | None] = {b"": self._snapshot.root}
        self._followed: dict[bytes, Entry] = {}
        self._listed: dict[bytes, list[Entry]] = {}

    def entry(self, path: bytes) -> Entry:
        """Returns the entry at a path. Follows symlinks on the way, but not at the end."""
        found = self._known.get(path, _UNKNOWN)
        if isinstance(found, Entry):
            return found
        if found is None:
            raise self._missing(path)
        parent, _, name = path.rpartition(b"/")
        return self._child(self._real_path(parent), name, path)

    def followed(self, path: bytes) -> Entry:
        """Returns the entry at a path. Follows symlinks on the way and at the end."""
        node = self._known.get(path)
        if node is not None and node.kind != _SYMLINK:
            return node
        node = self._followed.get(path)
        if node is None:
            real = self._real_path(path)
            node = self._followed[path] = self.entry(real)
        return node

    def target(self, path: bytes, node: Entry) -> Entry | None:
        """Returns the target of a symlink at ``path``; None if it is not in the snapshot."""
        try:
            return self.followed(path) if node.kind == _SYMLINK else node
        except (NotFound, InvalidInput):
            return None

    def children(self, path: bytes) -> list[Entry]:
        """Returns the entries of a directory, by name. Callers must not change them."""
        found = self._listed.get(path)
        if found is not None:
            return found
        real = self._real_path(path)
        found = self._listed.get(real)
        if found is None:
            directory = self.entry(real)
            if directory.kind != _DIRECTORY:
                raise NotADirectory(f"{self._name(path)} is not a directory")
            found = self._all_children(directory.ino)
            self._make_room(len(found))
            prefix = real + b"/" if real else b""
            self._known.update([(prefix + node.name, node) for node in found])
        self._listed[path] = self._listed[real] = found
        return found

    def walk(
        self, path: bytes, depth_max: int | None = None
    ) -> Iterator[tuple[bytes, list[Entry]]]:
        """Yields all directories at and below ``path`` with their entries, parents first and by
        name, down to a number of levels. Does not follow symlinks to directories."""
        pending = [(path, 1)]
        while pending:
            directory, depth = pending.pop()
            nodes = self.children(directory)
            yield directory, nodes
            if depth != depth_max:
                prefix = directory + b"/" if directory else b""
                below = [prefix + node.name for node in nodes if node.kind == _DIRECTORY]
                pending += [(one, depth + 1) for one in reversed(below)]

    def _child(self, directory: bytes, name: bytes, path: bytes) -> Entry:
        """Returns the entry ``name`` of a directory whose path has no symlinks."""
        real = directory + b"/" + name if directory else name
        known = self._known.get(real, _UNKNOWN)
        if isinstance(known, Entry):
            return known
        parent = self.entry(directory)
        if parent.kind != _DIRECTORY:
            raise NotADirectory(f"{self._name(directory)} is not a directory")
        self._make_room(1)
        try:
            if known is None:
                raise self._missing(path)
            listed = self._listed.get(directory)  # another thread may have emptied `_known`
            node = self._lookup(parent.ino, name) if listed is None else _of(listed, name)
        except NotFound:
            self._known[real] = None
            raise self._missing(path) from None
        self._known[real] = node
        return node

    def _lookup(self, parent_ino: int, name: bytes) -> Entry:
        node = self._cache.ask(lambda view: view.lookup(parent_ino, name))
        if node is None:
            with self._clients.client() as client:
                node = client.mounted(self._snapshot).lookup(parent_ino, name)
        return node

    def _real_path(self, path: bytes) -> bytes:
        """Returns the path with its symlinks resolved."""
        node = self._known.get(path)
        if node is not None and node.kind != _SYMLINK:
            return path  # only resolved paths are known
        left = path.split(b"/")[::-1]
        real: list[bytes] = []
        links = 0
        while left:
            name = left.pop()
            if name in (b"", b"."):
                continue
            if name == b"..":
                if not real:
                    raise NotFound(f"{self._name(path)} leads out of the snapshot")
                real.pop()
                continue
            node = self._child(b"/".join(real), name, path)
            if node.kind != _SYMLINK:
                real.append(name)
                continue
            links += 1
            if links > LINKS_MAX:
                raise InvalidInput(f"{self._name(path)} has too many levels of symlinks")
            if node.target.startswith(b"/"):
                raise NotFound(f"{self._name(path)} leads out of the snapshot")
            left += node.target.split(b"/")[::-1]
        return b"/".join(real)

    def _all_children(self, ino: int) -> list[Entry]:
        found: list[Entry] = []
        while True:
            after = found[-1].name if found else b""
            page = self._page(ino, after)
            found += page.nodes
            if not page.more:
                return found

    def _page(self, ino: int, after: bytes) -> Page:
        page = self._cache.ask(lambda view: view.children(ino, after, CHILDREN_MAX))
        if page is None:
            with self._clients.client() as client:
                page = client.mounted(self._snapshot).children(ino, after, CHILDREN_MAX)
        return page

    def _make_room(self, count: int) -> None:
        if len(self._known) + count > REMEMBERED_MAX:
            self.forget()

    def _missing(self, path: bytes) -> NotFound:
        return NotFound(f"{self._name(path)} does not exist")

    def _name(self, path: bytes) -> str:
        return f"{self._snapshot.repo}@{self._snapshot.commit[:12]}/{decoded_path(path)}"


def _of(listed: list[Entry], name: bytes) -> Entry:
    """Returns the entry that stands for a whole directory. Raises: NotFound."""
    at = bisect_left(listed, name, key=lambda node: node.name)
    if at == len(listed) or listed[at].name != name:
        raise NotFound("it does not exist")
    return listed[at]
