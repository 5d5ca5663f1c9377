"""Packs that are not there although a push builds on them: the source has the bytes, so its commit
is whole all the same."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from lodefs.chunkstore.format import keys
from lodefs.chunkstore.format.names import PackId, Spec
from lodefs.chunkstore.objects.interface import ObjectStore
from lodefs.chunkstore.push import pack_check
from lodefs.chunkstore.push.pack_check import PacksLost
from lodefs.chunkstore.push.push import PushOptions, PushResult, push
from lodefs.chunkstore.repo.checks.verify import verify
from lodefs.chunkstore.repo.store import Store, create_store, open_store
from lodefs.chunkstore.system.progress import Progress
from tests.adversary.hostile_repo import phantom_shard
from tests.support.chunkstore.directories import in_commit, in_directory, random_files, write_files
from tests.support.chunkstore.faulty_store import FaultyObjects
from tests.support.chunkstore.memory_objects import MemoryObjects


class Machine:
    """Somebody who pushes a directory of three packs of data."""

    def __init__(self, tmp_path: Path) -> None:
        self.memory = MemoryObjects()
        self.objects = FaultyObjects(self.memory)
        create_store(self.objects)
        self.source = tmp_path / "source"
        self.index_dir = tmp_path / "index"
        for part in ("one", "four", "three"):
            random_files(self.source / part, files=20, size_bytes_max=60_000, seed=len(part))

    @property
    def store(self) -> Store:
        """As a new process sees it."""
        return open_store(self.objects)

    def push(
        self, *, check: bool = False, index: str = "own", source: Path | None = None
    ) -> PushResult:
        options = PushOptions(
            message="",
            author="",
            time_s=0,
            index_dir=self.index_dir / index,
            workers=0,
            check_packs=check,
            clock_ns=lambda: time.time_ns() + 3600 * 10**9,
        )
        return push(self.store, source or self.source, "r", "main", options)

    def push_in_parts(self) -> PushResult:
        """Each part ends in packs of its own."""
        for part in ("one", "four", "three"):
            self.push(source=self.source / part)
        return self.push()

    def packs(self) -> list[str]:
        return [info.key for info in self.memory.list(keys.PACKS)]

    def assert_whole(self, result: PushResult) -> None:
        assert in_commit(self.store, "r", result.commit) == in_directory(self.source)
        spec = Spec("r", result.commit)
        assert verify(self.store, spec, data=True, progress=Progress()).problems == []


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


def lose(objects: MemoryObjects, key: str) -> None:
    objects.delete(key)


def cut_off(objects: MemoryObjects, key: str) -> None:
    objects.objects[key] = objects.objects[key][:-10]


def empty(objects: MemoryObjects, key: str) -> None:
    objects.objects[key] = b""


Harm = Callable[[MemoryObjects, str], None]


def test_chunks_that_somebody_says_are_there(machine: Machine) -> None:
    """Somebody writes an index shard that lists the honest content in a pack that is not there, so
    that an honest push does not send it: the push notices, and sends it."""
    contents = [path.read_bytes() for path in machine.source.rglob("*") if path.is_file()]
    phantom_shard(machine.store, *filter(None, contents))
    result = machine.push()
    machine.assert_whole(result)
    assert result.lost_packs == 1
    assert result.new_bytes == result.size_bytes
    assert machine.push().unchanged


def test_a_pack_that_is_taken_before(machine: Machine, tmp_path: Path) -> None:
    """Somebody puts garbage under the names of the packs that an honest push will write: they are
    written again."""
    other = Machine(tmp_path / "same")
    other.push()
    for key in other.packs():
        machine.memory.put(key, [b"garbage" * 50])
    machine.assert_whole(machine.push())


@pytest.mark.parametrize("harm", [lose, cut_off, empty])
def test_a_checked_push_repairs_what_is_lost(machine: Machine, harm: Harm) -> None:
    """Whichever pack of a commit is missing or cut off, a checked push of the same directory stores
    again what it held, although nothing of the source has changed; then nothing is left to do."""
    machine.push_in_parts()
    for key in machine.packs():
        named = {pack for _, pack in named_packs(machine)}
        if key not in named:
            continue
        harm(machine.memory, key)
        result = machine.push(check=True)
        assert result.lost_packs == 1
        machine.assert_whole(result)
        again = machine.push(check=True)
        assert (again.unchanged, again.lost_packs, again.files_read) == (True, 0, 0)


def named_packs(machine: Machine) -> list[tuple[bytes, str]]:
    """All paths of main, with the keys of the packs that their entries name."""
    store = machine.store
    root = store.commit("r", store.resolve("r", "main")).root
    entries = [(b"", root), *store.packs.walk(root)]
    return [(path, keys.pack(s.pack)) for path, entry in entries for s in entry.segments]


def test_a_damaged_tree_is_stored_again(machine: Machine) -> None:
    """A tree with a wrong byte, in a pack of the right size and index, is noticed by a checked push
    and written again, under the same name too."""
    machine.push()
    (key,) = {pack for path, pack in named_packs(machine) if not path}
    data = bytearray(machine.memory.objects[key])
    data[:60] = bytes(60)
    machine.memory.objects[key] = bytes(data)
    result = machine.push(check=True)
    machine.assert_whole(result)
    assert machine.push(check=True).unchanged


@pytest.mark.parametrize("index", ["own", "new"])
def test_all_packs_lost_at_once(machine: Machine, index: str) -> None:
    """Of a store that has only its commits and shards left all is stored again, from the machine
    that pushed or from another one."""
    machine.push_in_parts()
    for key in machine.packs():
        machine.memory.delete(key)
    result = machine.push(check=True, index=index)
    machine.assert_whole(result)
    assert result.lost_packs > 0
    assert machine.push(check=True, index=index).lost_packs == 0


def test_what_is_used_again_is_looked_for_always(machine: Machine) -> None:
    """A push that reads files whose chunks the store should have looks for these packs, asked or
    not: of a lost one the chunks are sent again."""
    machine.push_in_parts()
    (key,) = {
        pack
        for path, pack in named_packs(machine)
        if path.startswith(b"one/") and path.count(b"/") > 2
    }
    machine.memory.delete(key)
    write_files(machine.source, {"new": b"new"})
    result = machine.push(index="another machine")
    assert result.lost_packs == 1
    machine.assert_whole(result)


@pytest.mark.parametrize("harm", [lose, cut_off, empty])
def test_what_is_remembered_is_looked_for_too(machine: Machine, harm: Harm) -> None:
    """A directory that the head does not have, all of whose trees and files the machine has pushed
    before: whichever of its packs is lost, the push stores again what it held."""
    machine.push_in_parts()
    for key in machine.packs():
        machine.push(source=machine.source / "one")  # the head is something else again
        harm(machine.memory, key)
        machine.assert_whole(machine.push())


def test_what_looking_costs(machine: Machine) -> None:
    """An unchanged push asks for no pack; one that uses chunks again reads once the index of
    each pack that these lie in; a checked one reads that of each pack that is named, and trees."""
    machine.push_in_parts()
    machine.objects.forget()
    machine.push()
    assert machine.objects.count("head", keys.PACKS) == 0
    assert machine.objects.count("get", keys.PACKS) == 0
    (machine.source / "copy").write_bytes(
        next((machine.source / "one").rglob("file*9")).read_bytes()
    )
    machine.objects.forget()
    machine.push()
    assert machine.objects.count("head", keys.PACKS) == 0
    packs = [pack for path, pack in named_packs(machine) if path == b"copy"]
    assert [machine.objects.count("get", pack) for pack in packs] == [1]
    machine.objects.forget()
    machine.push(check=True)
    named = {pack for _, pack in named_packs(machine)}
    gets = {call.key for call in machine.objects.calls if call.operation == "get"}
    assert named <= gets


def test_a_pack_that_stays_lost_ends_the_push(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A push is repeated once for what is lost, not for ever; then nothing is committed."""
    machine.push_in_parts()
    before = machine.store.resolve("r", "main")
    asked: list[int] = []

    def absent(
        objects: ObjectStore, named: Mapping[PackId, int], **_: object
    ) -> dict[PackId, int | None]:
        asked.append(len(named))
        return {PackId(b"p" * 32): None}

    monkeypatch.setattr(pack_check, "lacking_chunks", absent)
    write_files(machine.source, {"one/new": b"new"})
    with pytest.raises(PacksLost, match="such as packs/70/7070"):
        machine.push(index="new")
    assert len(asked) == 2
    assert machine.store.resolve("r", "main") == before
