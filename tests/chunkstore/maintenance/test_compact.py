"""Compaction: packs of which little is in use lose the rest, and nobody who reads or pushes meets
an error, whoever stands still where."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from random import Random

import pytest

from lodefs.chunkstore.errors import InvalidInput, Unavailable
from lodefs.chunkstore.format import keys
from lodefs.chunkstore.format.names import ChunkId, PackId, digest_of
from lodefs.chunkstore.format.pack import DROPPED, PackIndex
from lodefs.chunkstore.format.tree import Kind
from lodefs.chunkstore.journal.purges import Purges
from lodefs.chunkstore.journal.ref_write import Collected
from lodefs.chunkstore.repo.store import Store, open_store
from lodefs.chunkstore.transfer.copy import CopyOptions, copy
from tests.support.chunkstore.faulty_store import FaultyObjects, fail
from tests.support.chunkstore.memory_objects import MemoryObjects
from tests.support.maintenance.schedules import one_at_a_time
from tests.support.maintenance.world import REPO, World, finish, go_on_to

_random = Random(1)
A, B, C = (_random.randbytes(9000) for _ in range(3))  # stored as they are, a chunk each


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    """A store in which one pack holds a, b and c, and a branch leads to a alone."""
    with one_at_a_time():
        world = World(tmp_path)
        world.push(world.source("three", a=A, b=B, c=C), branch="three")
        world.push(world.source("only", a=A), branch="one")
        world.delete("three")
        yield world


def tombstone(world: World) -> None:
    """Two gc runs that delete what is garbage as a whole, and tombstone b and c in their pack."""
    world.collect(min_used=0.9)
    world.hours += 25


def thin_packs(world: World) -> list[PackIndex]:
    """The indexes of packs that were compacted."""
    found = []
    for key in world.packs():
        pack_id = PackId(bytes.fromhex(key[-64:]))
        index = PackIndex.decode(pack_id, world.memory.objects[key])
        found += [index] if index.has_gone else []
    return found


def files_of(store: Store, branch: str) -> dict[bytes, bytes]:
    """All files of a branch, as they are read."""
    commit_id = store.refs(REPO).read("branches", branch).commit
    assert commit_id is not None
    packs = store.packs
    return {
        path: b"".join(packs.read_file(entry))
        for path, entry in packs.walk(store.commit(REPO, commit_id).root)
        if entry.kind is Kind.FILE
    }


def test_a_pack_loses_what_nothing_leads_to(world: World) -> None:
    """After the grace time the bytes of b and c are gone from their pack, and a stays; a reader
    that knows the pack from before goes on."""
    reader = world.store
    assert files_of(reader, "one") == {b"a": A}
    result = world.collect(min_used=0.9)
    assert result.sparse.packs == 1
    assert result.compacted.packs == 0
    again = world.collect(min_used=0.9)
    assert (again.sparse.packs, again.sparse_waiting.packs) == (0, 1)
    world.hours += 25
    before_bytes = sum(map(len, world.memory.objects.values()))
    assert world.collect(min_used=0.9, dry_run=True).compacted.packs == 1
    assert thin_packs(world) == []
    result = world.collect()  # carries out what was tombstoned, whatever is asked for now
    assert (result.compacted.packs, result.compacted.size_bytes) == (1, len(B) + len(C))
    assert sum(map(len, world.memory.objects.values())) < before_bytes
    assert files_of(reader, "one") == {b"a": A}
    assert files_of(world.store, "one") == {b"a": A}
    world.needs.check("at the end")
    assert world.collect(min_used=1.0).sparse.packs == 0


def test_a_pack_of_which_more_is_not_used_any_more(world: World) -> None:
    """What comes to be unused while other chunks of the pack wait is tombstoned by the next
    collection; when all are ripe, the pack is written once."""
    world.push(world.source("two", a=A, b=B), branch="two")
    assert world.collect(min_used=0.9).sparse.packs == 1
    world.delete("two")
    world.hours += 1
    assert world.collect(min_used=0.9).sparse.packs == 1
    world.hours += 25
    result = world.collect(min_used=0.9)
    assert (result.compacted.packs, result.compacted.size_bytes) == (1, len(B) + len(C))
    assert files_of(world.store, "one") == {b"a": A}
    assert world.needs.unused_chunks(set(), int(world.clock())) == set()


def test_a_pack_that_is_used_enough_stays(world: World) -> None:
    """A third of the pack is in use: less than that share leaves it alone."""
    assert world.collect(min_used=0.3).sparse.packs == 0
    assert world.collect(min_used=0.4).sparse.packs == 1


@pytest.mark.parametrize("share", [0.0, -1.0, 1.1, 70.0])
def test_a_share_that_is_none(world: World, share: float) -> None:
    """70 per cent is 0.7."""
    with pytest.raises(InvalidInput, match="share"):
        world.collect(min_used=share)


def test_a_push_that_uses_tombstoned_chunks_again_saves_them(world: World) -> None:
    """The pack keeps them, and the push has sent nothing of them."""
    tombstone(world)
    result = world.push(world.source("two", a=A, b=B), branch="two", machine="other")
    assert result.lost_packs == 0
    assert world.collect(min_used=0.9).compacted.packs == 0
    world.needs.check("after the gc run")
    assert files_of(world.store, "two") == {b"a": A, b"b": B}


def test_a_push_that_uses_dropped_chunks_stores_them_again(world: World) -> None:
    """It stores what is gone, in another pack, and goes on using what is there; so does the push
    of the very files whose pack it was."""
    tombstone(world)
    world.collect()
    result = world.push(world.source("two", a=A, b=B), branch="two")
    assert result.lost_packs == 1
    assert len(B) <= result.new_bytes < len(A) + len(B)
    assert files_of(world.store, "two") == {b"a": A, b"b": B}
    world.push(world.source("three", a=A, b=B, c=C), branch="again", machine="new")
    assert files_of(world.store, "again") == {b"a": A, b"b": B, b"c": C}
    world.needs.check("at the end")
    for _ in range(2):
        world.collect(min_used=1.0)
        world.hours += 25
        world.needs.read_all()


def test_the_same_pack_is_stored_under_another_id(world: World) -> None:
    """A machine that never heard of the pack, and would make it again, finds its id taken by what
    is left of it: the pack that it puts has another one."""
    tombstone(world)
    world.collect()
    for info in list(world.memory.list(keys.INDEX)):
        world.memory.delete(info.key)  # so that nobody knows which chunks there are
    world.push(world.source("three", a=A, b=B, c=C), branch="again", machine="new")
    assert len(thin_packs(world)) == 1
    assert files_of(world.store, "again") == {b"a": A, b"b": B, b"c": C}
    assert files_of(world.store, "one") == {b"a": A}


def test_a_compaction_that_writes_late(world: World) -> None:
    """A gc run that stands still before it writes a pack, while another one does it, a push
    stores the dropped bytes again and days go by: its write takes nothing away."""
    tombstone(world)
    late = world.actor("late", lambda store: world.collect(store=store))
    go_on_to(late, "put packs/")
    assert world.collect().compacted.packs == 1
    world.push(world.source("two", a=A, b=B), branch="two")
    world.hours += 100
    world.collect(min_used=0.9)
    finish(late)
    assert late.error is None
    world.needs.check("after the late write")
    assert files_of(world.store, "two") == {b"a": A, b"b": B}


def test_a_late_write_of_a_pack_that_was_deleted(world: World) -> None:
    """It comes back as garbage, which is tombstoned and deleted as any other."""
    tombstone(world)
    late = world.actor("late", lambda store: world.collect(store=store))
    go_on_to(late, "put packs/")
    world.delete("one")
    for _ in range(2):
        world.collect()
        world.hours += 25
    assert world.packs() == set()
    finish(late)
    assert len(world.packs()) == 1
    for _ in range(2):
        world.collect()
        world.hours += 25
    assert world.packs() == set()


def test_a_push_that_began_before_is_waited_for(world: World) -> None:
    """A push that has found chunks in a pack, before they were tombstoned, and stands still for
    long: its chunks are not dropped until it has ended, and then not at all."""
    push = world.actor(
        "push",
        lambda store: world.push(world.source("two", a=A, b=B), "two", "other", store=store),
    )
    go_on_to(push, "put repos/r/commits/")
    tombstone(world)
    world.beat(push)
    assert world.collect().compacted.packs == 0
    finish(push)
    world.hours += 25
    world.collect()
    world.needs.check("at the end")
    assert files_of(world.store, "two") == {b"a": A, b"b": B}


def test_the_first_outcome_counts(world: World) -> None:
    """A push that saves chunks right before a gc run says that it drops them: they stay."""
    tombstone(world)
    late = world.actor("late", lambda store: world.collect(store=store))
    go_on_to(late, "put journal/fates/")
    world.push(world.source("two", a=A, b=B), branch="two")
    finish(late)
    assert late.error is None
    assert thin_packs(world) == []
    world.needs.check("at the end")


def test_a_crash_at_any_write(world: World, tmp_path: Path) -> None:
    """Whichever of a gc run's writes is its last, the next one goes on, and all is there."""
    tombstone(world)
    before = dict(world.memory.objects)
    for writes in range(1, 20):
        world.memory.objects.clear()
        world.memory.objects.update(before)
        objects = FaultyObjects(world.memory)
        objects.add(fail(Unavailable("gone")), "put", first=writes)
        with contextlib.suppress(Unavailable):
            world.collect(store=open_store(objects), min_used=0.9)
            break
        world.needs.read_all()
        world.collect(min_used=0.9)
        assert len(thin_packs(world)) == 1
        world.needs.read_all()
    assert writes > 3


