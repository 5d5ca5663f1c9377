"""Trees: the entries of one directory, their digest, and their stored form.

docs/format.md describes both encodings. The stored form is a sequence of groups of entries. Names
alone decide where a group ends, so that a changed entry changes the bytes of one group.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from enum import IntEnum
from itertools import pairwise
from operator import attrgetter
from typing import NamedTuple
from zlib import crc32

import msgspec
from blake3 import blake3

from lodefs.chunkstore.errors import Corrupt, InvalidInput, TooLarge, UnknownFormat
from lodefs.chunkstore.format.decoding import msgpack_decoder
from lodefs.chunkstore.format.names import ID_BYTES, NAME_BYTES_MAX, Digest, PackId, digest_of
from lodefs.chunkstore.types import Buffer

VERSION = 1
_VERSION = bytes((VERSION,))
_EMPTY_TREE = _VERSION + b"\0"
SAME_PACK = PackId(bytes(ID_BYTES))  # in encoded segments: the pack that holds the tree
SIZE_BYTES_LIMIT = 2**63 - 1  # off_t of Linux
TARGET_BYTES_MAX = 4095  # PATH_MAX of Linux without its NUL
_NO_PACK = PackId(b"")
EMPTY_DIGEST = digest_of(b"")  # of an empty file
CHUNKS_LIMIT = 2**32 - 1  # limit for the end of a run: more than any pack has

# Limits of readers, which bound their memory. A million entries have 60 to 130 MB.
SIZE_BYTES_MAX = 128 * 1024 * 1024  # of the stored form
ENTRIES_MAX = 2 * 1024 * 1024
GROUP_SIZE_BYTES_MAX = 16 * 1024 * 1024
FILE_SEGMENTS_MAX = 256 * 1024  # enough for a file of 16 TB in which every pack is another one
MORE_SEGMENTS_MAX = 1024 * 1024  # in a tree, beyond one for each entry; each takes 200 bytes

_GROUP_MASK = 511  # a group has 512 entries on average
_GROUP_ENTRIES_MAX = 2048
_GROUP_SEGMENTS_MAX = 128 * 1024  # at most 56 bytes each; a file of 8 TB has this many
_HASHED_ENTRIES = 2048  # entries that are hashed at once
_MANY = 31  # in a tag: the column ``counts`` has the number of chunks
_EXECUTABLE = 4
_DIGEST_HEAD = b"lodefs tree 1\0"
_DIGEST_ROW = struct.Struct("<BBQ32s")
FILE_ROW, EXECUTABLE_ROW = 1, 129  # the kinds of files in the rows of a digest


class Kind(IntEnum):
    """The kind of an entry. The numbers are part of formats."""

    FILE = 1
    DIRECTORY = 2
    SYMLINK = 3


_FILE, _SYMLINK = int(Kind.FILE), int(Kind.SYMLINK)  # ints compare faster
_NO_NAMES = frozenset((b"", b".", b".."))


class Segment(NamedTuple):
    """A run of consecutive chunks of one pack."""

    pack: PackId
    first: int
    count: int  # type: ignore[assignment]  # hides tuple.count
    size_bytes: int  # raw bytes, so that readers find a byte of a file without any pack


class TreeEntry(msgspec.Struct, frozen=True, gc=False):  # a dataclass takes far longer to construct
    """One name in a directory.

    For a file, ``size_bytes`` and ``digest`` are those of its content, and ``segments`` say where
    that lies (none for an empty file). For a directory, ``size_bytes`` and ``segments`` are those
    of its tree's stored form, and ``digest`` is that of its tree. For a symlink, ``target`` has its
    size and digest (BLAKE3 of the target), and there are no segments.
    """

    name: bytes
    kind: Kind
    executable: bool = False
    size_bytes: int = 0
    digest: Digest = b""  # type: ignore[assignment]  # no call in a default
    segments: tuple[Segment, ...] = ()
    target: bytes = b""


def fill(segments: Sequence[Segment], size_bytes: int) -> bool:
    """Whether the segments' sizes are possible and add up to ``size_bytes``."""
    if len(segments) == 1:
        return segments[0].size_bytes == size_bytes > 0
    sizes = [segment.size_bytes for segment in segments]
    return sum(sizes) == size_bytes and min(sizes, default=1) > 0


