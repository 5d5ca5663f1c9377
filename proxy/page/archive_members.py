"""Members of tar and zip archives, as far as their bytes are there. Nothing is unpacked."""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import stat
import tarfile
import zipfile
import zlib
from datetime import UTC, datetime
from typing import NamedTuple, Protocol

import zstandard

from lodefs.chunkstore.errors import InvalidInput
from lodefs.proxy.page.preview_view import PreviewView, cell

MEMBERS_MAX = 200  # that are shown
COUNTED_MAX = 20_000
UNPACKED_BYTES_MAX = 64 * 1024 * 1024  # of a compressed tar, to come from member to member
WINDOW_BYTES_MAX = 8 * 1024 * 1024  # of zstd
_COLUMNS = ["name", "bytes", "modified (UTC)"]
_FAILURES = (
    tarfile.TarError, zipfile.BadZipFile, EOFError, OSError, ValueError, zlib.error,
    lzma.LZMAError, zstandard.ZstdError, NotImplementedError,
)  # fmt: skip


class _Member(NamedTuple):
    name: str
    size: str
    modified: str


def tar_view(data: bytes, *, is_whole: bool) -> PreviewView:
    """Members of a tar, compressed or not, of which ``data`` is the beginning. Raises:
    InvalidInput."""
    members: list[_Member] = []
    is_cut = False
    try:
        with tarfile.open(fileobj=_unpacked(data), mode="r|") as archive:
            for member in archive:
                members.append(_of_tar(member))
                if len(members) == COUNTED_MAX:
                    is_cut = True
                    break
    except _FAILURES as error:
        if not members:
            raise InvalidInput(f"this tar archive cannot be read: {str(error)[:200]}") from error
        is_cut = True
    is_cut = is_cut or not is_whole
    where = "" if is_whole else "the first "
    return _view(members, len(members), f"in {where}{len(data):,} bytes", is_cut=is_cut)


def zip_view(data: bytes, *, is_whole: bool) -> PreviewView:
    """Members of a zip archive, of which ``data`` is the end. Raises: InvalidInput."""
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            found = archive.infolist()
    except _FAILURES as error:
        why = str(error)[:200] if is_whole else "its list of members is damaged, or too long"
        raise InvalidInput(f"this zip archive cannot be read: {why}") from error
    members = [_of_zip(one) for one in found[:MEMBERS_MAX]]
    unpacked = sum(one.file_size for one in found)
    return _view(members, len(found), f"{unpacked:,} bytes unpacked", is_cut=False)


def _view(members: list[_Member], total: int, words: str, *, is_cut: bool) -> PreviewView:
    shown = members[:MEMBERS_MAX]
    count = f"{total:,} {'member' if total == 1 else 'members'}"
    if len(shown) < total:
        count = f"the first {len(shown)} of {count}"
    return PreviewView(
        "table",
        f"{count}, {words}" + ("; there may be more" if is_cut else ""),
        columns=_COLUMNS,
        rows=[[cell(text) for text in one] for one in shown],
        is_cut=is_cut or len(shown) < total,
    )


def _of_tar(member: tarfile.TarInfo) -> _Member:
    name = _readable(member.name)
    if member.issym() or member.islnk():
        name += f" → {_readable(member.linkname)}"
    elif member.isdir():
        name += "/"
    size = f"{member.size:,}" if member.isreg() else ""
    return _Member(name, size, _time(member.mtime))


def _of_zip(one: zipfile.ZipInfo) -> _Member:
    is_link = stat.S_ISLNK(one.external_attr >> 16)
    year, month, day, hour, minute, _ = one.date_time
    modified = f"{year:04}-{month:02}-{day:02} {hour:02}:{minute:02}"
    name = _readable(one.filename) + (" (a symbolic link)" if is_link else "")
    return _Member(name, "" if one.is_dir() else f"{one.file_size:,}", modified)


def _readable(name: str) -> str:
    """Returns a name without half characters, which JSON cannot hold."""
    return name.encode("utf-8", "surrogateescape").decode("utf-8", "replace")


def _time(time_s: float) -> str:
    try:
        return datetime.fromtimestamp(time_s, UTC).strftime("%Y-%m-%d %H:%M")
    except (ValueError, OverflowError, OSError):
        return "–"


class _ReadsSome(Protocol):
    def read1(self, size: int = ..., /) -> bytes: ...


def _unpacked(data: bytes) -> io.BufferedIOBase:
    raw = io.BytesIO(data)
    unpacked: _ReadsSome
    if data.startswith(b"\x1f\x8b"):
        unpacked = gzip.GzipFile(fileobj=raw)
    elif data.startswith(b"BZh"):
        unpacked = bz2.BZ2File(raw)
    elif data.startswith(b"\xfd7zXZ\0"):
        unpacked = lzma.LZMAFile(raw)  # noqa: SIM115 - of memory
    elif data.startswith(b"\x28\xb5\x2f\xfd"):
        zstd = zstandard.ZstdDecompressor(max_window_size=WINDOW_BYTES_MAX)
        unpacked = zstd.stream_reader(raw)
    else:
        return raw
    return io.BufferedReader(_Bounded(unpacked))


class _Bounded(io.RawIOBase):
    """The unpacked bytes, at most UNPACKED_BYTES_MAX of them."""

    def __init__(self, unpacked: _ReadsSome) -> None:
        self._unpacked = unpacked
        self._left = UNPACKED_BYTES_MAX

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: object) -> int:
        if not self._left:
            raise OSError("it unpacks to more than is looked at")
        view = memoryview(buffer)  # type: ignore[arg-type]
        data = self._unpacked.read1(min(len(view), self._left))
        view[: len(data)] = data
        self._left -= len(data)
        return len(data)
