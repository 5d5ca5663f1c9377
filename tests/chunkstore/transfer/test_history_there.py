"""Copies to a store that lacks history: it came from one that had expired it, or has done so."""

from __future__ import annotations

from dataclasses import replace

import pytest

from lodefs.chunkstore.errors import Diverged, NotFound
from lodefs.chunkstore.format import keys
from lodefs.chunkstore.format.journal import RefName
from lodefs.chunkstore.format.names import CommitId
from lodefs.chunkstore.format.repo_settings import Retention
from lodefs.chunkstore.journal.existing_commit import point_ref
from lodefs.chunkstore.journal.ref_write import Collected
from lodefs.chunkstore.maintenance.collect import CollectOptions, collect
from lodefs.chunkstore.repo.checks.verify import verify
from lodefs.chunkstore.repo.history import log
from lodefs.chunkstore.repo.refs import BRANCHES, TAGS
from lodefs.chunkstore.repo.store import Store, create_store, open_store
from lodefs.chunkstore.transfer.copy import CopyOptions, CopyResult, copy
from tests.support.chunkstore.handmade import Handmade
from tests.support.chunkstore.memory_objects import MemoryObjects

DAY_S = 24 * 3600


def new_store(name: str) -> Store:
    return create_store(MemoryObjects(f"memory:{name}"))


class Source:
    """A store with four commits on a branch."""

    def __init__(self) -> None:
        self.made = Handmade(new_store("source"))
        self.store = self.made.store
        self.commits = [self.made.commit("r", files(n)) for n in range(4)]

    def point(self, kind: str, name: str, commit_id: CommitId) -> None:
        self.store.refs("r").advance(kind, name, commit_id, expected_sequence=None)

    def merge(self, fork: int, contents: dict[bytes, bytes], branch: str = "main") -> CommitId:
        """Commits on top of an old commit, then merges that into main, or a branch beside it."""
        refs = self.store.refs("r")
        main = refs.read(BRANCHES, "main")
        assert main.commit is not None
        name = f"side{len(list(refs.history(BRANCHES, 'main')))}"
        self.point(BRANCHES, name, self.commits[fork])
        side = self.made.commit("r", contents, branch=name)
        commit = replace(self.store.commit("r", side), parents=(main.commit, side))
        merged = self.store.put_commit("r", commit)
        refs.advance(BRANCHES, name, None, expected_sequence=1)
        sequence = main.sequence if branch == "main" else None
        refs.advance(BRANCHES, branch, merged, expected_sequence=sequence)
        return merged

    def to(self, destination: Store, rev: str | None = None) -> CopyResult:
        return copied(self.store, destination, rev)


def files(n: int) -> dict[bytes, bytes]:
    """One file is in all commits, one in the first two, one is new in each."""
    own = {b"own/%d" % n: b"%d" % n * 900}
    return {b"all": b"a" * 2000} | own | ({b"early": b"e" * 700} if n < 2 else {})


def copied(source: Store, destination: Store, rev: str | None = None) -> CopyResult:
    repos = list(source.repos()) if rev is None else ["r"]
    return copy(source, destination, repos, rev, CopyOptions(workers=1, clock=lambda: 0.0))


def expire(store: Store) -> None:
    """Lets all history expire but what branches and tags name."""
    policy = Retention(keep_tagged=True)
    store.settings_log("r", lambda: 0.0).change(
        lambda now: replace(now, retention=policy, may_lack_history=True)
    )
    for day in range(3):
        gc(store, day)


def gc(store: Store, day: int = 9) -> None:
    clock = lambda: 1_800_000_000.0 + day * 2 * DAY_S  # noqa: E731
    collect(store, CollectOptions(clock=clock, workers=1))


def at(store: Store, name: str, kind: str = BRANCHES) -> CommitId | None:
    entry = store.refs("r").latest(kind, name)
    return None if entry is None else entry.commit


def check(store: Store) -> None:
    """All that refs lead to is there, or has expired, also for a gc run."""
    fresh = open_store(store.objects)
    assert verify(fresh, data=True).problems == []
    gc(fresh)


@pytest.fixture
def source() -> Source:
    return Source()


@pytest.mark.parametrize("rev", ["old", "v1", None])
def test_a_name_for_what_never_came(source: Source, rev: str | None) -> None:
    """A branch or tag of a commit that the destination's history does not reach, since it came
    from a store that had expired it, brings that commit."""
    middle, destination = new_store("middle"), new_store("destination")
    source.to(middle)
    expire(middle)
    copied(middle, destination)
    assert not destination.has_commit("r", source.commits[1])
    source.point(BRANCHES, "old", source.commits[1])
    source.point(TAGS, "v1", source.commits[1])
    result = source.to(destination, rev)
    assert result.refused == []
    for kind, name in ((BRANCHES, "old"), (TAGS, "v1")):
        if rev in (None, name):
            assert at(destination, name, kind) == source.commits[1]
            assert len(list(log(destination, "r", name))) == 2
    check(destination)
    assert source.to(destination, rev).packs == 0


