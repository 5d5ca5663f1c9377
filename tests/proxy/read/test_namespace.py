"""Namespace: trees become rows once, and rows answer without the store."""

from __future__ import annotations

import asyncio
import random
import shutil
from collections.abc import Sequence
from pathlib import Path

import pytest

from lodefs.chunkstore.errors import Corrupt, DeadlineExceeded, NotFound, TooLarge, Unavailable
from lodefs.chunkstore.format import inodes
from lodefs.chunkstore.format.names import CommitId
from lodefs.chunkstore.format.tree import Kind, TreeEntry
from lodefs.chunkstore.objects.interface import Part
from lodefs.proxy.fetch.known_damage import KEPT_FOR_S
from lodefs.proxy.metrics.counters import Counter
from lodefs.proxy.node import SnapshotFile
from lodefs.proxy.read import namespace
from lodefs.proxy.read.directories import directory_loader, directory_rows
from lodefs.proxy.read.directories.tree_budget import TreeRoom
from lodefs.proxy.read.directories.tree_source import Outcome
from lodefs.proxy.service.store_node import StoreNode
from tests.support.chunkstore.handmade import Files, Link, Program
from tests.support.proxy.rig import REPO, Rig, read_file, until
from tests.support.proxy.rig import run as run_rig

AWKWARD: Files = {
    b"new\nline": b"1",
    b"\xff\xfe not utf-8": b"2",
    b"x" * 255: b"3",
    b"dir/\x01": b"4",
    b"dir/run": Program(b"#!"),
    b"dir/link": Link(b"../../outside"),
    b"hollow": None,
}


def names(page: object) -> list[bytes]:
    return [node.name for node in page.nodes]  # type: ignore[attr-defined]


def test_awkward_names_and_kinds(tmp_path: Path) -> None:
    """Names are bytes; links are kept as they are; empty directories are empty."""
    rig = Rig(tmp_path, AWKWARD)

    async def run() -> None:
        async with rig.node() as node:
            snapshot = await node.names.snapshot(REPO, "main")
            page = await node.names.children(snapshot, 1, limit=100)
            assert names(page) == sorted([b"new\nline", b"\xff\xfe not utf-8", b"x" * 255, b"dir", b"hollow"])  # fmt: skip # noqa: E501
            for child in page.nodes:
                assert await node.names.lookup(snapshot, 1, child.name) == child
                assert await node.names.by_ino(snapshot, child.ino) == child
            assert (await node.names.entry(snapshot, b"dir/run")).executable
            assert (await node.names.entry(snapshot, b"dir/link")).target == b"../../outside"
            hollow = await node.names.entry(snapshot, b"hollow")
            assert await node.names.children(snapshot, hollow.ino, limit=5) == type(page)(
                [], more=False
            )

    asyncio.run(run())


def test_pages_of_a_big_directory(tmp_path: Path) -> None:
    """Any limit and any starting name give the same children in order, none twice."""
    files: Files = {b"n%04d" % n: b"" for n in range(1000)}
    rig = Rig(tmp_path, files)

    async def run() -> None:
        async with rig.node() as node:
            snapshot = await node.names.snapshot(REPO, "main")
            for limit in (1, 7, 255, 256, 257, 999, 1000, 5000):
                found: list[bytes] = []
                more = True
                while more and (limit > 1 or len(found) < 300):
                    page = await node.names.children(
                        snapshot, 1, after=found[-1] if found else b"", limit=limit
                    )
                    assert len(page.nodes) <= limit
                    found += names(page)
                    more = page.more
                assert found == sorted(files)[: len(found)]
                assert limit == 1 or len(found) == 1000
            page = await node.names.children(snapshot, 1, after=b"n0500x", limit=2)
            assert names(page) == [b"n0501", b"n0502"]
            assert names(await node.names.children(snapshot, 1, after=b"z", limit=2)) == []

    asyncio.run(run())


def test_a_directory_is_loaded_once_by_many(tmp_path: Path) -> None:
    """Many who look into a directory at once, and later, cost one load of its tree."""
    rig = Rig(tmp_path, {b"a/%d" % n: b"%d" % n for n in range(50)})

    async def run() -> None:
        async with rig.node() as node:
            snapshot = await node.names.snapshot(REPO, "main")
            await asyncio.gather(*(node.names.entry(snapshot, b"a/%d" % n) for n in range(50)))
            with pytest.raises(NotFound):
                await node.names.entry(snapshot, b"a/nothing")
            assert node.counts.values[Counter.TREES_LOADED] == 2

    asyncio.run(run())


