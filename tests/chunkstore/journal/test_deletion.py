"""Repositories that are deleted, and come back."""

from __future__ import annotations

from pathlib import Path

import pytest

from lodefs.chunkstore.errors import AlreadyExists, Conflict, InvalidInput, NotFound, Unavailable
from lodefs.chunkstore.format import keys
from lodefs.chunkstore.format.envelope import seal
from lodefs.chunkstore.format.journal import RefName
from lodefs.chunkstore.format.names import CommitId, digest_of
from lodefs.chunkstore.journal.deletion import (
    delete_repo,
    deleted_refs,
    free_name,
    living_refs,
    undelete_ref,
    undelete_repo,
)
from lodefs.chunkstore.maintenance.collect import CollectOptions, collect
from lodefs.chunkstore.maintenance.writers import forget_removed
from lodefs.chunkstore.repo.store import Store, create_store, open_store
from tests.support.chunkstore.faulty_store import FaultyObjects, fail
from tests.support.chunkstore.handmade import Handmade
from tests.support.chunkstore.memory_objects import MemoryObjects
from tests.support.maintenance.schedules import one_at_a_time
from tests.support.maintenance.world import REPO, World, finish, go_on_to

DAY_S = 86_400


@pytest.fixture
def objects() -> MemoryObjects:
    """A store with r (main, old, v1; gone is deleted already) and r/s."""
    objects = MemoryObjects()
    store = create_store(objects)
    made = Handmade(store)
    for branch in ("main", "old", "gone"):
        made.commit("r", {b"a": branch.encode()}, branch=branch)
    store.refs("r").advance("tags", "v1", store.resolve("r", "main"), expected_sequence=None)
    store.refs("r").advance("branches", "gone", None, expected_sequence=0)
    made.commit("r/s", {b"b": b"other"})
    return objects


def _collect(store: Store, day: int) -> int:
    """The packs that a gc run on a day deletes."""
    return collect(store, CollectOptions(clock=lambda: 2e9 + day * DAY_S)).deleted.packs


def test_a_deleted_repository_is_unknown(objects: MemoryObjects) -> None:
    """No list, name or commit leads to it; a push says what it is. Others stay."""
    store = open_store(objects)
    commit = store.resolve("r", "v1")
    assert len(delete_repo(store, "r", "me", lambda: 1.7e9)) == 3
    assert list(store.repos()) == ["r/s"]
    assert list(store.repos(deleted=True)) == ["r", "r/s"]
    assert not store.has_refs("r")
    for rev in ("main", "v1", commit.hex(), commit.hex()[:8]):
        with pytest.raises(NotFound, match="r was deleted by me on 2023-11-14 22:13:20 UTC: `lode"):
            store.resolve("r", rev)
    with pytest.raises(AlreadyExists, match="undelete --empty r"):
        store.check_new_ref("r", "branches", "new")
    with pytest.raises(NotFound, match="was deleted"):
        delete_repo(store, "r", "me")


def test_what_was_deleted_long_before_stays_deleted(objects: MemoryObjects) -> None:
    """Once a single branch is back, a later deletion remembers what the repository has then; a
    branch does not come back under the name of a tag."""
    store = open_store(objects)
    delete_repo(store, "r", "me")
    undelete_ref(store, RefName("r", "branches", "main"))
    commit = store.resolve("r", "main")
    store.refs("r").advance("tags", "old", commit, expected_sequence=None)
    delete_repo(store, "r", "me")
    found = undelete_repo(store, "r")
    names = [("branches", "main"), ("tags", "old")]
    assert [(ref.kind, ref.name) for ref, _ in found.refs] == names
    assert [(ref.kind, ref.name) for ref, _ in living_refs(store, "r")] == names
    with pytest.raises(InvalidInput, match="r has a tag old"):
        undelete_ref(store, RefName("r", "branches", "old"))


def test_it_comes_back_as_it_was(objects: MemoryObjects) -> None:
    """Branches and tags are where they were, also after a gc run; one that was deleted before
    stays deleted."""
    store = open_store(objects)
    before = {kind: store.refs("r").list(kind) for kind in ("branches", "tags")}
    delete_repo(store, "r", "me")
    _collect(store, 0)
    found = undelete_repo(store, "r")
    assert (len(found.refs), found.lost) == (3, [])
    for kind, refs in before.items():
        after = store.refs("r").list(kind)
        assert {name: e.commit for name, e in after.items()} == {
            n: e.commit for n, e in refs.items()
        }
    assert [(one.name, one.is_there) for one in deleted_refs(store, "r")] == [("gone", True)]
    with pytest.raises(NotFound, match="r is not deleted"):
        undelete_repo(store, "r")
    for day in (2, 4):
        _collect(store, day)
    assert collect(store, CollectOptions(clock=lambda: 2e9 + 9 * DAY_S)).used_commits == 3


