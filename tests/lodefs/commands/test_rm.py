"""``lodefs rm`` and ``undelete``: what they say and ask."""

from __future__ import annotations

import pytest

import lodefs as api
from lodefs.chunkstore.repo.store import create_store
from tests.support.chunkstore.handmade import Handmade
from tests.support.chunkstore.memory_objects import MemoryObjects
from tests.support.lodefs.command_line import Lodefs, MemorySession


@pytest.fixture(autouse=True)
def repositories(objects: MemoryObjects) -> None:
    """One with two branches and a tag."""
    store = create_store(objects)
    made = Handmade(store)
    commit = made.commit("r", {b"a": b"a"})
    made.commit("r", {b"a": b"b"}, branch="dev")
    store.refs("r").advance("tags", "v1", commit, expected_sequence=None)


def test_a_repository(lodefs: Lodefs) -> None:
    """It asks, goes, is listed, and comes back."""
    refused = lodefs("rm", "r")
    assert (refused.code, lodefs("ls").out) == (2, "r\n")
    assert "this deletes r with 2 branches and 1 tag: give --yes" in refused.err
    assert "undo: lodefs undelete r\n" in lodefs("rm", "r", "--yes").out
    assert lodefs("ls").out == ""
    assert [one["kind"] for one in lodefs("undelete", "--json").json_lines] == ["repository"]
    assert "r by " in lodefs("undelete").out
    for words in (["ls", "r"], ["log", "r"], ["tag", "r"], ["du", "r"], ["reflog", "r@main"]):
        missing = lodefs(*words)
        if words[0] != "reflog":
            assert (missing.code, "was deleted by" in missing.err) == (3, True), words
    assert lodefs("undelete", "r").out.count(" again\n") == 3
    assert lodefs("ls").out == "r\n"


def test_a_branch_and_a_tag(lodefs: Lodefs) -> None:
    """Each goes alone, and comes back."""
    assert lodefs("rm", "r@v1", "--yes").out.startswith("deleted tag r@v1 (was ")
    assert lodefs("rm", "r@dev", "-y", "--json").json["refs"][0]["kind"] == "branch"
    assert [one["name"] for one in lodefs("undelete", "--json").json_lines] == ["dev", "v1"]
    assert lodefs("undelete", "r@v1").code == lodefs("undelete", "r@dev").code == 0
    assert lodefs("undelete", "r@dev").code == 4


def test_rubbish(lodefs: Lodefs) -> None:
    """What is not there, a commit, and a path are refused, each with the way out."""
    commit = lodefs("log", "r", "--json").json["commit"]
    for words, code, message in (
        (["rm", "x", "-y"], 3, "no repository x that you may read; memory: has r"),
        (["rm", "r@v9", "-y"], 3, "has no branch, tag or commit v9"),
        (["rm", f"r@{commit[:8]}", "-y"], 3, "neither a branch nor a tag"),
        (["rm", "r:a", "-y"], 2, "without a path"),
        (["undelete", "r"], 3, "r is not deleted"),
        (["undelete", "r@v9"], 3, "never had a branch or tag v9"),
        (["undelete", "--empty"], 2, "needs the name of a repository"),
        (["undelete", "--empty", "r@v1"], 2, "needs the name of a repository"),
    ):
        result = lodefs(*words)
        assert (result.code, message in result.err) == (code, True), result.err
    assert lodefs("undelete").out == ""


def test_python(objects: MemoryObjects) -> None:
    """The functions do the same."""
    session = MemorySession({"LODEFS_STORE": "memory:"}, objects)
    assert len(api.rm("r", session=session)) == 3
    assert [one.repo for one in api.deleted(session=session)] == ["r"]
    assert len(api.undelete("r", session=session).refs) == 3
