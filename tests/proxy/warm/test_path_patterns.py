"""Paths and patterns against whole trees of names."""

from __future__ import annotations

import re
from fnmatch import translate

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lodefs.chunkstore.errors import InvalidInput
from lodefs.proxy.warm.path_patterns import GLOBS_MAX, Selection, common_directory, is_glob

TREE = [
    b"README",
    b"images/a/1.jpg",
    b"images/a/2.png",
    b"images/b/deep/er/3.jpg",
    b"images/0.jpg",
    b"labels/a.txt",
    b"labels/.hidden",
    b"odd/a[1].txt",
    b"odd/\xff\n",
]


def selected(selection: Selection, paths: list[bytes]) -> set[bytes]:
    """The files of a tree that a walk down from the root takes."""
    found = set()
    for path in paths:
        state = selection.start()
        for name in path.split(b"/"):
            if state.is_over:
                break
            state = selection.step(state, name)
        if state.is_whole:
            found.add(path)
    return found


@pytest.mark.parametrize(
    ("paths", "globs", "expected"),
    [
        ([], [], TREE),
        ([b""], [], TREE),
        ([], [b"**"], TREE),
        ([b"images"], [], TREE[1:5]),
        ([b"/images//a/"], [], TREE[1:3]),
        ([b"images/a/1.jpg", b"README"], [], [TREE[0], TREE[1]]),
        ([b"images", b"images/a/1.jpg"], [], TREE[1:5]),
        ([], [b"images/**/*.jpg"], [TREE[1], TREE[3], TREE[4]]),
        ([], [b"**/*.jpg"], [TREE[1], TREE[3], TREE[4]]),
        ([], [b"*.jpg"], []),
        ([], [b"images/?"], TREE[1:4]),
        ([], [b"images/[!a]"], [TREE[3]]),
        ([], [b"*/a*"], [TREE[1], TREE[2], TREE[5], TREE[7]]),
        ([], [b"labels/*"], TREE[5:7]),
        ([], [b"images/**/deep/**/*.jpg"], [TREE[3]]),
        ([], [b"**/**/3.jpg"], [TREE[3]]),
        ([b"odd/a[1].txt"], [], [TREE[7]]),
        ([], [b"odd/a[[]1].txt"], [TREE[7]]),
        ([], [b"odd/a[1].txt"], []),
        ([], [b"odd/\xff*"], [TREE[8]]),
        ([b"README"], [b"labels/*.txt"], [TREE[0], TREE[5]]),
    ],
)
def test_what_is_selected(paths: list[bytes], globs: list[bytes], expected: list[bytes]) -> None:
    """Each selection means just these files."""
    assert selected(Selection(paths, globs), TREE) == set(expected)


def test_what_matched_nothing_is_known() -> None:
    """After a walk the patterns without a match are named, and no others."""
    selection = Selection([b"README", b"no/such"], [b"images/*", b"*.zip"])
    selected(selection, TREE)
    assert selection.unmatched() == [b"no/such", b"*.zip"]


def test_everything_is_known_without_a_walk() -> None:
    """Only what surely means the whole snapshot counts as everything."""
    assert Selection().is_everything
    assert Selection([b"/"]).is_everything
    assert Selection([], [b"**"]).is_everything
    assert not Selection([b"a"]).is_everything
    assert not Selection([b"", b"perhaps/missing"]).is_everything
    assert not Selection([], [b"*"]).is_everything


@pytest.mark.parametrize("path", [b"../x", b"a/../b", b"a\0b", b"x" * 256])
def test_bad_paths_are_refused(path: bytes) -> None:
    """What cannot be in a snapshot is InvalidInput, as a path and as a pattern."""
    with pytest.raises(InvalidInput):
        Selection([path])
    with pytest.raises(InvalidInput):
        Selection([], [path])


def test_too_many_patterns_are_refused() -> None:
    """Patterns are bounded, since each costs for every name."""
    with pytest.raises(InvalidInput, match="at most"):
        Selection([], [b"*%d" % n for n in range(GLOBS_MAX + 1)])


def test_patterns_are_bounded_together() -> None:
    """However few they are, all patterns of a request have a bound in bytes, which the refusal
    names with the ways out; plain paths do not count."""
    longest = b"/".join([b"*" + b"x" * 99] * 600)
    Selection([longest.replace(b"*", b"x")] * 10, [longest])
    with pytest.raises(
        InvalidInput, match="65,536 bytes together: ask for several jobs, or give a"
    ):
        Selection([], [longest, longest])


names = st.sampled_from([b"a", b"b", b"ab", b"ba", b".a"])
parts = st.sampled_from([b"a", b"b", b"*", b"?", b"a*", b"[ab]", b"**", b"**"])


@given(
    st.lists(st.lists(names, min_size=1, max_size=4).map(b"/".join), max_size=12),
    st.lists(st.lists(parts, min_size=1, max_size=4).map(b"/".join), min_size=1, max_size=3),
)
def test_globs_mean_what_their_definition_says(paths: list[bytes], globs: list[bytes]) -> None:
    """A file is meant just where a pattern matches its path or that of a directory above it."""
    expressions = [expression(glob) for glob in globs]
    expected = {
        path
        for path in paths
        for end in range(len(path.split(b"/")) + 1)
        if any(
            one.fullmatch(b"".join(n + b"/" for n in path.split(b"/")[:end])) for one in expressions
        )
    }
    assert selected(Selection([], globs), paths) == expected


def above(path: bytes, depth: int) -> bytes:
    """The first names of a path, each with a slash at its end."""
    return b"".join(name + b"/" for name in path.split(b"/")[:depth])


def expression(glob: bytes) -> re.Pattern[bytes]:
    """A pattern as one regular expression over names that each end in a slash."""
    text = ""
    for part in glob.decode().split("/"):
        name = translate(part).replace(r"\Z", "").replace(".", "[^/]")
        text += "(?:[^/]*/)*" if part == "**" else f"(?:{name})/"
    return re.compile(text.encode())


def test_common_directory() -> None:
    """The deepest directory that everything lies at or below."""
    assert common_directory([]) == b""
    assert common_directory([b"a/b/c"]) == b"a/b/c"
    assert common_directory([b"a/b/*.jpg", b"a/b/c/d"]) == b"a/b"
    assert common_directory([b"a/b", b"c"]) == b""
    assert common_directory([b"a/**/x"]) == b"a"
    assert is_glob(b"a?") and not is_glob(b"a/b")