def test_a_branch_moves_and_a_commit_does_not(tmp_path: Path) -> None:
    """A branch is asked for again after a second; a known commit never."""
    rig = Rig(tmp_path, {b"f": b"one"})
    now = [0.0]

    async def run() -> None:
        node = StoreNode(rig.store, rig.settings(), clock_s=lambda: now[0])
        first = await node.names.snapshot(REPO, "main")
        second_id: CommitId = rig.maker.commit(REPO, {b"f": b"two"})
        assert (await node.names.snapshot(REPO, "main")) == first
        now[0] += namespace.RESOLVED_FOR_S
        second = await node.names.snapshot(REPO, "main")
        assert second.commit == second_id.hex()
        assert second.root != first.root
        rig.reset()
        assert await node.names.snapshot(REPO, first.commit) == first
        assert rig.objects.gets == 0
        assert await node.names.snapshot(REPO, first.commit[:10]) == first
        await node.close()

    asyncio.run(run())


def test_a_commit_of_another_repository_is_not_found(tmp_path: Path) -> None:
    """A commit that the node knows through one repository is no commit of another."""
    rig = Rig(tmp_path, {b"f": b"one"})

    async def run() -> None:
        async with rig.node() as node:
            snapshot = await node.names.snapshot(REPO, "main")
            with pytest.raises(NotFound):
                await node.names.snapshot("other", snapshot.commit)

    asyncio.run(run())


@pytest.mark.parametrize("same_directory", [True, False])
def test_colliding_inode_numbers_are_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, same_directory: bool
) -> None:
    """Two entries of a snapshot with one number: the second directory that is loaded is refused,
    and the error names both paths."""
    one, two = (b"d/one", b"d/two") if same_directory else (b"d/one", b"e/two")
    rig = Rig(tmp_path, {one: b"1", two: b"2"})

    def child_ino(parent: int, name: bytes) -> int:
        return 4711 if name in (b"one", b"two") else inodes.child_ino(parent, name)

    for module in (namespace, directory_rows, directory_loader):
        monkeypatch.setattr(module, "child_ino", child_ino)

    async def run() -> None:
        async with rig.node() as node:
            snapshot = await node.names.snapshot(REPO, "main")
            if not same_directory:
                await node.names.entry(snapshot, one)
            with pytest.raises(Corrupt, match=rf"{one.decode()}.*{two.decode()}.*4711"):
                await node.names.entry(snapshot, two)

    asyncio.run(run())


def test_a_spoiled_tree_is_corrupt(tmp_path: Path) -> None:
    """A directory whose tree has wrong bytes in the store is refused, for a few seconds without
    asking the store again, and works when it is back and these are over."""
    rig = Rig(tmp_path, {b"d/f": b"1"})
    now_s = 1000.0

    def answer(key: str, part: Part) -> Part:
        if key.startswith("packs/"):
            return Part(bytes(len(part.data)), part.object_size_bytes, part.etag)
        return part

    async def run() -> None:
        nonlocal now_s
        rig.clock_s = lambda: now_s
        async with rig.node() as node:
            snapshot = await node.names.snapshot(REPO, "main")
            rig.objects.answer = answer
            with pytest.raises(Corrupt):
                await node.names.entry(snapshot, b"d/f")
            rig.objects.answer = lambda _key, part: part
            gets = rig.objects.gets
            with pytest.raises(Corrupt, match="found a moment ago"):
                await node.names.entry(snapshot, b"d/f")
            assert rig.objects.gets == gets
            now_s += KEPT_FOR_S
            assert (await node.names.entry(snapshot, b"d/f")).size_bytes == 1

    asyncio.run(run())


