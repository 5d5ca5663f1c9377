"""Small files that lie near to each other in a file of the cache, to be read in one go."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from lodefs.chunkstore.nodeapi.wire import Node
from lodefs.mount.read.prefetch_policy import SIBLINGS_BYTES_MAX

if TYPE_CHECKING:
    from lodefs.chunkstore.nodecache.view import (  # loaded where there is a cache
        CacheView,
        OpenFile,
    )

GAP_BYTES_MAX = 64 * 1024  # what is read for nothing rather than by two reads
RUN_BYTES_MAX = 2 * SIBLINGS_BYTES_MAX
MISSING_MAX = 8  # files, one after the other, that are not on the node: no more are looked for


class Piece(NamedTuple):
    """A small file, by its inode number, and where its bytes lie in a file of the cache."""

    ino: int
    offset: int
    size_bytes: int

    @property
    def end(self) -> int:
        """Where the next may begin."""
        return self.offset + self.size_bytes


class Run(msgspec.Struct):
    """Small files that are read from a file of the cache in one go, by their offsets."""

    file: OpenFile
    pieces: list[Piece]
    end: int = 0  # of the piece that reaches furthest: files may share bytes

    @property
    def first(self) -> int:
        """Where it begins."""
        return self.pieces[0].offset

    @property
    def size_bytes(self) -> int:
        """From there to its end."""
        return self.end - self.first

    @property
    def is_worth_a_read(self) -> bool:
        """Of the disk: a single file is left to those who ask for it."""
        return len(self.pieces) > 1

    def add(self, piece: Piece) -> bool:
        """Whether the next piece belongs to it."""
        end = max(self.end, piece.end)
        if self.pieces and (
            piece.offset > self.end + GAP_BYTES_MAX or end - self.first > RUN_BYTES_MAX
        ):
            return False
        self.pieces.append(piece)
        self.end = end
        return True

    def advise(self) -> None:
        """Have the disk asked for all of it, and not for one part after the other."""
        if self.is_worth_a_read:
            with suppress(OSError):
                where = (self.file.fd, self.first, self.size_bytes)
                os.posix_fadvise(*where, os.POSIX_FADV_WILLNEED)


def runs_of(view: CacheView, nodes: Sequence[Node]) -> Iterator[Run]:
    """Of files whose bytes lie together in one file of the cache: those that lie near to each
    other."""
    for file, pieces in _pieces(view, nodes).items():
        run = Run(file, [])
        for piece in sorted(pieces, key=lambda one: one.offset):
            if not run.add(piece):
                yield run
                run = Run(file, [])
                run.add(piece)
        yield run


def _pieces(view: CacheView, nodes: Sequence[Node]) -> dict[OpenFile, list[Piece]]:
    found: dict[OpenFile, list[Piece]] = {}
    missing = 0
    for node, chunk in zip(nodes, view.find_chunks(nodes), strict=True):
        extents = [chunk] if chunk is not None else view.find(node, 0, node.size_bytes)
        if extents is not None and len(extents) == 1:
            ((file, offset, size_bytes),) = extents
            found.setdefault(file, []).append(Piece(node.ino, offset, size_bytes))
            missing = 0
        elif (missing := missing + 1) == MISSING_MAX:
            break
    return found
