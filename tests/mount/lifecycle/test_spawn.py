"""What a process of a mount gets from who starts it."""

from __future__ import annotations

import os
from pathlib import Path

from lodefs.mount.lifecycle.spawn import surroundings

ROOT = str(Path(__file__).parents[3])


def test_no_credentials_of_s3() -> None:
    """The environment goes on without AWS_..., which proxies alone need."""
    secrets = {"AWS_ACCESS_KEY_ID": "a", "AWS_SECRET_ACCESS_KEY": "b", "AWS_SESSION_TOKEN": "c"}
    kept = {"PATH": "/bin", "LODEFS_TOKEN": "t", "MY_AWS_NAME": "m"}
    assert surroundings({**secrets, **kept}) == {**kept, "PYTHONPATH": ROOT}


def test_this_package_is_found_first() -> None:
    """Before what PYTHONPATH names already."""
    found = surroundings({"PYTHONPATH": "/elsewhere"})["PYTHONPATH"]
    assert found == os.pathsep.join([ROOT, "/elsewhere"])
