"""Metadata of commits: what may be said, and what is refused."""

from __future__ import annotations

import pytest

from lodefs.chunkstore.errors import InvalidInput
from lodefs.chunkstore.format.metadata import CHARS_MAX, fits, new_metadata


def test_pairs() -> None:
    """A mapping, or texts; by key; a value may have any text of one line, an equals sign too."""
    assert new_metadata(["b=1=2", "a/x.y-z=é ☃", "c="]) == (
        ("a/x.y-z", "é ☃"),
        ("b", "1=2"),
        ("c", ""),
    )
    assert new_metadata({"b": "1", "a": "2"}) == (("a", "2"), ("b", "1"))
    assert new_metadata(()) == ()
    assert new_metadata({"a": "x" * (CHARS_MAX - 1)})


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("a", "has no value: write KEY=VALUE"),
        ("=x", "a key has letters"),
        ("a b=x", "a key has letters"),
        ("a\n=x", "a key has letters"),
        (f"{'a' * 101}=x", "a key has letters"),
        ("a=x\ny", "metadata a: a value is one line of Unicode text"),
        ("a=\x1b[2J", "one line of Unicode text without control characters"),
        ("a=\udcff", "Unicode text"),
        (f"a={'x' * 2**20}", "metadata a: keys and values have more than 32,768 characters"),
        ("time_s=1", "metadata time_s: lodefs reserves this key"),
        ("Author=me", "lodefs reserves this key"),
        ("lodefs.x=1", "lodefs reserves this key"),
    ],
)
def test_what_is_refused(text: str, error: str) -> None:
    """Each mistake is named by its key, in a message of bounded length."""
    with pytest.raises(InvalidInput, match=error) as caught:
        new_metadata([text])
    assert len(str(caught.value)) < 300
    with pytest.raises(InvalidInput, match="metadata a is given twice"):
        new_metadata(["a=1", "a=2"])


def test_what_fits() -> None:
    """All that is wanted has to be there; a key alone fits any value."""
    metadata = (("a", "1"), ("b", ""))
    for wanted in ([], ["a"], ["a=1"], ["b"], ["b="], ["a=1", "b"]):
        assert fits(metadata, wanted)
    for wanted in (["c"], ["a="], ["a=1", "c"], ["a=2"]):
        assert not fits(metadata, wanted)
