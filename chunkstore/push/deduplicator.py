"""Decides which of the chunks from the workers are stored, and where each file lies."""

from __future__ import annotations

from collections import deque
from collections.abc import Container, Sequence
from typing import Protocol

from lodefs.chunkstore.errors import Purged
from lodefs.chunkstore.push.fragmentation import (
    UNKNOWN,
    Layout,
    Run,
    chunks_to_store,
    join_runs,
    longest_runs,
    place_all,
)
from lodefs.chunkstore.push.in_place import InPlace, PlacedChunk
from lodefs.chunkstore.push.index.push_index import begins_pack
from lodefs.chunkstore.push.pack_writer import FRESH, Placement
from lodefs.chunkstore.push.workers.pipeline import CutChunk, CutFile, CutUnit
from lodefs.chunkstore.system.progress import Progress
from lodefs.chunkstore.types import Buffer

_NOTHING: tuple[Layout, list[Run]] = (Layout(), [])  # the state at the beginning of a file


class FileSink(Protocol):
    """Receives the files that were read (PushTree, Contents). One thread calls it."""

    def done(self, file: CutFile, runs: list[Run], serial: int) -> None:
        """A file was read to its end, or failed. New chunks in its runs have serials below
        ``serial``."""
        ...

    def advance(self) -> None:
        """Chunks went into packs."""
        ...


