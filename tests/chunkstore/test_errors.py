"""What edges tell of errors, in which words of clients stand, and errors that travel."""

from __future__ import annotations

import pickle

import pytest

from lodefs.chunkstore.errors import TOLD_BYTES_MAX, LodefsError, NotFound, Unavailable, told
from lodefs.chunkstore.format.names import PackId
from lodefs.chunkstore.journal.ref_write import Collected


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


def _there_and_back(error: LodefsError) -> LodefsError:
    found = pickle.loads(pickle.dumps(error))
    assert (type(found), str(found)) == (type(error), str(error))
    assert isinstance(found, LodefsError)
    return found


def test_errors_are_pickled_whatever_their_constructors_take() -> None:
    """With what they say and have, except for what reads a store."""
    chunks = {PackId(b"p" * 32): 5}
    collected = _there_and_back(Collected("gone", {b"i" * 32}, chunks))
    assert isinstance(collected, Collected) and collected.chunks == chunks
    busy = _there_and_back(Unavailable("busy", retry_after_s=3.0))
    assert isinstance(busy, Unavailable) and busy.retry_after_s == 3.0
    missing = NotFound("missing")
    missing.instead = lambda: "others"
    assert vars(_there_and_back(missing)) == {}
