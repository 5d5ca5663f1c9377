"""Stores: created after a probe, opened, and asked for repositories, revisions, commits."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import islice
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lodefs.chunkstore.errors import (
    AlreadyExists,
    Corrupt,
    Denied,
    Expired,
    InvalidInput,
    NotFound,
    Unavailable,
    UnknownFormat,
    Unsupported,
)
from lodefs.chunkstore.format import keys
from lodefs.chunkstore.format.chunking import ChunkingParams
from lodefs.chunkstore.format.envelope import seal
from lodefs.chunkstore.format.names import CommitId
from lodefs.chunkstore.objects.interface import ObjectInfo
from lodefs.chunkstore.objects.open_url import open_objects
from lodefs.chunkstore.repair.state_check import check_state
from lodefs.chunkstore.repo.checks.verify import verify
from lodefs.chunkstore.repo.refs import BRANCHES, TAGS
from lodefs.chunkstore.repo.store import Store, create_store, open_store, probe
from lodefs.chunkstore.types import Buffer
from tests.support.chunkstore import golden
from tests.support.chunkstore.handmade import Handmade
from tests.support.chunkstore.memory_objects import MemoryObjects
from tests.support.chunkstore.object_store_suite import MUCH


class Ignorant(MemoryObjects):
    """Ignores the condition of a put, as ``rclone serve s3`` does."""

    def put(self, key: str, data: Sequence[Buffer], *, if_absent: bool = False) -> str:
        return super().put(key, data)


class NoDeletes(MemoryObjects):
    """Credentials that may write and not delete."""

    def delete(self, key: str) -> None:
        raise Denied(f"{key} may not be deleted")


class Counted(MemoryObjects):
    """Counts writes."""

    puts = 0

    def put(self, key: str, data: Sequence[Buffer], *, if_absent: bool = False) -> str:
        self.puts += 1
        return super().put(key, data, if_absent=if_absent)


@pytest.fixture
def store() -> Store:
    return create_store(MemoryObjects())


def commits(store: Store, repo: str, count: int) -> list[CommitId]:
    return [store.put_commit(repo, replace(golden.commit(), time_s=n)) for n in range(count)]


def test_create_and_open() -> None:
    """A created store opens with the same settings, and holds nothing but store.json."""
    objects = MemoryObjects()
    created = create_store(objects, ChunkingParams(1024, 4096, 16_384))
    assert list(objects.objects) == ["store.json"]
    assert open_store(objects).settings == created.settings
    assert len(created.settings.store_id) == 32
    assert created.url == "memory:"


def test_every_store_has_its_id() -> None:
    """Two stores have different ids."""
    ids = {create_store(MemoryObjects()).settings.store_id for _ in range(2)}
    assert len(ids) == 2


def test_create_twice() -> None:
    """A store is not created over another, and nothing in it changes."""
    objects = MemoryObjects()
    create_store(objects)
    before = dict(objects.objects)
    with pytest.raises(AlreadyExists, match="memory: is a lodefs store already"):
        create_store(objects)
    assert objects.objects == before


def test_create_at_the_same_time() -> None:
    """Of two that create a store at once, the later is told, and does not overwrite."""
    objects = MemoryObjects()

    class Late(MemoryObjects):
        def delete(self, key: str) -> None:  # the probe's end: now somebody else is quicker
            super().delete(key)
            create_store(objects)
            self.objects.update(objects.objects)

    late = Late()
    with pytest.raises(AlreadyExists, match="already"):
        create_store(late)
    assert late.objects == objects.objects


@pytest.mark.parametrize("objects_type", [MemoryObjects, NoDeletes])
def test_no_condition_no_store(objects_type: type[MemoryObjects]) -> None:
    """A store that ignores If-None-Match is refused with its name; others are not."""
    probe(objects_type())
    ignorant = Ignorant("s3://bucket/prefix")
    with pytest.raises(Unsupported, match=r"^s3://bucket/prefix ignores If-None-Match"):
        create_store(ignorant)
    assert ignorant.objects == {}


def test_first_write_probes_once() -> None:
    """A store that was made elsewhere is probed before the first write, and only then."""
    objects = Counted()
    store = create_store(objects)
    made = objects.puts
    for _ in range(3):
        store.ensure_writable()
    assert objects.puts == made
    again = open_store(objects)
    for _ in range(3):
        again.ensure_writable()
    assert objects.puts == made + 2


def test_first_write_where_the_store_is_gone(tmp_path: Path) -> None:
    """Nothing is written to the empty directory that an unmounted file system leaves."""
    create_store(open_objects(str(tmp_path / "store")))
    store = open_store(open_objects(str(tmp_path / "store")))
    (tmp_path / "store").rename(tmp_path / "elsewhere")
    (tmp_path / "store").mkdir()
    with pytest.raises(Unavailable, match="gone at present"):
        store.ensure_writable()
    assert list((tmp_path / "store").iterdir()) == []


def test_nothing_is_unknown_where_the_store_is_gone(tmp_path: Path) -> None:
    """A branch or repository of a store that is gone is unavailable: it may be there again."""
    create_store(open_objects(str(tmp_path / "store")))
    store = open_store(open_objects(str(tmp_path / "store")))
    with pytest.raises(NotFound):
        store.resolve("cats", "main")
    (tmp_path / "store").rename(tmp_path / "elsewhere")
    with pytest.raises(Unavailable, match="gone at present"):
        store.resolve("cats", "main")


def test_first_write_to_an_ignorant_store() -> None:
    """A store copied to where conditions are ignored opens, but is not written to."""
    objects = MemoryObjects()
    create_store(objects)
    copy = Ignorant("s3://copy")
    copy.objects.update(objects.objects)
    with pytest.raises(Unsupported, match="s3://copy ignores"):
        open_store(copy).ensure_writable()


def test_not_a_store() -> None:
    """Where no store is, the message says how to create one."""
    with pytest.raises(
        NotFound, match="memory: is not a lodefs store: create it with `lodefs init"
    ):
        open_store(MemoryObjects())


CHUNKING = {
    "algorithm": "fastcdc-2016",
    "size_bytes_min": 16384,
    "size_bytes_average": 65536,
    "size_bytes_max": 262144,
}
SETTINGS: dict[str, object] = {"store_id": "", "upgraded_s": None}


@pytest.mark.parametrize(
    ("document", "error", "words"),
    [
        (b"", Corrupt, "store.json of memory:"),
        (b"<html>", Corrupt, "store.json of memory:"),
        (seal("commit", 1, {}), Corrupt, "is a 'commit'"),
        (seal("store", 4, {"anything": 1}), UnknownFormat, "version 4.*newer lodefs is needed"),
        (
            seal("store", 2, SETTINGS | {"chunking": CHUNKING | {"algorithm": "x"}}),
            UnknownFormat,
            "algorithm 'x'",
        ),
        (
            seal("store", 2, SETTINGS | {"chunking": CHUNKING | {"size_bytes_max": 2**40}}),
            Corrupt,
            "do not make sense",
        ),
    ],
)
def test_spoiled_settings(document: bytes, error: type[Exception], words: str) -> None:
    """A store.json that is spoiled or newer is named."""
    objects = MemoryObjects()
    objects.put(keys.STORE, [document])
    with pytest.raises(error, match=words):
        open_store(objects)


repo_parts = st.sampled_from(["a", "b", "commit", "d", "refs-", "s", "commits0", "z", "0"])
repo_names = st.lists(repo_parts, min_size=1, max_size=3).map("/".join)


@pytest.mark.slow
@given(st.sets(repo_names, max_size=8), st.sets(repo_names, max_size=3))
def test_repos(pushed: set[str], unfinished: set[str]) -> None:
    """All repositories with refs are listed, whatever lies below whose name, and no others."""
    store = create_store(MemoryObjects())
    for repo in pushed | unfinished:
        found = commits(store, repo, 2)
        if repo in pushed:
            refs = store.refs(repo)
            refs.advance(BRANCHES, "main", found[0], expected_sequence=None)
            refs.advance(BRANCHES, "main", found[1], expected_sequence=0)
            refs.advance(TAGS, "v1", found[1], expected_sequence=None)
    assert sorted(store.repos()) == sorted(pushed)


def test_damaged_settings_of_a_repository(store: Store) -> None:
    """It is there, with all that leads to its versions; only who needs its settings is told how to
    mend them."""
    [commit_id] = commits(store, "r", 1)
    store.refs("r").advance(BRANCHES, "main", commit_id, expected_sequence=None)
    store.objects.put(keys.settings_entry("r", 0), [b"{}"])
    assert list(store.repos()) == ["r"]
    assert store.resolve("r", "main") == commit_id
    with pytest.raises(Corrupt, match="`lodefs repair`"):
        store.settings_log("r").newest()


def test_repos_cost_few_lists() -> None:
    """Many small repositories come with few lists; one with thousands of commits is passed over."""
    objects = ListedObjects()
    for n in range(2000):
        objects.objects[f"repos/r/{n:04}/commits/{n:064x}"] = b""
        objects.objects[f"repos/r/{n:04}/refs/branches/main/9"] = b""
        objects.objects[f"repos/r/1000/commits/{n + 5000:064x}"] = b""
    store = create_store(objects)
    objects.lists = 0
    names = list(store.repos())
    assert names == [f"r/{n:04}" for n in range(2000)]
    assert objects.lists < 20
    objects.lists = 0
    assert list(islice(store.repos(after="r/0998"), 3)) == ["r/0999", "r/1000", "r/1001"]
    assert objects.lists < 8


class ListedObjects(MemoryObjects):
    """Counts the lists."""

    lists = 0

    def list(
        self, prefix: str, *, after: str = "", limit: int | None = None
    ) -> Iterator[ObjectInfo]:
        self.lists += 1
        return super().list(prefix, after=after, limit=limit)


def test_repos_among_foreign_objects(store: Store) -> None:
    """Objects of others under repos/ are passed over."""
    store.objects.put("repos/readme.txt", [b"hello"])
    store.refs("z").advance(BRANCHES, "main", commits(store, "z", 1)[0], expected_sequence=None)
    assert list(store.repos()) == ["z"]


def test_commits(store: Store) -> None:
    """A commit comes back by its id; written twice it is there once."""
    [commit_id] = commits(store, "repo", 1)
    assert commits(store, "repo", 1) == [commit_id]
    assert store.commit("repo", commit_id) == replace(golden.commit(), time_s=0)
    with pytest.raises(NotFound, match=r"other has no commit .*`lodefs repair`"):
        store.commit("other", commit_id)


def test_a_commit_of_another_id(store: Store) -> None:
    """A commit under another one's key is Corrupt, as are spoiled bytes."""
    one, two = commits(store, "repo", 2)
    store.objects.put(
        keys.commit("repo", one), [store.objects.get(keys.commit("repo", two), size=MUCH).data]
    )
    with pytest.raises(Corrupt, match=one.hex()):
        store.commit("repo", one)


