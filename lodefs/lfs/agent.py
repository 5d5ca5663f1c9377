"""The protocol between ``git lfs`` and a transfer agent: one line of JSON for each event.

Standard input has "init", then transfers one after the other, then "terminate"; standard output
gets answers, progress, and the end of each transfer.
Source: https://github.com/git-lfs/git-lfs, docs/custom-transfers.md.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, BinaryIO, Protocol

import msgspec

from lodefs.chunkstore.errors import InvalidInput, LodefsError
from lodefs.chunkstore.format.decoding import from_json
from lodefs.chunkstore.format.foreign.lfs import Action

PROGRESS_BYTES = 1 << 20  # between two reports
FAILED = 2  # the code of an error
Moved = Callable[[int], None]  # told how many bytes were sent or fetched


class Event(msgspec.Struct, frozen=True):
    """A line from git lfs."""

    event: str
    oid: str = ""
    size: int = 0
    path: str = ""  # the file to upload
    operation: str = ""
    action: Action | None = None


class Transfers(Protocol):
    """Moves objects. Both raise LodefsError."""

    def upload(self, event: Event, action: Action, moved: Moved) -> None:
        """Sends the file of an object."""

    def download(self, event: Event, action: Action, moved: Moved) -> Path:
        """Returns a file with an object, which git lfs moves away."""


def serve(lines: Iterable[bytes], out: BinaryIO, transfers: Transfers) -> None:
    """Answers until the last event, or until git lfs closes the stream."""
    for line in lines:
        if not line.strip():
            continue
        try:
            event = from_json(line, Event)
        except InvalidInput as error:
            _tell(out, {"error": _error(error)})
            continue
        if event.event == "terminate":
            return
        if event.event == "init":
            known = event.operation in ("upload", "download")
            unknown = InvalidInput(f"there is no transfer {event.operation[:80]!r}")
            _tell(out, {} if known else {"error": _error(unknown)})
        else:
            _tell(out, _ended(event, transfers, _Progress(event, out)))


def _ended(event: Event, transfers: Transfers, progress: _Progress) -> dict[str, Any]:
    """Carries out a transfer, and returns its last event."""
    answer: dict[str, Any] = {"event": "complete", "oid": event.oid}
    try:
        if event.action is None:
            raise InvalidInput("the server did not say where the object lies")
        if event.event == "upload":
            transfers.upload(event, event.action, progress.moved)
        elif event.event == "download":
            answer["path"] = str(transfers.download(event, event.action, progress.moved))
        else:
            raise InvalidInput(f"there is no event {event.event[:80]!r}")
    except LodefsError as error:
        return answer | {"error": _error(error)}
    progress.end()
    return answer


class _Progress:
    """Tells git lfs how much of an object has moved, and not too often."""

    def __init__(self, event: Event, out: BinaryIO) -> None:
        self._event = event
        self._out = out
        self._moved_bytes = 0
        self._told_bytes = 0

    def moved(self, count_bytes: int) -> None:
        self._moved_bytes += count_bytes
        if self._moved_bytes - self._told_bytes >= PROGRESS_BYTES:
            self._tell(min(self._moved_bytes, self._event.size))

    def end(self) -> None:
        if self._told_bytes < self._event.size:
            self._tell(self._event.size)

    def _tell(self, so_far: int) -> None:
        since = so_far - self._told_bytes
        self._told_bytes = so_far
        told = {"event": "progress", "oid": self._event.oid}
        _tell(self._out, told | {"bytesSoFar": so_far, "bytesSinceLast": since})


def _error(error: LodefsError) -> dict[str, object]:
    return {"code": FAILED, "message": str(error)}


def _tell(out: BinaryIO, value: object) -> None:
    out.write(msgspec.json.encode(value) + b"\n")
    out.flush()
