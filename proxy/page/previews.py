"""Previews of files: reads the needed bytes, and runs the processes that render them."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager
from importlib.util import find_spec

import msgspec

from lodefs.chunkstore import python_process
from lodefs.chunkstore.errors import InvalidInput, Unavailable
from lodefs.chunkstore.format.decoding import json_decoder
from lodefs.proxy.node import Files, SnapshotFile
from lodefs.proxy.page import image_header
from lodefs.proxy.page.image_header import ImageHeader
from lodefs.proxy.page.preview_view import (
    ARCHIVE_BYTES_MAX,
    HEAD_BYTES_MAX,
    PATCH_BYTES_MAX,
    VIEW_BYTES_MAX,
    WHOLE_BYTES_MAX,
    Format,
    PreviewOrder,
    PreviewView,
    none,
)

# For a process to start, read and answer, however busy the machine is; its limit of processor time
# is 2 s
PROCESS_S_MAX = 10.0
PROCESSES_MAX = 2  # at once, each with its input
WAITING_MAX = 16
PARQUET = b"PAR1"  # the beginning and the end of such files
PARQUET_TRAILER_BYTES = 8  # the length of the footer, u32, little-endian; PAR1
_ZIP = (b"PK\x03\x04", b"PK\x05\x06", b"PK\x06\x06")
_ENDINGS: dict[Format, tuple[bytes, ...]] = {
    "csv": (b".csv", b".tsv"),
    "json": (b".json", b".geojson", b".ipynb"),
    "markdown": (b".md", b".markdown"),
    "parquet": (b".parquet",),
    "tar": (b".tar.gz", b".tgz", b".tar.bz2", b".tbz2", b".tar.xz", b".txz", b".tar.zst", b".tzst"),
    "zip": (b".zip",),
}
_NO_PYARROW = "to see columns and rows of Parquet files, install lodefs[preview] on this node"
_COMMAND = python_process.command("lodefs.proxy.page.preview_process")


class Previews:
    """Makes previews, a few at a time. For use on the event loop."""

    def __init__(self, files: Files, *, process_s_max: float = PROCESS_S_MAX) -> None:
        self._files = files
        self._process_s_max = process_s_max
        self._running = asyncio.Semaphore(PROCESSES_MAX)
        self._waiting = 0

    async def view(self, file: SnapshotFile, name: bytes) -> PreviewView:
        """Returns the preview of a file. Raises: Unavailable, also if too many wait; Corrupt, as
        reads do."""
        async with self._place():
            return await self._view(file, name)

    async def _view(self, file: SnapshotFile, name: bytes) -> PreviewView:
        size_bytes = file.entry.size_bytes
        try:
            head = await self._read(file, 0, min(size_bytes, HEAD_BYTES_MAX))
            header = image_header.read_header(head)
            if header is not None:
                image_header.check_image(header, size_bytes)
                return PreviewView("image", media=header.media, width=header[1], height=header[2])
            form = format_of(name, head)
            if form == "parquet":
                return await self._parquet(file)
        except InvalidInput as error:
            return none(str(error))
        if form in ("tar", "zip") and size_bytes > len(head):
            most = min(size_bytes, ARCHIVE_BYTES_MAX)
            head = await self._read(file, size_bytes - most if form == "zip" else 0, most)
        is_whole = size_bytes <= len(head)
        found = await self._run(PreviewOrder(form, is_whole), head)
        if found.kind == "none" and not found.may_retry and form in ("json", "markdown"):
            found = await self._run(PreviewOrder("text", is_whole), head)  # too much to be parsed
        return found

    async def patch(self, before: SnapshotFile | None, after: SnapshotFile | None) -> PreviewView:
        """Returns the lines in which two contents of a file differ; None stands for no file.
        Raises: as ``view``."""
        files = [file for file in (before, after) if file is not None]
        if any(file.entry.size_bytes > PATCH_BYTES_MAX for file in files):
            return none(
                f"it has more than {PATCH_BYTES_MAX >> 20} MiB: its differences are not shown"
            )
        async with self._place():
            contents = [
                b"" if file is None else await self._read(file, 0, file.entry.size_bytes)
                for file in (before, after)
            ]
            order = PreviewOrder("patch", is_whole=True, before_bytes=len(contents[0]))
            return await self._run(order, b"".join(contents))

    async def image(self, file: SnapshotFile) -> ImageHeader:
        """Returns the header of an image that may be shown. Raises: InvalidInput for anything
        else."""
        size_bytes = file.entry.size_bytes
        async with self._place():
            head = await self._read(file, 0, min(size_bytes, HEAD_BYTES_MAX))
        header = image_header.read_header(head)
        if header is None:
            raise InvalidInput("this is not a PNG, JPEG, GIF or WebP image")
        image_header.check_image(header, size_bytes)
        return header

    async def _parquet(self, file: SnapshotFile) -> PreviewView:
        """Previews with pyarrow: the rows of a small file, the columns of a larger one. Raises:
        InvalidInput."""
        size_bytes = file.entry.size_bytes
        trailer_at = max(0, size_bytes - PARQUET_TRAILER_BYTES)
        trailer = await self._read(file, trailer_at, size_bytes - trailer_at)
        if len(trailer) != PARQUET_TRAILER_BYTES or trailer[4:] != PARQUET:
            raise InvalidInput("this is not a Parquet file: it does not end in PAR1")
        footer_at = trailer_at - int.from_bytes(trailer[:4], "little")
        if footer_at < 0:
            raise InvalidInput("this Parquet file is damaged: its footer is longer than the file")
        if find_spec("pyarrow") is None:
            raise InvalidInput(_NO_PYARROW)
        if size_bytes <= WHOLE_BYTES_MAX:
            data = await self._read(file, 0, size_bytes)
            return await self._run(PreviewOrder("parquet", is_whole=True), data)
        if size_bytes - footer_at > WHOLE_BYTES_MAX:
            raise InvalidInput("the footer of this Parquet file is too large to show")
        footer = await self._read(file, footer_at, size_bytes - footer_at)
        return await self._run(PreviewOrder("parquet", is_whole=False), PARQUET + footer)

    async def _read(self, file: SnapshotFile, first: int, size_bytes: int) -> bytes:
        if not size_bytes:
            return b""
        async with aclosing(await self._files.open(file, first, size_bytes)) as stream:
            data = bytearray(stream.first)
            async for piece in stream:
                data += piece
        return bytes(data)

    @asynccontextmanager
    async def _place(self) -> AsyncIterator[None]:
        """Waits for a turn to read and preview a file; waiting previews hold no bytes."""
        if self._waiting >= WAITING_MAX:
            raise Unavailable("many previews are being made: try again in a moment")
        self._waiting += 1
        try:
            async with self._running:
                yield
        finally:
            self._waiting -= 1

    async def _run(self, order: PreviewOrder, data: bytes) -> PreviewView:
        """Returns the view that a separate process makes of bytes."""
        process = await asyncio.create_subprocess_exec(
            *_COMMAND,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.DEVNULL,
            env=_environment(),
            cwd="/",
        )
        try:
            async with asyncio.timeout(self._process_s_max):
                given = msgspec.json.encode(order) + b"\n" + data
                answered, _ = await process.communicate(given)
        except TimeoutError:
            took = f"the preview took longer than {self._process_s_max:g} s"
            return PreviewView("none", f"{took}: this machine is busy", may_retry=True)
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()
        if process.returncode or len(answered) > VIEW_BYTES_MAX:
            return none("this file could not be previewed: it needs too much, or is damaged")
        try:
            return json_decoder(PreviewView).decode(answered)
        except (msgspec.DecodeError, RecursionError):
            return none("this file could not be previewed")


def format_of(name: bytes, head: bytes) -> Format:
    """As what a file is shown, by its first bytes, and else by the end of its name. Pure."""
    if head.startswith(PARQUET):
        return "parquet"
    if head.startswith(_ZIP):
        return "zip"
    if head[257:262] == b"ustar":
        return "tar"
    lower = name.lower()
    for form, endings in _ENDINGS.items():
        if lower.endswith(endings):
            return form
    return "text"


def _environment() -> dict[str, str]:
    """Returns the environment of a preview process, without credentials."""
    kept = {"PATH": os.environ["PATH"]} if "PATH" in os.environ else {}
    return {"LC_ALL": "C.UTF-8", "OMP_NUM_THREADS": "1",
            "ARROW_DEFAULT_MEMORY_POOL": "system", **kept}  # fmt: skip