def test_a_name_for_what_has_expired(source: Source) -> None:
    """With all, names of commits that the destination has let expire itself are refused; the rest
    arrives, of later repositories too."""
    destination = new_store("destination")
    source.to(destination)
    expire(destination)
    source.point(BRANCHES, "old", source.commits[1])
    source.point(TAGS, "v1", source.commits[0])
    source.point(TAGS, "v2", source.commits[3])
    source.made.commit("s", {b"other": b"o" * 900})
    result = source.to(destination)
    assert [(one.ref.name, type(one.error)) for one in result.refused] == [
        ("old", Collected),
        ("v1", Collected),
    ]
    assert [one.ref.repo for one in result.refs] == ["r", "r", "s"]
    assert at(destination, "v2", TAGS) == source.commits[3]
    check(destination)


def test_a_copy_that_comes_after_expiry(source: Source) -> None:
    """A branch of a mirror whose commit has expired in the source, with what came after it, goes on
    to where it is in the source, and it is said that what came before is cut off."""
    destination = new_store("destination")
    source.point(BRANCHES, "dev", source.commits[0])
    source.to(destination, "dev")
    refs = source.store.refs("r")
    refs.advance(BRANCHES, "dev", source.commits[3], expected_sequence=0)
    expire(source.store)
    done = source.to(destination, "dev")
    assert [one.is_cut_off for one in done.refs] == [True]
    assert at(destination, "dev") == source.commits[3]
    assert [at for at, _ in log(destination, "r", "dev")] == [source.commits[3]]
    check(destination)
    assert [one.is_cut_off for one in source.to(destination, "dev").refs] == [False]


def test_a_copy_right_after_expiry(source: Source) -> None:
    """Where the mirror's commit comes right before what is left, nothing is cut off there."""
    destination = new_store("destination")
    source.to(destination)
    source.made.commit("r", files(4))
    expire(source.store)
    done = source.to(destination)
    assert [one.is_cut_off for one in done.refs] == [False]
    assert len(list(log(destination, "r", "main"))) == 5
    check(destination)


def test_a_branch_aside_of_what_has_expired(source: Source) -> None:
    """A branch that stands at an expired commit that the source's was never at is refused, and the
    reason is said."""
    destination = new_store("destination")
    source.to(destination)
    source.made.commit("r", files(4))
    source.made.commit("r", files(5))
    source.point(BRANCHES, "dev", source.commits[3])
    refs = source.store.refs("r")
    refs.advance(BRANCHES, "dev", source.made.commit("r", files(6)), expected_sequence=0)
    destination.refs("r").advance(BRANCHES, "dev", source.commits[2], expected_sequence=None)
    expire(source.store)
    with pytest.raises(Diverged, match="has expired in the source"):
        source.to(destination, "dev")
    assert at(destination, "dev") == source.commits[2]


@pytest.mark.parametrize("is_new", [False, True])
def test_a_merge_of_what_forked_early(source: Source, *, is_new: bool) -> None:
    """Of a branch with a merge only what is new comes, be it a new branch, and not what lies before
    the commit that is there."""
    destination = new_store("destination")
    source.to(destination)
    source.merge(1, files(3) | {b"new": b"n" * 800}, "dev" if is_new else "main")
    result = source.to(open_store(destination.objects))
    assert (result.refused, result.commits) == ([], 2)
    assert len(list(log(destination, "r", "dev" if is_new else "main", first_parent=True))) == 5
    check(destination)


def test_a_merge_of_what_forked_before_history_there(source: Source) -> None:
    """Where the commit that it forked at has expired in the destination, what came after the fork
    arrives, and history ends there; unless it needs data that were deleted with the history."""
    destination = new_store("destination")
    source.to(destination)
    expire(destination)
    merged = source.merge(1, files(3) | {b"new": b"n" * 800})
    assert source.to(destination).refused == []
    assert at(destination, "main") == merged
    assert len(list(log(destination, "r", "main", first_parent=True))) == 2
    check(destination)
    source.merge(1, files(1))
    (refused,) = source.to(destination).refused
    assert isinstance(refused.error, Collected)
    assert at(destination, "main") == merged
    check(destination)


def test_a_merge_of_what_forked_at_what_never_came(source: Source) -> None:
    """Where the destination got a history that ended later, the commit that it forked at, and all
    before it, arrive too."""
    middle, destination = new_store("middle"), new_store("destination")
    source.to(middle)
    expire(middle)
    copied(middle, destination)
    destination.objects.delete(keys.expired("r", source.commits[0].hex()))
    source.merge(0, files(0) | {b"new": b"n" * 800})
    result = source.to(destination)
    assert (result.refused, result.commits) == ([], 3)
    assert destination.has_commit("r", source.commits[0])
    check(destination)


def test_a_branch_at_nothing(source: Source) -> None:
    """No ref is made to a commit that is not there, also where no gc run ever ran."""
    ref, nothing = RefName("r", BRANCHES, "new"), CommitId(b"\1" * 32)
    with pytest.raises(NotFound, match="has no commit r@0101"):
        point_ref(source.store, ref, nothing, expected_sequence=None)
    assert at(source.store, "new") is None
    assert not any(keys.expired("r") in info.key for info in source.store.objects.list(keys.REPOS))