def test_a_full_disk_does_not_hide_directories(tmp_path: Path) -> None:
    """Where rows cannot be written they are kept in memory; looking still works."""
    rig = Rig(tmp_path, {b"d/f%d" % n: b"1" for n in range(10)})

    async def run() -> None:
        async with rig.node() as node:
            kv = node._cache.kv
            write = kv.write

            def full(rows: object, *, durable: bool = False) -> None:
                raise Unavailable("the index is full")

            kv.write = full  # type: ignore[method-assign]
            snapshot = await node.names.snapshot(REPO, "main")
            entry = await node.names.entry(snapshot, b"d/f3")
            assert await node.names.by_ino(snapshot, entry.ino) == entry
            page = await node.names.children(snapshot, entry.parent, after=b"f3", limit=4)
            assert names(page) == [b"f4", b"f5", b"f6", b"f7"]
            kv.write = write  # type: ignore[method-assign]
            rig.maker.commit(REPO, {b"g": b""}, branch="other")
            await node.names.snapshot(REPO, "other")
        async with rig.node() as node:
            assert await node.names.by_ino(snapshot, entry.ino) == entry

    asyncio.run(run())


async def at_rest(node: StoreNode) -> None:
    """Returns when nothing is loaded ahead any more."""
    await until(lambda: all(one.task is None for one in node.names._loader._ahead.values()))


def test_a_walk_finds_directories_loaded(tmp_path: Path) -> None:
    """After the second listing further ones are loaded before anybody asks, four times as many
    with each miss; the store is read once for all of them."""
    rig = Rig(tmp_path, {b"%02d/%d/f" % (n, m): b"x" for n in range(20) for m in range(3)})

    async def run() -> None:
        async with rig.node() as node:
            snapshot = await node.names.snapshot(REPO, "main")
            pack_index = node.counts.values
            page = await node.names.children(snapshot, 1, limit=100)
            await node.names.children(snapshot, page.nodes[0].ino, limit=100)
            await at_rest(node)
            assert pack_index[Counter.TREES_LOADED] == 2  # down a path is no walk
            rig.reset()
            await node.names.children(snapshot, page.nodes[1].ino, limit=100)
            await at_rest(node)
            assert pack_index[Counter.TREES_LOADED] == 6
            for child in page.nodes:
                for below in (await node.names.children(snapshot, child.ino, limit=100)).nodes:
                    assert names(await node.names.children(snapshot, below.ino, limit=9)) == [b"f"]
                    await at_rest(node)
            assert pack_index[Counter.TREES_LOADED] == 81
            assert rig.objects.gets <= 3

    asyncio.run(run())


def test_a_walk_goes_on_after_a_restart(tmp_path: Path) -> None:
    """What was loaded in an earlier life is passed over; the rest is loaded ahead as ever."""
    rig = Rig(tmp_path, {b"%02d/f" % n: b"x" for n in range(40)})

    async def run() -> None:
        async with rig.node() as node:
            snapshot = await node.names.snapshot(REPO, "main")
            page = await node.names.children(snapshot, 1, limit=100)
            for child in page.nodes[:2]:
                await node.names.children(snapshot, child.ino, limit=100)
            await at_rest(node)
            assert node.counts.values[Counter.TREES_LOADED] == 6
        async with rig.node() as node:
            for child in page.nodes[10:14]:
                await node.names.children(snapshot, child.ino, limit=100)
                await at_rest(node)
            for child in page.nodes:
                assert names(await node.names.children(snapshot, child.ino, limit=9)) == [b"f"]
                await at_rest(node)
            assert node.counts.values[Counter.TREES_LOADED] == 40 - 5

    asyncio.run(run())


def test_a_spoiled_directory_is_no_harm_to_those_beside_it(tmp_path: Path) -> None:
    """Of directories that are loaded together, one whose tree is wrong is refused when somebody
    asks for it, and the others are there."""
    rig = Rig(tmp_path, {b"%d/f" % n: b"x%d" % n for n in range(6)})

    async def run() -> None:
        async with rig.node() as node:
            snapshot = await node.names.snapshot(REPO, "main")
            page = await node.names.children(snapshot, 1, limit=100)
            trees = node.names._loader._trees
            read_all = trees.read_all

            async def spoiled(entries: Sequence[TreeEntry]) -> list[Outcome]:
                found = await read_all(entries)
                bad = Corrupt("zeros")
                return [bad if e.name == b"3" else f for e, f in zip(entries, found, strict=True)]

            trees.read_all = spoiled  # type: ignore[method-assign]
            for child in page.nodes:
                if child.name == b"3":
                    with pytest.raises(Corrupt, match="zeros"):
                        await node.names.children(snapshot, child.ino, limit=9)
                else:
                    assert names(await node.names.children(snapshot, child.ino, limit=9)) == [b"f"]
                await at_rest(node)

    asyncio.run(run())


