"""The ids of Git: how Git makes those of files, and how a store keeps those of commits. They are in
the metadata of a commit that was made from one of Git, and in tags, so that ``REPO@git:ID`` finds
it."""

from __future__ import annotations

import re
from hashlib import sha1

from lodefs.chunkstore.errors import InvalidInput

SOURCE = "lodefs-git"  # the key of the metadata with the URL of the Git repository
COMMIT = "lodefs-git-commit"  # the key of the id of the Git commit
SUBMODULES = "lodefs-git-submodules"  # the key that says that submodules are in the commit
BRANCH = "imports"  # of a repository that nodes import, as volumes ask for its commits
TREE_BELOW = "git"  # repositories that nodes import are git/HOST/PATH
IMPORT_BYTES_MAX = 4 << 30  # unless a user says otherwise

# git:ID, with a beginning of 7 or more digits, as Git shows ids; or git:NAME, of a branch or tag of
# Git, in which '+' stands for '/'
REVISION = r"git:[A-Za-z0-9][A-Za-z0-9._+-]*"
_BY_ID = re.compile(r"git:([0-9a-f]{7,64})\Z")
_BY_NAME = re.compile(rf"{REVISION}\Z")
_ID = re.compile(r"(?:[0-9a-f]{40}|[0-9a-f]{64})\Z")
_TAG = "git-"


def is_id(text: str) -> bool:
    """Whether a text is the whole id of a Git commit: a SHA-1 or a SHA-256."""
    return _ID.match(text) is not None


def id_in(rev: str) -> str | None:
    """Returns the beginning of the id in a revision ``git:ID``; None for any other revision."""
    found = _BY_ID.match(rev)
    return None if found is None else found[1]


def name_in(rev: str) -> str | None:
    """Returns the branch, tag or id of Git in a revision ``git:...``; None for any other."""
    return rev.removeprefix("git:").replace("+", "/") if _BY_NAME.match(rev) else None


def revision_of(name: str) -> str:
    """Returns the revision of a branch, a tag or an id of Git. Raises: InvalidInput."""
    if "+" in name:
        raise InvalidInput(f"{name!r}: a name with '+' cannot be a revision here: give an id")
    return f"git:{name.replace('/', '+')}"


def tag_of(commit_id: str) -> str:
    """Returns the tag of the commit that was made from a Git commit, or the beginning of it."""
    return f"{_TAG}{commit_id}"


def blob_head(size_bytes: int) -> bytes:
    """Returns what Git hashes before the content of a file."""
    return b"blob %d\0" % size_bytes


def blob_id(content: bytes) -> str:
    """Returns the id that Git gives to a file."""
    return sha1(blob_head(len(content)) + content, usedforsecurity=False).hexdigest()
