"""Purge: bytes are gone from all versions at once; readers are told so, and pushes refused."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from random import Random

import pytest

from lodefs.chunkstore.errors import Conflict, Corrupt, InvalidInput, NotFound, Purged
from lodefs.chunkstore.format import keys
from lodefs.chunkstore.format.names import ChunkId, digest_of
from lodefs.chunkstore.format.tree import Kind
from lodefs.chunkstore.journal.purges import Purges
from lodefs.chunkstore.maintenance.purge import (
    PurgeResult,
    plan_again,
    plan_chunk,
    plan_path,
    purge,
)
from lodefs.chunkstore.repo.checks.verify import verify
from tests.support.maintenance.schedules import one_at_a_time
from tests.support.maintenance.world import REPO, World, finish, go_on_to

_random = Random(1)
SECRET, OTHER, MORE = (_random.randbytes(9000) for _ in range(3))


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    """Two versions of a branch, and a deleted branch; a secret file is in all of them."""
    with one_at_a_time():
        world = World(tmp_path)
        world.push(world.source("first", secret=SECRET, other=OTHER))
        world.push(world.source("second", secret=SECRET, other=OTHER, more=MORE))
        world.push(world.source("third", secret=SECRET), branch="gone")
        world.delete("gone")
        yield world


def purged(world: World, path: bytes = b"secret") -> PurgeResult:
    """All of a path."""
    return purge(world.store, plan_path(world.store, REPO, path), clock=world.clock)


def is_there(world: World) -> bool:
    """Whether any object has the secret's bytes, which are stored as they are."""
    return any(SECRET in data for data in world.memory.objects.values())


def test_the_bytes_are_gone_and_the_rest_is_there(world: World) -> None:
    """From all versions; a reader of any of them is told, and reads all else; a check of the store
    names what was purged, and no damage."""
    store = world.store
    plan = plan_path(store, REPO, b"/secret")
    assert (plan.versions, plan.shared, plan.chunks) == (3, [], [digest_of(SECRET)])
    assert is_there(world)
    assert purge(store, plan, clock=world.clock) == PurgeResult(1, len(SECRET))
    assert not is_there(world)
    for reader in (store, world.store):
        head = reader.refs(REPO).read("branches", "main").commit
        assert head is not None
        files = dict(reader.packs.walk(reader.commit(REPO, head).root))
        assert b"".join(reader.packs.read_file(files[b"other"])) == OTHER
        with pytest.raises(Purged, match="lodefs purge"):
            list(reader.packs.read_file(files[b"secret"]))
    for data in (False, True):
        result = verify(world.store, data=data)
        assert result.problems == []
        assert "secret" in result.purged[0]
    assert world.collect(min_used=1.0).sparse.packs == 0
    assert not plan_again(world.store).packs


def test_a_push_of_the_bytes_is_refused(world: World) -> None:
    """From a machine that pushed them before, and did not change them since, and from another one;
    without them it goes through."""
    purged(world)
    source = world.source("second", new=b"new" * 999)
    for machine in ("one", "other"):
        with pytest.raises(Purged, match=r"purged on 2023-11-14 with r:secret .*not stored again"):
            world.push(source, machine=machine)
    assert not is_there(world)
    (source / "secret").unlink()
    world.push(source)
    assert verify(world.store, data=True).problems == []


def test_who_else_needs_the_bytes_is_named(world: World) -> None:
    """Another path, of any branch; other versions of the path itself are none."""
    world.push(world.source("copies", copy=SECRET), branch="copies")
    assert plan_path(world.store, REPO, b"secret").shared == ["r:copy"]
    plan = plan_chunk(world.store, ChunkId(digest_of(SECRET)))
    assert plan.shared == ["r:copy", "r:secret"]
    purge(world.store, plan, clock=world.clock, also_shared=True)
    assert plan_path(world.store, REPO, b"secret").shared == []  # nobody loses anything any more


def test_what_cannot_be_purged(world: World) -> None:
    """A path or chunk that is nowhere, a whole repository, and the list of names of a directory."""
    with pytest.raises(NotFound, match="no version of r has"):
        plan_path(world.store, REPO, b"missing")
    with pytest.raises(NotFound, match="no pack"):
        plan_chunk(world.store, ChunkId(bytes(32)))
    with pytest.raises(InvalidInput, match="lodefs rm"):
        plan_path(world.store, REPO, b"/")
    store = world.store
    head = store.refs(REPO).read("branches", "main").commit
    assert head is not None
    segment = store.commit(REPO, head).root.segments[0]
    tree = store.packs.index(segment.pack).chunk_id(segment.first)
    with pytest.raises(InvalidInput, match="list of names"):
        plan_chunk(store, tree)


