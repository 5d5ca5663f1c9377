"""The members of an archive, one after the other, in bounded memory.

Sources: pax(1) and tar(5) by tarfile; APPNOTE.TXT of PKWARE by zipfile.
"""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import stat
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Iterator
from enum import Enum, auto
from typing import BinaryIO, NamedTuple, cast

from lodefs.chunkstore.errors import InvalidInput
from lodefs.chunkstore.format.compression import zstd_reader
from lodefs.chunkstore.push.archives.zip_list import BoundedZip

READ_BYTES_MAX = 4 << 20  # at once; a header that claims more is refused
RATIO_MAX = 200  # unpacked bytes for each packed one
RATIO_FROM_BYTES = 1 << 30
XZ_MEMORY_BYTES_MAX = 256 << 20  # xz -9 needs 65 MiB
_PACKED_BYTES = 64 << 10  # read at once
_HEAD_BYTES = 6
_LINK_BYTES_MAX = 4095  # PATH_MAX without its NUL
_MAGIC_AT = 257  # in the header of a tar
_ENCRYPTED = 1
_ZIP_HEADS = (b"PK\x03\x04", b"PK\x05\x06")
_DECOMPRESSORS: dict[bytes, Callable[[BinaryIO], BinaryIO]] = {
    b"\x1f\x8b": lambda packed: cast("BinaryIO", gzip.GzipFile(fileobj=packed)),
    b"BZh": lambda packed: cast("BinaryIO", bz2.BZ2File(packed)),
    b"\xfd7zXZ\0": lambda packed: cast("BinaryIO", _XzReader(packed)),
    b"\x28\xb5\x2f\xfd": zstd_reader,
}
# What the libraries raise for bytes that no archiver writes; headers of headers are a recursion
DAMAGED = (
    *(tarfile.TarError, zipfile.BadZipFile, lzma.LZMAError, zlib.error, EOFError, OSError),
    *(ValueError, IndexError, NotImplementedError, RecursionError),
)


class MemberKind(Enum):
    """The kinds of members. OTHER are devices, FIFOs and what cannot be read."""

    FILE = auto()
    DIRECTORY = auto()
    SYMLINK = auto()
    HARD_LINK = auto()
    OTHER = auto()


class Member(NamedTuple):
    """A member. ``path`` is as the archive has it, perhaps hostile. ``target`` is that of a link;
    for OTHER it describes the member. ``read`` gives the content once, before the next member is
    asked for."""

    path: bytes
    kind: MemberKind
    read: Callable[[], BinaryIO]
    size_bytes: int = 0
    executable: bool = False
    target: bytes = b""


class Budget:
    """How much an archive may unpack to: ``size_bytes_max``, or a multiple of what was read."""

    def __init__(self, name: str, size_bytes_max: int | None) -> None:
        self._name = name
        self._size_bytes_max = size_bytes_max
        self.packed_bytes = 0
        self._unpacked_bytes = 0

    def add(self, unpacked_bytes: int) -> None:
        """Counts unpacked bytes. Raises: InvalidInput if they are too many."""
        self._unpacked_bytes += unpacked_bytes
        most = self._size_bytes_max
        if most is None:
            most = max(RATIO_FROM_BYTES, RATIO_MAX * self.packed_bytes)
        if self._unpacked_bytes > most:
            why = "--max-size" if self._size_bytes_max else f"{RATIO_MAX} times its size"
            raise InvalidInput(
                f"{self._name} unpacks to more than {most:,} bytes ({why}): if that is meant, give "
                "a larger --max-size"
            )


def members(name: str, stream: BinaryIO, budget: Budget) -> Iterator[Member]:
    """Yields the members of a tar, perhaps compressed, or of a zip, which must be seekable.
    ``name`` is for messages. Raises: InvalidInput for what is neither; DAMAGED."""
    packed = _Packed(stream, budget)
    head = packed.head()
    if head.startswith(_ZIP_HEADS):
        if not stream.seekable():
            raise InvalidInput(f"{name} is a zip, which has its list at the end: save it to a file")
        yield from _zip_members(name, stream, budget)
        return
    found = (make for magic, make in _DECOMPRESSORS.items() if head.startswith(magic))
    make = next(found, None)
    plain = cast("BinaryIO", packed) if make is None else make(cast("BinaryIO", packed))
    yield from _tar_members(name, _Forward(plain, budget), budget)


