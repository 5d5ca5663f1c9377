"""lodefs push of a URL."""

from __future__ import annotations

import tarfile
from pathlib import Path

import pytest

from lodefs.chunkstore.push.remote import remote_files
from tests.support.chunkstore.memory_remote import MemoryRemote
from tests.support.lodefs.command_line import Lodefs

FILES = {b"a/x": b"1", b"a/y": b"22", b"b": b"333"}


@pytest.fixture
def source(lodefs: Lodefs, monkeypatch: pytest.MonkeyPatch) -> MemoryRemote:
    """A source in memory, and an empty store."""
    lodefs("init", "s3://memory")
    source = MemoryRemote(dict(FILES))
    monkeypatch.setitem(remote_files.SCHEMES, "memory", lambda _url: source)
    return source


def test_whole_branch(lodefs: Lodefs, source: MemoryRemote) -> None:
    """The files below a URL become the branch, and a second push reads none of them."""
    found = lodefs("push", "memory://bucket/x", "r", "--json").json
    assert (found["files"], found["files_read"]) == (3, 3)
    assert lodefs("cat", "r:a/y").out == "22"
    found = lodefs("push", "memory://bucket/x", "r", "--json").json
    assert (found["unchanged"], found["files_read"]) == (True, 0)
    assert len(source.reads) == 3


def test_files_without_states_are_counted(lodefs: Lodefs, source: MemoryRemote) -> None:
    """A source that cannot tell whether files change is named as such, at each push."""
    assert "each push reads" not in lodefs("push", "memory://bucket/x", "r").err
    source.has_states = False
    for _ in range(2):
        assert "each push reads 3 files again" in lodefs("push", "memory://bucket/x", "r").err
    assert lodefs("push", "memory://bucket/x", "r", "--json").json["stateless_files"] == 3


def test_into_a_path(lodefs: Lodefs, source: MemoryRemote) -> None:
    """All other files stay; before a slash the last part of the URL is the name."""
    lodefs("push", "memory://bucket/x", "r:data")
    lodefs("push", "memory://bucket/x/?region=y", "r:more/")
    del source.files[b"b"]
    lodefs("push", "memory://bucket/x", "r:data")
    assert lodefs("ls", "r:data").out.split() == ["a/"]
    assert lodefs("cat", "r:more/x/b").out == "333"


def test_one_file(lodefs: Lodefs, source: MemoryRemote) -> None:
    """A URL of one file is pushed as a local file is."""
    source.files = {b"": b"1234"}
    lodefs("push", "memory://bucket/one.txt", "r:")
    lodefs("push", "memory://bucket/one.txt", "r:two.txt")
    assert lodefs("ls", "r").out.split() == ["one.txt", "two.txt"]
    assert lodefs("cat", "r:two.txt").out == "1234"
    refused = lodefs("push", "memory://bucket/one.txt", "r")
    assert refused.code and "is one file: name its path" in refused.err


def test_from_list(lodefs: Lodefs, source: MemoryRemote, tmp_path: Path) -> None:
    """Only what a list names is pushed, and the other files stay."""
    lodefs("push", "memory://bucket/x", "r")
    source.files |= {b"a/x": b"new", b"b": b"new", b"c d/e": b"new"}
    (tmp_path / "list").write_text("b\nc d/e\n")
    lodefs("push", "memory://bucket/x", "r", "--from-list", str(tmp_path / "list"))
    assert [lodefs("cat", f"r:{path}").out for path in ("a/x", "b", "c d/e")] == ["1", "new", "new"]


def packed(tmp_path: Path) -> Path:
    """A tar of one file."""
    (tmp_path / "x").write_bytes(b"1234")
    path = tmp_path / "x.tar.gz"
    with tarfile.open(path, "w:gz") as archive:
        archive.add(tmp_path / "x", "d/x")
    return path


def test_unpack(lodefs: Lodefs, source: MemoryRemote, tmp_path: Path) -> None:
    """Archives become the branch or a path, from files and from URLs."""
    archive = packed(tmp_path)
    lodefs("push", str(archive), "r", "--unpack")
    assert lodefs("cat", "r:d/x").out == "1234"
    source.files = {b"": archive.read_bytes()}
    lodefs("push", "memory://bucket/x.tar.gz", "r:in", "--unpack")
    assert lodefs("cat", "r:in/d/x").out == "1234"
    assert lodefs("ls", "r").out.split() == ["d/", "in/"]
    again = lodefs("push", "memory://bucket/x.tar.gz", "r:in", "--unpack", "--json").json
    assert again["unchanged"] and not again["new_bytes"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--unpack", "--from-list", "-"), "--unpack does not go with --from-list"),
        (("--max-size", "1MB"), "--max-size needs --unpack"),
        (("--unpack", "--max-size", "1"), "unpacks to more than 1 bytes"),
    ],
)
def test_unpack_refused(
    lodefs: Lodefs, source: MemoryRemote, tmp_path: Path, words: tuple[str, ...], message: str
) -> None:
    """What does not go together, and what is too large, is said."""
    result = lodefs("push", str(packed(tmp_path)), "r", *words)
    assert result.code and message in result.err


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (("nothing://host/x", "r"), "not a kind of source"),
        (("nothing://host/x", "r:x"), "not a kind of source"),
        (("memory://x", "r", "--every", "1m"), "--every takes one directory"),
    ],
)
@pytest.mark.usefixtures("source")
def test_refused(lodefs: Lodefs, args: tuple[str, ...], message: str) -> None:
    """What a URL cannot be pushed with is said, and nothing is committed."""
    result = lodefs("push", *args)
    assert result.code
    assert message in result.err
