"""text.py: what people see."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lodefs.cli import text


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        (b"plain name.txt", "plain name.txt"),
        ("Grüße 猫.jpg".encode(), "Grüße 猫.jpg"),
        (b"\xff\xfe", "\\xff\\xfe"),
        (b"a\nb\tc\r", "a\\nb\\tc\\r"),
        (b"back\\slash", "back\\\\slash"),
        (b"\x1b[31mred\x07", "\\x1b[31mred\\x07"),
        ("\u202egnp.exe".encode(), "\\u202egnp.exe"),
        ("\u009b31m".encode(), "\\x9b31m"),
    ],
)
def test_names_are_safe_on_a_terminal(name: bytes, expected: str) -> None:
    """Controls, bidirectional marks and bytes that are not UTF-8 are escaped."""
    assert text.escaped(name) == expected


@pytest.mark.parametrize(
    ("message", "expected"),
    [
        ("a/\\xff does not exist", "a/\\xff does not exist"),
        ("C:\\data\n", "C:\\data\\n"),
        ("a\udcff\x1b[2J\u202eb", "a\\xff\\x1b[2J\\u202eb"),
    ],
)
def test_a_text_that_quotes_names_keeps_its_backslashes(message: str, expected: str) -> None:
    """Escapes in a message stay as they are, and its other unsafe characters are escaped."""
    assert text.escaped(message) == expected


@given(st.binary(max_size=60))
def test_shown_is_one_printable_line(name: bytes) -> None:
    """Whatever the bytes are, the text has no control character and is valid Unicode."""
    shown = text.escaped(name)
    assert shown.encode().decode() == shown
    assert shown.splitlines() in ([shown], [])
    assert not any(ord(c) < 32 or 127 <= ord(c) < 160 for c in shown)


@given(st.binary(max_size=20), st.binary(max_size=20))
def test_shown_tells_names_apart(a: bytes, b: bytes) -> None:
    """Two names never look the same because of the escapes."""
    assert (text.escaped(a) == text.escaped(b)) == (a == b)


@pytest.mark.parametrize(
    ("size_bytes", "expected"),
    [
        (0, "0 B"),
        (1023, "1023 B"),
        (1024, "1.0 KiB"),
        (1536 * 1024, "1.5 MiB"),
        (1024**3 - 1, "1.0 GiB"),
        (5 * 1024**6, "5120.0 PiB"),
    ],
)
def test_sizes(size_bytes: int, expected: str) -> None:
    """Sizes have binary units and one decimal."""
    assert text.size(size_bytes) == expected


def test_counts_and_times() -> None:
    """Counts have thousands and a plural; times are UTC, and odd ones do not fail."""
    assert text.count(1, "file") == "1 file"
    assert text.count(17614, "file") == "17,614 files"
    assert text.time(0) == "1970-01-01 00:00:00 UTC"
    assert text.time(10**18) == str(10**18)


def test_percent_encoding() -> None:
    """Paths for scripts keep every byte."""
    assert text.percent_encoded(b"a/b c\xff") == "a/b%20c%FF"


@pytest.mark.parametrize(
    ("message", "told"),
    [
        (f"packs/0a/0a{'b' * 62} is lost", "pack 0abbbbbbbbbb is lost"),
        (f"chunk 3 of pack {'c' * 64}", "chunk 3 of pack cccccccccccc"),
        (f"not chunk {'c' * 64}", "not chunk cccccccccccc"),
        (f"repos/a/b/commits/{'d' * 64} holds", "commit dddddddddddd of a/b holds"),
        (f"repos/a/b/refs/expired/{'d' * 64} holds", "commit dddddddddddd of a/b holds"),
        ("repos/a/b/refs/branches/main/9999999998 has", "branch main of a/b has"),
        ("repos/a/refs/tags/v1.0/9999999999 has", "tag v1.0 of a has"),
        ("repos/a/refs/_settings/9999999999 has", "the settings of a has"),
        ("journal/entries/9999999999: x", "the store's journal: x"),
        ("index/18a1b2c3d4e5f607-01234567-g2 x", "an index shard x"),
        ("/cache/index/000009.sst is damaged", "/cache/index/000009.sst is damaged"),
        ("composites/tables/0000000003 x", "a composite x"),
        (f"a/b@{'d' * 64}:packs/x.txt", f"a/b@{'d' * 64}:packs/x.txt"),
    ],
)
def test_keys_become_words(message: str, told: str) -> None:
    """What an object of a store is to its user, and the beginning of an id; all else stays."""
    assert text.without_keys(message) == told
