"""The counters of a component of a node (Docker's plugin, the mounter, the CSI driver).

It counts in memory, and from time to time publishes all counters in a file beside the proxy's
socket (figure_files). A file has the magic, version, size and CRC-32 of the MessagePack that
follows, so that readers ignore one that is half written.
"""

from __future__ import annotations

import os
import struct
import threading
import time
import zlib
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from itertools import chain
from pathlib import Path
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from lodefs.chunkstore.errors import LodefsError, UnknownFormat
from lodefs.chunkstore.format.decoding import msgpack_decoder
from lodefs.chunkstore.protocol.figures import figure_files

ENDING = ".component"
MAGIC = b"lodefsCC"
VERSION = 1
FILE_BYTES = 16384
FAULT = "Fault"  # a fault of lodefs: an error that is not a LodefsError
NAMES_MAX = 64  # of operations, errors of one operation, or states
READ_TRIES = 3  # for a file that is being written
_HEAD = struct.Struct("=8sIII")  # magic, version, size, CRC-32

Component = Literal["docker", "mounter", "csi"]
Name = Annotated[str, Meta(pattern=r"^[A-Za-z_]{1,64}\Z")]
Number = Annotated[int, Meta(ge=0)]
Seconds = Annotated[float, Meta(ge=0, le=1e15)]  # no NaN


class Calls(msgspec.Struct, frozen=True):
    """The finished calls of one operation, their total seconds, and errors by class."""

    count: Number = 0
    spent_s: Seconds = 0.0
    errors: Annotated[dict[Name, Number], Meta(max_length=NAMES_MAX)] = {}


class ComponentFigures(msgspec.Struct, frozen=True):
    """All that a component publishes. ``volumes`` is the number that it holds, by state."""

    component: Component
    version: Annotated[str, Meta(max_length=64)]
    started_s: Seconds  # Unix time
    calls: Annotated[dict[Name, Calls], Meta(max_length=NAMES_MAX)] = {}
    volumes: Annotated[dict[Name, Number], Meta(max_length=NAMES_MAX)] = {}


class ComponentCounts:
    """Counters of one process, for any thread. It counts even if it cannot publish.

    ``operations`` lists all of them, so that each has a series from the beginning. ``directories``:
    the file lies in the first one where it can be made; if there are none, it is not published.
    """

    def __init__(
        self,
        component: Component,
        operations: Iterable[str] = (),
        *,
        version: str = "",
        directories: Sequence[Path] = (),
    ) -> None:
        self._figures = ComponentFigures(component, version, time.time())
        self._calls = {name: Calls() for name in operations}
        self._lock = threading.Lock()
        self._directories = directories
        self._fd: int | None = None
        self._published = b""

    @contextmanager
    def call(self, operation: str) -> Iterator[None]:
        """Counts the block as a call, with the error that it raises."""
        begun_s, failure = time.monotonic(), ""
        try:
            yield
        except Exception as error:
            failure = class_of(error)
            raise
        finally:
            self._add(operation, time.monotonic() - begun_s, failure)

    def _add(self, operation: str, spent_s: float, failure: str) -> None:
        with self._lock:
            before = self._calls.get(operation, Calls())
            errors = before.errors
            if failure:
                errors = {**errors, failure: errors.get(failure, 0) + 1}
            self._calls[operation] = Calls(before.count + 1, before.spent_s + spent_s, errors)

    def figures(self, volumes: Mapping[str, int]) -> ComponentFigures:
        """Returns all counters, with the volumes that the component holds now."""
        with self._lock:
            calls = dict(self._calls)
        return msgspec.structs.replace(self._figures, calls=calls, volumes=dict(volumes))

    def publish(self, volumes: Mapping[str, int] | None = None) -> None:
        """Publishes the counters, if that is possible. It makes the file if it is missing. One
        thread may call it."""
        if not self._directories:
            return
        with suppress(OSError):
            data = encode(self.figures(volumes or {}))
            if self._fd is None or not os.fstat(self._fd).st_nlink:
                self.close()
                self._fd = figure_files.create_in_first(self._directories, ENDING, data, FILE_BYTES)
            elif data != self._published:
                os.pwrite(self._fd, data, 0)
            self._published = data

    def close(self) -> None:
        """Stops counting. The file remains, without its lock."""
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None


def class_of(error: Exception) -> str:
    """Returns the name of an error's class in chunkstore/errors.py."""
    for one in type(error).__mro__:
        if one.__module__ == LodefsError.__module__:
            return one.__name__
    return FAULT


def encode(figures: ComponentFigures) -> bytes:
    """Returns the bytes of a file."""
    body = msgspec.msgpack.encode(figures)
    return _HEAD.pack(MAGIC, VERSION, len(body), zlib.crc32(body)) + body


def decode(data: bytes) -> ComponentFigures:
    """Returns the counters in a file's bytes. Raises: UnknownFormat."""
    try:
        magic, version, size_bytes, crc = _HEAD.unpack_from(data)
        body = data[_HEAD.size : _HEAD.size + size_bytes]
        if (magic, version) != (MAGIC, VERSION) or zlib.crc32(body) != crc:
            raise UnknownFormat("unknown counters of a component")
        return msgpack_decoder(ComponentFigures).decode(body)
    except (struct.error, ValueError, RecursionError) as error:
        raise UnknownFormat(f"not counters of a component: {error}") from error


def read_newest(
    *directories: Path, sweep: bool = False, trusted: Collection[int] | None = None
) -> list[ComponentFigures]:
    """Returns the counters of the last started process of each running component, as far as they
    can be read, since a process that a new version replaces no longer counts. It skips files of
    users other than ``trusted`` (root and the caller), since any user who may mount can make files
    there. ``sweep`` is that of figure_files."""
    found: dict[str, ComponentFigures] = {}
    users = (0, os.geteuid()) if trusted is None else trusted
    living = (figure_files.living(directory, ENDING, sweep=sweep) for directory in directories)
    for file in chain.from_iterable(living):
        if file.uid not in users:
            continue
        figures = _read(file.fd)
        if figures is None:
            continue
        known = found.get(figures.component)
        if known is None or known.started_s < figures.started_s:
            found[figures.component] = figures
    return [found[component] for component in sorted(found)]


def _read(fd: int) -> ComponentFigures | None:
    for _ in range(READ_TRIES):
        with suppress(OSError, UnknownFormat):
            return decode(os.pread(fd, FILE_BYTES, 0))
    return None
