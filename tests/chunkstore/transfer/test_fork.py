"""A fork leads to the same bytes as what it came from, and neither needs the other."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from lodefs.chunkstore.errors import AlreadyExists, NotFound, Unavailable
from lodefs.chunkstore.format import keys
from lodefs.chunkstore.format.names import CommitId
from lodefs.chunkstore.format.repo_settings import Retention
from lodefs.chunkstore.journal.deletion import delete_repo
from lodefs.chunkstore.maintenance.collect import CollectOptions, collect
from lodefs.chunkstore.push.limits import OverQuota
from lodefs.chunkstore.repo.checks.verify import verify
from lodefs.chunkstore.repo.history import log
from lodefs.chunkstore.repo.store import Store
from lodefs.chunkstore.transfer.fork import fork
from lodefs.chunkstore.types import Buffer
from tests.support.chunkstore.handmade import Handmade, memory_store

DAY_S = 24 * 3600


def made(commits: int = 3) -> tuple[Store, list[CommitId]]:
    """A store with some commits of r."""
    by_hand = Handmade(memory_store())
    found = [
        by_hand.commit("r", {b"all": b"a" * 2000, b"%d" % n: b"x" * n}) for n in range(commits)
    ]
    return by_hand.store, found


def history(store: Store, repo: str) -> list[CommitId]:
    """Its commits, the oldest first."""
    return [at for at, _ in log(store, repo, "main")][::-1]


def gc_twice(store: Store, day: int = 0) -> None:
    """Deletes what nothing leads to."""
    for n in (day, day + 2):
        collect(store, CollectOptions(workers=1, min_used=1.0, clock=lambda n=n: float(n * DAY_S)))


def whole(store: Store) -> bool:
    """Whether every byte is there that any ref leads to."""
    return not verify(store, data=True).problems


def test_a_fork_has_the_history_and_no_bytes_of_its_own() -> None:
    """Nothing but commits and a ref is put, and a deletion of either leaves the other whole."""
    store, commits = made()
    packs = {info.key for info in store.objects.list(keys.PACKS)}
    assert fork(store, "r", commits[1], "s") == 2
    assert history(store, "s") == commits[:2]
    assert {info.key for info in store.objects.list(keys.PACKS)} == packs
    delete_repo(store, "r", "me")
    gc_twice(store)
    assert (history(store, "s"), whole(store)) == (commits[:2], True)
    assert not list(store.objects.list(keys.commits("r")))
    assert fork(store, "s", commits[0], "t") == 1
    delete_repo(store, "s", "me")
    gc_twice(store, 5)
    assert (history(store, "t"), whole(store)) == (commits[:1], True)


def test_names_that_are_not_free() -> None:
    """A repository that is there, is deleted, or had these commits and lost them."""
    store, commits = made()
    fork(store, "r", commits[1], "s")
    for name in ("r", "s"):
        with pytest.raises(AlreadyExists, match="choose a name that is free"):
            fork(store, "r", commits[2], name)
    delete_repo(store, "s", "me")
    with pytest.raises(AlreadyExists, match="undelete --empty"):
        fork(store, "r", commits[2], "s")
    gc_twice(store)
    store.settings_log("s").change(lambda now: replace(now, deletion=None))
    with pytest.raises(AlreadyExists, match="choose another"):
        fork(store, "r", commits[2], "s")
    assert not list(store.refs("s").living("branches"))


def test_what_has_expired_stays_behind() -> None:
    """History ends in the fork where it ends in its source, also if the end is there again."""
    store, commits = made(4)
    old = store.commit("r", commits[0])
    policy = Retention(keep_last=2)
    store.settings_log("r").change(
        lambda now: replace(now, retention=policy, may_lack_history=True)
    )
    gc_twice(store)
    store.put_commit("r", old)  # by a writer that was given up
    store.put_commit("r", store.commit("r", commits[2]))
    assert fork(store, "r", commits[3], "s") == 2
    assert (history(store, "s"), whole(store)) == (commits[2:], True)
    assert store.settings_log("s").newest().retention is None
    gc_twice(store, 5)
    assert (history(store, "s"), whole(store)) == (commits[2:], True)


def test_the_quota_of_the_name_counts() -> None:
    """A quota that was set for the name before."""
    store, commits = made()
    store.settings_log("s").change(lambda now: replace(now, quota_size_bytes=100))
    with pytest.raises(OverQuota):
        fork(store, "r", commits[2], "s")


@pytest.mark.parametrize("left", range(6))
def test_a_fork_that_dies_is_repeated(left: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """At any put."""
    store, commits = made()
    put, counts = store.objects.put, [0]

    def dies(key: str, data: Sequence[Buffer], *, if_absent: bool = False) -> str:
        counts[0] += 1
        if counts[0] > left:
            raise Unavailable("gone")
        return put(key, data, if_absent=if_absent)

    with monkeypatch.context() as patched:
        patched.setattr(store.objects, "put", dies)
        with pytest.raises((Unavailable, NotFound)):
            fork(store, "r", commits[2], "s")
    fork(store, "r", commits[2], "s")
    assert (history(store, "s"), whole(store)) == (commits, True)