def test_resolve(store: Store) -> None:
    """A revision is a branch, else a tag, else a commit id or its beginning."""
    one, two, three = commits(store, "repo", 3)
    refs = store.refs("repo")
    refs.advance(BRANCHES, "main", one, expected_sequence=None)
    refs.advance(TAGS, "main", two, expected_sequence=None)
    refs.advance(TAGS, "v1", two, expected_sequence=None)
    assert store.resolve("repo", "main") == one
    assert store.resolve("repo", "v1") == two
    assert store.resolve("repo", three.hex()) == three
    assert store.resolve("repo", three.hex()[:6]) == three
    refs.advance(BRANCHES, three.hex()[:6], one, expected_sequence=None)
    assert store.resolve("repo", three.hex()[:6]) == one
    refs.advance(BRANCHES, "main", None, expected_sequence=0)
    assert store.resolve("repo", "main") == two


def test_resolve_commits_before(store: Store) -> None:
    """~N goes back along first parents, ^N to a parent; where there is none, the error says how
    many there are."""
    one = store.put_commit("r", replace(golden.commit(), parents=()))
    made = Handmade(store)
    first = made.commit("r", {b"a": b"1"})
    second = made.commit("r", {b"a": b"2"})
    merge = store.put_commit("r", replace(golden.commit(), parents=(second, one)))
    store.refs("r").advance(BRANCHES, "main", merge, expected_sequence=1)
    for rev, found in {
        "main~0": merge,
        "main^0": merge,
        "main^": second,
        "main~": second,
        "main^2": one,
        "main~2": first,
        f"{merge.hex()[:8]}^^": first,
    }.items():
        assert store.resolve("r", rev) == found
    for rev, error in {
        "main~3": f"there is no r@main~3: {first.hex()[:12]} is the first commit, 2 before main",
        "main^2~": f"there is no r@main^2~: {one.hex()[:12]} is the first commit, 1 before main",
        "main^3": f"there is no r@main^3: {merge.hex()[:12]} has no parent 3",
    }.items():
        with pytest.raises(NotFound) as caught:
            store.resolve("r", rev)
        assert str(caught.value) == error
    store.put_expired("r", first, 1)
    store.objects.delete(keys.commit("r", first))
    with pytest.raises(Expired):
        store.resolve("r", "main~3")
    with pytest.raises(NotFound, match="no branch, tag or commit dev;"):
        store.resolve("r", "dev~1")