def test_a_push_that_is_under_way(world: World) -> None:
    """It had begun before, and stores the bytes again: the purge tells of it, it is refused at its
    end, and a check removes what it left."""
    for info in list(world.memory.list(keys.INDEX)):
        world.memory.delete(info.key)  # so that it does not know where they are
    source = world.source("new", secret=SECRET, new=MORE[:5000])
    push = world.actor("push", lambda store: world.push(source, "new", "x", store=store))
    go_on_to(push, "put packs/")
    assert purged(world).writers == 1
    assert not is_there(world)
    finish(push)
    assert isinstance(push.error, Conflict)
    assert is_there(world)
    again = plan_again(world.store)
    assert again.chunks == [digest_of(SECRET)]
    assert purge(world.store, again, clock=world.clock).writers == 0
    assert not is_there(world)


def test_a_push_that_ends_while_packs_are_written_again(world: World) -> None:
    """What it put after packs were listed is not found: the purge tells of that push too, though it
    has ended by then."""
    for info in list(world.memory.list(keys.INDEX)):
        world.memory.delete(info.key)
    source = world.source("new", secret=SECRET, new=MORE[:5000])
    push = world.actor("push", lambda store: world.push(source, "new", "x", store=store))
    go_on_to(push, "put packs/")
    plan = plan_path(world.store, REPO, b"secret")
    results: list[PurgeResult] = []
    actor = world.actor(
        "purge", lambda store: results.append(purge(store, plan, clock=world.clock))
    )
    go_on_to(actor, "put packs/")
    finish(push)
    assert isinstance(push.error, Conflict)
    finish(actor)
    assert is_there(world)
    assert [result.writers for result in results] == [1]


@pytest.mark.parametrize("dies", [False, True])
def test_a_compaction_that_writes_late(world: World, dies: bool) -> None:
    """What a gc run puts back, which had read the pack before the purge, it removes itself; if
    it dies right after the put, a check does."""
    secret, more = MORE[:6000][::-1], MORE[:5000][::-1]
    world.push(world.source("pair", a=secret, b=more), branch="pair")
    world.push(world.source("alone", a=secret), branch="alone")
    world.delete("pair")
    world.collect(min_used=1.0)
    world.hours += 25
    late = world.actor("late", lambda store: world.collect(store=store))
    go_on_to(late, "put packs/")
    purged(world, b"a")
    assert not any(secret in data for data in world.memory.objects.values())
    if dies:
        late.kill(after_request=True)
    else:
        finish(late)
        assert late.error is None
    assert any(secret in data for data in world.memory.objects.values()) == dies
    purge(world.store, plan_again(world.store), clock=world.clock)
    assert not any(secret in data for data in world.memory.objects.values())
    assert not plan_again(world.store).packs


def test_a_list_that_lacks_a_pack(world: World) -> None:
    """The versions of the path name it: its bytes are purged all the same."""
    (pack,) = (key for key in world.packs() if SECRET in world.memory.objects[key])
    lists = world.memory.list
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            world.memory,
            "list",
            lambda *a, **b: (info for info in lists(*a, **b) if info.key != pack),
        )
        result = purged(world)
    assert (result.packs, result.size_bytes) == (1, len(SECRET))
    assert not is_there(world)


def test_two_purges_of_one_pack_at_once(world: World) -> None:
    """One that writes the pack late brings back no bytes of the other."""
    slow = world.actor("slow", lambda store: purge(store, plan_path(store, REPO, b"secret")))
    go_on_to(slow, "put packs/")
    purged(world, b"other")
    finish(slow)
    assert slow.error is None
    for gone in (SECRET, OTHER):
        assert not any(gone in data for data in world.memory.objects.values())