def test_a_damaged_pack_is_left_as_it_is(world: World) -> None:
    """Where the bytes that are to stay are wrong, nothing is written over them."""
    tombstone(world)
    [key] = [key for key in world.packs() if A in world.memory.objects[key]]
    damaged = b"x" + world.memory.objects[key][1:]
    world.memory.objects[key] = damaged
    assert world.collect().compacted.packs == 0
    assert world.memory.objects[key] == damaged


def partial_copy(tmp_path: Path) -> tuple[World, Store]:
    """A store with a copy of what is left of the pack elsewhere: a, in use, and b, which is not;
    and a store that has c too, for a branch that needs a and c."""
    elsewhere, world = World(tmp_path / "elsewhere"), World(tmp_path / "here")
    for branch, files in (("all", "abc"), ("ac", "ac"), ("ab", "ab"), ("a", "a")):
        data = {name: {"a": A, "b": B, "c": C}[name] for name in files}
        elsewhere.push(elsewhere.source(branch, **data), branch)
    whole = MemoryObjects("memory:whole")
    whole.objects = dict(elsewhere.memory.objects)
    for branch in ("all", "ac"):
        elsewhere.delete(branch)
    tombstone(elsewhere)
    elsewhere.collect()
    rest = MemoryObjects("memory:rest")
    rest.objects = dict(elsewhere.memory.objects)
    for branch in ("ab", "a"):
        copy(open_store(rest), world.store, [REPO], branch, CopyOptions(clock=world.clock))
    world.delete("ab")
    tombstone(world)
    assert [bytes(index.codecs).count(DROPPED) for index in thin_packs(world)] == [1]
    return world, open_store(whole)


