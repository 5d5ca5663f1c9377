"""verify.py: every kind of damage is found, and does not hide another."""

from __future__ import annotations

import pickle
import random
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from lodefs.chunkstore.errors import NotFound
from lodefs.chunkstore.format import keys
from lodefs.chunkstore.format.names import Spec
from lodefs.chunkstore.format.tree import TreeEntry
from lodefs.chunkstore.objects.interface import Part
from lodefs.chunkstore.repo.checks.data_check import Checked, DataJob, check_group
from lodefs.chunkstore.repo.checks.verify import VerifyResult, _Verify, verify
from lodefs.chunkstore.repo.entry_set import EntrySet
from lodefs.chunkstore.repo.history import find
from lodefs.chunkstore.repo.store import Store, create_store, open_store
from lodefs.chunkstore.system.parallel_map import grouped
from lodefs.chunkstore.system.progress import Progress
from lodefs.chunkstore.system.task_share import TaskShare
from tests.support.chunkstore.handmade import Files, Handmade, Link
from tests.support.chunkstore.memory_objects import MemoryObjects
from tests.support.maintenance.schedules import one_at_a_time
from tests.support.maintenance.world import World

LARGE = random.Random(1).randbytes(12_500)
FILES: Files = {
    b"small": b"s" * 500,
    b"next": b"n" * 500,
    b"large": LARGE,
    b"dir/inner": b"i" * 1500,
    b"dir/shared": LARGE[:1000] + b"own",
    b"empty": b"",
    b"link": Link(b"small"),
}


class Damaged:
    """A store with two repositories, whose objects a test spoils."""

    def __init__(self) -> None:
        self.objects = MemoryObjects()
        made = Handmade(create_store(self.objects))
        made.commit("r", FILES)
        made.commit("r", {**FILES, b"more": b"m" * 700}, message="second")
        made.commit("other", {b"x": b"x" * 300})

    def store(self) -> Store:
        """The store, with nothing remembered."""
        return open_store(self.objects)

    def check(self, spec: Spec | None = None, *, data: bool = True) -> VerifyResult:
        """What verify finds."""
        return verify(self.store(), spec, data=data)

    def entry(self, path: bytes) -> TreeEntry:
        """An entry of r@main."""
        return find(self.store(), Spec("r", path=path))

    def pack_of(self, path: bytes) -> str:
        """The key of the first pack of an entry."""
        return keys.pack(self.entry(path).segments[0].pack)

    def flip(self, key: str, position: int) -> None:
        """Flips a bit of an object."""
        data = bytearray(self.objects.objects[key])
        data[position] ^= 1
        self.objects.objects[key] = bytes(data)


@pytest.fixture
def damaged() -> Damaged:
    """A store that is whole yet."""
    return Damaged()


@pytest.mark.parametrize("data", [False, True])
def test_a_whole_store_has_no_problems(damaged: Damaged, data: bool) -> None:
    """Every commit, directory and file of a good store is counted and none is a problem."""
    result = damaged.check(data=data)
    assert result.problems == []
    assert (result.commits, result.files) == (3, 8)
    unique = sum(len(v) for v in FILES.values() if isinstance(v, bytes)) + 700 + 300
    assert result.data_bytes == (unique if data else 0)


def test_one_revision(damaged: Damaged) -> None:
    """With a spec only that revision's trees and files are looked at."""
    del damaged.objects.objects[
        keys.pack(find(damaged.store(), Spec("other", path=b"x")).segments[0].pack)
    ]
    assert damaged.check(Spec("r")).problems == []
    assert len(damaged.check(Spec("other")).problems) >= 1
    with pytest.raises(NotFound):
        damaged.check(Spec("r", "none"))


def test_a_flipped_bit_in_data(damaged: Damaged) -> None:
    """With data the problem names repository, commit, path, pack and chunk; without, none."""
    entry = damaged.entry(b"dir/inner")
    segment = entry.segments[0]
    place = damaged.store().packs.index(segment.pack).place(segment.first)
    damaged.flip(keys.pack(segment.pack), place.offset)
    assert damaged.check(data=False).problems == []
    problems = damaged.check().problems
    assert len(problems) == 1
    for part in ("r@", ":dir/inner", f"chunk {segment.first} of {keys.pack(segment.pack)}"):
        assert part in problems[0]