def test_resolve_an_ambiguous_prefix(store: Store) -> None:
    """A prefix of several commits is refused with their names."""
    for tail in ("1", "2"):
        store.objects.put(f"{keys.commits('repo')}abcdef{tail * 58}", [b""])
    with pytest.raises(InvalidInput, match="abcdef111111, abcdef222222"):
        store.resolve("repo", "abcdef")


def instead(store: Store, repo: str) -> str:
    """What an error that names no other repository says, when it is asked, that there is."""
    with pytest.raises(NotFound) as caught:
        store.resolve(repo, "main")
    assert str(caught.value) == f"there is no repository {repo} that you may read"
    assert caught.value.instead is not None
    return caught.value.instead()


def test_resolve_what_is_not_there(store: Store) -> None:
    """What is unknown is named, with what there is instead."""
    assert instead(store, "repo") == "memory: has none yet"
    [commit_id] = commits(store, "vision/birds", 1)
    refs = store.refs("vision/birds")
    refs.advance(BRANCHES, "main", commit_id, expected_sequence=None)
    refs.advance(BRANCHES, "dev", commit_id, expected_sequence=None)
    assert instead(store, "repo") == "memory: has vision/birds"
    for rev in ("v9", "abcdef", "00" * 32):
        with pytest.raises(NotFound, match=f"commit {rev}; its branches: dev, main"):
            store.resolve("vision/birds", rev)


