"""Refs: logs that only grow, and of many writers one wins."""

from __future__ import annotations

import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lodefs.chunkstore.errors import Conflict, Corrupt, InvalidInput, NotFound, UnknownFormat
from lodefs.chunkstore.format import keys
from lodefs.chunkstore.format.envelope import seal
from lodefs.chunkstore.format.names import CommitId, digest_of
from lodefs.chunkstore.repo.refs import BRANCHES, TAGS, RefEntry, Refs
from tests.support.chunkstore.memory_objects import MemoryObjects


def commit_id(n: int) -> CommitId:
    return CommitId(digest_of(b"%d" % n))


class Clock:
    """One second passes with each look."""

    def __init__(self) -> None:
        self.now_s = 1000.5

    def __call__(self) -> float:
        self.now_s += 1
        return self.now_s


@pytest.fixture
def refs() -> Refs:
    return Refs(MemoryObjects(), "some/repo", Clock())


def test_a_branch_moves_on(refs: Refs) -> None:
    """A branch is where it was moved last; its history is all moves, the newest first."""
    first = refs.advance(BRANCHES, "main", commit_id(1), expected_sequence=None)
    second = refs.advance(BRANCHES, "main", commit_id(2), expected_sequence=first.sequence)
    assert second == RefEntry(commit_id(2), 1, 1002)
    assert refs.read(BRANCHES, "main") == second
    assert list(refs.history(BRANCHES, "main")) == [second, first]


def test_what_is_not_there(refs: Refs) -> None:
    """A ref that never was is NotFound, has no history, and is not listed."""
    with pytest.raises(NotFound, match="some/repo has no branch main"):
        refs.read(BRANCHES, "main")
    assert refs.latest(TAGS, "v1") is None
    assert list(refs.history(BRANCHES, "main")) == []
    assert refs.list(BRANCHES) == {}


def test_delete_and_come_back(refs: Refs) -> None:
    """A deleted ref is NotFound and not listed; its log goes on when it comes back."""
    refs.advance(TAGS, "v1", commit_id(1), expected_sequence=None)
    gone = refs.advance(TAGS, "v1", None, expected_sequence=0)
    with pytest.raises(NotFound, match="has no tag v1"):
        refs.read(TAGS, "v1")
    assert refs.list(TAGS) == {}
    assert list(refs.names(TAGS)) == ["v1"]
    assert refs.latest(TAGS, "v1") == gone
    with pytest.raises(Conflict, match="it is deleted now"):
        refs.advance(TAGS, "v1", commit_id(2), expected_sequence=None)
    back = refs.advance(TAGS, "v1", commit_id(2), expected_sequence=1)
    assert refs.read(TAGS, "v1") == back
    assert [entry.sequence for entry in refs.history(TAGS, "v1")] == [2, 1, 0]


@pytest.mark.parametrize("expected", [None, 0, 2, 7])
def test_conflict(refs: Refs, expected: int | None) -> None:
    """Who expects another place is told where the ref is and that a repeat helps; it stays."""
    for sequence in (None, 0):
        refs.advance(BRANCHES, "main", commit_id(1), expected_sequence=sequence)
    with pytest.raises(Conflict, match=f"at {commit_id(1).hex()[:12]} now.*re"):
        refs.advance(BRANCHES, "main", commit_id(9), expected_sequence=expected)
    assert refs.read(BRANCHES, "main").commit == commit_id(1)


def test_conflict_where_nothing_is(refs: Refs) -> None:
    """Who expects entries of a ref that has none is told."""
    with pytest.raises(Conflict, match="it has no entries"):
        refs.advance(BRANCHES, "main", commit_id(9), expected_sequence=3)