def test_flipped_bits_in_many_places(damaged: Damaged) -> None:
    """Every spoiled chunk is listed with every file that has it, also in one file."""
    segments = damaged.entry(b"large").segments
    for segment in (segments[0], segments[-1]):
        index = damaged.store().packs.index(segment.pack)
        number = segment.first if segment is segments[0] else segment.first + segment.count - 1
        damaged.flip(keys.pack(segment.pack), index.place(number).offset)
    problems = damaged.check().problems
    assert sum(":large: " in problem for problem in problems) == 2
    assert sum(":dir/shared: " in problem for problem in problems) == 1


def test_a_missing_pack(damaged: Damaged) -> None:
    """Each file of a pack that is gone is named, and the shard that promises it."""
    key = damaged.pack_of(b"small")
    del damaged.objects.objects[key]
    problems = damaged.check(data=False).problems
    assert any(":small: " in p and key in p for p in problems)
    assert any(p.startswith("index/") and key in p for p in problems)


def test_every_place_of_a_damaged_file_is_told(damaged: Damaged) -> None:
    """A file of several segments in a lost pack is one line, which has its other paths, the
    branches and tags that have it, and the number of commits; of one revision it is told that
    older commits were not looked into."""
    made = Handmade(damaged.store())
    made.commit("r", {b"only": b"o" * 900, b"same": b"o" * 900}, branch="b")
    made.commit("r", {b"else": b"e" * 900}, branch="b", message="without it")
    made.commit("other", {b"only": b"o" * 900}, message="has it")
    key = keys.pack(find(damaged.store(), Spec("other", path=b"only")).segments[0].pack)
    del damaged.objects.objects[key]
    lines = [line for line in damaged.check(data=False).problems if "o" * 3 not in line]
    told = [line for line in lines if ":only: " in line or ":same: " in line]
    assert len(told) == 1, lines
    assert "in 2 commits, among them other@main, as " in told[0]
    assert all(name in told[0] for name in ("r:only", "r:same", "other:only"))
    whole = damaged.check(Spec("r", "b"), data=False)
    assert (whole.problems, whole.commits_without_files) == ([], 1)


def test_a_truncated_pack(damaged: Damaged) -> None:
    """A pack that lost its end is found without reading data."""
    key = damaged.pack_of(b"small")
    damaged.objects.objects[key] = damaged.objects.objects[key][:-10]
    assert any(":small: " in p for p in damaged.check(data=False).problems)


