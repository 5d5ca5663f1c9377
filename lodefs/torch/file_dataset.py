"""A map-style dataset: sample number N is file number N of a snapshot."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from lodefs.api.snapshots import snapshot as open_snapshot
from lodefs.reading.snapshot import Snapshot
from lodefs.torch.file_choice import chosen_files
from lodefs.torch.torch_types import MapDataset

Transform = Callable[[str, bytes], Any]


class FileDataset(MapDataset):
    """Files of a snapshot; ``transform(path, data)`` makes a sample of each, else it is
    ``(path, data)``.

    ``files``: None for all, a pattern, a directory, or a list of these (``file_choice``). A
    DataLoader's batch is read at once: what is not on the node is fetched in parallel. The commit
    is resolved here, once for all workers.
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
        """The samples of a batch: torch's DataLoader asks for all of them at once."""
        paths = [self.paths[index] for index in indices]
        found = self.snapshot.read_files(paths)
        return [self.transform(path, data) for path, data in zip(paths, found, strict=True)]


def _pair(path: str, data: bytes) -> tuple[str, bytes]:
    return path, data
