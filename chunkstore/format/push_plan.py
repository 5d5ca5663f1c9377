"""The documents of a planned push: the plan, its parts, and the outcome of each part.

docs/format.md has the fields. Paths and names are bytes, in base64.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

import msgspec

from lodefs.chunkstore.errors import Corrupt, InvalidInput
from lodefs.chunkstore.format.commit import Large
from lodefs.chunkstore.format.envelope import seal, unseal
from lodefs.chunkstore.format.metadata import Metadata
from lodefs.chunkstore.format.names import (
    NAME_BYTES_MAX,
    CommitId,
    Digest,
    PackId,
    check_ref_name,
    check_repo,
    check_source,
    parse_id,
)
from lodefs.chunkstore.format.tree import Kind, Segment, TreeEntry
from lodefs.chunkstore.types import Buffer

VERSION = 1
PIECE_VERSION = 2  # of documents of parts that have one piece of a large file
IN_PLACE_VERSION = 2  # of plans of imports in place
PARTS_MAX = 10**8  # parts have numbers of 8 digits
PLAN_SIZE_BYTES_MAX = 1 << 20
PART_SIZE_BYTES_MAX = 64 << 20
RESULT_SIZE_BYTES_MAX = 1 << 20
_NO_NAMES = frozenset((b"", b".", b".."))
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}\Z")

T = TypeVar("T")


class PlannedDirectory(msgspec.Struct, array_like=True, frozen=True, forbid_unknown_fields=True):
    """Files and symlinks of one directory, sorted by name, as the scan saw them: one column for
    each property. ``modes`` has one byte for each name (chunkstore/push/scanner.py)."""

    path: bytes
    names: list[bytes]
    modes: bytes
    sizes: list[int]
    mtimes_ns: list[int]
    ctimes_ns: list[int]


class PlannedPiece(msgspec.Struct, array_like=True, frozen=True, forbid_unknown_fields=True):
    """The bytes of a large file that a part reads: a stretch whose chunks it stores, or the whole
    file, if it computes the digest."""

    begin: int
    end: int
    is_digest: bool


class PlannedPart(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """One part of a plan. Its directories are in the order of a scan; the first and the last one
    may go on in the parts beside it. ``piece`` is set for the part of a large file, which is then
    the only one in it."""

    number: int
    directories: list[PlannedDirectory]
    piece: PlannedPiece | None = None


class PlannedInPlace(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What stays where it is: objects of at least ``copy_below_bytes``, in the source that the
    settings of each task give this name, with keys that begin with ``prefix``."""

    source: str
    prefix: str
    copy_below_bytes: int


@dataclass(frozen=True, slots=True)
class PushPlan:
    """A push in parts: where from and where to, the fields of the commit, and the totals of the
    scan. ``head`` is the commit of the branch when the plan was made. ``in_place`` is set for an
    import in place; ``source`` is then a URL without endpoint, region and profile."""

    name: str
    lodefs: str  # the version that made it
    source: bytes  # a real path, or a URL
    repo: str
    branch: str
    head: CommitId | None
    author: str
    message: str
    metadata: Metadata
    parts: int
    files: int  # regular files and symlinks
    directories: int  # including the root
    size_bytes: int
    in_place: PlannedInPlace | None = None


class FilePiece(msgspec.Struct, array_like=True, frozen=True, forbid_unknown_fields=True):
    """What a part has of a large file: its bytes from ``begin`` on, as the only file in the part's
    directory; or the ``digest`` of the whole file, in hex."""

    path: bytes
    begin: int
    digest: str | None


@dataclass(frozen=True, slots=True)
class PartResult:
    """The result of a part: a directory that has only the files of the part. ``writer`` is the
    entry of the journal that keeps it, ``purges_seen`` the newest purge that it knew. A large file
    in pieces is counted by the part that has its digest."""

    number: int
    writer: int
    purges_seen: int
    root: TreeEntry
    files: int  # regular files
    symlinks: int
    size_bytes: int
    large: Large
    files_read: int
    new_bytes: int
    stored_bytes: int
    skipped: list[tuple[bytes, str]]  # paths and reasons: the first ones
    skipped_files: int
    piece: FilePiece | None = None


