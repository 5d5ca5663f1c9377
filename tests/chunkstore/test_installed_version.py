"""The version of lodefs, by what an installer leaves."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import pytest

from lodefs.chunkstore.installed_version import installed_version


def test_it_is_what_the_standard_library_says() -> None:
    """Also of a checkout that is installed to be edited, and of none."""
    try:
        expected: str | None = version("lodefs")
    except PackageNotFoundError:
        expected = None
    assert installed_version() == expected


@pytest.mark.parametrize(
    ("names", "found"),
    [
        (["lodefs-1.2.0.dist-info"], "1.2.0"),
        (["lodefs-1.2.0rc1+local.3.dist-info", "lodefs"], "1.2.0rc1+local.3"),
        (["lodefs_more-1.0.dist-info", "other_lodefs-1.0.dist-info", "lodefs"], None),
    ],
)
def test_the_first_directory_that_has_one_counts(
    tmp_path: Path, names: list[str], found: str | None
) -> None:
    """Files and directories that are missing are passed by."""
    place, later = tmp_path / "one", tmp_path / "two"
    for name in names:
        (place / name).mkdir(parents=True)
    (later / "lodefs-9.9.dist-info").mkdir(parents=True)
    (tmp_path / "file").touch()
    path = [str(one) for one in (tmp_path / "missing", tmp_path / "file", place)]
    assert installed_version(path) == found
    assert installed_version([*path, str(later)]) == (found or "9.9")
