"""A node with a dataset that grows: a directory, what is pushed of it, and a real proxy."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from lodefs.chunkstore.objects.directory import DirectoryObjects
from lodefs.chunkstore.push.push import PushOptions, push
from lodefs.chunkstore.repo.refs import BRANCHES
from lodefs.chunkstore.repo.store import open_store
from tests.support.chunkstore.child_process import private_directory
from tests.support.proxy.node_process import REPO, NodeProcess

LARGE_BYTES = 3_000_000
CACHE_BYTES = 1 << 30


class DatasetNode(NodeProcess):
    """``source`` is the directory that was pushed first; ``root`` its URL."""

    def __init__(self, folder: Path, source: Path) -> None:
        self.source = source
        self._folder = folder
        super().__init__(folder, source, size_bytes_max=CACHE_BYTES)

    @property
    def root(self) -> str:
        """The URL of the branch main."""
        return f"lodefs://{REPO}@main"

    def push(self, source: Path | None = None, branch: str = "main") -> str:
        """Another commit, of ``source``; its id."""
        store = open_store(DirectoryObjects(str(self.store)))
        options = PushOptions(
            message="", author="", time_s=1, index_dir=self._folder / "index", workers=0
        )
        return push(store, source or self.source, REPO, branch, options).commit

    def delete(self, branch: str) -> None:
        """Deletes a branch."""
        refs = open_store(DirectoryObjects(str(self.store))).refs(REPO)
        refs.advance(BRANCHES, branch, None, expected_sequence=refs.read(BRANCHES, branch).sequence)


def write_dataset(source: Path) -> None:
    """Names of many kinds, an empty file, a large one, and symlinks."""
    maker = random.Random(5)
    (source / "a" / "b").mkdir(parents=True)
    for number in range(30):
        (source / "a" / f"{number:02d}.bin").write_bytes(maker.randbytes(1000 + 300 * number))
    for name in ("a-b", "a.txt", "é +%@", "x[1]*", "plain"):
        (source / "a" / "b" / name).write_bytes(name.encode() * 100)
    (source / "empty").write_bytes(b"")
    (source / "large").write_bytes(maker.randbytes(LARGE_BYTES))
    (source / "text").write_text("".join(f"line {number}\n" for number in range(20_000)))
    (source / "to-file").symlink_to("a/01.bin")
    (source / "to-directory").symlink_to("a")
    (source / "a" / "up").symlink_to("../large")
    (source / "loop").symlink_to("loop")
    (source / "out").symlink_to("../../etc")


@contextmanager
def dataset_node() -> Iterator[DatasetNode]:
    """A node with the dataset of ``write_dataset`` on main."""
    with private_directory() as folder:
        source = folder / "source"
        source.mkdir()
        write_dataset(source)
        node = DatasetNode(folder, source)
        try:
            yield node
        finally:
            node.kill()