async def walk(node: StoreNode, ino: int, seed: int) -> int:
    """How many entries a walk in some order finds below a directory."""
    snapshot = await node.names.snapshot(REPO, "main")
    children = list((await node.names.children(snapshot, ino, limit=100)).nodes)
    random.Random(seed).shuffle(children)
    below = [await walk(node, c.ino, seed) for c in children if c.kind == Kind.DIRECTORY]
    return len(children) + sum(below)


def test_many_walkers_load_each_directory_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Walks side by side, in different orders, read every directory's tree once."""
    monkeypatch.setattr(directory_loader, "ROUND_WAIT_S", 60)
    files: Files = {b"%02d/%d/%d/f" % (n, m, k): b"x" for n in range(9) for m in range(4) for k in range(3)}  # fmt: skip # noqa: E501
    rig = Rig(tmp_path, files)

    async def run() -> None:
        async with rig.node() as node:
            found = await asyncio.gather(*(walk(node, 1, seed) for seed in range(8)))
            assert set(found) == {9 + 36 + 108 + 108}
            assert node.counts.values[Counter.TREES_LOADED] == 1 + 9 + 36 + 108

    asyncio.run(run())


def test_what_a_round_leaves_out_is_loaded_for_who_asks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Walkers side by side see all entries, though rounds leave out most directories: those of
    large trees, and those that do not fit."""
    monkeypatch.setattr(directory_loader, "ROUND_SIZE_BYTES_MAX", 400)
    files: Files = {b"%02d/%d/f" % (n, m): b"x" for n in range(40) for m in range(n % 7 + 1)}
    rig = Rig(tmp_path, files)

    async def run() -> None:
        async with rig.node() as node:
            found = await asyncio.gather(*(walk(node, 1, seed) for seed in range(8)))
            assert set(found) == {40 + 2 * len(files)}

    asyncio.run(run())


def test_a_round_that_fails_fails_nobody(tmp_path: Path) -> None:
    """If the store refuses what is loaded ahead, each directory is loaded for who asks."""
    rig = Rig(tmp_path, {b"%02d/f" % n: b"x" for n in range(40)})

    async def run() -> None:
        async with rig.node() as node:
            trees = node.names._loader._trees
            read_all = trees.read_all

            async def refused(entries: Sequence[TreeEntry]) -> list[Outcome]:
                if len(entries) > 1:
                    raise Unavailable("the store is away")
                return await read_all(entries)

            trees.read_all = refused  # type: ignore[method-assign]
            found = await asyncio.gather(*(walk(node, 1, seed) for seed in range(8)))
            assert set(found) == {80}

    asyncio.run(run())


def test_a_name_that_comes_while_it_is_looked_up_is_found(tmp_path: Path) -> None:
    """Rows that are written between a look for the name and a look for the directory's mark."""
    rig = Rig(tmp_path, {b"d/f": b"x"})

    async def run() -> None:
        async with rig.node() as node:
            snapshot = await node.names.snapshot(REPO, "main")
            parent = (await node.names.entry(snapshot, b"d")).ino
            await node.names.children(snapshot, parent, after=b"", limit=9)
            rows = node.names._rows
            find, looks = rows.find, iter([None])
            rows.find = lambda *args: next(looks, find(*args))  # type: ignore[method-assign]
            assert (await node.names.lookup(snapshot, parent, b"f")).size_bytes == 1

    asyncio.run(run())


