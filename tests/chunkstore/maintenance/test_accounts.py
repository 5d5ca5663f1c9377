"""Accounts: what repositories and revisions take, and what deleting them frees."""

from __future__ import annotations

import pytest

from lodefs.chunkstore.errors import NotFound
from lodefs.chunkstore.format import keys
from lodefs.chunkstore.maintenance.accounts import revision_account, store_account
from lodefs.chunkstore.maintenance.collect import CollectOptions, collect
from lodefs.chunkstore.repo.store import Store
from tests.support.chunkstore.handmade import Handmade, memory_store


@pytest.fixture
def store() -> Store:
    """Two repositories that share a file; one has a branch and an old version of its own."""
    store = memory_store()
    made = Handmade(store, pack_chunks=1)
    made.commit("a", {b"old": b"o" * 5000, b"d/both": b"b" * 3000})
    made.commit("a", {b"d/both": b"b" * 3000})
    made.commit("a", {b"d/both": b"b" * 3000, b"dev": b"d" * 700}, branch="dev")
    made.commit("b", {b"else": b"b" * 3000, b"x/y": b"y" * 100})
    return store


def _packs(store: Store) -> int:
    return sum(info.size_bytes for info in store.objects.list(keys.PACKS))


def _free(store: Store) -> int:
    """The bytes that two gc runs delete."""
    before = _packs(store)
    for days in (1, 3):
        collect(store, CollectOptions(clock=lambda: 2e9 + days * 86400))  # noqa: B023
    return before - _packs(store)


def _delete(store: Store, repo: str, *branches: str) -> None:
    refs = store.refs(repo)
    for branch in branches:
        refs.advance(
            "branches", branch, None, expected_sequence=refs.read("branches", branch).sequence
        )


def test_a_repository_frees_what_collections_delete(store: Store) -> None:
    """What no other repository needs is freed, to the byte; the rest is shared."""
    found = store_account(store)
    assert [one.repo for one in found.repos] == ["a", "b"]
    first = found.repos[0]
    assert (first.commits, first.apparent_bytes) == (3, 8000 + 3000 + 3700)
    assert first.shared_bytes == found.repos[1].shared_bytes > 0
    assert found.size_bytes == _packs(store)
    assert first.stored_bytes + found.repos[1].freed_bytes == found.size_bytes
    assert (found.unused_packs, found.unreadable) == (0, 0)
    _delete(store, "a", "main", "dev")
    after = store_account(store)
    assert [(one.commits, one.stored_bytes) for one in after.repos][1] == (0, 0)
    assert after.unused_bytes == first.freed_bytes
    assert _free(store) == first.freed_bytes


@pytest.mark.parametrize("branch", ["main", "dev"])
def test_a_branch_frees_what_collections_delete(store: Store, branch: str) -> None:
    """A branch frees its history, but for what other branches and repositories need."""
    found = revision_account(store, "a", branch)
    assert found.freed_bytes is not None
    assert found.stored_bytes == found.unique_bytes + found.shared_bytes
    _delete(store, "a", branch)
    assert _free(store) == found.freed_bytes


def test_a_commit(store: Store) -> None:
    """A commit is no name that can be deleted; what only it needs is unique to it."""
    head = store.commit("a", store.resolve("a", "main"))
    found = revision_account(store, "a", head.parents[0].hex()[:8])
    assert (found.freed_bytes, found.apparent_bytes) == (None, 8000)
    assert 0 < found.unique_bytes < found.stored_bytes
    with pytest.raises(NotFound, match="no branch, tag or commit v7"):
        revision_account(store, "a", "v7")


def test_what_is_lost_is_told(store: Store) -> None:
    """A directory that cannot be read spoils no other figure, and is counted."""
    root = store.commit("b", store.resolve("b", "main")).root
    store.objects.delete(keys.pack(root.segments[0].pack))
    found = store_account(Store(store.objects, store.settings))
    assert found.unreadable == 1
    assert found.repos[0].repo == "a"
    assert found.repos[0].shared_bytes == 0


def test_an_empty_store() -> None:
    """A store without repositories has nothing."""
    found = store_account(memory_store())
    assert (found.repos, found.packs, found.size_bytes, found.unused_bytes) == ([], 0, 0, 0)
