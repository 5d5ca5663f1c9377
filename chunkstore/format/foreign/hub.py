"""How a store keeps the Hugging Face Hub's id of a commit, and the hub's tags of its files.

A commit that was taken from the hub has the hub's id in its metadata (``COMMIT``). The branch
``branch_of`` that id ends in one more commit, whose parent it is. That commit has the same paths,
but each file is a symlink, and the symlink's target is the hub's ETag, and perhaps the size
(docs/decisions/0091): its *tag* here.

While a commit is being fetched there are two more branches (docs/decisions/0109): LISTING has the
tags of all files, and ARRIVING the files as far as they have come, large ones perhaps in part.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from lodefs.chunkstore.errors import InvalidInput

SOURCE = "lodefs-hub"  # the key of the metadata that says where a commit comes from: hf://ORG/MODEL
COMMIT = "lodefs-hub-commit"  # the key of the hub's own id of the commit: 40 hex digits
LISTING_COMMIT = "lodefs-hub-listing"  # the key of the commit with the tags, for files that arrive

_COMMIT_ID = re.compile(r"[0-9a-f]{40}\Z")
_BRANCH = re.compile(r"hub-[0-9a-f]{40}(?:\.listing|\.arriving)?\Z")
_TAG = re.compile(rb"([0-9a-f]{40}(?:[0-9a-f]{24})?)(?: (0|[1-9][0-9]{0,18}))?\Z")
_SHA256_CHARS = 64


class Tag(NamedTuple):
    """What the hub says of a file. ``size_bytes`` is -1 if the tag was stored without it."""

    etag: str
    size_bytes: int


def checked_tag(etag: object, size_bytes: object) -> Tag:
    """Returns a tag. Raises: InvalidInput for what the hub's tags and sizes never are."""
    text = f"{etag} {size_bytes}"
    found = decode_tag(text.encode())
    if found is None:
        raise InvalidInput(f"{text[:100]!r} is not the ETag and the size of a file")
    return found


def encode_tag(tag: Tag) -> bytes:
    """Returns the target of a file's symlink."""
    return f"{tag.etag} {tag.size_bytes}".encode()


def decode_tag(target: bytes) -> Tag | None:
    """Returns the tag in the target of a symlink; None if it has none."""
    found = _TAG.match(target)
    return None if found is None else Tag(found[1].decode(), int(found[2] or -1))


def is_commit_id(text: str) -> bool:
    """Whether a text has the form of the hub's commit ids."""
    return _COMMIT_ID.match(text) is not None


def is_lfs(etag: str) -> bool:
    """Whether an ETag is that of a file in Git LFS: the SHA-256 of its content."""
    return len(etag) == _SHA256_CHARS


def branch_of(commit_id: str) -> str:
    """Returns the branch that keeps the hub's tags of a commit."""
    return f"hub-{commit_id}"


def listing_branch_of(commit_id: str) -> str:
    """Returns the branch with the tags of a commit that is being fetched."""
    return f"hub-{commit_id}.listing"


def arriving_branch_of(commit_id: str) -> str:
    """Returns the branch with the files that have come of a commit that is being fetched."""
    return f"hub-{commit_id}.arriving"


def commit_of_branch(name: str) -> str | None:
    """Returns the commit whose tags a branch keeps; None if it does not keep tags."""
    commit_id = name.removeprefix("hub-")
    return commit_id if commit_id != name and is_commit_id(commit_id) else None


def is_own_branch(name: str) -> bool:
    """Whether a branch is one of those that keep what the hub says of a commit, or part of it."""
    return _BRANCH.match(name) is not None


def ref_of(revision: str) -> str:
    """Returns a revision of the hub as a branch of a store, whose names have no '/'."""
    return revision.replace("/", ".")
