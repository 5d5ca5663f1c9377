"""Patterns of what is not pushed: what git does with the same lines (git check-ignore, 2.39)."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lodefs.chunkstore.errors import InvalidInput
from lodefs.chunkstore.push import ignore_rules
from lodefs.chunkstore.push.ignore_rules import IgnorePatterns, IgnoreRules, check_patterns
from lodefs.chunkstore.push.scanner import Scan
from tests.support.chunkstore.directories import write_files


def kept(patterns: bytes, paths: str) -> str:
    """Those of the files that are kept; what is in an excluded directory is not looked at."""
    found = IgnorePatterns(patterns)

    def is_kept(path: str) -> bool:
        parts = path.split("/")
        above = ["/".join(parts[:n]).encode() for n in range(1, len(parts))]
        if any(found.verdict(one, is_directory=True) for one in above):
            return False
        return not found.verdict(path.encode(), is_directory=False)

    return " ".join(path for path in paths.split(",") if is_kept(path))


@pytest.mark.parametrize(
    ("patterns", "paths", "left"),
    [
        (b"*.tmp", "a.tmp,d/b.tmp,c", "c"),
        (b"*.tmp\n!keep.tmp", "a.tmp,keep.tmp,d/keep.tmp", "keep.tmp d/keep.tmp"),
        (b"!keep\nkeep", "keep", ""),  # the last one that matches counts
        (b"d\n!d/f", "d/f,f", "f"),  # nothing below an excluded directory comes back
        (b"d/*\n!d/f", "d/f,d/g", "d/f"),
        (b"d/**\n!d/f", "d/f,d/g", "d/f"),  # d itself is not excluded
        (b"*\n!*/\n!*.txt", "a.txt,d/b.txt,d/c.jpg", "a.txt d/b.txt"),
        (b"/*\n!/a", "a/x,b/x", "a/x"),
        (b"/a", "a,d/a", "d/a"),  # anchored by a slash at the beginning
        (b"d/a", "d/a,x/d/a", "x/d/a"),  # and by one inside
        (b"a/", "a/x,d/a", "d/a"),  # directories only, at any depth
        (b"**/a", "a,d/a,d/e/a", ""),
        (b"a/**/b", "a/b,a/x/b,a/x/y/b,ab", "ab"),
        (b"a/**", "a/b,a/x/y,b/a", "b/a"),
        (b"a/**/", "a/b,a/x/y", "a/b"),
        (b"a**b", "ab,axb,a/b", "a/b"),  # other ** are *
        (b"***/x", "x,a/x,a/b/x,a/y", "a/y"),  # more stars are two
        (b"!***/x\n/a/****", "a/x,a/y,b/x", "b/x"),
        (b"a/***/x\n\\***/y", "a/x,a/b/x,***/y,*b/y,a/y", "a/y"),
        (b"d\\/x", "d/x,x/d/x,x", "x/d/x x"),  # a backslash takes nothing from a slash,
        (b"\\/a\nb\\/\n!\\/c\n\\/", "a,b/x,c", "a b/x c"),  # but at an end it matches nothing,
        (b"**\\/x\n!***\\/y", "x,a/x,a/b/x,y", "x y"),  # and behind ** one directory or more
        (b"a/*", "a/b,a/b/c,x/a/b", "x/a/b"),
        (b"?", "a,bb,d/c", "bb"),
        (b"a?c", "abc,a/c", "a/c"),
        (b"[a-c]x", "ax,dx", "dx"),
        (b"[!a-c]x", "ax,dx", "ax"),
        (b"[^a]", "a,b", "a"),
        (b"d[!a]x\n/d[+-0]y", "d/x,dbx,d/y,d.y", "d/x d/y"),  # none matches a slash
        (b"[]a]", "],a,b", "b"),
        (b"[[:digit:]]x", "1x,ax", "ax"),
        (b"[[:punct:]]\n[[:space:]]x", ":,\x0bx,\tx", "\x0bx"),
        (b"[![:alpha:][:digit:]]", "a,1,-", "a 1"),
        (b"[a\\-c]", "a,b,c,-", "b"),  # a backslash takes its meaning from what follows
        (b"[\\]]x", "]x,\\x", "\\x"),
        (b"[c-a]\n[!c-a]x", "b,bx", "b"),  # an empty range
        (b"d[/]x\n[a/]", "d/x,a,b/a", "d/x b/a"),  # a slash in a bracket anchors, and is no more
        (b"[[:x]\n[[:no:]]", "[,:,x,n", "n"),  # no class; and one that there is not
        (b"[a", "[a,a", "[a a"),  # a bracket that is not closed matches nothing
        (b"f   ", "f,f   ", "f   "),  # blanks at the end go
        (b"f\\ ", "f,f ", "f"),
        (b"f\\\\ ", "f\\,f\\ ", "f\\ "),
        (b"f\t \n\x0b", "f,f\t,\x0b", "f"),  # no other blanks do
        ("voilà\nÅ\nРР\r\nx\x85 ".encode(), "voilà,d/Å,РР,x\x85,voil", "voil"),  # nor halves
        (b" f", "f, f", "f"),
        (b"\\#a\n#b", "#a,#b", "#b"),
        (b"\\!a", "!a,a", "a"),
        (b"\\*", "*,a", "a"),
        (b"a\\", "a,a\\", "a a\\"),  # a backslash at the end: nothing
        (b"!\n/\n\n", "a,d/b", "a d/b"),
        (b"a\r\nb\r\n", "a,b,c", "c"),
        (b"\xef\xbb\xbfa", "a,b", "b"),
        ("ü*".encode(), "ü1,u1", "u1"),
    ],
)
def test_patterns(patterns: bytes, paths: str, left: str) -> None:
    """What is kept is what git keeps."""
    assert kept(patterns, paths) == left


@pytest.mark.parametrize(
    ("pattern", "path"),
    [
        (b"*a*a*a*a*a*b", b"a" * 255),
        (b"*a" * 100 + b"*b*c", b"a" * 255),
        (b"*a?*[ab]*a*a*a*[b-z]", b"a" * 255),
        (b"**/a/**/a/**/a/**/a/**/a/**/b", b"a/" * 2000 + b"a"),
        (b"x/**/*a*a*a*a*b/**/a*a*a/**/b", b"x/" + b"aaaaaaaaab/" * 300 + b"a"),
    ],
)
def test_many_stars_take_no_time(pattern: bytes, path: bytes) -> None:
    """Not a power of a name's length: each of these would take longer than any test may."""
    assert IgnorePatterns(pattern).verdict(path, is_directory=False) is None
    assert IgnorePatterns(pattern).verdict(path + b"/aaa/b", is_directory=False) is (
        True if b"/" in pattern else None
    )


