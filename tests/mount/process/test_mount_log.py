"""Where a mount logs."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from lodefs.chunkstore.errors import InvalidInput
from lodefs.mount.process.mount_log import Logs


def test_root_logs_nowhere_else(tmp_path: Path) -> None:
    """A user has put a symlink where the log is to be: nothing is made or written there."""
    if os.geteuid() != 0:
        pytest.skip("needs root, to make another user's directory")
    (folder := tmp_path / "users").mkdir()
    os.chown(folder, 61234, 61234)
    (folder / "log").symlink_to(tmp_path / "victim")
    with pytest.raises(InvalidInput, match="symlink"):
        Logs().redirect(str(folder / "log"))
    assert not (tmp_path / "victim").exists()