def symlink(name: bytes, target: bytes) -> TreeEntry:
    """Returns the entry of a symlink."""
    size_bytes, digest = len(target), digest_of(target)
    return TreeEntry(name, Kind.SYMLINK, size_bytes=size_bytes, digest=digest, target=target)


_name_of = attrgetter("name")


def tree_digest(entries: Sequence[TreeEntry]) -> Digest:
    """Returns the digest of a directory with these entries, in any order.

    It is BLAKE3 over a head and, by name: kind (u8, plus 128 for an executable file), length of the
    name (u8), size (u64; 0 for a directory), digest, name. The places of the bytes are not part of
    it.
    """
    directory, pack = Kind.DIRECTORY, _DIGEST_ROW.pack
    ordered = sorted(entries, key=_name_of)
    hasher = blake3(_DIGEST_HEAD)
    # The rows of all entries would take much memory
    for first in range(0, len(ordered), _HASHED_ENTRIES):
        parts: list[bytes] = []
        for entry in ordered[first : first + _HASHED_ENTRIES]:
            kind, name = entry.kind, entry.name
            row = kind | 128 if entry.executable else int(kind)
            size_bytes = 0 if kind is directory else entry.size_bytes
            parts += (pack(row, len(name), size_bytes, entry.digest), name)
        hasher.update(b"".join(parts))
    return Digest(hasher.digest())


def files_digest(
    names: Sequence[bytes],
    kinds: Sequence[int],
    sizes: Sequence[int],
    digests: Buffer,
    directories: Sequence[tuple[bytes, Digest]],
) -> Digest:
    """Returns the digest of a directory whose files come in columns (``kinds``: FILE_ROW,
    EXECUTABLE_ROW; ``digests``: joined), with names and digests of its subdirectories."""
    pack = _DIGEST_ROW.pack
    cuts = range(0, len(digests), ID_BYTES)
    rows = [
        (name, pack(kind, len(name), size, digests[cut : cut + ID_BYTES]))
        for name, kind, size, cut in zip(names, kinds, sizes, cuts, strict=True)
    ]
    rows += [(name, pack(Kind.DIRECTORY, len(name), 0, digest)) for name, digest in directories]
    return _digest_of_rows(rows)


def _digest_of_rows(rows: list[tuple[bytes, bytes]]) -> Digest:
    rows.sort()
    parts = [part for name, row in rows for part in (row, name)]
    return Digest(blake3(b"".join((_DIGEST_HEAD, *parts))).digest())


class _Group(msgspec.Struct, array_like=True, forbid_unknown_fields=True):
    """Columns over the entries of a group. Empty columns at the end are left out."""

    names: bytes  # joined by NUL
    tags: bytes  # kind | executable << 2 | number of chunks (or _MANY) << 3
    sizes: list[int] = []  # for files and directories
    digests: bytes = b""  # 32 bytes for each directory and each file that is not empty
    packs: bytes = b""  # 32 bytes each; 0 is the pack that holds the tree, 1 the first one here
    runs: list[int] = []  # for files: (pack, first minus the end of this pack's last run, chunks)
    tree_runs: list[int] = []  # the same for directories
    counts: list[int] = []  # numbers of chunks, if the tag is _MANY
    parts: list[int] = []  # sizes of an entry's segments without the last one
    targets: list[bytes] = []  # for symlinks


_decode_group = msgpack_decoder(_Group).decode
_encode = msgspec.msgpack.Encoder().encode


