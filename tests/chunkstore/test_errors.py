"""What edges tell of errors, in which words of clients stand."""

from __future__ import annotations

import pytest

from lodefs.chunkstore.errors import TOLD_BYTES_MAX, told


@pytest.mark.parametrize(
    ("text", "line"), [("a\nb\t c", "a b c"), ("", ""), ("\ud800x", "\\ud800x"), ("ü" * 9, "ü" * 9)]
)
def test_an_error_is_told_in_one_line(text: str, line: str) -> None:
    """Whatever characters stand in it."""
    assert told(text) == line


@pytest.mark.parametrize("middle", ["x" * 300_000, "ü" * 5000, "𝄞 " * 5000])
def test_of_a_long_error_begin_and_end_are_told(middle: str) -> None:
    """The thing and the way out; no character is cut in two."""
    line = told(f"repository {middle}: name another")
    assert line.startswith("repository ") and line.endswith(": name another")
    assert " [...] " in line and "\N{REPLACEMENT CHARACTER}" not in line
    assert len(line.encode()) <= TOLD_BYTES_MAX + 7