@pytest.mark.parametrize("prefix", [keys.INDEX, "repos/r/commits/", "repos/r/refs/"])
def test_a_flipped_bit_in_metadata(damaged: Damaged, prefix: str) -> None:
    """A spoiled shard, commit or ref is a problem, and the other repository is still checked."""
    key = next(key for key in sorted(damaged.objects.objects) if key.startswith(prefix))
    damaged.flip(key, len(damaged.objects.objects[key]) // 2)
    result = damaged.check(data=False)
    assert len(result.problems) == 1
    assert key.rpartition("/")[2][:10] in result.problems[0] or prefix in result.problems[0]
    assert result.commits >= 1


def test_a_missing_parent(damaged: Damaged) -> None:
    """An older commit that is gone is a problem."""
    store = damaged.store()
    parent = store.commit("r", store.resolve("r", "main")).parents[0]
    del damaged.objects.objects[keys.commit("r", parent)]
    problems = damaged.check(data=False).problems
    assert len(problems) == 1
    assert parent.hex() in problems[0]


def test_a_spoiled_tree(damaged: Damaged) -> None:
    """A directory that cannot be read is named; what lies beside it is still checked."""
    segment = damaged.entry(b"dir").segments[0]
    place = damaged.store().packs.index(segment.pack).place(segment.first)
    damaged.flip(keys.pack(segment.pack), place.offset)
    result = damaged.check(data=False)
    assert sum(":dir: " in problem for problem in result.problems) == 1
    assert result.files >= 4


def _of_size(entry: TreeEntry, size_bytes: int) -> TreeEntry:
    (segment,) = entry.segments
    segments = (segment._replace(size_bytes=size_bytes),)
    return replace(entry, size_bytes=size_bytes, segments=segments)


Spoil = Callable[[TreeEntry, TreeEntry], TreeEntry]


@pytest.mark.parametrize(
    ("spoil", "told"),
    [
        (lambda a, b: replace(a, segments=b.segments), "do not match the file's digest"),
        (lambda a, b: _of_size(a, 499), "has 500 bytes in 1 chunks from number 0, and should"),
        (
            lambda a, b: replace(a, segments=(a.segments[0]._replace(count=99),)),
            "99 from number 0 are not in it",
        ),
    ],
    ids=["digest", "size", "segment"],
)
def test_a_tree_that_lies(damaged: Damaged, spoil: Spoil, told: str) -> None:
    """Entries whose chunks are good, but are not what they should be, are found."""
    store = damaged.store()
    made = Handmade(store)
    good = made.commit("liar", {b"a": b"a" * 500, b"b": b"b" * 500})
    a, b = store.packs.read_tree(store.commit("liar", good).root)
    root = made.tree(b"", [spoil(a, b)])
    bad = made.commit_root("liar", root, branch="bad")
    problems = damaged.check().problems
    assert len(problems) == 1
    assert f"liar@{bad.hex()[:12]}:a: " in problems[0]
    assert told in problems[0]


def _spoil(damaged: Damaged) -> None:
    """Damages an index, data in two packs, and the only tree of a commit."""
    key = damaged.pack_of(b"dir/inner")
    damaged.flip(key, len(damaged.objects.objects[key]) - 5)
    for path in (b"small", b"more"):
        damaged.flip(damaged.pack_of(path), 10)
    spoiled = find(damaged.store(), Spec("other")).segments[0].pack
    damaged.flip(keys.pack(spoiled), 10)


def test_an_executor_gives_the_same_report(
    damaged: Damaged, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also with files in several batches: results of jobs come late, and travel by pickle."""
    monkeypatch.setattr("lodefs.chunkstore.repo.checks.verify.FILES_TOGETHER_MAX", 2)
    _spoil(damaged)

    def late(jobs: Iterable[DataJob]) -> Iterator[Checked]:
        packs = damaged.store().packs
        for group in pickle.loads(pickle.dumps(list(grouped(jobs, lambda _: 0, 1, 3)))):
            yield from pickle.loads(pickle.dumps(check_group(packs, group, 2)))

    whole = damaged.check()
    assert len(whole.problems) > 4
    assert verify(damaged.store(), data=True, check_data=late) == whole


@pytest.mark.parametrize("data", [False, True])
@pytest.mark.parametrize("tasks", [1, 3, 20])
def test_shares_together_are_one_report(damaged: Damaged, tasks: int, data: bool) -> None:
    """Each file is checked by one task; problems of trees are told by all."""
    _spoil(damaged)
    whole = damaged.check(data=data)
    shares = [TaskShare(n, tasks) for n in range(1, tasks + 1)]
    parts = [verify(damaged.store(), data=data, share=share) for share in shares]
    assert {line for part in parts for line in part.problems} == {*whole.problems}
    assert sum(part.files for part in parts) == whole.files
    assert sum(part.data_bytes for part in parts) == whole.data_bytes
    assert all(part.commits == whole.commits for part in parts)


def test_what_is_read_ahead_is_bounded() -> None:
    """Of many packs only a few are read before the first was looked at: a store of any size can be
    verified."""
    store = Damaged().store()
    with ThreadPoolExecutor(2) as executor, EntrySet() as seen:
        work = _Verify(store, executor, seen, Progress(), data=False, ahead=5)
        begun: list[int] = []
        results = work._map(lambda number: begun.append(number) or number, list(range(100)))
        assert next(results) == (0, None)
        assert len(begun) <= 6
        assert [found for found, _ in results] == list(range(1, 100))


@pytest.mark.parametrize("is_late", [False, True])
def test_a_collection_beside_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_late: bool
) -> None:
    """What it deletes while index shards are looked at is no problem of the store: a shard that is
    listed and not yet read, or the packs of one that was read."""
    with one_at_a_time():
        world = World(tmp_path)
        world.push(world.source("a", a=b"a" * 5000))
        kept = world.packs()
        world.push(world.source("b", b=b"b" * 5000), "b")
        world.delete("b")
        world.collect()
        world.hours += 25
        slow = tuple(world.packs() - kept) if is_late else keys.INDEX
        get, seen = world.memory.get, set[str]()

        def get_slowly(key: str, **which: Any) -> Part:
            if key.startswith(slow) and not seen:
                seen.add(key)
                world.collect()
            return get(key, **which)

        store = world.store
        monkeypatch.setattr(world.memory, "get", get_slowly)
        assert verify(store, data=True).problems == []
        assert seen
