"""The report of what is worth a look."""

from __future__ import annotations

import gc

import pytest

from tests.support.tidy import advice


def test_what_exceeds_is_told_and_fails_nothing(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Folders, constructors and modules above the sizes are named, each in a line."""
    monkeypatch.setattr(advice, "FOLDER_MODULES", 3)
    monkeypatch.setattr(advice, "ARGUMENTS", 2)
    monkeypatch.setattr(advice, "FRAGMENT_LINES", 300)
    gc.disable()  # it would visit millions of nodes of syntax trees again and again
    try:
        advice.main()
    finally:
        gc.enable()
    said = capsys.readouterr().out
    assert "chunkstore/format: " in said
    assert " arguments\n" in said
    assert ", imported by " in said
    assert "lodefs/commands: " not in said
