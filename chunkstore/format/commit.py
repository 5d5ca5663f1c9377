"""Commits: a root directory, its parents, who pushed it, and when."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import msgspec

from lodefs.chunkstore.errors import Corrupt, InvalidInput
from lodefs.chunkstore.format.envelope import seal, unseal
from lodefs.chunkstore.format.metadata import Metadata, check_metadata
from lodefs.chunkstore.format.names import CommitId, Digest, PackId, digest_of, parse_id
from lodefs.chunkstore.format.tree import CHUNKS_LIMIT, Kind, Segment, TreeEntry, fill
from lodefs.chunkstore.types import Buffer

_KIND = "commit"
_VERSION = 2
_METADATA_VERSION = 3  # of commits with metadata; others keep the old version
TEXT_CHARS_MAX = 64 * 1024  # limit for author and message
SIZE_BYTES_MAX = 1024 * 1024  # limit for the document, in which texts take at most 896 KiB
LARGE_SIZE_BYTES_MIN = 1024 * 1024


class Large(NamedTuple):
    """The number and bytes of files of LARGE_SIZE_BYTES_MIN and more."""

    files: int
    size_bytes: int


@dataclass(frozen=True, slots=True)
class Commit:
    """One version of a repository. ``root`` is a directory without a name."""

    root: TreeEntry
    parents: tuple[CommitId, ...]
    author: str
    time_s: int  # Unix time
    message: str
    files: int  # with symlinks
    directories: int  # including the root
    size_bytes: int  # bytes of all files
    large: Large
    metadata: Metadata = ()


class _Root(msgspec.Struct, forbid_unknown_fields=True):
    digest: str
    size_bytes: int
    segments: list[tuple[str, int, int, int]]  # as in Segment


class _CommitBody(msgspec.Struct, forbid_unknown_fields=True):
    root: _Root
    parents: list[str]
    author: str
    time_s: int
    message: str
    files: int
    directories: int
    size_bytes: int
    large: tuple[int, int]


class _MetadataBody(_CommitBody, forbid_unknown_fields=True):
    metadata: dict[str, str]


def commit_id_of(encoded: Buffer) -> CommitId:
    """Returns the id of an encoded commit: BLAKE3 of its bytes."""
    return CommitId(digest_of(encoded))


def encode_commit(commit: Commit) -> bytes:
    """Returns the sealed document. Raises: InvalidInput for texts that are too long or not Unicode,
    and for a document that no reader would accept."""
    for text in (commit.author, commit.message):
        if len(text) > TEXT_CHARS_MAX or _has_surrogates(text):
            raise InvalidInput(
                f"author and message must be Unicode text of at most {TEXT_CHARS_MAX} characters"
            )
    root = commit.root
    body: dict[str, Any] = {
        "root": _Root(
            root.digest.hex(),
            root.size_bytes,
            [(segment.pack.hex(), *segment[1:]) for segment in root.segments],
        ),
        "parents": [parent.hex() for parent in commit.parents],
        "author": commit.author,
        "time_s": commit.time_s,
        "message": commit.message,
        "files": commit.files,
        "directories": commit.directories,
        "size_bytes": commit.size_bytes,
        "large": commit.large,
    }
    if commit.metadata:
        metadata = dict(check_metadata(dict(commit.metadata)))
        data = seal(_KIND, _METADATA_VERSION, _MetadataBody(**body, metadata=metadata))
    else:
        data = seal(_KIND, _VERSION, _CommitBody(**body))
    if len(data) > SIZE_BYTES_MAX:
        raise InvalidInput(
            f"a commit of {len(data)} bytes exceeds the limit of {SIZE_BYTES_MAX}: it has "
            f"{len(commit.parents)} parents and {len(root.segments)} segments of the root"
        )
    return data


def decode_commit(data: Buffer, what: str = "commit") -> Commit:
    """Returns the commit. Raises: Corrupt, UnknownFormat; ``what`` names it in these."""
    versions: dict[int, type[_CommitBody]] = {
        _VERSION: _CommitBody,
        _METADATA_VERSION: _MetadataBody,
    }
    body = unseal(_KIND, versions, data, what)
    large = Large(*body.large)
    counts = (body.files, body.directories, body.size_bytes, body.root.size_bytes, *large)
    numbers = [n for _, first, count, _ in body.root.segments for n in (first, count)]
    if min((*counts, *numbers)) < 0 or max((0, *numbers)) > CHUNKS_LIMIT:
        raise Corrupt(f"{what} has an impossible count")
    try:
        root = TreeEntry(
            name=b"",
            kind=Kind.DIRECTORY,
            size_bytes=body.root.size_bytes,
            digest=Digest(parse_id(body.root.digest)),
            segments=tuple(
                Segment(PackId(parse_id(pack)), *numbers) for pack, *numbers in body.root.segments
            ),
        )
        parents = tuple(CommitId(parse_id(parent)) for parent in body.parents)
        metadata: Metadata = ()
        if isinstance(body, _MetadataBody):
            metadata = check_metadata(body.metadata)
    except InvalidInput as error:
        raise Corrupt(f"{what}: {error}") from error
    if not fill(root.segments, root.size_bytes):
        raise Corrupt(f"{what} has segments that do not match its root's size")
    return Commit(
        root=root,
        parents=parents,
        author=body.author,
        time_s=body.time_s,
        message=body.message,
        files=body.files,
        directories=body.directories,
        size_bytes=body.size_bytes,
        large=large,
        metadata=metadata,
    )


def _has_surrogates(text: str) -> bool:
    return any("\ud800" <= char <= "\udfff" for char in text)