def encode_tree(entries: Sequence[TreeEntry], *, own_pack: PackId | None = None) -> bytes:
    """Returns the stored form of a directory. Segments of ``own_pack`` or SAME_PACK are stored as
    "the pack that holds this tree": then all chunks of the form must lie in that pack. Consecutive
    segments of one pack become one.

    Raises: InvalidInput for entries that a directory cannot have, and for more than readers accept.
    """
    if not entries:
        return _EMPTY_TREE
    ordered = sorted(entries, key=_name_of)
    if len(ordered) > ENTRIES_MAX:
        raise _too_large(ordered, f"{len(ordered)} entries; the limit is {ENTRIES_MAX}")
    parts = [_VERSION]
    more = -len(ordered)
    for group in _groups(ordered):
        more += sum(len(entry.segments) for entry in group)
        if more > MORE_SEGMENTS_MAX or max(len(e.segments) for e in group) > FILE_SEGMENTS_MAX:
            raise _too_large(group, "files in more parts than readers accept")
        encoded = _encode_group(group, own_pack)
        if len(encoded) > GROUP_SIZE_BYTES_MAX:
            raise _too_large(group, f"a file in more parts than {GROUP_SIZE_BYTES_MAX} bytes name")
        parts += (_uvarint(len(encoded)), encoded)
    parts.append(b"\0")
    if len({entry.name for entry in ordered}) < len(ordered):
        twice = next(a.name for a, b in pairwise(ordered) if a.name == b.name)
        raise InvalidInput(f"a directory cannot have {twice!r} twice")
    if (size_bytes := sum(map(len, parts))) > SIZE_BYTES_MAX:
        raise _too_large(ordered, f"a tree of {size_bytes} bytes; the limit is {SIZE_BYTES_MAX}")
    return b"".join(parts)


def _too_large(entries: Sequence[TreeEntry], why: str) -> InvalidInput:
    return InvalidInput(
        f"the directory that holds {entries[0].name!r} to {entries[-1].name!r} would have {why}: "
        "spread its files over several directories"
    )


def decode_tree(data: Buffer, own_pack: PackId | None) -> list[TreeEntry]:
    """Returns the entries of a stored form that lies in ``own_pack``, by name. Raises: Corrupt,
    UnknownFormat, TooLarge for more entries, or a larger group, than a tree may have.

    ``own_pack`` is None for a form whose chunks lie in several packs: it must name packs by id.
    """
    entries: list[TreeEntry] = []
    runs = 0
    for part in groups_of(data):
        group = _Decoding(part, own_pack or _NO_PACK)
        runs += group.runs
        if runs > len(entries) + group.entries + MORE_SEGMENTS_MAX:
            raise TooLarge("a tree has files in more parts than any writer makes")
        group.into(entries)
        if len(entries) > ENTRIES_MAX:
            raise TooLarge(f"a tree has more than {ENTRIES_MAX} entries")
    return entries


def group_entries(group: memoryview, own_pack: PackId | None) -> list[TreeEntry]:
    """Returns the entries of one group of a stored form. Raises: Corrupt, TooLarge."""
    entries: list[TreeEntry] = []
    _Decoding(group, own_pack or _NO_PACK).into(entries)
    return entries


def groups_of(data: Buffer) -> Iterator[memoryview]:
    """Yields the groups of a stored form. Raises: Corrupt, UnknownFormat, TooLarge."""
    if data == _EMPTY_TREE:  # common: a directory that has only subdirectories
        return
    if not len(data):
        raise Corrupt("a tree has no bytes")
    if data[0] != VERSION:
        raise UnknownFormat(
            f"a tree is of format {data[0]}; this lodefs knows format {VERSION}: "
            "a newer lodefs is needed"
        )
    view = memoryview(data)
    offset = 1
    while True:
        size_bytes, offset = _read_uvarint(view, offset)
        if not size_bytes:
            break
        if offset + size_bytes > len(view):
            raise Corrupt("a tree is truncated")
        if size_bytes > GROUP_SIZE_BYTES_MAX:
            raise TooLarge(f"a tree's group claims {size_bytes} bytes")
        yield view[offset : offset + size_bytes]
        offset += size_bytes
    if offset != len(view):
        raise Corrupt("bytes follow the end of a tree")