class _Packed(io.RawIOBase):
    """Counts the bytes of an archive. Its head can be seen before it is read."""

    def __init__(self, stream: BinaryIO, budget: Budget) -> None:
        self._stream = stream
        self._budget = budget
        self._head = b""

    def head(self) -> bytes:
        """Returns the first bytes, which are read again."""
        start = self._stream.tell() if self._stream.seekable() else None
        while len(self._head) < _HEAD_BYTES:
            more = self._stream.read(_HEAD_BYTES - len(self._head))
            if not more:
                break
            self._head += more
        head = self._head
        if start is not None:
            self._stream.seek(start)
            self._head = b""
        return head

    def readable(self) -> bool:
        return True

    def read(self, size: int = -1) -> bytes:
        if self._head:
            found, self._head = self._head[:size], self._head[size:]
        else:
            found = self._stream.read(size if size >= 0 else READ_BYTES_MAX)
        self._budget.packed_bytes += len(found)
        return found


class _XzReader(io.RawIOBase):
    """The raw bytes of an .xz file. Unlike lzma.LZMAFile it bounds the memory that a file asks
    for. Raises: LZMAError, EOFError."""

    def __init__(self, packed: BinaryIO) -> None:
        self._packed = packed
        self._stream = lzma.LZMADecompressor(lzma.FORMAT_XZ, memlimit=XZ_MEMORY_BYTES_MAX)

    def readable(self) -> bool:
        return True

    def read(self, size: int = -1) -> bytes:
        while True:
            stream, packed = self._stream, b""
            if stream.eof:  # perhaps another stream follows
                packed = (stream.unused_data or self._packed.read(_PACKED_BYTES)).lstrip(b"\0")
                if not packed:  # nothing but padding
                    return b""
                stream = lzma.LZMADecompressor(lzma.FORMAT_XZ, memlimit=XZ_MEMORY_BYTES_MAX)
                self._stream = stream
            elif stream.needs_input:
                packed = self._packed.read(_PACKED_BYTES)
                if not packed:
                    raise EOFError("it ends within compressed bytes")
            if found := stream.decompress(packed, size):
                return found


class _Forward:
    """The bytes of a tar, read forward. tarfile asks for no more than this has."""

    def __init__(self, plain: BinaryIO, budget: Budget) -> None:
        self._plain = plain
        self._budget = budget
        self._position = 0

    def read(self, size: int) -> bytes:
        """Returns ``size`` bytes, or fewer at the end. Raises: InvalidInput for a header that
        claims too many."""
        if size > READ_BYTES_MAX:
            raise InvalidInput(f"a header in the archive claims {size:,} bytes")
        found = []
        left = size
        while left and (more := self._plain.read(left)):
            found.append(more)
            left -= len(more)
        self._position += size - left
        return b"".join(found)

    def tell(self) -> int:
        return self._position

    def seek(self, position: int) -> int:
        """Skips what lies before ``position``."""
        if position < self._position:
            raise tarfile.StreamError("the archive leads backwards")
        while self._position < position:
            skipped = len(self.read(min(READ_BYTES_MAX, position - self._position)))
            self._budget.add(skipped)
            if not skipped:
                break
        return self._position

    def drain(self, name: str) -> None:
        """Reads to the end, where decompressors compare checksums. Raises: InvalidInput if another
        tar follows, as after `cat *.tar`: its members would be lost."""
        size = tarfile.BLOCKSIZE
        while found := self.read(size):
            self._budget.add(len(found))
            if size == tarfile.BLOCKSIZE and any(found):
                if found.startswith(b"ustar", _MAGIC_AT):
                    raise InvalidInput(
                        f"another tar follows the first one in {name}: name each file, as in "
                        "`lodefs push *.tar REPO --unpack`"
                    )
                size = READ_BYTES_MAX


