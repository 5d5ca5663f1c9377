"""``lodefs retain``: what it says and asks."""

from __future__ import annotations

import pytest

import lodefs as api
from lodefs.chunkstore.repo.store import create_store
from tests.support.chunkstore.handmade import Handmade
from tests.support.chunkstore.memory_objects import MemoryObjects
from tests.support.lodefs.command_line import Lodefs, MemorySession


@pytest.fixture(autouse=True)
def repository(objects: MemoryObjects) -> None:
    """One with four commits on main."""
    made = Handmade(create_store(objects))
    for n in range(4):
        made.commit("r", {b"a": bytes([n])}, message=f"number {n}")


def test_a_policy(lodefs: Lodefs, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is tried, refused without --yes, set, shown, followed by gc and log, and cleared."""
    assert lodefs("retain", "r").out == "policy   none: all history is kept\nkeeps    4 commits\n"
    tried = lodefs("retain", "r", "--keep-last", "2", "--dry-run").out
    assert "expires  2 commits" in tried
    assert "number 0" in tried
    refused = lodefs("retain", "r", "--keep-last", "2")
    assert (
        refused.code,
        "keeps 2 commits of r, and lets 2 commits go: give --yes" in refused.err,
    ) == (
        2,
        True,
    )
    assert lodefs("retain", "r").out.startswith("policy   none")
    assert lodefs("retain", "r", "--keep-last", "2", "-y").code == 0
    assert "policy   --keep-last 2\nkeeps    2 commits\n" in lodefs("retain", "r", "--show").out
    assert lodefs("du", "r", "--json").json["commits"] == 2
    assert "expired     2 commits, by retention" in lodefs("gc").out
    monkeypatch.setattr("time.time", lambda: 4_000_000_000.0)
    lodefs("gc")
    shown = lodefs("log", "r", "--json")
    assert [one["message"] for one in shown.json_lines] == ["number 3", "number 2"]
    assert "older commits of r have expired" in shown.err
    gone = lodefs("ls", f"r@{shown.json_lines[1]['parents'][0][:10]}")
    assert (gone.code, "expired by the retention policy of r" in gone.err) == (3, True)
    assert lodefs("retain", "r", "--clear", "--json").json["policy"] is None
    assert lodefs("log", "r").code == lodefs("verify").code == 0


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        (["x", "--keep-last", "1"], 3, "no repository x"),
        (["r@main"], 2, "a policy is of a whole repository: r"),
        (["r", "--keep-last", "0"], 2, "0 is not in the range"),
        (["r", "--keep-within", "soon"], 2, "not a duration"),
        (["r", "--clear", "--keep-last", "1"], 2, "does nothing with --clear"),
        (["r", "--show", "--keep-tagged"], 2, "does nothing with --show"),
    ],
)
def test_rubbish(lodefs: Lodefs, words: list[str], code: int, message: str) -> None:
    """Nonsense is refused, and nothing is set."""
    result = lodefs("retain", *words)
    assert (result.code, message in result.err) == (code, True), result.err
    assert lodefs("retain", "r").out.startswith("policy   none")


def test_python(objects: MemoryObjects) -> None:
    """lodefs.retain does the same."""
    session = MemorySession({"LODEFS_STORE": "memory:"}, objects)
    plan = api.retain("r", keep_tagged=True, session=session)
    assert (plan.kept, sorted(one.message for one in plan.expiring)) == (
        1,
        [f"number {n}" for n in range(3)],
    )
    assert str(api.retain("r", session=session).policy) == "--keep-tagged"