def test_many_chunks_are_several_documents(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each says its number; none is lost when two purges are at once."""
    monkeypatch.setattr("lodefs.chunkstore.journal.purges.CHUNKS_MAX", 2)
    purges = Purges(world.memory)
    chunks = [ChunkId(digest_of(b"%d" % n)) for n in range(5)]
    assert purges.newest() == -1
    assert purges.append(chunks, "r:x", 7) == 2
    assert purges.append(chunks[:1], "", 8) == 3
    found = list(purges.after(-1))
    assert [purge.number for purge in found] == [0, 1, 2, 3]
    assert [c for one in found[:3] for c in one.chunks] == chunks
    assert [purge.time_s for purge in purges.after(2)] == [8]
    assert purges.newest(1) == 3


def test_all_files_of_a_directory(world: World) -> None:
    """A path may be a directory: every file below it is purged, and no other."""
    folder = world.source("deep")
    (folder / "people").mkdir()
    (folder / "people" / "ada").write_bytes(b"ada" * 3000)
    (folder / "people" / "bob").write_bytes(b"bob" * 3000)
    (folder / "peoples").write_bytes(b"all" * 3000)
    world.push(folder, branch="deep")
    assert purged(world, b"people").packs == 1
    store = world.store
    head = store.refs(REPO).read("branches", "deep").commit
    assert head is not None
    for path, entry in store.packs.walk(store.commit(REPO, head).root):
        if entry.kind is Kind.FILE and path.startswith(b"people/"):
            with pytest.raises(Purged):
                list(store.packs.read_file(entry))
        elif entry.kind is Kind.FILE:
            assert b"".join(store.packs.read_file(entry)) == b"all" * 3000


def test_who_came_to_need_the_bytes_since_the_plan(world: World) -> None:
    """A purge is refused, and nothing done, if a push since the plan needs the bytes: one that
    began later, or was under way; what is said to be purged too is found where it is by then."""
    plan = plan_path(world.store, REPO, b"secret")
    world.push(world.source("late", late=SECRET), branch="late")
    with pytest.raises(InvalidInput, match="r:late"):
        purge(world.store, plan, clock=world.clock)
    world.delete("late")
    for info in list(world.memory.list(keys.INDEX)):
        world.memory.delete(info.key)
    source = world.source("new", x=SECRET, new=MORE[:5000])
    push = world.actor("push", lambda store: world.push(source, "slow", "x", store=store))
    go_on_to(push, "put packs/")
    plan = plan_path(world.store, REPO, b"secret")
    finish(push)
    assert push.error is None
    with pytest.raises(InvalidInput, match="r:x"):
        purge(world.store, plan, clock=world.clock)
    assert Purges(world.memory).newest() == -1
    assert is_there(world)
    assert purge(world.store, plan, clock=world.clock, also_shared=True).packs == 2
    assert not is_there(world)


def test_who_comes_while_a_purge_begins(world: World) -> None:
    """Between the last look and the purge's document: its bytes are purged too, and it is named."""
    plan = plan_path(world.store, REPO, b"secret")
    results: list[PurgeResult] = []
    actor = world.actor(
        "purge", lambda store: results.append(purge(store, plan, clock=world.clock))
    )
    go_on_to(actor, "put purges/")
    world.push(world.source("late", late=SECRET), branch="late")
    finish(actor)
    assert [result.shared for result in results] == [["r:late"]]
    assert not is_there(world)


def test_packs_that_cannot_be_read_are_named(world: World) -> None:
    """What they hold is not known: the plan, a check and the result of a purge say so."""
    world.push(world.source("apart", apart=OTHER[::-1]), branch="apart", machine="other")
    head = world.store.refs(REPO).read("branches", "apart").commit
    assert head is not None
    files = dict(world.store.packs.walk(world.store.commit(REPO, head).root))
    pack = files[b"apart"].segments[0].pack
    world.memory.put(keys.pack(pack), [b"damaged"])
    plan = plan_path(world.store, REPO, b"secret")
    assert plan.unreadable == [pack]
    assert purge(world.store, plan, clock=world.clock).left == [pack]
    assert plan_again(world.store).unreadable == [pack]


def test_a_long_path(world: World) -> None:
    """A path that is too long for a purge's document once it is percent-encoded is cut there."""
    purges = Purges(world.memory)
    purges.append([ChunkId(digest_of(b"x"))], "r:" + "%C3" * 3000, 7)
    (found,) = purges.after(-1)
    assert len(found.what) <= 8192
    assert found.what.endswith("%C3...")


def test_a_pack_too_large_for_memory(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is not read, and named as one that has such bytes still."""
    monkeypatch.setattr("lodefs.chunkstore.repo.pack_reader.PAYLOAD_SIZE_BYTES_MAX", 1000)
    plan = plan_path(world.store, REPO, b"secret")
    assert purge(world.store, plan, clock=world.clock).left == list(plan.packs)


def test_a_damaged_commit_that_no_branch_leads_to(world: World) -> None:
    """A purge goes on without it, and says so; one that a branch leads to ends it."""
    gone = world.store.refs(REPO).entry("branches", "gone", 0).commit
    head = world.store.resolve(REPO, "main")
    assert gone is not None
    key = keys.commit(REPO, gone)
    world.memory.objects[key] = world.memory.objects[key][:-5]
    plan = plan_path(world.store, REPO, b"secret")
    assert (plan.damaged, plan.versions) == ([gone], 2)
    key = keys.commit(REPO, head)
    world.memory.objects[key] = world.memory.objects[key][:-5]
    with pytest.raises(Corrupt):
        plan_path(world.store, REPO, b"secret")