def test_its_data_goes_and_then_it_is_lost(objects: MemoryObjects) -> None:
    """After the grace time nothing comes back, which is said; the name can be freed."""
    store = open_store(objects)
    delete_repo(store, "r", "me")
    _collect(store, 0)
    assert _collect(store, 2) > 0
    assert not any(key.startswith("repos/r/commits/") for key in objects.objects)
    with pytest.raises(NotFound, match="gc` has deleted its data since: `lodefs undelete --empty"):
        store.resolve("r", "main")
    found = undelete_repo(store, "r")
    assert (found.refs, len(found.lost)) == ([], 3)
    assert all("`lodefs undelete --empty r` frees the name" in why for _, why in found.lost)
    free_name(store, "r")
    Handmade(store).commit("r", {b"a": b"new"})
    assert list(store.repos()) == ["r", "r/s"]
    with pytest.raises(NotFound, match="not a deleted"):
        free_name(store, "r")


def test_a_damaged_one_keeps_no_other_back(objects: MemoryObjects) -> None:
    """A branch whose commit is damaged, or of a newer format, is told as lost; others come."""
    store = open_store(objects)
    old = store.resolve("r", "old")
    newer = seal("commit", 99, {})
    newer_id = CommitId(digest_of(newer))
    objects.objects[keys.commit("r", newer_id)] = newer
    store.refs("r").advance("branches", "newer", newer_id, expected_sequence=None)
    delete_repo(store, "r", "me")
    objects.objects[keys.commit("r", store.refs("r").before_deletion("tags", "v1")[1])] = b""
    found = undelete_repo(open_store(objects), "r")
    assert [ref.name for ref, _ in found.refs] == ["old"]
    assert [ref.name for ref, _ in found.lost] == ["main", "newer", "v1"]
    reasons = [reason for _, reason in found.lost]
    assert "damaged" in reasons[0]
    assert "a newer lodefs is needed" in reasons[1]
    assert store.resolve("r", "old") == old


@pytest.mark.parametrize("writes", range(1, 5))
def test_a_crash_on_the_way(objects: MemoryObjects, writes: int) -> None:
    """Wherever it stops, a repetition deletes the rest; all of it comes back."""
    faulty = FaultyObjects(objects)
    store = Store(faulty, open_store(objects).settings, probed=True)
    faulty.add(fail(Unavailable("gone")), "put", keys.REPOS, first=writes)
    with pytest.raises(Unavailable):
        delete_repo(store, "r", "me")
    again = open_store(objects)
    delete_repo(again, "r", "me")
    assert list(again.repos()) == ["r/s"]
    assert len(undelete_repo(again, "r").refs) == 3


def test_a_branch_of_a_deleted_repository(objects: MemoryObjects) -> None:
    """One that comes back alone makes the repository known again; deleting again remembers it."""
    store = open_store(objects)
    names = delete_repo(store, "r", "me")
    undelete_ref(store, names[0])
    assert list(store.repos()) == ["r", "r/s"]
    assert delete_repo(store, "r", "you") == names[:1]
    assert [ref for ref, _ in undelete_repo(store, "r").refs] == names[:1]
    assert undelete_ref(store, names[1])


def test_removed_by_hand(objects: MemoryObjects) -> None:
    """A gc run stops where a log that it knew is gone, and names the way out; that helps."""
    store = open_store(objects)
    _collect(store, 0)
    for key in [key for key in objects.objects if key.startswith("repos/r/")]:
        if not key.startswith("repos/r/s/"):
            objects.delete(key)
    with pytest.raises(NotFound, match=r"the log of r@\w+ is gone, .* `lodefs rm r`"):
        _collect(store, 2)
    assert [ref.name for ref in forget_removed(store, "r", "v1")] == ["v1"]
    assert {ref.name for ref in forget_removed(store, "r")} == {"main", "old", "gone"}
    assert forget_removed(store, "r") == forget_removed(store, "r/s") == []
    _collect(store, 2)
    assert _collect(store, 4) > 0
    assert store.resolve("r/s", "main")


def test_a_push_that_goes_on(objects: MemoryObjects) -> None:
    """Deleting gives up after many tries against somebody who pushes each time."""
    store = open_store(objects)
    faulty = FaultyObjects(objects)
    faulty.add(fail(Conflict("moved")), "put", "repos/r/refs/branches", times=None)
    with pytest.raises(Conflict, match="keeps getting pushes"):
        delete_repo(Store(faulty, store.settings, probed=True), "r", "me")


def test_a_push_to_a_new_branch_beside_a_deletion(tmp_path: Path) -> None:
    """A push that ends after its repository was deleted is refused, be its branch new or not."""
    with one_at_a_time():
        world = World(tmp_path)
        world.push(world.source("old", a=b"a" * 900))
        new = world.source("new", b=b"b" * 900)
        push = world.actor("push", lambda store: world.push(new, "new", "two", store=store))
        go_on_to(push, f"put {keys.commits(REPO)}")
        delete_repo(world.store, REPO, "me")
        finish(push)
    assert isinstance(push.error, AlreadyExists)
    assert living_refs(world.store, REPO) == []