@given(
    st.lists(st.sampled_from(["*", "**", "?", "a", "b", "[ab]", "[!a]", "/", "/**/"]), max_size=9),
    st.lists(st.text("ab", min_size=1, max_size=5), min_size=1, max_size=5),
    st.booleans(),
)
def test_stars_match_what_they_match(
    words: list[str], names: list[str], is_directory: bool
) -> None:
    """The same as the expressions of pathspec, which go back over all stars."""
    pattern, path = "".join(words), "/".join(names).encode()
    found = IgnorePatterns(pattern.encode()).verdict(path, is_directory=is_directory)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(ignore_rules, "_without_backtracking", lambda regex: regex)
        wanted = IgnorePatterns(pattern.encode()).verdict(path, is_directory=is_directory)
    assert found == wanted


def test_a_scan_leaves_out_what_patterns_exclude(tmp_path: Path) -> None:
    """Files of patterns hold below their directory, deeper ones before those above, the command
    line before all; an excluded directory is not looked into, even if it cannot be read."""
    write_files(
        tmp_path,
        {
            ".lodefsignore": b"*.log\n/cache/\n", "a.log": b"", "b": b"", "cache/x": b"",
            "d/.lodefsignore": b"!a.log\n/only\n", "d/a.log": b"", "d/only": b"", "d/e/only": b"",
            "d/e/b.log": b"", "e/a.log": b"", "e/cache/x": b"", "e/secret/x": b"",
        },
    )  # fmt: skip
    rules = IgnoreRules([b"secret", b"!b.log"])
    scan = Scan(bytes(tmp_path), clock_ns=time.time_ns, ignore=rules)
    found = {
        b"/".join(filter(None, (one.path, name))).decode()
        for one in scan
        for name in one.columns.names
    }
    assert found == {
        ".lodefsignore", "b", "d/.lodefsignore", "d/a.log", "d/e/only", "d/e/b.log", "e/cache/x",
    }  # fmt: skip
    assert rules.excluded == 5


@pytest.mark.parametrize("pattern", [b"", b"#x", b"!", b"a\\", b"[", b"a\nb"])
def test_patterns_of_the_command_line_that_match_nothing(pattern: bytes) -> None:
    """They are refused: somebody meant something by them."""
    with pytest.raises(InvalidInput, match="pattern that matches nothing"):
        check_patterns([pattern])


def test_a_huge_file_of_patterns_is_refused(tmp_path: Path) -> None:
    """It is not held in memory."""
    (tmp_path / ".lodefsignore").write_bytes(b"x\n" * 600_000)
    with pytest.raises(InvalidInput, match="1,200,000 bytes"):
        list(Scan(bytes(tmp_path)))
