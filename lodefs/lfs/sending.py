"""Uploads that send only new chunks: objects are cut as the store cuts them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import BinaryIO, NamedTuple

from lodefs.chunkstore.errors import InvalidInput, SourceChanged
from lodefs.chunkstore.format.chunking import ChunkingParams, cut
from lodefs.chunkstore.format.compression import RawStreak
from lodefs.chunkstore.format.decoding import from_json
from lodefs.chunkstore.format.foreign.lfs import Action
from lodefs.chunkstore.format.names import digest_of
from lodefs.chunkstore.protocol.lfs_recipe import KNOWN, MAGIC, Piece, encode
from lodefs.chunkstore.protocol.orders.lfs_orders import KnownChunks
from lodefs.lfs.agent import Event, Moved
from lodefs.lfs.server import ANSWER_BYTES_MAX, LfsServer, place_of

WHOLE_BYTES_MAX = 256 << 10  # an object of a few chunks is sent at once, without a question
WINDOW_BYTES = 4 << 20
ASKED_MAX = 16_000  # chunks in one request; half a MiB


class Chunk(NamedTuple):
    """A chunk of a file."""

    id: bytes
    size_bytes: int


class Sender:
    """Sends one object to a server, over one connection. It is cut once, whatever is repeated."""

    def __init__(self, server: LfsServer, action: Action) -> None:
        self._server = server
        self._action = action
        self._target = place_of(action.href)[1]
        self._chunks: list[Chunk] = []

    def send(self, event: Event, moved: Moved) -> None:
        """Raises: Unavailable, Conflict if it may be repeated; what the server says."""
        if event.size <= WHOLE_BYTES_MAX:
            return self.send_whole(event, moved)
        if not self._chunks:
            params = self._params()
            with open(event.path, "rb") as file:
                self._chunks = list(cut_file(file, params))
        known = self._known([chunk.id for chunk in self._chunks])
        body = _pieces(event.path, self._chunks, known, moved)
        mark = "&" if "?" in self._target else "?"
        return self._put(f"{self._target}{mark}form=pieces", body, None)

    def send_whole(self, event: Event, moved: Moved) -> None:
        """Sends an object as it is."""
        self._put(self._target, _blocks(Path(event.path), moved), event.size)

    def _put(self, target: str, body: Iterator[bytes], size_bytes: int | None) -> None:
        headers = {**self._action.header, "Content-Type": "application/octet-stream"}
        with self._server.ask("PUT", target, headers, body, size_bytes=size_bytes):
            pass

    def _params(self) -> ChunkingParams:
        return ChunkingParams(*self._find(b"").sizes_bytes)

    def _known(self, ids: Sequence[bytes]) -> str:
        parts = (ids[start : start + ASKED_MAX] for start in range(0, len(ids), ASKED_MAX))
        known = "".join(self._find(b"".join(part)).known for part in parts)
        if len(known) != len(ids):
            raise InvalidInput("the server did not say of each chunk whether it has it")
        return known

    def _find(self, ids: bytes) -> KnownChunks:
        target = f"{self._target.partition('?')[0].rpartition('/')[0]}/chunks"
        headers = {**self._action.header, "Content-Type": "application/octet-stream"}
        with self._server.ask("POST", target, headers, [ids], size_bytes=len(ids)) as answer:
            return from_json(answer.read(ANSWER_BYTES_MAX), KnownChunks)


def cut_file(file: BinaryIO, params: ChunkingParams) -> Iterator[Chunk]:
    """Yields the chunks of a file that is open at its start."""
    left = b""
    is_last = False
    while not is_last:
        data = file.read(WINDOW_BYTES)
        is_last = len(data) < WINDOW_BYTES
        window, start = memoryview(left + data), 0
        for end in cut(window, params, final=is_last):
            yield Chunk(digest_of(window[start:end]), end - start)
            start = end
        left = bytes(window[start:])


def _pieces(path: str, chunks: Sequence[Chunk], known: str, moved: Moved) -> Iterator[bytes]:
    """Yields the body of an upload in pieces. Raises: SourceChanged."""
    streak = RawStreak()
    yield MAGIC
    with open(path, "rb") as file:
        for chunk, is_known in zip(chunks, known, strict=True):
            if is_known == "1":
                file.seek(chunk.size_bytes, 1)
                yield encode(Piece(KNOWN, chunk.size_bytes, chunk.id))
            else:
                data = file.read(chunk.size_bytes)
                if digest_of(data) != chunk.id:
                    raise SourceChanged(f"{path} changed while it was sent: push again")
                codec, stored = streak.compress(data)
                yield encode(Piece(codec, chunk.size_bytes, stored))
            moved(chunk.size_bytes)


def _blocks(path: Path, moved: Moved) -> Iterator[bytes]:
    with path.open("rb") as file:
        while block := file.read(1 << 20):
            yield block
            moved(len(block))