class PartFailure(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Why a part failed, and on which machine."""

    number: int
    message: str
    host: str


class _PlanBody(msgspec.Struct, forbid_unknown_fields=True):
    name: str
    lodefs: str
    source: bytes
    repo: str
    branch: str
    head: str | None
    author: str
    message: str
    metadata: list[tuple[str, str]]
    parts: int
    files: int
    directories: int
    size_bytes: int


class _InPlacePlanBody(_PlanBody, kw_only=True, forbid_unknown_fields=True):
    in_place: PlannedInPlace


class _Root(msgspec.Struct, forbid_unknown_fields=True):
    digest: str
    size_bytes: int
    segments: list[tuple[str, int, int, int]]


class _ResultBody(msgspec.Struct, forbid_unknown_fields=True):
    number: int
    writer: int
    purges_seen: int
    root: _Root
    files: int
    symlinks: int
    size_bytes: int
    large: tuple[int, int]
    files_read: int
    new_bytes: int
    stored_bytes: int
    skipped: list[tuple[bytes, str]]
    skipped_files: int


class _PieceResultBody(_ResultBody, kw_only=True, forbid_unknown_fields=True):
    piece: FilePiece


class _WriterBody(msgspec.Struct, forbid_unknown_fields=True):
    number: int
    writer: int


def check_plan_name(name: str) -> str:
    """Returns a valid name of a plan. Raises: InvalidInput."""
    if not _NAME.match(name):
        raise InvalidInput(
            f"{name!r} is not a plan's name: use up to 64 letters, digits, '.', '_' and '-', a "
            "letter or digit first"
        )
    return name


def encode_plan(plan: PushPlan) -> bytes:
    """Returns the document."""
    fields: dict[str, Any] = {name: getattr(plan, name) for name in _PlanBody.__struct_fields__}
    fields["head"] = None if plan.head is None else plan.head.hex()
    if plan.in_place is None:
        return seal("push-plan", VERSION, _PlanBody(**fields))
    return seal("push-plan", IN_PLACE_VERSION, _InPlacePlanBody(**fields, in_place=plan.in_place))


def decode_plan(data: Buffer, name: str, what: str) -> PushPlan:
    """Returns the plan of that name; ``what`` names the document in errors. Raises: Corrupt,
    UnknownFormat."""
    bodies: dict[int, type[_PlanBody]] = {VERSION: _PlanBody, IN_PLACE_VERSION: _InPlacePlanBody}
    body = unseal("push-plan", bodies, data, what)
    if body.name != name:
        raise Corrupt(f"{what} is the plan {body.name!r}, not {name}")
    if min(body.parts, body.files, body.directories, body.size_bytes) < 0:
        raise Corrupt(f"{what} has a negative number")
    if body.parts > PARTS_MAX:
        raise Corrupt(f"{what} has {body.parts} parts; plans have at most {PARTS_MAX}")
    try:
        check_repo(body.repo)
        check_ref_name(body.branch)
        if isinstance(body, _InPlacePlanBody):
            check_source(body.in_place.source)
            body.source.decode()
        head = None if body.head is None else CommitId(parse_id(body.head))
    except (InvalidInput, UnicodeDecodeError) as error:
        raise Corrupt(f"{what}: {error}") from error
    fields = msgspec.structs.asdict(body) | {
        "head": head,
        "metadata": tuple((key, value) for key, value in body.metadata),
    }
    return PushPlan(**fields)


def encode_part(part: PlannedPart) -> bytes:
    """Returns the document."""
    return seal("push-part", VERSION if part.piece is None else PIECE_VERSION, part)


def decode_part(data: Buffer, number: int, what: str) -> PlannedPart:
    """Returns the part with that number. Raises: Corrupt, UnknownFormat."""
    bodies = {VERSION: PlannedPart, PIECE_VERSION: PlannedPart}
    part = _numbered("push-part", bodies, data, number, what)
    for one in part.directories:
        columns = (one.modes, one.sizes, one.mtimes_ns, one.ctimes_ns)
        if any(len(column) != len(one.names) for column in columns):
            raise Corrupt(f"{what} has columns of different lengths")
        _check_names(one, what)
    _check_piece(part, what)
    return part


def _check_names(directory: PlannedDirectory, what: str) -> None:
    """Raises: Corrupt for a name that may lead out of the source."""
    above = directory.path.split(b"/") if directory.path else ()
    for name in (*above, *directory.names):
        if name in _NO_NAMES or b"/" in name or b"\0" in name or len(name) > NAME_BYTES_MAX:
            raise Corrupt(f"{what} has a file or directory with the name {name!r}")


def _check_piece(part: PlannedPart, what: str) -> None:
    """Raises: Corrupt if a piece is none of the only file of its part."""
    if (piece := part.piece) is None:
        return
    sizes = [size for one in part.directories for size in one.sizes]
    if len(sizes) != 1 or not 0 <= piece.begin < piece.end <= sizes[0]:
        raise Corrupt(f"{what} has no piece of one file")


def encode_result(result: PartResult) -> bytes:
    """Returns the document."""
    root = result.root
    fields: dict[str, Any] = {name: getattr(result, name) for name in _ResultBody.__struct_fields__}
    segments = [(one.pack.hex(), one.first, one.count, one.size_bytes) for one in root.segments]
    fields["root"] = _Root(root.digest.hex(), root.size_bytes, segments)
    if result.piece is None:
        return seal("push-result", VERSION, _ResultBody(**fields))
    return seal("push-result", PIECE_VERSION, _PieceResultBody(**fields, piece=result.piece))


def decode_result(data: Buffer, number: int, what: str) -> PartResult:
    """Returns the result of the part with that number. Raises: Corrupt, UnknownFormat."""
    bodies: dict[int, type[_ResultBody]] = {
        VERSION: _ResultBody,
        PIECE_VERSION: _PieceResultBody,
    }
    body = _numbered("push-result", bodies, data, number, what)
    try:
        segments = tuple(
            Segment(PackId(parse_id(pack)), *numbers) for pack, *numbers in body.root.segments
        )
        digest = Digest(parse_id(body.root.digest))
    except InvalidInput as error:
        raise Corrupt(f"{what}: {error}") from error
    root = TreeEntry(
        b"", Kind.DIRECTORY, size_bytes=body.root.size_bytes, digest=digest, segments=segments
    )
    fields = msgspec.structs.asdict(body) | {"root": root, "large": Large(*body.large)}
    return PartResult(**fields)


def encode_failure(failure: PartFailure) -> bytes:
    """Returns the document."""
    return seal("push-failure", VERSION, failure)


def decode_failure(data: Buffer, number: int, what: str) -> PartFailure:
    """Returns the failure of the part with that number. Raises: Corrupt, UnknownFormat."""
    return _numbered("push-failure", {VERSION: PartFailure}, data, number, what)


def encode_writer(number: int, writer: int) -> bytes:
    """Returns the document which says that the plan's writer is the entry ``writer`` of the
    journal. ``number`` counts the writers of a plan."""
    return seal("push-writer", VERSION, _WriterBody(number, writer))


def decode_writer(data: Buffer, number: int, what: str) -> int:
    """Returns the writer with that number. Raises: Corrupt, UnknownFormat."""
    return _numbered("push-writer", {VERSION: _WriterBody}, data, number, what).writer


def _numbered(kind: str, bodies: Mapping[int, type[T]], data: Buffer, number: int, what: str) -> T:
    body = unseal(kind, bodies, data, what)
    if (found := getattr(body, "number", None)) != number:
        raise Corrupt(f"{what} has the number {found}, not {number}")
    return body
