"""Writes for Git LFS: objects in a branch, and locks that one of many gets."""

from __future__ import annotations

import itertools
from pathlib import Path
from random import Random

import pytest

from lodefs.chunkstore.errors import Conflict, NotFound, Renamed
from lodefs.chunkstore.format.chunking import cut
from lodefs.chunkstore.format.foreign import lfs
from lodefs.chunkstore.format.names import PackId, Spec, digest_of
from lodefs.chunkstore.protocol.lfs_recipe import Hole, encode_holes
from lodefs.chunkstore.protocol.orders.lfs_orders import (
    AddLock,
    FillHoles,
    ListLocks,
    Order,
    Outcome,
    PutObjects,
    RemoveLock,
)
from lodefs.chunkstore.push.lfs import chunks as lfs_chunks
from lodefs.chunkstore.push.lfs.writer import LfsWriter
from lodefs.chunkstore.repo.history import find
from lodefs.chunkstore.repo.pack_reader import PackReader
from lodefs.chunkstore.repo.refs import BRANCHES
from lodefs.chunkstore.repo.store import Store, create_store
from lodefs.chunkstore.transfer.rename import RenameOptions, rename
from lodefs.chunkstore.types import Buffer
from tests.support.chunkstore.memory_objects import MemoryObjects

OIDS = ["ab" * 32, "cd" * 32]


@pytest.fixture
def store() -> Store:
    return create_store(MemoryObjects())


@pytest.fixture
def writer(store: Store, tmp_path: Path) -> LfsWriter:
    return LfsWriter(store, tmp_path / "index")


def test_objects(store: Store, writer: LfsWriter, tmp_path: Path) -> None:
    """All objects of an order come in one commit; what is there already makes none."""
    files = {}
    for oid in OIDS:
        file = tmp_path / oid
        file.write_bytes(oid.encode() * 5000)
        files[oid] = str(file)
    for _ in range(2):
        assert writer.carry_out(PutObjects("r", files)) == Outcome()
    [ref] = store.refs("r").history(BRANCHES, lfs.OBJECTS)
    assert ref.commit is not None
    for oid in OIDS:
        entry = find(store, Spec("r", lfs.OBJECTS, lfs.object_path(oid).encode()))
        assert entry.size_bytes == 64 * 5000


def test_chunks_of_sizes_that_a_client_makes_up(
    store: Store, writer: LfsWriter, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However small a client says that chunks are, few are in memory at once."""
    data = Random(1).randbytes(3_000_000)
    (tmp_path / "file").write_bytes(data)
    writer.carry_out(PutObjects("r", {OIDS[0]: str(tmp_path / "file")}))
    ends = [0, *cut(data, store.settings.chunking, final=True)]
    ids = [digest_of(data[begin:end]) for begin, end in itertools.pairwise(ends)]
    counts: list[int] = []

    def read(packs: PackReader, pack: PackId, first: int, count: int) -> list[Buffer]:
        counts.append(count)
        return read_all(packs, pack, first, count)

    read_all = PackReader.read
    monkeypatch.setattr(PackReader, "read", read)
    monkeypatch.setattr(lfs_chunks, "RUN_MEMORY_BYTES_MAX", 1 << 20)
    holes = encode_holes([Hole(one, 0, 1) for one in ids])
    with pytest.raises(Conflict):
        writer.carry_out(FillHoles("r", str(tmp_path / "file"), holes))
    assert len(ids) > 20 and counts == [4]


def test_locks(writer: LfsWriter) -> None:
    """A path has one lock, which only its owner removes, or force."""
    assert writer.carry_out(ListLocks("r")).locks == []
    [lock] = writer.carry_out(AddLock("r", "a.bin", "x")).locks
    assert (lock.path, lock.owner.name) == ("a.bin", "x")
    writer.carry_out(AddLock("r", "b.bin", "y"))
    assert writer.carry_out(AddLock("r", "a.bin", "y")) == Outcome([lock], is_refused=True)
    assert {one.path for one in writer.carry_out(ListLocks("r")).locks} == {"a.bin", "b.bin"}
    assert writer.carry_out(ListLocks("r", "a.bin")).locks == [lock]
    assert writer.carry_out(RemoveLock("r", lock.id, "y", force=False)).is_refused
    assert not writer.carry_out(RemoveLock("r", lock.id, "y", force=True)).is_refused
    assert [one.path for one in writer.carry_out(ListLocks("r")).locks] == ["b.bin"]
    with pytest.raises(NotFound):
        writer.carry_out(RemoveLock("r", lock.id, "x", force=False))


def test_a_renamed_repository(store: Store, writer: LfsWriter, tmp_path: Path) -> None:
    """Nothing is written under a new name for somebody who named the old one."""
    writer.carry_out(AddLock("r", "a.bin", "x"))
    rename(store, "r", "s", RenameOptions("me", 1 << 40))
    (tmp_path / "file").write_bytes(b"x")
    for order in (PutObjects("r", {OIDS[0]: str(tmp_path / "file")}), AddLock("r", "b.bin", "x")):
        with pytest.raises(Renamed):
            writer.carry_out(order)
    assert store.refs("s").latest(BRANCHES, lfs.OBJECTS) is None
    assert [one.path for one in writer.carry_out(ListLocks("s")).locks] == ["a.bin"]


def test_a_lock_that_two_take(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If another proxy takes the lock between our look and our commit, it has the lock."""
    ours, theirs = LfsWriter(store, tmp_path / "1"), LfsWriter(store, tmp_path / "2")
    ours.carry_out(AddLock("r", "other.bin", "x"))
    look = LfsWriter._lock_files
    orders: list[Order] = [AddLock("r", "a.bin", "them")]

    def look_first(writer: LfsWriter, repo: str) -> object:
        found = look(writer, repo)
        if writer is ours and orders:
            theirs.carry_out(orders.pop())
        return found

    monkeypatch.setattr(LfsWriter, "_lock_files", look_first)
    outcome = ours.carry_out(AddLock("r", "a.bin", "us"))
    assert outcome.is_refused
    assert outcome.locks[0].owner.name == "them"
