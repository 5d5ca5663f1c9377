"""How a store keeps the ids of Git commits: in the metadata of a commit that was made from one, and
as tags, so that ``REPO@git:ID`` finds it."""

from __future__ import annotations

import re

SOURCE = "lodefs-git"  # the key of the metadata with the URL of the Git repository
COMMIT = "lodefs-git-commit"  # the key of the id of the Git commit
SUBMODULES = "lodefs-git-submodules"  # the key that says that submodules are in the commit
BRANCH = "imports"  # of a repository that nodes import, as volumes ask for its commits
TREE_BELOW = "git"  # repositories that nodes import are git/HOST/PATH

ID_CHARS_MIN = 7  # the shortest beginning of an id, as Git shows it
REVISION = r"git:[0-9a-f]{7,64}"
_REVISION = re.compile(rf"{REVISION}\Z")
_ID = re.compile(r"(?:[0-9a-f]{40}|[0-9a-f]{64})\Z")
_TAG = "git-"


def is_id(text: str) -> bool:
    """Whether a text is the whole id of a Git commit: a SHA-1 or a SHA-256."""
    return _ID.match(text) is not None


def id_in(rev: str) -> str | None:
    """Returns the beginning of the id in a revision ``git:ID``; None for any other revision."""
    return rev.partition(":")[2] if _REVISION.match(rev) else None


def tag_of(commit_id: str) -> str:
    """Returns the tag of the commit that was made from a Git commit, or the beginning of it."""
    return f"{_TAG}{commit_id}"
