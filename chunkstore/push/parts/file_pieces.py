"""Puts the pieces of large files together that parts have stored.

Each piece goes on until its reader came to a place where the reader of the next one begins a chunk,
too (chunkstore/push/workers/window_join.py). So a piece may begin before the one before it ends,
and then its first chunks are dropped.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import accumulate

import msgspec

from lodefs.chunkstore.errors import Corrupt
from lodefs.chunkstore.format.names import Digest, PackId, parse_id
from lodefs.chunkstore.format.pack import PackIndex
from lodefs.chunkstore.format.push_plan import PartResult
from lodefs.chunkstore.format.tree import Segment, TreeEntry
from lodefs.chunkstore.push.fragmentation import join
from lodefs.chunkstore.push.workers.source_files import show_path

IndexOf = Callable[[PackId], PackIndex]


@dataclass(slots=True)
class SplitFile:
    """A file that is in several parts. ``begins`` says where their bytes begin in it, in order. It
    is left out if one of them was."""

    path: bytes
    begins: list[int] = field(default_factory=list)
    digest: Digest | None = None
    size_bytes: int = 0
    is_left_out: bool = False

    def entry(self, pieces: Sequence[TreeEntry], index_of: IndexOf) -> TreeEntry:
        """Returns the whole file. Raises: Corrupt if its pieces do not meet."""
        segments: list[Segment] = []
        position = 0
        for begin, piece in zip(self.begins, pieces, strict=True):
            end = begin + piece.size_bytes
            if begin > position:
                raise self._apart(begin)
            if end > position:
                segments += self._without_first(piece, position - begin, index_of)
                position = end
        if self.digest is None or position != self.size_bytes:
            raise self._apart(position)
        return msgspec.structs.replace(
            pieces[0], size_bytes=position, digest=self.digest, segments=join(segments)
        )

    def _without_first(
        self, piece: TreeEntry, size_bytes: int, index_of: IndexOf
    ) -> Iterator[Segment]:
        """Yields the segments of a piece without its first bytes, which must be whole chunks."""
        for segment in piece.segments:
            if size_bytes >= segment.size_bytes:
                size_bytes -= segment.size_bytes
                continue
            if size_bytes:
                end = segment.first + segment.count
                sizes = index_of(segment.pack).raw_sizes[segment.first : end]
                ends = list(accumulate(sizes))
                dropped = bisect_left(ends, size_bytes) + 1
                if ends[dropped - 1] != size_bytes:
                    raise self._apart(size_bytes)
                segment = Segment(
                    segment.pack,
                    segment.first + dropped,
                    segment.count - dropped,
                    segment.size_bytes - size_bytes,
                )
                size_bytes = 0
            yield segment

    def _apart(self, offset: int) -> Corrupt:
        return Corrupt(
            f"the parts of {show_path(self.path)} do not meet at {offset:,}, so some of them have "
            "read other bytes: make another plan"
        )


def split_files(results: Iterable[PartResult]) -> dict[bytes, SplitFile]:
    """Returns the files that are in several parts, by path. ``results`` are in order."""
    found: dict[bytes, SplitFile] = {}
    for result in results:
        if (piece := result.piece) is None:
            continue
        file = found.setdefault(piece.path, SplitFile(piece.path))
        if result.skipped_files:
            file.is_left_out = True
        elif piece.digest is None:
            file.begins.append(piece.begin)
        else:
            file.digest, file.size_bytes = Digest(parse_id(piece.digest)), result.size_bytes
    return found