def _groups(ordered: list[TreeEntry]) -> Iterator[list[TreeEntry]]:
    """Splits before names chosen by their CRC-32, so that a new entry moves no other border."""
    first = segments = 0
    for n, entry in enumerate(ordered):
        full = n - first >= _GROUP_ENTRIES_MAX or segments >= _GROUP_SEGMENTS_MAX
        if n > first and (full or not crc32(entry.name) & _GROUP_MASK):
            yield ordered[first:n]
            first, segments = n, 0
        segments += len(entry.segments)
    if ordered:
        yield ordered[first:]


def _encode_group(entries: list[TreeEntry], own_pack: PackId | None) -> bytes:
    packs: dict[PackId, int] = {SAME_PACK: 0}
    if own_pack is not None:
        packs[own_pack] = 0
    files, trees = _Runs(packs), _Runs(packs)
    kind_file, kind_symlink = Kind.FILE, Kind.SYMLINK
    tags = bytearray()
    digests: list[bytes] = []
    sizes: list[int] = []
    counts: list[int] = []
    parts: list[int] = []
    targets: list[bytes] = []
    for entry in entries:
        kind, size = entry.kind, entry.size_bytes
        chunks = 0
        if kind is kind_symlink:
            _check_symlink(entry)
            targets.append(entry.target)
        else:
            _check_content(entry)
            sizes.append(size)
            if size:
                digests.append(entry.digest)
                chunks = (files if kind is kind_file else trees).add(entry.segments, parts)
        if chunks >= _MANY:
            counts.append(chunks)
            chunks = _MANY
        tags.append(kind | chunks << 3 | _EXECUTABLE if entry.executable else kind | chunks << 3)
    names = _join_names(entries)
    columns = (files.columns(), trees.columns())
    pack_ids = b"".join([pack for pack, number in packs.items() if number])
    row = [names, bytes(tags), sizes, b"".join(digests), pack_ids, *columns, counts, parts, targets]
    while not row[-1]:
        row.pop()
    return _encode(row)


def _join_names(entries: list[TreeEntry]) -> bytes:
    """Returns the column of names. Raises: InvalidInput if one of them is invalid."""
    names = [entry.name for entry in entries]
    joined = b"\0".join(names)
    good = b"/" not in joined and joined.count(b"\0") == len(names) - 1
    if not good or _NO_NAMES.intersection(names) or max(map(len, names)) > NAME_BYTES_MAX:
        raise InvalidInput(f"a directory cannot have one of these names: {names!r}")
    return joined


def _check_content(entry: TreeEntry) -> None:
    """Checks that a file or directory survives encoding and decoding. Raises: InvalidInput."""
    size = entry.size_bytes
    good = size <= SIZE_BYTES_LIMIT and len(entry.digest) == ID_BYTES and not entry.target
    good = good and fill(entry.segments, size)
    if entry.kind is Kind.DIRECTORY:
        good = good and size > 0 and not entry.executable
    elif not size:
        good = good and entry.digest == EMPTY_DIGEST
    if not good:
        raise InvalidInput(f"{entry!r} is not an entry of a directory")


def _check_symlink(entry: TreeEntry) -> None:
    """Checks the same for a symlink."""
    target = entry.target
    good = 0 < entry.size_bytes == len(target) <= TARGET_BYTES_MAX and b"\0" not in target
    good = good and not entry.segments and not entry.executable
    if not good or entry.digest != digest_of(target):
        raise InvalidInput(f"{entry!r} is not an entry of a directory")


class _Runs:
    """The segments of consecutive entries, joined if they follow each other."""

    def __init__(self, packs: dict[PackId, int]) -> None:
        self._packs = packs  # shared with the other stream of the group
        self._same = len(packs)  # keys for number 0
        self._runs: list[list[int]] = []  # pack number, first, count

    def add(self, segments: Sequence[Segment], parts: list[int]) -> int:
        """Returns the number of chunks in an entry's segments. Appends the sizes of the joined
        segments without the last one."""
        chunks = size_bytes = 0
        for pack, first, count, more_bytes in segments:
            if first < 0 or count <= 0 or first + count > CHUNKS_LIMIT:
                raise InvalidInput(f"{count} chunks from number {first} cannot be a segment")
            number = self._packs.get(pack)
            if number is None:
                number = self._packs[pack] = len(self._packs) - self._same + 1
            last = self._runs[-1] if self._runs else None
            if last and last[0] == number and last[1] + last[2] == first:
                last[2] += count
            else:
                self._runs.append([number, first, count])
                if chunks:
                    parts.append(size_bytes)
                    size_bytes = 0
            chunks += count
            size_bytes += more_bytes
        return chunks

    def columns(self) -> list[int]:
        """Returns the flat column of the group."""
        ends: dict[int, int] = {}
        flat: list[int] = []
        for number, first, count in self._runs:
            flat += (number, first - ends.get(number, 0), count)
            ends[number] = first + count
        return flat


