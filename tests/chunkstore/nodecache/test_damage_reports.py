"""Reports of damage, which root may make in a cache that is another user's."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from lodefs.chunkstore.nodecache import layout
from lodefs.chunkstore.nodecache.damage_reports import (
    report_damage,
    reported_files,
    resolve_report,
)


def test_files_are_reported_until_that_is_resolved(tmp_path: Path) -> None:
    """Each once, however often it is reported."""
    for _ in range(2):
        report_damage(tmp_path, [7, 1])
        assert reported_files(tmp_path) == [1, 7]
    resolve_report(tmp_path, 7)
    assert reported_files(tmp_path) == [1]


@pytest.mark.parametrize("link", [layout.SUSPECTS_DIR, f"{layout.SUSPECTS_DIR}/00000007"])
def test_no_report_is_made_elsewhere(tmp_path: Path, link: str) -> None:
    """A symlink in the cache has no file made, or touched, where it leads."""
    (elsewhere := tmp_path / "elsewhere").mkdir()
    (cache := tmp_path / "cache").mkdir()
    (cache / link).parent.mkdir(exist_ok=True)
    target = elsewhere if link == layout.SUSPECTS_DIR else elsewhere / "new"
    (cache / link).symlink_to(target)
    with pytest.raises(OSError):
        report_damage(cache, [7])
    assert os.listdir(elsewhere) == []