class _TarInfo(tarfile.TarInfo):
    """A header. A truncated or wrong one is an error also after the first member."""

    @classmethod
    def fromtarfile(cls, tar: tarfile.TarFile) -> _TarInfo:
        try:
            return super().fromtarfile(tar)
        except tarfile.HeaderError as error:
            if isinstance(error, tarfile.EOFHeaderError):  # type: ignore[attr-defined]
                raise  # the mark of the end
            raise EOFError(f"it has no end marker, or a wrong header ({error})") from error


def _tar_members(name: str, forward: _Forward, budget: Budget) -> Iterator[Member]:
    try:
        tar = tarfile.TarFile(
            fileobj=cast("BinaryIO", forward),
            tarinfo=_TarInfo,
            encoding="utf-8",
            errors="surrogateescape",
        )
    except EOFError as error:
        if forward.tell() > tarfile.BLOCKSIZE:
            raise
        raise InvalidInput(f"{name} is neither a tar nor a zip") from error
    while (info := tar.next()) is not None:
        tar.members = []  # type: ignore[attr-defined]  # else it keeps them all
        yield _tar_member(tar, info, budget)
    forward.drain(name)


def _tar_member(tar: tarfile.TarFile, info: tarfile.TarInfo, budget: Budget) -> Member:
    def read() -> BinaryIO:
        content = tar.extractfile(info)
        assert content is not None
        return cast("BinaryIO", _Measured(cast("BinaryIO", content), budget))

    path, target = _raw(info.name), _raw(info.linkname)
    if info.isdir():
        return Member(path, MemberKind.DIRECTORY, read)
    if info.issym():
        return Member(path, MemberKind.SYMLINK, read, target=target)
    if info.islnk():
        return Member(path, MemberKind.HARD_LINK, read, target=target)
    if info.isreg():
        return Member(path, MemberKind.FILE, read, info.size, bool(info.mode & 0o111))
    return Member(path, MemberKind.OTHER, read, target=b"a device, a FIFO or of an unknown kind")


def _zip_members(name: str, stream: BinaryIO, budget: Budget) -> Iterator[Member]:
    budget.packed_bytes = stream.seek(0, io.SEEK_END)
    with zipfile.ZipFile(cast("BinaryIO", BoundedZip(stream, name))) as archive:
        for info in sorted(archive.infolist(), key=lambda one: one.header_offset):
            yield _zip_member(archive, info, budget)


def _zip_member(archive: zipfile.ZipFile, info: zipfile.ZipInfo, budget: Budget) -> Member:
    def read() -> BinaryIO:
        return cast("BinaryIO", _Measured(cast("BinaryIO", archive.open(info)), budget))

    path, mode = _zip_name(info), info.external_attr >> 16
    kind = stat.S_IFMT(mode)
    if info.flag_bits & _ENCRYPTED:
        return Member(path, MemberKind.OTHER, read, target=b"encrypted")
    if info.is_dir():
        return Member(path, MemberKind.DIRECTORY, read)
    if kind == stat.S_IFLNK:
        if info.file_size > _LINK_BYTES_MAX:
            return Member(path, MemberKind.OTHER, read, target=b"a symlink of too many bytes")
        return Member(path, MemberKind.SYMLINK, read, target=read().read(_LINK_BYTES_MAX))
    if kind not in (0, stat.S_IFREG):
        return Member(path, MemberKind.OTHER, read, target=b"a device, a FIFO or a socket")
    return Member(path, MemberKind.FILE, read, info.file_size, bool(mode & 0o111))


class _Measured(io.RawIOBase):
    """The content of a member, counted."""

    def __init__(self, content: BinaryIO, budget: Budget) -> None:
        self._content = content
        self._budget = budget

    def readable(self) -> bool:
        return True

    def read(self, size: int = -1) -> bytes:
        found = self._content.read(size)
        self._budget.add(len(found))
        return found


def _raw(text: str) -> bytes:
    return text.encode("utf-8", "surrogateescape")


def _zip_name(info: zipfile.ZipInfo) -> bytes:
    """Returns a name; zipfile takes names without a mark for CP437, but most are UTF-8."""
    try:
        raw = info.orig_filename.encode("cp437")
        raw.decode()
    except UnicodeError:
        return _raw(info.filename)
    return raw if not info.flag_bits & 0x800 else _raw(info.filename)
