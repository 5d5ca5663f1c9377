"""Reads all trees under a directory quickly: a level at a time, by several threads.

One tree after the other would cost a round trip for every directory. PackReader brings trees
that lie near each other with one GET, so a level in the order of its paths is few reads.
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import Executor
from typing import NamedTuple

from lodefs.chunkstore.format.tree import Entry, Kind
from lodefs.chunkstore.repo.pack_reader import PackReader

TREES_AHEAD_MAX = 1024  # directories read before they are asked for; bounds memory


class Directory(NamedTuple):
    """A directory of a snapshot: its path from where the scan began, and what is in it."""

    path: bytes
    entry: Entry
    children: list[Entry]


def scan(
    packs: PackReader, root: Entry, executor: Executor, path: bytes = b""
) -> Iterator[Directory]:
    """``root`` (a directory) and every directory below it, parents before children.

    Within a level in the order of the paths. Raises what PackReader.read_tree raises.
    """
    level = [(path, root)]
    while level:
        below: list[tuple[bytes, Entry]] = []
        for start in range(0, len(level), TREES_AHEAD_MAX):
            part = level[start : start + TREES_AHEAD_MAX]
            contents = executor.map(packs.read_tree, [entry for _, entry in part])
            for (at, entry), children in zip(part, contents, strict=True):
                yield Directory(at, entry, children)
                below.extend(
                    (join(at, child.name), child)
                    for child in children
                    if child.kind is Kind.DIRECTORY
                )
        level = below


def join(path: bytes, name: bytes) -> bytes:
    """A path one name longer."""
    return path + b"/" + name if path else name
