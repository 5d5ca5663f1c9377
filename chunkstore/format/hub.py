"""How a store keeps the Hugging Face Hub's id of a commit, and the hub's tags of its files.

A commit that was taken from the hub has the hub's id in its metadata (``COMMIT``). The branch
``branch_of`` that id ends in one more commit, whose parent it is. That commit has the same paths,
but each file is a symlink, and the symlink's target is the hub's ETag (docs/decisions/0091).
"""

from __future__ import annotations

import re
from hashlib import sha1

SOURCE = "lodefs-hub"  # the key of the metadata that says where a commit comes from: hf://ORG/MODEL
COMMIT = "lodefs-hub-commit"  # the key of the hub's own id of the commit: 40 hex digits

_COMMIT_ID = re.compile(r"[0-9a-f]{40}\Z")
_ETAG = re.compile(r"[0-9a-f]{40}(?:[0-9a-f]{24})?\Z")
_SHA256_CHARS = 64


def is_commit_id(text: str) -> bool:
    """Whether a text has the form of the hub's commit ids."""
    return _COMMIT_ID.match(text) is not None


def is_etag(text: str) -> bool:
    """Whether a text has the form of an ETag of the hub: the SHA-1 of a git blob, or the SHA-256 of
    a file in Git LFS."""
    return _ETAG.match(text) is not None


def is_lfs(etag: str) -> bool:
    """Whether an ETag is that of a file in Git LFS."""
    return len(etag) == _SHA256_CHARS


def branch_of(commit_id: str) -> str:
    """Returns the branch that keeps the hub's tags of a commit."""
    return f"hub-{commit_id}"


def is_tags_branch(name: str) -> bool:
    """Whether a branch keeps the hub's tags of a commit."""
    return is_commit_id(name.removeprefix("hub-")) and name.startswith("hub-")


def ref_of(revision: str) -> str:
    """Returns a revision of the hub as a branch of a store, whose names have no '/'."""
    return revision.replace("/", ".")


def lfs_pointer(sha256: str, size_bytes: int) -> bytes:
    """Returns the file that git keeps for one in LFS. Source: the specification of Git LFS."""
    first = "version https://git-lfs.github.com/spec/v1"
    return f"{first}\noid sha256:{sha256}\nsize {size_bytes}\n".encode()


def blob_id(content: bytes) -> str:
    """Returns the id that git gives to a file."""
    return sha1(b"blob %d\0" % len(content) + content, usedforsecurity=False).hexdigest()
