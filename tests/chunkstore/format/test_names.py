"""Names: what is taken, what is refused."""

from __future__ import annotations

import pytest
from blake3 import blake3
from hypothesis import given
from hypothesis import strategies as st

from lodefs.chunkstore.errors import InvalidInput
from lodefs.chunkstore.format.names import (
    Spec,
    check_ref_name,
    check_repo,
    digest_of,
    is_commit_prefix,
    parse_id,
    parse_revision,
    parse_spec,
    split_path,
)


def test_digest_is_plain_blake3() -> None:
    """A digest is what b3sum prints."""
    assert digest_of(b"").hex().startswith("af1349b9f5f9a1a6a0404dea36dcc949")
    assert digest_of(memoryview(b"abc")) == blake3(b"abc").digest()


@pytest.mark.parametrize("name", ["a", "vision/flickr30k", "A.b_c-d/0", "x" * 200])
def test_good_repos(name: str) -> None:
    """Letters, digits and ._- in parts joined by /."""
    assert check_repo(name) == name


@pytest.mark.parametrize(
    "name",
    ["", "/", "a/", "/a", "a//b", "..", "a/../b", ".a", "-a", "a b", "a\n", "ü", "a@b", "a:b",
     "x" * 201, "refs", "a/commits", "commits/a", "a\0"],
)  # fmt: skip
def test_bad_repos(name: str) -> None:
    """Names that could leave the prefix, or be mistaken for something else."""
    with pytest.raises(InvalidInput):
        check_repo(name)


@pytest.mark.parametrize("name", ["main", "v1.0-rc_2", "0"])
def test_good_refs(name: str) -> None:
    """Letters, digits and ._-."""
    assert check_ref_name(name) == name


@pytest.mark.parametrize("name", ["", "a/b", "..", ".", "-f", "a\n", "x" * 101])
def test_bad_refs(name: str) -> None:
    """Names that could leave the prefix."""
    with pytest.raises(InvalidInput):
        check_ref_name(name)


@pytest.mark.parametrize(
    ("rev", "name", "steps"),
    [
        ("main", "main", ()),
        ("v1.0~", "v1.0", (1,)),
        ("main~3", "main", (1, 1, 1)),
        ("main^", "main", (1,)),
        ("main^^2~2", "main", (1, 2, 1, 1)),
        ("8b9f94~0^0", "8b9f94", ()),
        ("a-b_c~1000", "a-b_c", (1,) * 1000),
    ],
)
def test_revisions(rev: str, name: str, steps: tuple[int, ...]) -> None:
    """A name, and the way from there back, in git's grammar."""
    assert parse_revision(rev) == (name, steps)
    assert parse_spec(f"r@{rev}:p") == Spec("r", rev, b"p")


@pytest.mark.parametrize(
    "rev",
    ["", "~1", "^", "main~-1", "main~1x", "main^1/2", "main~1\n", "main@{1}", "main^22",
     "main~1001", "main~1000^", "main~99999", "main~\u0661", "m" + "^" * 100],
)  # fmt: skip
def test_bad_revisions(rev: str) -> None:
    """Anything else is refused, and so is a way that would take too long."""
    with pytest.raises(InvalidInput):
        parse_revision(rev)


@pytest.mark.parametrize("text", ["", "ab" * 31, "ab" * 33, "AB" * 32, "g" * 64, "ab" * 31 + "a\n"])
def test_bad_ids(text: str) -> None:
    """An id is 64 lower-case hex characters, nothing else."""
    with pytest.raises(InvalidInput, match="not a commit id"):
        parse_id(text, "commit id")


@given(st.binary(min_size=32, max_size=32))
def test_ids(raw: bytes) -> None:
    """An id comes back from its hex form, and its beginning may be one."""
    assert parse_id(raw.hex()) == raw
    assert is_commit_prefix(raw.hex())
    assert is_commit_prefix(raw.hex()[:6])
    assert not is_commit_prefix(raw.hex()[:5])
    assert not is_commit_prefix(raw.hex() + "0")


@pytest.mark.parametrize(
    ("text", "spec"),
    [
        ("a", Spec("a")),
        ("a/b@v1", Spec("a/b", "v1")),
        ("a/b@v1:x/y", Spec("a/b", "v1", b"x/y")),
        ("a:x", Spec("a", "main", b"x")),
        ("a:/x//./y/", Spec("a", "main", b"x/y")),
        ("a:", Spec("a")),
        ("a:x@y:z", Spec("a", "main", b"x@y:z")),
        ("a:\udcff", Spec("a", "main", b"\xff")),
        (b"a:\xff\n", Spec("a", "main", b"\xff\n")),
    ],
)
def test_specs(text: str | bytes, spec: Spec) -> None:
    """REPO[@REV][:PATH] in all its forms."""
    assert parse_spec(text) == spec


@pytest.mark.parametrize(
    "text",
    ["", "@", ":x", "a@", "a@:x", "a@b/c", "a b", "a:..", "a:x/../y", "a:x\0", b"\xff", "\udcff",
     "a:" + "x" * 256, "../a", "a@../b"],
)  # fmt: skip
def test_bad_specs(text: str | bytes) -> None:
    """Malformed parts are refused, and paths that could leave the snapshot."""
    with pytest.raises(InvalidInput):
        parse_spec(text)


@given(st.binary(max_size=40))
def test_split_path(path: bytes) -> None:
    """A path is refused, or its parts are names that a directory can hold."""
    try:
        parts = split_path(path)
    except InvalidInput:
        return
    assert all(part not in (b"", b".", b"..") and b"/" not in part for part in parts)
    assert split_path(b"/".join(parts)) == parts


def test_a_spec_for_people() -> None:
    """A spec prints as it is typed, with bytes that are not UTF-8 escaped."""
    assert str(Spec("a", "v1", b"x\xff")) == "a@v1:x\\xff"
    assert str(Spec("a")) == "a@main"
