"""A job's comment says which datasets it has, and comes back as it was written."""

from __future__ import annotations

import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lodefs.chunkstore.errors import InvalidInput
from lodefs.chunkstore.format.names import Spec
from lodefs.settings.datasets import Dataset, written
from lodefs.slurm.job_comment import (
    COMMENT_BYTES_MAX,
    check_directory,
    datasets_in,
    is_fixed,
    parsed,
    with_datasets,
)

COMMIT = "0123456789abcdef" * 4
NAMES = st.text("ab.,:\\ é@", min_size=1, max_size=8).filter(lambda name: name not in (".", ".."))


@pytest.mark.parametrize(
    ("comment", "specs"),
    [
        ("", []),
        ("run 7", []),
        ("nolodefs=cats:/d", []),
        ("lodefs=cats@v1:/d", ["cats@v1"]),
        ("run 7 lodefs=cats:/d,dogs@v2:text:/e", ["cats@main", "dogs@v2:text"]),
        ("run 7 lodefs=cats:/d , dogs:/with blank", ["cats@main", "dogs@main"]),
    ],
)
def test_the_list_is_the_last_word_of_the_comment(comment: str, specs: list[str]) -> None:
    """The list is the last word of the comment."""
    assert [str(dataset.spec) for dataset in datasets_in(comment)] == specs


@given(path=NAMES, directory=NAMES)
def test_a_list_is_read_as_it_was_written(path: str, directory: str) -> None:
    """Commas, colons, backslashes and blanks are parts of names."""
    if f"{path}{directory}".strip() != f"{path}{directory}" or ":." in f":{path}":
        return  # blanks around an item do not count, and a path that looks like a directory is one
    wanted = Dataset(Spec("cats", COMMIT, os.fsencode(path)), f"/data/{directory}")
    assert parsed(written([wanted])) == [wanted]


def test_a_resolved_list_takes_the_place_of_the_former_one() -> None:
    """A resolved list takes the place of the former one."""
    dataset = Dataset(Spec("cats", COMMIT), "/d")
    assert with_datasets("run 7 lodefs=cats@main:/d", [dataset]) == f"run 7 lodefs=cats@{COMMIT}:/d"
    assert with_datasets("", [dataset]) == f"lodefs=cats@{COMMIT}:/d"


def test_a_comment_has_a_longest_length() -> None:
    """A comment has a longest length."""
    with pytest.raises(InvalidInput, match="too many datasets"):
        with_datasets("x" * COMMENT_BYTES_MAX, [Dataset(Spec("cats", COMMIT), "/d")])


@pytest.mark.parametrize("words", ["", ",", "cats", "cats:rel", "cats:/tmp/../etc", "cats:/etc/x",
                                   "cats:/", "cats://", "cats:/a,dogs:/a/b",
                                   ",".join(f"cats:/d{n}" for n in range(65)),
                                   "cats:/d" + "/d" * 32, "cats:/d/" + "d" * 1024,
                                   "," * (COMMENT_BYTES_MAX + 1) + "cats:/d"])  # fmt: skip
def test_what_no_job_may_have_is_refused(words: str) -> None:
    """What no job may have is refused."""
    with pytest.raises(InvalidInput):
        parsed(words)


def test_directories_are_made_plain() -> None:
    """Directories are made plain."""
    assert parsed("cats://data/./x/")[0].directory == "/data/x"


@pytest.mark.parametrize("directory", ["/etc", "/proc/self", "/usr/lib/slurm", "/var/lib", "/"])
def test_directories_of_the_system_are_refused(directory: str) -> None:
    """Directories of the system are refused."""
    with pytest.raises(InvalidInput, match="over the system"):
        check_directory(directory)


@pytest.mark.parametrize("directory", ["/etcetera", "/data", "/home/me/run", "/var/tmp/x"])
def test_other_directories_are_taken(directory: str) -> None:
    """Other directories are taken."""
    check_directory(directory)


def test_only_a_whole_commit_is_fixed() -> None:
    """Only a whole commit is fixed."""
    assert is_fixed(Spec("cats", COMMIT))
    assert not any(is_fixed(Spec("cats", rev)) for rev in ("main", COMMIT[:12], COMMIT + "0"))