def test_a_copy_beside_a_compaction_that_writes_late(tmp_path: Path) -> None:
    """A compaction that has read a pack which lacks a chunk, as it was copied, would take the chunk
    away again that a copy adds meanwhile: such a copy is refused."""
    with one_at_a_time():
        world, whole = partial_copy(tmp_path)
        late = world.actor("late", lambda store: world.collect(store=store))
        go_on_to(late, "put packs/")
        with pytest.raises(Collected):
            copy(whole, world.store, [REPO], "ac", CopyOptions(clock=world.clock))
        finish(late)
        world.needs.check("after the late write")
        assert files_of(world.store, "a") == {b"a": A}


def test_a_copy_before_a_compaction(tmp_path: Path) -> None:
    """One that adds a chunk to a pack of which others are tombstoned keeps these: nobody writes the
    pack again without all that was added."""
    with one_at_a_time():
        world, whole = partial_copy(tmp_path)
        copy(whole, world.store, [REPO], "ac", CopyOptions(clock=world.clock))
        assert world.collect().compacted.packs == 0
        assert files_of(world.store, "ac") == {b"a": A, b"c": C}
        tombstone(world)
        world.collect(min_used=0.9)
        world.needs.check("after another compaction")
        assert files_of(world.store, "ac") == {b"a": A, b"c": C}
        assert world.needs.unused_chunks(set(), int(world.clock())) == set()


def test_a_dry_run_foresees_what_is_purged_too(world: World) -> None:
    """A compaction also drops what was purged and came back: what is sparse afterwards, the dry run
    says."""
    world.push(world.source("two", a=A, b=B), branch="two")
    tombstone(world)
    world.delete("two")
    Purges(world.memory).append([ChunkId(digest_of(A))], "", 0)
    would = world.collect(min_used=0.4, dry_run=True)
    assert world.collect(min_used=0.4) == would
    assert (would.compacted.packs, would.sparse.size_bytes) == (1, len(B))