def test_stored_forms_take_room(tmp_path: Path) -> None:
    """Who asks at once for the stored form of a loaded directory gets the same bytes; they are made
    when there is room."""
    rig = Rig(tmp_path, {b"n%04d" % n: b"%d" % n for n in range(100)})

    async def run() -> None:
        async with rig.node() as node:
            snapshot = await node.names.snapshot(REPO, "main")
            first, *others = await asyncio.gather(*(node.names.tree(snapshot, 1) for _ in range(5)))
            assert all(other is first for other in others)
            node.names._loader._room = TreeRoom(deadline_s=0.05, small_size_bytes=1)
            async with node.names._loader._room.of(1, "another"):
                with pytest.raises(DeadlineExceeded):
                    await node.names.tree(snapshot, 1)
            assert await node.names.tree(snapshot, 1) == first

    asyncio.run(run())


def test_stored_forms_have_a_bound(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One that is too large for an answer is refused before anything of it is read."""
    rig = Rig(tmp_path, {b"a": b"1"})
    monkeypatch.setattr(namespace, "BODY_BYTES_MAX", 1)
    monkeypatch.setattr(directory_loader.DirectoryLoader, "read_all", None)

    async def run() -> None:
        async with rig.node() as node:
            snapshot = await node.names.snapshot(REPO, "main")
            with pytest.raises(TooLarge, match="directory 1 of"):
                await node.names.tree(snapshot, 1)

    asyncio.run(run())


@pytest.mark.parametrize("asked", ["children", "entry", "file"])
def test_numbers_of_a_lost_cache_are_found_again(tmp_path: Path, asked: str) -> None:
    """A mount asks a node with an empty cache for numbers that it has from the last one: they are
    found, at any depth, and each tree is read once, whatever is asked for."""
    rig = Rig(tmp_path, {b"%d/%d/%d/f" % (n // 9, n % 9 // 3, n % 3): b"%d" % n for n in range(27)})
    known: dict[bytes, int] = {}

    async def walk(node: StoreNode) -> None:
        snapshot = await node.names.snapshot(REPO, "main")
        for path in rig.files:
            entry = await node.names.entry(snapshot, path)
            known[path], known[path[:-2]] = entry.ino, entry.parent

    async def ask(node: StoreNode) -> None:
        snapshot = await node.names.snapshot(REPO, "main")

        async def found(path: bytes) -> None:
            if asked == "children":
                assert names(await node.names.children(snapshot, known[path[:-2]], limit=9)) == [
                    b"f"
                ]
            elif asked == "entry":
                assert (await node.names.by_ino(snapshot, known[path])).name == b"f"
            else:
                file = await node.names.file_by_ino(snapshot, known[path])
                assert isinstance(file, SnapshotFile)
                assert (await read_file(node, file))[0] == rig.files[path]

        await asyncio.gather(*map(found, rig.files))
        assert node.counts.values[Counter.TREES_LOADED] == 1 + 3 + 9 + 27
        for _ in range(2):
            with pytest.raises(NotFound):
                await node.names.by_ino(snapshot, 42)
        assert node.counts.values[Counter.TREES_LOADED] == 1 + 3 + 9 + 27

    run_rig(rig, walk)
    shutil.rmtree(tmp_path / "cache")
    run_rig(rig, ask)


def test_a_number_is_found_beside_a_damaged_directory(tmp_path: Path) -> None:
    """A search leaves out a directory that cannot be read, and goes on after an outage."""
    rig = Rig(tmp_path, {b"a/f": b"1", b"b/c/f": b"2"})
    known = inodes.child_ino(inodes.child_ino(inodes.child_ino(1, b"b"), b"c"), b"f")
    lost = inodes.child_ino(inodes.child_ino(1, b"a"), b"f")

    async def ask(node: StoreNode) -> None:
        snapshot = await node.names.snapshot(REPO, "main")
        trees = node.names._loader._trees
        read = trees.read_all
        calls = 0

        async def fail(entries: Sequence[TreeEntry]) -> list[Outcome]:
            nonlocal calls
            calls += 1
            if calls == 2:
                raise Unavailable("an outage")
            outcomes = await read(entries)
            return [
                Corrupt("broken") if entry.name == b"a" else outcome
                for entry, outcome in zip(entries, outcomes, strict=True)
            ]

        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(trees, "read_all", fail)
            with pytest.raises(Unavailable, match="an outage"):
                await node.names.by_ino(snapshot, known)
            assert (await node.names.by_ino(snapshot, known)).name == b"f"
            with pytest.raises(NotFound):
                await node.names.by_ino(snapshot, lost)

    run_rig(rig, ask)
