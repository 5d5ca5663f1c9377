"""What tests of S3 share."""

from __future__ import annotations

import pytest


@pytest.fixture
def aws_user(monkeypatch: pytest.MonkeyPatch) -> None:
    """Some user, and no way to find another one."""
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "key")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "very-secret")
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
