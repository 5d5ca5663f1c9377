"""The files that a load test pushes and reads: random bytes, which nothing compresses, so that the
bytes that S3 sends can be held against the bytes of the files."""

from __future__ import annotations

import mmap
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

from blake3 import blake3

_PIECE_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class Group:
    """A number of files of one size in a folder ``name``."""

    name: str
    files: int
    size_bytes: int


class File(NamedTuple):
    """One file: its path in the dataset, size, and the BLAKE3 of its content in hex."""

    name: str
    size_bytes: int
    digest: str


@dataclass(frozen=True, slots=True)
class Dataset:
    """The files of a directory. ``groups`` by name, in the order of their paths."""

    root: Path
    groups: dict[str, tuple[File, ...]]

    @property
    def files(self) -> list[File]:
        """All files."""
        return [file for group in self.groups.values() for file in group]

    @property
    def size_bytes(self) -> int:
        """The size of all files."""
        return sum(file.size_bytes for file in self.files)

    def of(self, names: Sequence[str]) -> list[File]:
        """The files of these groups, or all files if none is named."""
        return [file for name in names or self.groups for file in self.groups[name]]

    def digests(self, file: File, ranges: Sequence[tuple[int, int]]) -> Iterator[str]:
        """The BLAKE3 in hex of each (first byte, size) of a file."""
        with (
            (self.root / file.name).open("rb") as content,
            mmap.mmap(content.fileno(), 0, access=mmap.ACCESS_READ) as view,
        ):
            for first, size_bytes in ranges:
                yield blake3(view[first : first + size_bytes]).hexdigest()


def scaled(groups: Sequence[Group], size_bytes: int) -> tuple[Group, ...]:
    """The same groups with about ``size_bytes`` in all: large files shrink or grow, of small ones
    (under 1 MiB) there are fewer or more."""
    factor = size_bytes / sum(group.files * group.size_bytes for group in groups)
    return tuple(
        replace(group, files=max(1, round(group.files * factor)))
        if group.size_bytes < 1 << 20
        else replace(group, size_bytes=max(1, round(group.size_bytes * factor)))
        for group in groups
    )


def write(root: Path, groups: Sequence[Group], seed: int = 1) -> Dataset:
    """Creates the files below ``root``, the same for the same seed."""
    source = random.Random(seed)
    written = {group.name: tuple(_write_group(root, group, source)) for group in groups}
    return Dataset(root, written)


def _write_group(root: Path, group: Group, source: random.Random) -> Iterator[File]:
    for number in range(group.files):
        folder = f"{group.name}/{number // 1000:03d}" if group.files > 1000 else group.name
        (root / folder).mkdir(parents=True, exist_ok=True)
        name = f"{folder}/{number:06d}.bin"
        digest = blake3()
        with (root / name).open("wb") as file:
            left = group.size_bytes
            while left:
                piece = source.randbytes(min(left, _PIECE_BYTES))
                file.write(piece)
                digest.update(piece)
                left -= len(piece)
        yield File(name, group.size_bytes, digest.hexdigest())
