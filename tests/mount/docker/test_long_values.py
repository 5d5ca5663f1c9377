"""What clients send, however long, is told and logged by its beginning and its end."""

from __future__ import annotations

import logging
from pathlib import Path

import msgspec
import pytest

from tests.support.docker.rig import Rig, served


def test_long_values_are_told_and_logged_without_their_middle(
    rig: Rig, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """An option may have almost a megabyte."""
    body = msgspec.json.encode({"Name": "v", "Opts": {"repo": "X" * 900_000}})
    with (
        served(rig, tmp_path / "s.sock") as dockerd,
        caplog.at_level(logging.WARNING, "lodefs.docker"),
    ):
        status, answer = dockerd.post("/VolumeDriver.Create", body)
    assert status == 200
    assert 1000 < len(answer["Err"]) < 2100
    assert max(len(record.getMessage()) for record in caplog.records) < 2200
