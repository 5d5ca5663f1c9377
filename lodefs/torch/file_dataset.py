"""A map-style dataset whose sample number N is file number N of a snapshot, and the choice of these
files."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from lodefs.api.snapshots import snapshot as open_snapshot
from lodefs.chunkstore.errors import InvalidInput, NotFound
from lodefs.chunkstore.format.tree import Kind
from lodefs.chunkstore.protocol.wire import Entry
from lodefs.proxy.warm.path_patterns import MatchState, Selection, is_glob
from lodefs.reading.snapshot import Snapshot
from lodefs.reading.urls import decoded_path, encoded_path
from lodefs.torch.torch_types import MapDataset

Transform = Callable[[str, bytes], Any]


class FileDataset(MapDataset):
    """Files of a snapshot; ``transform(path, data)`` makes a sample of each. Without it, a sample
    is ``(path, data)``.

    ``files``: None for all, a pattern, a directory, or a list of these (``chosen_files``). A batch
    of a DataLoader is read at once: files that are not on the node are fetched in parallel. The
    commit is resolved here, once for all workers.
    """

    def __init__(
        self,
        snapshot: Snapshot | str,
        files: str | Sequence[str] | None = None,
        transform: Transform | None = None,
    ) -> None:
        self.snapshot = open_snapshot(snapshot) if isinstance(snapshot, str) else snapshot
        chosen = chosen_files(self.snapshot, files)
        self.paths = [path for path, _ in chosen]
        self.sizes_bytes = [size_bytes for _, size_bytes in chosen]
        self.transform = transform or _pair

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, index: int) -> Any:
        path = self.paths[index]
        return self.transform(path, self.snapshot.read(path))

    def __getitems__(self, indices: Sequence[int]) -> list[Any]:
        """Returns the samples of a batch, which torch's DataLoader asks for together."""
        paths = [self.paths[index] for index in indices]
        found = self.snapshot.read_files(paths)
        return [self.transform(path, data) for path, data in zip(paths, found, strict=True)]


def _pair(path: str, data: bytes) -> tuple[str, bytes]:
    return path, data


_DIRECTORY, _FILE = int(Kind.DIRECTORY), int(Kind.FILE)

Chosen = tuple[str, int]  # path and size in bytes


def chosen_files(snapshot: Snapshot, files: str | Sequence[str] | None) -> list[Chosen]:
    """Returns the files of a dataset, in an order that does not depend on the machine.

    ``files``: None for all; a pattern (``train/**/*.jpg``, as in ``lodefs warm``), a directory or a
    file; or a list of these. A name that looks like a pattern (``a[1].jpg``) means the file of that
    name if it exists. Paths keep the order of the list; matches of patterns come after them,
    sorted. Raises: NotFound if something matches nothing, InvalidInput for an empty list.
    """
    names = [encoded_path(name) for name in ([files] if isinstance(files, str) else files or [""])]
    if files is not None and not len(files):
        raise InvalidInput("the list of files is empty")
    found: dict[bytes, int] = {}
    globs: list[bytes] = []
    for name in names:
        try:
            found |= _below(snapshot, name.strip(b"/"))
        except NotFound:
            if not is_glob(name):
                raise
            globs.append(name)
    if globs:
        selection = Selection((), globs)
        found |= sorted(_matching(snapshot, selection, b"", selection.start()))
        for pattern in selection.unmatched():
            raise NotFound(f"nothing of {snapshot} matches {decoded_path(pattern)}")
    if not found:
        raise NotFound(f"{snapshot} has no files at this path")
    return [(decoded_path(path), size_bytes) for path, size_bytes in found.items()]


def _below(snapshot: Snapshot, path: bytes) -> dict[bytes, int]:
    """Returns a file, or all files below a directory, by path."""
    node = snapshot.entries.followed(path)
    if node.kind == _FILE:
        return {path: node.size_bytes}
    found: dict[bytes, int] = {}
    for directory, nodes in snapshot.entries.walk(path):
        prefix = directory + b"/" if directory else b""
        for child in nodes:
            found.update(_file(snapshot, prefix + child.name, child))
    return dict(sorted(found.items()))


def _matching(
    snapshot: Snapshot, selection: Selection, directory: bytes, state: MatchState
) -> Iterator[tuple[bytes, int]]:
    prefix = directory + b"/" if directory else b""
    for node in snapshot.entries.children(directory):
        path = prefix + node.name
        inside = selection.step(state, node.name)
        if inside.is_over:
            continue
        if node.kind == _DIRECTORY:
            yield from _matching(snapshot, selection, path, inside)
        elif inside.is_whole:
            yield from _file(snapshot, path, node)


def _file(snapshot: Snapshot, path: bytes, node: Entry) -> list[tuple[bytes, int]]:
    """Returns path and size of a file, or of a symlink to one; nothing for other entries."""
    target = node if node.kind == _FILE else snapshot.entries.target(path, node)
    return [(path, target.size_bytes)] if target is not None and target.kind == _FILE else []