class _Decoding:
    """Decodes the entries in the bytes of one group."""

    def __init__(self, data: memoryview, own_pack: PackId) -> None:
        try:
            self._group = group = _decode_group(data)
        except msgspec.DecodeError as error:
            raise Corrupt(f"a tree has an invalid group: {error}") from error
        if group.names.count(b"\0") + 1 != len(group.tags):
            raise Corrupt("a tree has names without entries")
        self.entries, self.runs = len(group.tags), (len(group.runs) + len(group.tree_runs)) // 3
        if self.runs > _GROUP_SEGMENTS_MAX + FILE_SEGMENTS_MAX:
            raise TooLarge(f"a tree's group claims {self.runs} runs of chunks")
        self._names = names = group.names.split(b"\0")
        if b"/" in group.names or b"." in names or b".." in names:
            raise Corrupt("a tree has a name that no directory can have")
        if len(group.packs) % ID_BYTES:
            raise Corrupt("a tree's table of packs is truncated")
        cuts = range(0, len(group.packs), ID_BYTES)
        packs = [own_pack, *(PackId(group.packs[cut : cut + ID_BYTES]) for cut in cuts)]
        self._parts = iter(group.parts)
        self._runs = _RunReader(packs, group.runs, self._parts)
        self._tree_runs = _RunReader(packs, group.tree_runs, self._parts)
        self._sizes, self._counts = iter(group.sizes), iter(group.counts)
        self._targets = iter(group.targets)

    def into(self, entries: list[TreeEntry]) -> None:
        """Appends the group's entries. Raises: Corrupt."""
        before = entries[-1].name if entries else b""
        try:
            self._append(entries, before)
        except StopIteration as error:
            raise Corrupt("a tree's column is too short") from error
        left = [*self._sizes, *self._counts, *self._parts, *self._targets]
        if left or self._runs.left() or self._tree_runs.left():
            raise Corrupt("a tree's column is too long")

    def _append(self, entries: list[TreeEntry], before: bytes) -> None:
        sizes, counts, digests = self._sizes, self._counts, self._group.digests
        take, append, file = self._runs.take, entries.append, Kind.FILE
        at = 0  # in digests
        for name, tag in zip(self._names, self._group.tags, strict=True):
            if name <= before or len(name) > NAME_BYTES_MAX:
                raise Corrupt(f"a tree has {name!r} after {before!r}")
            before = name
            kind, chunks = tag & 3, tag >> 3
            if kind == _SYMLINK:
                append(_symlink(name, tag, next(self._targets)))
                continue
            if chunks == _MANY:
                chunks = next(counts)
            size = next(sizes)
            if not (0 < size <= SIZE_BYTES_LIMIT and chunks > 0):
                append(_empty(name, tag, size))
                continue
            digest = Digest(digests[at : at + ID_BYTES])
            at += ID_BYTES
            if kind == _FILE:
                append(
                    TreeEntry(name, file, tag & _EXECUTABLE != 0, size, digest, take(chunks, size))
                )
            else:
                append(_directory(name, tag, size, digest, self._tree_runs.take(chunks, size)))
        if at != len(digests):
            raise Corrupt("a tree's digests do not fit its entries")


