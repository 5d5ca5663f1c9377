"""Root uses no directory for temporary files in which a user can change what lies there."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from lodefs.main import leave_others_directories

USER = 61234
TIMEOUT_S = 60.0
PROGRAM = """
import tempfile
import lodefs.app
from lodefs.main import main
lodefs.app.run = lambda *_: print(tempfile.gettempdir())
main([])"""


@pytest.fixture
def roots(tmp_path: Path) -> Path:
    """A directory of root's, with ``user`` of another user, and ``user/below`` of root's in it."""
    if os.geteuid() != 0:
        pytest.skip("needs root, to make another user's directory")
    place = Path(os.path.realpath(tmp_path))
    (place / "user/below").mkdir(parents=True)
    os.chown(place / "user", USER, USER)
    for name, mode in (("shared", 0o777), ("sticky", 0o1777), ("own", 0o755)):
        (place / name).mkdir()
        (place / name).chmod(mode)
    (place / "link").symlink_to("own")
    (place / "user/link").symlink_to(place / "own")
    return place


@pytest.mark.parametrize("name", ["own", "sticky", "link"])
def test_what_keeps_roots_names_is_used(roots: Path, name: str) -> None:
    """As /tmp, or a directory of root's alone, by a symlink of root's too."""
    environ = {"TMPDIR": f"{roots}/{name}", "HOME": "/root"}
    assert leave_others_directories(environ) == []
    assert environ == {"TMPDIR": f"{roots}/{name}", "HOME": "/root"}


@pytest.mark.parametrize("name", ["user", "user/below", "user/link", "shared", "none/../user"])
def test_where_a_user_can_move_names_nothing_is_made(roots: Path, name: str) -> None:
    """Or change where the path leads to."""
    environ = {"TMPDIR": f"{roots}/own", "TEMP": f"{roots}/{name}", "TMP": "tmp"}
    told = leave_others_directories(environ)
    assert [line.partition("=")[0] for line in told] == ["TEMP", "TMP"]
    assert environ == {"TMPDIR": f"{roots}/own"}


def test_no_command_of_roots_makes_anything_there(roots: Path) -> None:
    """It is said, and another place is used."""
    ran = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        env=os.environ | {"TMPDIR": f"{roots}/user", "TMP": f"{roots}/own"},
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=True,
    )
    assert "user is not used" in ran.stderr
    assert ran.stdout == f"{roots}/own\n"
