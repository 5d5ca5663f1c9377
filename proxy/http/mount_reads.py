"""Reads of mounts, answered without aiohttp once one like them was answered.

A mount asks again and again where the bytes of a file lie, with the same headers. The ordinary path
answers the first such request with all checks; the next ones need neither aiohttp's objects nor
routing, admission or names, which take more processor time than finding the bytes. The bytes at a
commit never change, so such requests differ only in their ranges. Both paths give equal answers;
tests/proxy/http/test_mount_reads.py compares them.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from contextlib import aclosing, suppress
from dataclasses import replace
from time import perf_counter
from typing import NamedTuple, Protocol

from lodefs.chunkstore.errors import Corrupt
from lodefs.chunkstore.protocol import wire
from lodefs.chunkstore.types import Buffer
from lodefs.proxy.api import responses, routes
from lodefs.proxy.api.fast_path import ANSWER_SIZE_BYTES_MAX, KnownHeaders, PlainGet
from lodefs.proxy.api.ranges import ByteRange
from lodefs.proxy.api.response_slots import AnswerPlace, ResponseSlots
from lodefs.proxy.api.responses import Answer
from lodefs.proxy.http import http_request
from lodefs.proxy.metrics.server_metrics import NO_SOURCE, Metrics
from lodefs.proxy.node import Files, SnapshotFile
from lodefs.proxy.runtime.thread_pools import current_owner
from lodefs.proxy.tracing.request_scope import ID_HEADER, serving
from lodefs.proxy.tracing.spans import Tracer

KNOWN_MAX = 1024
READS_MAX = 64  # at once; each may have ANSWER_SIZE_BYTES_MAX in memory


class MountRead(NamedTuple):
    """A request for the places of a range of a file, made for an owner."""

    file: SnapshotFile
    wanted: ByteRange
    owner: str


class Sender(Protocol):
    """The connection of a client."""

    async def send(self, *pieces: Buffer, is_last: bool) -> None:
        """Sends an answer, the last one of the connection if ``is_last``. Returns when the client
        has taken almost all of it. Raises: ConnectionError."""


class _Known(NamedTuple):
    """The file of requests with the same target and headers. They were allowed in a generation of
    ``blocks``, and may not be later."""

    file: SnapshotFile
    blocks: KnownHeaders
    generation: int


class MountReads:
    """The requests of mounts that one server has answered, and the answers to others like them."""

    def __init__(
        self,
        files: Files,
        metrics: Metrics,
        slots: ResponseSlots,
        tracer: Tracer,
        closing: Callable[[], bytes],
    ) -> None:
        """``closing`` is as in FastPath."""
        self._files = files
        self._metrics = metrics
        self._slots = slots
        self._tracer = tracer
        self._closing = closing
        self._known: OrderedDict[tuple[bytes, bytes], _Known] = OrderedDict()
        self._under_way = 0

    def learn(
        self, plain_get: PlainGet, file: SnapshotFile, blocks: KnownHeaders, generation: int
    ) -> None:
        """Adds a request that the ordinary path answered, with the generation of ``blocks`` in
        which it was allowed; drops the least recently used one beyond KNOWN_MAX."""
        key = plain_get.target, plain_get.headers
        self._known[key] = _Known(file, blocks, generation)
        self._known.move_to_end(key)
        if len(self._known) > KNOWN_MAX:
            self._known.popitem(last=False)

    def find(self, plain_get: PlainGet, blocks: KnownHeaders, owner: str) -> MountRead | None:
        """Returns what a request asks for, if one like it was answered, its range is short and
        within the file, and few others are being answered."""
        target, headers, first, last = plain_get
        known = self._known.get((target, headers))
        if known is None or known.blocks is not blocks or known.generation != blocks.generation:
            return None
        size_bytes = min(last + 1, known.file.entry.size_bytes) - first
        if first < 0 or not 0 < size_bytes <= ANSWER_SIZE_BYTES_MAX or self._under_way >= READS_MAX:
            return None
        self._known.move_to_end((target, headers))
        return MountRead(known.file, ByteRange(first, size_bytes), owner)

    async def answer(self, read: MountRead, sender: Sender) -> None:
        """Sends the answer to a request."""
        started = perf_counter()
        current_owner.set(read.owner)
        self._under_way += 1
        try:
            with serving({}, self._tracer) as scope:
                answer = await self._made(read)
                if scope.span.is_recorded:
                    path = _path(read.file)
                    http_request.describe(scope.span, "GET", path, routes.DATA, answer)
                first_s = perf_counter() - started
                id_header = [(ID_HEADER, scope.id)] if scope.is_named else []
                await self._send(answer, id_header, read.owner, sender)
                self._metrics.answered(
                    routes.DATA, answer.status, answer.source, len(answer.body),
                    first_s=first_s, elapsed_s=perf_counter() - started,
                )  # fmt: skip
        finally:
            self._under_way -= 1

    async def _made(self, read: MountRead) -> Answer:
        """Returns the answer with its whole body."""
        file = read.file
        headers = responses.file_headers(file, responses.OCTETS, responses.IMMUTABLE)
        try:
            answer = await responses.places_answer(self._files, file, headers, read.wanted)
            if answer.pieces is None:
                return answer
            body: Buffer = answer.first
            async with aclosing(answer.pieces) as pieces:
                if len(body) < answer.size_bytes:
                    body = b"".join([body, *[piece async for piece in pieces]])
            if len(body) != answer.size_bytes:
                raise Corrupt(f"The answer has {len(body)} bytes, not {answer.size_bytes}")
            return replace(answer, body=bytes(body), pieces=None, first=b"")
        except Exception as error:  # noqa: BLE001 - the client gets it, whatever it is
            return responses.failed(error, _path(file))

    async def _send(
        self, answer: Answer, headers: responses.Headers, owner: str, sender: Sender
    ) -> None:
        if answer.origin is not None:
            headers = [(wire.ORIGIN_HEADER, answer.origin), *headers]
        if answer.source != NO_SOURCE:
            self._slots.see(owner)
        place = AnswerPlace(self._slots, owner, answer.size_bytes)
        await place.enter()
        try:
            with suppress(ConnectionError):  # the client has gone, or was cut
                head = responses.head_of(answer, headers, self._closing())
                await sender.send(head, answer.body, is_last=answer.close)
        finally:
            place.leave()


def _path(file: SnapshotFile) -> str:
    """Returns the target of the requests for a file."""
    snapshot = file.snapshot
    return f"{wire.NODES}{wire.target(snapshot.repo, snapshot.commit)}/{file.entry.ino}/data"