class _RunReader:
    """Returns the runs of a column as the segments of entries."""

    __slots__ = ("_left", "_next", "_pack", "_parts", "_runs")

    def __init__(self, packs: list[PackId], flat: list[int], parts: Iterator[int]) -> None:
        self._runs = _absolute(packs, flat)
        self._parts = parts  # shared with the other stream of the group
        self._pack = packs[0]
        self._next = 0  # the next chunk
        self._left = 0  # chunks left in the run

    def take(self, chunks: int, size_bytes: int) -> tuple[Segment, ...]:
        """Returns the segments of the next ``chunks`` chunks, which have ``size_bytes``. Raises:
        Corrupt; StopIteration if a column is too short."""
        first = self._next
        if self._left >= chunks:  # nearly always true
            self._left -= chunks
            self._next = first + chunks
            return (Segment(self._pack, first, chunks, size_bytes),)
        return self._take_many(chunks, size_bytes)

    def _take_many(self, chunks: int, size_bytes: int) -> tuple[Segment, ...]:
        found: list[Segment] = []
        while chunks:
            if not self._left:
                self._pack, self._next, self._left = next(self._runs)
            count = min(chunks, self._left)
            size = size_bytes if count == chunks else next(self._parts)
            if not 0 < size <= size_bytes:
                raise Corrupt("the sizes of segments in a tree do not fit their entry")
            found.append(Segment(self._pack, self._next, count, size))
            self._next += count
            self._left -= count
            chunks -= count
            size_bytes -= size
        return tuple(found)

    def left(self) -> bool:
        """Whether there are chunks without an entry."""
        return self._left > 0 or next(self._runs, None) is not None


def _absolute(packs: list[PackId], flat: list[int]) -> Iterator[tuple[PackId, int, int]]:
    """Yields the runs of a flat column: pack, first chunk, chunks. Raises: Corrupt."""
    if len(flat) % 3:
        raise Corrupt("a tree's column of runs is truncated")
    ends: dict[int, int] = {}
    for number, delta, count in zip(*[iter(flat)] * 3, strict=True):
        first = ends.get(number, 0) + delta
        if not 0 <= number < len(packs) or first < 0 or not 0 < count <= CHUNKS_LIMIT - first:
            raise Corrupt(f"a tree has a run of {count} chunks from {first} of pack {number}")
        ends[number] = first + count
        pack = packs[number]
        if pack is _NO_PACK:
            raise Corrupt("a tree in several packs names one of them as its own")
        yield pack, first, count


def _empty(name: bytes, tag: int, size_bytes: int) -> TreeEntry:
    if tag & ~_EXECUTABLE != _FILE or size_bytes:
        raise Corrupt(f"a tree has {name!r} with tag {tag} and {size_bytes} bytes")
    return TreeEntry(name, Kind.FILE, executable=tag != _FILE, digest=EMPTY_DIGEST)


def _directory(
    name: bytes, tag: int, size_bytes: int, digest: Digest, segments: tuple[Segment, ...]
) -> TreeEntry:
    if tag & 7 != Kind.DIRECTORY:
        raise Corrupt(f"a tree has {name!r} with the unknown tag {tag}")
    return TreeEntry(name, Kind.DIRECTORY, size_bytes=size_bytes, digest=digest, segments=segments)


def _symlink(name: bytes, tag: int, target: bytes) -> TreeEntry:
    if tag != _SYMLINK or not 0 < len(target) <= TARGET_BYTES_MAX or b"\0" in target:
        raise Corrupt(f"a tree has the symlink {name!r} with tag {tag} to {target!r}")
    return symlink(name, target)


def _uvarint(number: int) -> bytes:
    """Returns LEB128: seven bits in a byte, the lowest first; the top bit says that more follow."""
    if number < 128:
        return bytes((number,))
    out = bytearray()
    while number > 127:
        out.append(number & 127 | 128)
        number >>= 7
    out.append(number)
    return bytes(out)


def _read_uvarint(view: memoryview, offset: int) -> tuple[int, int]:
    number = 0
    for shift in range(0, 35, 7):
        if offset >= len(view):
            raise Corrupt("a tree is truncated")
        byte = view[offset]
        offset += 1
        number |= (byte & 127) << shift
        if byte < 128:
            return number, offset
    raise Corrupt("a tree has a group of an impossible size")
