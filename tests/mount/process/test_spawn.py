"""What a process of a mount gets from who starts it."""

from __future__ import annotations

from lodefs.mount.process.spawn import surroundings


def test_no_credentials_of_s3() -> None:
    """The environment goes on without AWS_..., which proxies alone need, and without what is for
    other Pythons."""
    dropped = {"AWS_ACCESS_KEY_ID": "a", "AWS_SECRET_ACCESS_KEY": "b", "PYTHONPATH": "/elsewhere"}
    kept = {"PATH": "/bin", "LODEFS_TOKEN": "t", "MY_AWS_NAME": "m"}
    assert surroundings({**dropped, **kept}) == kept
