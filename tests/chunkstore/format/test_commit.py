"""Commits: what goes in comes out, and damage is noticed."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given

from lodefs.chunkstore.errors import Corrupt, InvalidInput, UnknownFormat
from lodefs.chunkstore.format.commit import (
    Commit,
    commit_id_of,
    decode_commit,
    encode_commit,
)
from lodefs.chunkstore.format.envelope import seal, unseal
from lodefs.chunkstore.format.names import digest_of
from tests.support.chunkstore import golden
from tests.support.chunkstore.strategies import commits

GOOD = golden.commit()


@pytest.mark.slow
@given(commits)
def test_round_trip(commit: Commit) -> None:
    """A commit comes back as it was; its id is the BLAKE3 of its bytes."""
    data = encode_commit(commit)
    assert decode_commit(data) == commit
    assert commit_id_of(data) == digest_of(data)


def test_metadata_has_a_version_of_its_own() -> None:
    """A commit without any is, byte for byte, as it was before there was metadata; so it has the
    same id when it is written again."""
    assert b'"version":2,' in encode_commit(GOOD)
    commit = replace(GOOD, metadata=(("a/b", "é = 1"), ("source", "")))
    data = encode_commit(commit)
    assert b'"version":3,' in data
    assert decode_commit(data) == commit


@pytest.mark.parametrize(
    "metadata",
    [None, [], {"a": 1}, {"a b": ""}, {"": ""}, {"a": "x\n"}, {"a": "x" * 40_000}, {"k" * 101: ""}],
)
def test_impossible_metadata(metadata: object) -> None:
    """What no push writes is damage."""
    body: dict[str, object] = unseal("commit", {2: dict}, encode_commit(GOOD), "commit")
    with pytest.raises(Corrupt):
        decode_commit(seal("commit", 3, body | {"metadata": metadata}))
    with pytest.raises(Corrupt):
        decode_commit(seal("commit", 3, body))
    with pytest.raises(Corrupt):
        decode_commit(seal("commit", 2, body | {"metadata": {}}))


def spoiled(**fields: object) -> bytes:
    body: dict[str, object] = unseal("commit", {2: dict}, encode_commit(GOOD), "commit")
    # as the fields stand in the golden file, one of them changed
    return seal("commit", 2, body | fields)


@pytest.mark.parametrize(
    "fields",
    [
        {"files": -1},
        {"size_bytes": -1},
        {"time_s": "now"},
        {"parents": ["abc"]},
        {"parents": ["G" * 64]},
        {"root": {"digest": "00" * 32, "size_bytes": 1, "segments": [["zz", 0, 1, 1]]}},
        {"root": {"digest": "00" * 32, "size_bytes": 1, "segments": [["00" * 32, -1, 1, 1]]}},
        {"root": {"digest": "00" * 32, "size_bytes": 1, "segments": [["00" * 32, 2**32, 1, 1]]}},
        {"root": {"digest": "00" * 32, "size_bytes": 1, "segments": [["00" * 32, 0, 1]]}},
        {"root": {"digest": "00" * 32, "size_bytes": 1, "segments": [["00" * 32, 0, 1, 2]]}},
        {"root": {"digest": "00" * 32, "size_bytes": 0, "segments": [["00" * 32, 0, 1, 0]]}},
        {"root": {"digest": "00" * 32, "size_bytes": 1, "segments": []}},
        {"root": {"digest": "00", "size_bytes": 1, "segments": []}},
        {"root": {"digest": "00" * 32, "size_bytes": -1, "segments": []}},
        {"more": 1},
    ],
)
def test_impossible_fields(fields: dict[str, object]) -> None:
    """Ids, counts and fields that cannot be are Corrupt, also with a right checksum."""
    assert decode_commit(spoiled()) == GOOD
    with pytest.raises(Corrupt, match="commits/abc"):
        decode_commit(spoiled(**fields), "commits/abc")


@pytest.mark.parametrize("large", [None, [], [1], [-1, 5], [1, -5], [1, 2, 3], ["1", 2]])
def test_impossible_totals_of_large_files(large: object) -> None:
    """A commit tells how many files are large, and how large they are, with numbers that can be."""
    body: dict[str, object] = unseal("commit", {2: dict}, encode_commit(GOOD), "commit")
    with pytest.raises(Corrupt):
        decode_commit(seal("commit", 2, body | {"large": large}))
    with pytest.raises(Corrupt):
        decode_commit(seal("commit", 2, {k: v for k, v in body.items() if k != "large"}))


def test_newer_version() -> None:
    """A commit of a newer lodefs is named as such."""
    with pytest.raises(UnknownFormat, match="newer lodefs"):
        decode_commit(seal("commit", 4, {}))


@pytest.mark.parametrize("text", ["\ud800", "x" * 70_000])
def test_impossible_texts(text: str) -> None:
    """A message or author that no document can hold is refused."""
    for commit in (replace(GOOD, message=text), replace(GOOD, author=text)):
        with pytest.raises(InvalidInput, match="author and message"):
            encode_commit(commit)
