"""Directories that cannot take the changes of a writable mount."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from lodefs.chunkstore.errors import InvalidInput, NoSpace
from lodefs.mount.kernel import mount_table
from lodefs.mount.writable import upper_checks
from lodefs.mount.writable.upper_place import UpperPlace
from tests.mount.writable.conftest import Writable


def test_an_overlay_is_none(writable: Writable) -> None:
    """Nor is a writable mount itself; the error says what is."""
    writable.mount()
    with pytest.raises(InvalidInput, match=r"on an overlay.*ext4"):
        upper_checks.check_file_system(writable.root)


def test_a_full_disk(writable: Writable, tmp_path: Path) -> None:
    """Nothing is mounted, and nothing is left; with room it is mounted, and what does not fit while
    programs write is their error."""
    disk = tmp_path / "disk"
    disk.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "x", disk], check=True, timeout=60)
    try:
        writable.place = UpperPlace(disk / "changes")
        (disk / "full").write_bytes(bytes(64 << 10))
        with pytest.raises(NoSpace):
            writable.mount()
        assert os.listdir(disk) == ["full"]
        assert mount_table.on_top(str(writable.root)) is None
        (disk / "full").unlink()
        writable.mount()
        with pytest.raises(OSError, match="No space"):
            (writable.root / "large").write_bytes(bytes(1 << 20))
        assert (writable.root / "a").stat().st_size == 5
    finally:
        writable.close()
        subprocess.run(["umount", "-l", disk], check=True, timeout=60)


@pytest.mark.parametrize(
    ("one", "other", "expected"),
    [
        ("/a", "/a", True),
        ("/a", "/a/b", True),
        ("/a/b", "/a", True),
        ("/a", "/ab", False),
        ("/", "/a", True),
        ("/a/b", "/a/c", False),
    ],
)
def test_overlap(one: str, other: str, expected: bool) -> None:
    """Whole names count, in either order."""
    assert upper_checks.overlap(one, other) is expected
