"""The branch to which a job's changes go, said at its submission."""

from __future__ import annotations

import pytest

from lodefs.chunkstore.errors import InvalidInput
from lodefs.settings.datasets import parse
from lodefs.slurm.resolving import branch_for

COMMIT = "0123456789abcdef" * 4


@pytest.mark.parametrize(
    ("words", "branch"),
    [
        ("cats:/d:rw", "main"),
        ("cats@dev:text:/d:rw", "dev"),
        ("cats@v1:/d:rw=fixes", "fixes"),
        ("cats@012345:/d:rw=fixes", "fixes"),
        (f"cats@{COMMIT}:/d:rw=main", "main"),
        ("cats@0123:/d:rw", "0123"),  # too short for a commit
    ],
)
def test_the_revision_or_what_is_named(words: str, branch: str) -> None:
    """The latter wins, also over a branch."""
    assert branch_for(parse(words), COMMIT) == branch


@pytest.mark.parametrize("rev", ["012345", COMMIT, "main~1"])
def test_a_commit_takes_no_changes(rev: str) -> None:
    """The way out is named."""
    with pytest.raises(InvalidInput, match=":rw=BRANCH"):
        branch_for(parse(f"cats@{rev}:/d:rw"), COMMIT)