@pytest.mark.parametrize(("repo", "rev"), [("../x", "main"), ("", "main"), ("a", ".."), ("a", "")])
def test_resolve_malformed_names(store: Store, repo: str, rev: str) -> None:
    """Names that cannot be are refused before they become keys."""
    with pytest.raises(InvalidInput):
        store.resolve(repo, rev)


@pytest.mark.parametrize(("kind", "other"), [(BRANCHES, TAGS), (TAGS, BRANCHES)])
def test_new_refs_take_no_names(store: Store, kind: str, other: str) -> None:
    """A new ref may have no name of the other kind, nor be the beginning of a commit; deleted
    refs and other repositories' do not count. HEAD, and what looks like a whole id, is none."""
    [commit_id] = commits(store, "repo", 1)
    refs = store.refs("repo")
    refs.advance(other, "v1", commit_id, expected_sequence=None)
    with pytest.raises(InvalidInput, match=r"repo has a (tag|branch) v1: a (branch|tag) v1 would"):
        store.check_new_ref("repo", kind, "v1")
    for name in (commit_id.hex()[:6], commit_id.hex()):
        with pytest.raises(InvalidInput, match=f"{name} is the beginning of commit"):
            store.check_new_ref("repo", kind, name)
    store.check_new_ref("other", kind, commit_id.hex()[:6])
    for repo in ("repo", "other"):
        for name in ("HEAD", "ab" * 32):
            with pytest.raises(InvalidInput, match=f"^{name} .*choose another name"):
                store.check_new_ref(repo, kind, name)
    store.check_new_ref("repo", kind, commit_id.hex()[:5])
    store.check_new_ref("repo", other, "v1")
    refs.advance(other, "v1", None, expected_sequence=0)
    store.check_new_ref("repo", kind, "v1")


def test_resolve_names_what_exists(store: Store) -> None:
    """What is unknown is told with branches and tags that exist, without deleted ones; short
    beginnings of commits with how long they must be."""
    [commit_id] = commits(store, "repo", 1)
    refs = store.refs("repo")
    for kind, name in ((BRANCHES, "dev"), (BRANCHES, "main"), (TAGS, "v1"), (TAGS, "v2")):
        refs.advance(kind, name, commit_id, expected_sequence=None)
    refs.advance(BRANCHES, "dev", None, expected_sequence=0)
    refs.advance(TAGS, "v1", None, expected_sequence=0)
    with pytest.raises(NotFound, match=r"commit nope; its branches: main; its tags: v2$"):
        store.resolve("repo", "nope")
    with pytest.raises(NotFound, match=r"at least 6 digits\)"):
        store.resolve("repo", commit_id.hex()[:5])


def test_resolve_a_repository_that_others_lie_below(store: Store) -> None:
    """The first part of repositories' names is no repository; those below are named first."""
    [commit_id] = commits(store, "vision/py", 1)
    for repo in ("vision/py", "audio"):
        store.refs(repo).advance(BRANCHES, "main", commit_id, expected_sequence=None)
    assert instead(store, "vision") == "memory: has vision/py, audio"


def test_a_repository_whose_settings_are_damaged() -> None:
    """It is listed, read and checked; verify names the settings, and ends with no error."""
    objects = MemoryObjects()
    store = create_store(objects)
    commit_id = Handmade(store).commit("a/b", {b"f": b"content"})
    store.settings_log("a/b").change(lambda now: replace(now, quota_size_bytes=1 << 30))
    key = keys.settings_entry("a/b", 0)
    objects.objects[key] = objects.objects[key][:-1] + b"?"
    store = open_store(objects)
    assert list(store.repos()) == ["a/b"]
    assert store.resolve("a/b", "main") == commit_id
    assert verify(store).problems == []
    assert [problem.key for problem in check_state(objects, time.time)] == [key]
