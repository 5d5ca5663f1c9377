"""Bundles: a revision with its history in one file, which is read from beginning to end.
docs/format.md has the table."""

from __future__ import annotations

import struct
from dataclasses import dataclass

import msgspec

from lodefs.chunkstore.errors import Corrupt, InvalidInput, UnknownFormat
from lodefs.chunkstore.format.envelope import seal, unseal
from lodefs.chunkstore.format.journal import RefName
from lodefs.chunkstore.format.names import CommitId, check_ref_name, check_repo, parse_id
from lodefs.chunkstore.types import Buffer

MAGIC = b"LODEBNDL"
VERSION = 1
HEAD_SIZE_BYTES_MAX = 64 * 1024 * 1024  # enough for some 900,000 commits
HEAD = struct.Struct("<8sHHI")  # magic, version, flags, size of the head document
RECORD = struct.Struct("<BQ")  # kind, size
COMMIT, PACK, END = 1, 2, 0  # kinds of records; END has the BLAKE3 of all before it


@dataclass(frozen=True, slots=True)
class BundleHead:
    """The head of a bundle: a ref, and the commits that lead to it, parents first. ``since`` is a
    commit that the store must have; its history is not in the bundle. ``expired`` are earlier
    commits that a retention policy has deleted for good."""

    ref: RefName
    since: CommitId | None
    commits: tuple[CommitId, ...]
    packs: int
    time_s: int  # Unix time when it was made
    expired: tuple[CommitId, ...] = ()

    @property
    def commit(self) -> CommitId:
        """The commit of the ref."""
        return self.commits[-1]


class _HeadBody(msgspec.Struct, forbid_unknown_fields=True):
    repo: str
    kind: str
    name: str
    since: str | None
    commits: list[str]
    packs: int
    time_s: int
    expired: list[str]


def encode_bundle_head(head: BundleHead) -> bytes:
    """Returns the beginning of a bundle. Raises: InvalidInput for more commits than readers
    take."""
    body = _HeadBody(
        *head.ref,
        since=None if head.since is None else head.since.hex(),
        commits=[commit.hex() for commit in head.commits],
        packs=head.packs,
        time_s=head.time_s,
        expired=[commit.hex() for commit in head.expired],
    )
    document = seal("bundle", VERSION, body)
    if len(document) > HEAD_SIZE_BYTES_MAX:
        raise InvalidInput(f"{len(head.commits)} commits are too many for a bundle: use --since")
    return HEAD.pack(MAGIC, VERSION, 0, len(document)) + document


def bundle_head_size(data: Buffer, what: str) -> int:
    """Returns the size of the document that follows the first HEAD.size bytes. Raises: Corrupt,
    UnknownFormat."""
    magic, version, flags, size_bytes = HEAD.unpack(data)
    if magic != MAGIC:
        raise Corrupt(f"{what} is not a bundle of lodefs")
    if version != VERSION or flags:
        raise UnknownFormat(
            f"{what} is a bundle of format {version} with flags {flags:#x}, which this lodefs does "
            "not know: a newer lodefs is needed"
        )
    if size_bytes > HEAD_SIZE_BYTES_MAX:
        raise Corrupt(f"{what} claims a head of {size_bytes} bytes: it is damaged")
    return int(size_bytes)


def decode_bundle_head(document: Buffer, what: str) -> BundleHead:
    """Returns the head in a document. Raises: Corrupt, UnknownFormat."""
    body = unseal("bundle", {VERSION: _HeadBody}, document, what)
    try:
        ref = RefName(check_repo(body.repo), body.kind, check_ref_name(body.name))
        commits = tuple(CommitId(parse_id(commit)) for commit in body.commits)
        expired = tuple(CommitId(parse_id(commit)) for commit in body.expired)
        since = None if body.since is None else CommitId(parse_id(body.since))
    except InvalidInput as error:
        raise Corrupt(f"{what}: {error}") from error
    if body.kind not in ("branches", "tags") or not commits or body.packs < 0:
        raise Corrupt(f"{what} has an invalid head")
    return BundleHead(ref, since, commits, body.packs, body.time_s, expired)
