"""``lodefs gc``: what it says, and its exit codes."""

from __future__ import annotations

import pytest

from lodefs.chunkstore.errors import Denied
from lodefs.chunkstore.format import keys
from lodefs.chunkstore.repo.store import create_store, open_store
from tests.support.chunkstore.faulty_store import FaultyObjects, fail
from tests.support.chunkstore.handmade import Handmade
from tests.support.chunkstore.memory_objects import MemoryObjects
from tests.support.lodefs.command_line import Lodefs


@pytest.fixture(autouse=True)
def garbage(objects: MemoryObjects) -> None:
    """A branch that was deleted, and one that was not."""
    store = create_store(objects)
    Handmade(store).commit("r", {b"a": b"a" * 1000})
    store.refs("r").advance("branches", "main", None, expected_sequence=0)
    Handmade(store).commit("s", {b"b": b"b" * 1000})


def test_for_people(lodefs: Lodefs, monkeypatch: pytest.MonkeyPatch) -> None:
    """A dry run says what would be done; a run what was, and when more will be."""
    out = lodefs("gc", "--dry-run").out
    assert "to tombstone  2 packs, 1 commit" in out
    assert "next" not in out
    out = lodefs("gc").out
    assert "in use      2 packs, 1 commit" in out
    assert "deleted     nothing" in out
    assert "tombstoned  2 packs, 1 commit" in out
    assert "next        lodefs gc deletes more from 20" in out
    monkeypatch.setattr("time.time", lambda: 4_000_000_000.0)
    assert "deleted     2 packs, 1 commit" in lodefs("gc").out


def test_for_scripts(lodefs: Lodefs, objects: MemoryObjects) -> None:
    """--json has every figure; a lost branch can be got back until it is deleted."""
    found = lodefs("gc", "--json", "--dry-run").json
    assert (found["dry_run"], found["tombstoned_packs"], found["garbage_commits"]) == (True, 2, 1)
    assert found["tombstoned_bytes"] == found["garbage_bytes"] > 0
    assert lodefs("gc", "--json", "--grace", "7d").json["tombstoned_packs"] == 2
    assert lodefs("branch", "--undelete", "r", "main").code == 0
    assert lodefs("gc", "--json").json["garbage_packs"] == 0
    assert open_store(objects).refs("r").read("branches", "main").commit is not None


@pytest.mark.parametrize(
    "words",
    [
        ["--grace", "never"],
        ["--grace", "-1h"],
        ["--workers", "0"],
        ["--merge-packs-below", "0"],
        ["--merge-packs-below", "1GiB"],
        ["--merge-packs-below", "small"],
    ],
)
def test_nonsense(lodefs: Lodefs, words: list[str]) -> None:
    """Options that make no sense are refused, and nothing is written."""
    assert lodefs("gc", *words).code == 2


def test_small_packs(lodefs: Lodefs, objects: MemoryObjects) -> None:
    """They are put together, which people and scripts are told, and all commands find them."""
    maker = Handmade(open_store(objects))
    for n in range(9):
        maker.commit("s", {b"b": b"b" * 1000, b"%d" % n: b"%d" % n * 1000})
    before = lodefs("du", "--json").json_lines
    assert "to merge    20 packs" in lodefs("gc", "--merge-packs-below", "4MiB", "--dry-run").out
    found = lodefs("gc", "--merge-packs-below", "4MiB", "--json").json
    assert (found["merged_packs"], found["merged_composites"]) == (20, 1)
    assert sum(key.startswith(keys.PACKS) for key in objects.objects) == 2  # the garbage
    assert lodefs("verify", "--data").code == 0
    assert lodefs("du", "--json").json_lines == before
    assert lodefs("cat", "s:8").out == "8" * 1000
    assert lodefs("log", "s").code == 0
    assert lodefs("scrub").code == 0
    assert lodefs("repair", "--data", "--dry-run").code == 0
    out = lodefs("gc", "--merge-packs-below", "4MiB").out
    assert "store       22 packs" in out
    assert "; 20 of them merged into 1 object" in out
    assert "\nmerged" not in out


def test_refused_deletes(
    lodefs: Lodefs, objects: MemoryObjects, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An error of the store is told with its own exit code, and what to do."""
    lodefs("gc")
    monkeypatch.setattr("time.time", lambda: 4_000_000_000.0)
    faulty = FaultyObjects(objects)
    faulty.add(fail(Denied("deletes are not allowed")), "delete", keys.PACKS)
    monkeypatch.setattr(objects, "delete", faulty.delete)
    faulty.inner = MemoryObjects()
    result = lodefs("gc")
    assert result.code == 6
    assert "2 of 2 deletes failed: repeat the command" in result.err


def test_deletes_that_are_not_allowed(
    lodefs: Lodefs, objects: MemoryObjects, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A role that may not delete at all learns it before any outcome is decided."""
    lodefs("gc")
    monkeypatch.setattr("time.time", lambda: 4_000_000_000.0)

    def refuse(key: str) -> None:
        raise Denied(f"{key} may not be deleted")

    monkeypatch.setattr(objects, "delete", refuse)
    result = lodefs("gc")
    assert result.code == 6
    assert "nothing was deleted or decided" in result.err
    assert not any(key.startswith("journal/fates/") for key in objects.objects)


def test_what_stays_beside_merged_packs(
    lodefs: Lodefs, objects: MemoryObjects, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run says how much, until one puts the object again; its dry run says so before."""
    store = open_store(objects)
    Handmade(store).commit("t", {b"c": b"c" * 1000})
    lodefs("gc", "--merge-packs-below", "4MiB")
    store.refs("s").advance("branches", "main", None, expected_sequence=0)
    assert "unused" not in lodefs("gc").out
    monkeypatch.setattr("time.time", lambda: 4_000_000_000.0)
    assert "stay beside merged packs that are in use" in lodefs("gc").out
    assert (
        "to rewrite  1 object of merged packs" in lodefs("gc", "--min-used", "1", "--dry-run").out
    )
    assert lodefs("gc", "--min-used", "1", "--json").json["rewritten_composites"] == 1
    assert lodefs("gc", "--json").json["unused_bytes"] == 0
    assert lodefs("cat", "t:c").out == "c" * 1000