def test_one_of_many_wins(refs: Refs) -> None:
    """Of eight who move a branch at once, one wins each sequence; who repeats loses nothing."""
    moves_each = 5
    won: list[list[RefEntry]] = [[] for _ in range(8)]

    def move(writer: int) -> None:
        while len(won[writer]) < moves_each:
            latest = refs.latest(BRANCHES, "main")
            expected = None if latest is None else latest.sequence
            target = commit_id(100 * writer + len(won[writer]))
            try:
                entry = refs.advance(BRANCHES, "main", target, expected_sequence=expected)
            except Conflict:
                continue
            won[writer].append(entry)

    threads = [threading.Thread(target=move, args=(n,), daemon=True) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    moves = sorted((entry for mine in won for entry in mine), key=lambda entry: -entry.sequence)
    assert [entry.sequence for entry in moves] == list(range(8 * moves_each))[::-1]
    assert list(refs.history(BRANCHES, "main")) == moves


names = st.from_regex(r"[A-Za-z0-9][A-Za-z0-9._-]{0,5}", fullmatch=True)


@pytest.mark.slow
@given(st.dictionaries(names, st.integers(1, 3), max_size=8))
def test_list_finds_all(wanted: dict[str, int]) -> None:
    """All refs of a kind are listed, whatever their names are the beginning of."""
    refs = Refs(MemoryObjects(), "repo", Clock())
    for name, moves in wanted.items():
        for n in range(moves):
            refs.advance(TAGS, name, commit_id(n), expected_sequence=n - 1 if n else None)
    found = refs.list(TAGS)
    assert {name: entry.sequence + 1 for name, entry in found.items()} == wanted
    assert refs.list(BRANCHES) == {}


def test_repositories_do_not_mix() -> None:
    """A repository does not see the refs of another one whose name begins like its own."""
    objects = MemoryObjects()
    Refs(objects, "a/b").advance(BRANCHES, "main", commit_id(1), expected_sequence=None)
    assert Refs(objects, "a").list(BRANCHES) == {}


@pytest.mark.parametrize("name", ["", "..", "a/b", "-x", "a b", "x" * 101, "ü"])
def test_malformed_names(refs: Refs, name: str) -> None:
    """A name that cannot be a ref's is refused before it becomes a key."""
    for use in (
        lambda: refs.read(BRANCHES, name),
        lambda: refs.history(BRANCHES, name),
        lambda: refs.advance(BRANCHES, name, commit_id(1), expected_sequence=None),
    ):
        with pytest.raises(InvalidInput, match="not a branch or tag name"):
            use()
    with pytest.raises(InvalidInput, match="not a kind of ref"):
        refs.read("heads", "main")


def test_a_malformed_repository() -> None:
    """A name that cannot be a repository's is refused."""
    with pytest.raises(InvalidInput):
        Refs(MemoryObjects(), "../x")


BODY = {
    "repo": "repo",
    "kind": "branches",
    "name": "main",
    "sequence": 0,
    "commit": "00" * 32,
    "time_s": 1,
}
KEY = keys.ref_entry("repo", BRANCHES, "main", 0)


@pytest.mark.parametrize(
    "document",
    [
        b"",
        b"{}",
        seal("ref", 1, BODY | {"repo": "other"}),
        seal("ref", 1, BODY | {"name": "dev"}),
        seal("ref", 1, BODY | {"kind": "tags"}),
        seal("ref", 1, BODY | {"sequence": 1}),
        seal("ref", 1, BODY | {"sequence": -1}),
        seal("ref", 1, BODY | {"commit": "abc"}),
        seal("ref", 1, BODY | {"commit": 5}),
        seal("commit", 1, BODY),
        seal("ref", 1, BODY)[:-1],
    ],
)
def test_spoiled_entries(document: bytes) -> None:
    """An entry that is spoiled, or belongs elsewhere, is Corrupt and named."""
    objects = MemoryObjects()
    refs = Refs(objects, "repo")
    objects.put(KEY, [seal("ref", 1, BODY)])
    assert refs.read(BRANCHES, "main") == RefEntry(CommitId(bytes(32)), 0, 1)
    objects.put(KEY, [document])
    with pytest.raises(Corrupt, match=KEY):
        refs.read(BRANCHES, "main")


def test_newer_version() -> None:
    """An entry of a newer lodefs is named as such."""
    objects = MemoryObjects()
    objects.put(KEY, [seal("ref", 2, BODY)])
    with pytest.raises(UnknownFormat, match="newer lodefs"):
        Refs(objects, "repo").read(BRANCHES, "main")


def test_a_key_that_is_no_entry() -> None:
    """A foreign object among a ref's entries is Corrupt, never taken for one."""
    objects = MemoryObjects()
    objects.put(keys.ref("repo", BRANCHES, "main") + "0-copy", [seal("ref", 1, BODY)])
    with pytest.raises(Corrupt, match="0-copy"):
        Refs(objects, "repo").read(BRANCHES, "main")
