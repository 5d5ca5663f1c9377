"""A repository gets another name: whenever anything dies, or is pushed, no version is lost."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest

from lodefs.chunkstore.errors import (
    AlreadyExists,
    Conflict,
    Diverged,
    InvalidInput,
    NotFound,
    Renamed,
    Unavailable,
)
from lodefs.chunkstore.format import keys
from lodefs.chunkstore.format.names import CommitId, Spec
from lodefs.chunkstore.format.repo_settings import Retention
from lodefs.chunkstore.journal.deletion import delete_repo, free_name, undelete_repo
from lodefs.chunkstore.repo.refs import BRANCHES, TAGS, RefEntry, Refs
from lodefs.chunkstore.repo.store import Store
from lodefs.chunkstore.transfer.rename import RenameOptions, rename
from lodefs.chunkstore.types import Buffer
from tests.chunkstore.transfer.test_fork import gc_twice, history, whole
from tests.support.chunkstore.handmade import Handmade, memory_store

ALWAYS, NEVER = RenameOptions("me", 1 << 40), RenameOptions("me", 0)


class Repo:
    """r with three commits on main, one more on dev, and a tag."""

    def __init__(self) -> None:
        self.made = Handmade(memory_store())
        self.store = self.made.store
        self.main = [self.push("r", n) for n in range(3)]
        self.store.refs("r").advance(BRANCHES, "dev", self.main[1], expected_sequence=None)
        self.dev = self.push("r", 7, "dev")
        self.store.refs("r").advance(TAGS, "v1", self.main[0], expected_sequence=None)

    def push(self, repo: str, n: int, branch: str = "main") -> CommitId:
        files = {b"all": b"a" * 2000, b"%d" % n: b"x" * n}
        return self.made.commit(repo, files, branch=branch)

    def refs(self, repo: str) -> dict[str, CommitId | None]:
        found = self.store.refs(repo)
        both = (*found.living(BRANCHES), *found.living(TAGS))
        return {name: entry.commit for name, entry in both}

    @property
    def all(self) -> dict[str, CommitId | None]:
        return {"main": self.main[-1], "dev": self.dev, "v1": self.main[0]}


def test_everything_comes_along() -> None:
    """Refs, history and what is set; the old name leads there, and gc leaves all of it."""
    repo, policy = Repo(), Retention(keep_last=5)
    repo.store.settings_log("r").change(
        lambda now: replace(now, retention=policy, quota_size_bytes=10**6, may_lack_history=True)
    )
    packs = {info.key for info in repo.store.objects.list(keys.PACKS)}
    assert len(rename(repo.store, "r", "s", ALWAYS)) == 3
    assert {info.key for info in repo.store.objects.list(keys.PACKS)} == packs
    assert (repo.refs("r"), repo.refs("s")) == ({}, repo.all)
    assert list(repo.store.repos()) == ["s"]
    found = repo.store.settings_log("s").newest()
    assert (found.retention, found.quota_size_bytes, found.former_names) == (policy, 10**6, ("r",))
    gc_twice(repo.store)
    assert (history(repo.store, "s"), whole(repo.store)) == (repo.main, True)
    assert repo.store.locate(Spec("r", "v1")) == (Spec("s", "v1"), repo.main[0])
    assert repo.store.locate(Spec("r", repo.dev.hex()[:8])) == (
        Spec("s", repo.dev.hex()[:8]), repo.dev
    )  # fmt: skip
    assert history(repo.store, "r") == repo.main
    with pytest.raises(Renamed):
        repo.store.require_repo("r")


def test_there_and_back() -> None:
    """Also after gc: the old name keeps documents of commits, which are what a way back needs."""
    repo = Repo()
    for day, (old, new) in enumerate((("r", "s"), ("s", "t"), ("t", "r"), ("r", "s"))):
        rename(repo.store, old, new, ALWAYS)
        gc_twice(repo.store, 5 * day)
        assert (repo.refs(new), whole(repo.store)) == (repo.all, True)
        for name in {"r", "s", "t"} - {new} if day > 1 else {"r"}:
            assert repo.store.locate(Spec(name, "v1"))[0].repo == new
    delete_repo(repo.store, "s", "me")
    gc_twice(repo.store, 30)
    assert not any("/commits/" in info.key for info in repo.store.objects.list(keys.REPOS))


def test_after_its_time_the_old_name_leads_nowhere() -> None:
    """Who asks is told where it is; it can be freed, and another repository may have it."""
    repo = Repo()
    rename(repo.store, "r", "s", NEVER)
    with pytest.raises(NotFound, match="r was renamed to s"):
        repo.store.resolve("r", "main")
    with pytest.raises(AlreadyExists, match="undelete --empty r"):
        repo.store.check_new_ref("r", BRANCHES, "main")
    with pytest.raises(AlreadyExists, match="repo rename s r"):
        undelete_repo(repo.store, "r")
    rename(repo.store, "r", "s", ALWAYS)  # again, to change the time
    assert repo.store.locate(Spec("r", "main"))[0].repo == "s"
    free_name(repo.store, "r")
    repo.store.check_new_ref("r", BRANCHES, "main")


def test_names_that_are_not_free() -> None:
    """And repositories that are not there, or on their way elsewhere."""
    repo = Repo()
    repo.push("other", 1)
    for old, new, error in (
        ("r", "r", InvalidInput), ("r", "other", AlreadyExists), ("none", "s", NotFound),
    ):  # fmt: skip
        with pytest.raises(error):
            rename(repo.store, old, new, ALWAYS)
    rename(repo.store, "r", "s", ALWAYS)
    with pytest.raises(AlreadyExists, match="old name of another"):
        rename(repo.store, "other", "r", ALWAYS)
    with pytest.raises(Renamed):
        rename(repo.store, "r", "t", ALWAYS)
    assert (repo.refs("s"), repo.refs("r")) == (repo.all, {})


class _Interrupts:
    """Calls something before the n-th put of a store."""

    def __init__(self, store: Store, at: int, call: Callable[[], object]) -> None:
        self._put, self._left, self._call = store.objects.put, at, call
        store.objects.put = self.put  # type: ignore[method-assign]
        self.store = store

    def put(self, key: str, data: Sequence[Buffer], *, if_absent: bool = False) -> str:
        self._left -= 1
        if self._left == -1:
            self.store.objects.put = self._put  # type: ignore[method-assign]
            self._call()
        return self._put(key, data, if_absent=if_absent)


def _dies() -> None:
    raise Unavailable("gone")


@pytest.mark.parametrize("at", range(23))
def test_a_rename_that_dies_goes_on(at: int) -> None:
    """At any put; meanwhile every ref is found by the old name, and two gc runs leave all."""
    repo = Repo()
    _Interrupts(repo.store, at, _dies)
    try:
        rename(repo.store, "r", "s", ALWAYS)
    except Unavailable:
        for name, commit in repo.all.items():
            assert repo.store.locate(Spec("r", name))[1] == commit
        gc_twice(repo.store)
        assert whole(repo.store)
    rename(repo.store, "r", "s", ALWAYS)
    assert (repo.refs("r"), repo.refs("s"), whole(repo.store)) == ({}, repo.all, True)


@pytest.mark.parametrize("at", range(23))
@pytest.mark.parametrize("branch", ["main", "new"])
def test_a_push_beside_it_loses_nothing(at: int, branch: str) -> None:
    """One to a branch that is there, or to a new one, at any put of the renaming: it is in the new
    repository, or was refused."""
    repo = Repo()
    pushed: list[CommitId] = []

    def push() -> None:
        try:
            repo.store.check_new_ref("r", BRANCHES, "new")
        except Renamed:
            return
        pushed.append(repo.push("r", 9, branch))

    if at and branch == "main":  # a push that has read where main is before it moves
        entry = repo.store.refs("r").read(BRANCHES, "main")

        def push() -> None:
            commit = replace(repo.store.commit("r", repo.main[2]), parents=(repo.main[2],))
            commit_id = repo.store.put_commit("r", commit)
            try:
                repo.store.refs("r").advance(
                    BRANCHES, "main", commit_id, expected_sequence=entry.sequence
                )
            except Conflict:
                return
            pushed.append(commit_id)

    _Interrupts(repo.store, at, push)
    rename(repo.store, "r", "s", ALWAYS)
    assert repo.refs("r") == {}
    assert repo.refs("s") == repo.all | ({branch: pushed[0]} if pushed else {})
    assert whole(repo.store)


def test_pushes_to_both_names(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a branch that was pushed to under both names both stay, which is said; with another name
    for one of them the renaming goes on."""
    repo = Repo()
    pushed: list[CommitId] = []
    move_ref = Refs.advance

    def move_late(refs: Refs, kind: str, name: str, at: CommitId | None, **more: Any) -> RefEntry:
        if (name, at) == ("main", None) and not pushed:
            pushed.append(repo.push("s", 11))
            pushed.append(repo.push("r", 12))
        return move_ref(refs, kind, name, at, **more)

    with monkeypatch.context() as patched:
        patched.setattr(Refs, "advance", move_late)
        with pytest.raises(Diverged, match="branch --move s@main NAME"):
            rename(repo.store, "r", "s", ALWAYS)
    theirs, ours = pushed
    assert (repo.refs("r")["main"], repo.refs("s")["main"]) == (ours, theirs)
    for name, at, before in (("theirs", theirs, None), ("main", None, 1)):
        repo.store.refs("s").advance(BRANCHES, name, at, expected_sequence=before)
    rename(repo.store, "r", "s", ALWAYS)
    assert repo.refs("s") == repo.all | {"main": ours, "theirs": theirs}
    assert repo.refs("r") == {}