class Deduplicator:
    """The sink of the workers. For one thread."""

    def __init__(
        self,
        placement: Placement,
        files: FileSink,
        progress: Progress,
        in_place: InPlace | None = None,
        sound: Container[int] | None = None,
    ) -> None:
        """``in_place`` says which new chunks stay where they are; ``sound`` are the places in the
        index that may be used (None: all)."""
        self._files = files
        self._in_place = in_place
        self._sound = sound
        self._progress = progress
        self._index = placement.index
        self._packer = placement.packer
        self._fresh = placement.fresh
        # The place of the next chunk that is wanted: others may have used the packer before
        self._next_place = FRESH + placement.packer.serial
        # New chunks of units whose bytes have not come; of an import, each with its place
        self._wanted: deque[tuple[list[CutChunk], list[PlacedChunk | None]]] = deque()
        self._partial: dict[int, tuple[Layout, list[Run]]] = {}  # files in several parts, by token
        self.files_read = 0  # successfully
        self.new_bytes = 0  # in chunks new to the store, each counted once

    def seal(self) -> None:
        """Seals the last pack."""
        self._packer.seal()

    def wanted(self, unit: CutUnit) -> Sequence[bool]:
        """Decides for each chunk whether to store it. Raises: Purged for a chunk that was purged
        from this store."""
        self._check_allowed(unit)
        fresh = self._fresh
        asked = [chunk.id for file in unit.files for chunk in file.chunks if chunk.id not in fresh]
        known = self._index.find(asked) if asked else {}
        if self._sound is not None:
            known = {chunk: place for chunk, place in known.items() if place in self._sound}
        flags: list[bool] = []
        new: list[CutChunk] = []
        places: list[PlacedChunk | None] = []
        for file in unit.files:
            if file.first and len(file.chunks) == 1:  # nearly all files
                flags.append(self._decide_one(file, known, new))
            else:
                flags += self._decide(file, known, new)
            if self._in_place is not None:
                self._place(self._in_place, file, flags, places)
        self._wanted.append((new, places))
        return flags

    def _check_allowed(self, unit: CutUnit) -> None:
        if not (refused := self._index.refused):
            return
        for file in unit.files:
            for chunk in file.chunks:
                if chunk.id in refused:
                    raise Purged(
                        f"the source has bytes that were {refused[chunk.id]} (chunk "
                        f"{chunk.id.hex()}): remove them from it. They are not stored again"
                    )

    def store(self, unit: CutUnit, stored: Sequence[tuple[int, Buffer]]) -> None:  # noqa: ARG002
        """Puts the wanted chunks into packs."""
        new, places = self._wanted.popleft()
        if not new:
            return
        if places:
            self._store_placed(new, places, stored)
        else:
            add = self._packer.add
            for (chunk_id, raw_size_bytes), (codec, data) in zip(new, stored, strict=True):
                add(chunk_id, codec, data, raw_size_bytes)
        self._files.advance()

    def _store_placed(
        self,
        new: Sequence[CutChunk],
        places: Sequence[PlacedChunk | None],
        stored: Sequence[tuple[int, Buffer]],
    ) -> None:
        """Does what ``store`` does, if some chunks stay where they are."""
        given = iter(stored)
        for (chunk_id, raw_size_bytes), place in zip(new, places, strict=True):
            if place is None:
                self._packer.add(chunk_id, *next(given), raw_size_bytes)
            else:
                self._packer.add_placed(chunk_id, raw_size_bytes, place)

    def _place(
        self, in_place: InPlace, file: CutFile, flags: list[bool], places: list[PlacedChunk | None]
    ) -> None:
        """Adds the places of the wanted chunks of a file. Bytes that stay where they are, are not
        wanted from the workers: the last of ``flags`` are those of the file."""
        begin = len(flags) - len(file.chunks)
        wanted = flags[begin:]
        placed = in_place.places(file, wanted)
        if placed is None:
            places += [None] * sum(wanted)
        else:
            places += placed
            flags[begin:] = [False] * len(wanted)

    def _decide_one(self, file: CutFile, known: dict[bytes, int], new: list[CutChunk]) -> bool:
        """Does what _decide does, for the beginning of a file that is one chunk."""
        chunk = file.chunks[0]
        chunk_id, size_bytes = chunk
        place = self._fresh.get(chunk_id, UNKNOWN)
        if place == UNKNOWN:
            place = known.get(chunk_id, UNKNOWN)
        is_new = place == UNKNOWN
        if is_new:
            place = self._fresh[chunk_id] = self._next_place
            self._next_place += 1
            self.new_bytes += size_bytes
            new.append(chunk)
        self._decided(file, [Run(place, 1, size_bytes)], Layout(1, 0, place + 1), size_bytes)
        return is_new

    def _decide(self, file: CutFile, known: dict[bytes, int], new: list[CutChunk]) -> list[bool]:
        """Returns a flag for each chunk of a file or part, and appends the wanted ones to
        ``new``."""
        fresh, chunks = self._fresh, file.chunks
        layout, before = _NOTHING if file.first else self._partial.pop(file.token, _NOTHING)
        places = [fresh.get(chunk.id, UNKNOWN) for chunk in chunks]
        if known and UNKNOWN in places:
            places = [
                known.get(chunk.id, UNKNOWN) if place == UNKNOWN else place
                for chunk, place in zip(chunks, places, strict=True)
            ]
        promised = self._next_place
        flags = chunks_to_store(places, layout, promised)
        if sum(flags) > places.count(UNKNOWN):  # some stored chunks would be stored again
            places = self._as_stored(chunks, places, layout)
            flags = chunks_to_store(places, layout, promised, sum(map(begins_pack, places)))
        sizes = [chunk.raw_size_bytes for chunk in chunks]
        runs, layout = place_all(places, sizes, flags, promised, layout)
        for chunk, place, is_wanted in zip(chunks, places, flags, strict=True):
            if is_wanted:
                if place == UNKNOWN and chunk.id not in fresh:
                    self.new_bytes += chunk.raw_size_bytes
                fresh[chunk.id] = promised
                promised += 1
                new.append(chunk)
        self._next_place = promised
        self._decided(file, join_runs(before, runs) if before else runs, layout, sum(sizes))
        return flags

    def _as_stored(
        self, chunks: Sequence[CutChunk], places: Sequence[int], layout: Layout
    ) -> list[int]:
        """Returns the best of all places that the chunks of a part have. Another machine may have
        stored them again for this very file; then the part lies in long runs, except where it
        continues in the next pack."""
        known = self._index.find_all([chunk.id for chunk in chunks])
        if (sound := self._sound) is not None:
            known = {chunk: {one for one in at if one in sound} for chunk, at in known.items()}
        options = [
            {*known.get(chunk.id, ()), *([] if place == UNKNOWN else [place])}
            for chunk, place in zip(chunks, places, strict=True)
        ]
        return longest_runs(options, layout)

    def _decided(self, file: CutFile, runs: list[Run], layout: Layout, size_bytes: int) -> None:
        """Sets where a file lies, or the part so far. ``size_bytes`` is the size of its last
        part."""
        progress = self._progress
        progress.bytes_done += size_bytes
        if not file.last:
            self._partial[file.token] = (layout, runs)
        else:
            progress.files_done += 1
            self.files_read += file.error is None
            self._files.done(file, runs, _highest(runs))


def _highest(runs: list[Run]) -> int:
    """Returns a serial above those of all new chunks in ``runs``."""
    if len(runs) == 1:
        return runs[0].end - FRESH
    return max([run.end - FRESH for run in runs], default=0)
