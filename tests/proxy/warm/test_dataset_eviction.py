"""Evicting a dataset: pins and whole cache files, and what is told of it."""

from __future__ import annotations

import os
import random
from pathlib import Path

import msgspec
import pytest

from lodefs.chunkstore.errors import InvalidInput, NotFound
from lodefs.chunkstore.protocol.cache_control import EvictRequest, WarmRequest
from lodefs.proxy.service.store_node import StoreNode
from tests.support.proxy.rig import MIB, REPO, Rig, read_path, run, until

BIG = random.Random(1).randbytes(2 * MIB)
OTHER_BIG = random.Random(2).randbytes(MIB)
SMALL = {b"small/%d" % n: random.Random(10 + n).randbytes(5000) for n in range(20)}
FILES = {b"a/big": BIG, b"b/big": OTHER_BIG, **SMALL}
OTHER = "other/set"


@pytest.fixture
def rig(tmp_path: Path) -> Rig:
    rig = Rig(tmp_path, FILES, chunk_size_bytes=10_000, pack_chunks=50)
    rig.maker.commit(OTHER, {b"x": random.Random(99).randbytes(7000), b"shared": BIG})
    return rig


async def warm(node: StoreNode, request: WarmRequest) -> None:
    """A whole job that succeeds."""
    job = await node.cache_control.warm(request)
    await until(lambda: not node._warmer._warmer.job(job.id).is_running)
    assert (await node.cache_control.warm_status(job.id)).state == "done"


def test_a_dataset_goes_whole(rig: Rig) -> None:
    """Everything of a repository goes, and what is told is what the cache says."""

    async def work(node: StoreNode) -> None:
        await warm(node, WarmRequest(REPO))
        used = node.status()["cache_used_bytes"]
        foretold = await node.cache_control.evict(EvictRequest(REPO, dry_run=True))
        assert node.status()["cache_used_bytes"] == used
        view = await node.cache_control.evict(EvictRequest(REPO))
        assert view.freed_bytes == view.wanted_bytes == used == foretold.freed_bytes
        assert view.cache_files == foretold.cache_files == 3
        assert (view.kept_cache_files, view.pins, view.held_by) == (0, [], [])
        assert node.status()["cache_used_bytes"] == 0
        assert await read_path(node, b"a/big") == BIG
        again = await node.cache_control.evict(EvictRequest(REPO, rev="main", path="small"))
        assert again.cache_files == 0

    run(rig, work)


def test_a_part_goes_and_the_rest_stays(rig: Rig) -> None:
    """Only the files that hold some of a path go."""

    async def work(node: StoreNode) -> None:
        await warm(node, WarmRequest(REPO))
        view = await node.cache_control.evict(EvictRequest(REPO, rev="main", path="b"))
        assert (view.cache_files, view.freed_bytes) == (1, MIB)
        rig.reset()
        assert await read_path(node, b"a/big") == BIG
        assert rig.objects.ranges == []

    run(rig, work)


def test_data_of_others_that_goes_along_is_told(rig: Rig) -> None:
    """A slab goes whole: the bytes of other datasets in it are counted apart."""

    async def work(node: StoreNode) -> None:
        await warm(node, WarmRequest(REPO, paths=["small"]))
        await warm(node, WarmRequest(OTHER, paths=["x"]))
        view = await node.cache_control.evict(EvictRequest(OTHER))
        assert (view.cache_files, view.wanted_bytes, view.freed_bytes) == (1, 7000, 107_000)

    run(rig, work)


def test_pins_within_go_and_others_hold(rig: Rig) -> None:
    """A pin of the path or less goes; one of more, or of others, holds its files and is named."""

    async def work(node: StoreNode) -> None:
        await warm(node, WarmRequest(REPO, pin_s=600))
        await warm(node, WarmRequest(REPO, paths=["a/big"], pin_s=700))
        view = await node.cache_control.evict(EvictRequest(REPO, rev="main", path="a"))
        assert [pin.path for pin in view.pins] == ["a/big"]
        assert (view.cache_files, view.kept_cache_files, view.kept_bytes) == (0, 1, 2 * MIB)
        assert [pin.path for pin in view.held_by] == [""]
        view = await node.cache_control.evict(EvictRequest(REPO))
        assert (len(view.pins), view.cache_files) == (1, 3)
        await warm(node, WarmRequest(OTHER, pin_s=600))
        await warm(node, WarmRequest(REPO, pin_s=600))
        view = await node.cache_control.evict(EvictRequest(REPO))
        assert [pin.repo for pin in view.pins] == [REPO]
        assert {pin.repo for pin in view.held_by} == {OTHER}
        rig.reset()
        assert await read_path(node, b"shared", repo=OTHER) == BIG
        assert rig.objects.ranges == []

    run(rig, work)


def test_an_owner_lets_go_of_its_own_alone(rig: Rig) -> None:
    """A pin of two owners counts once, and stays until both let it go or anybody takes it away."""

    async def work(node: StoreNode) -> None:
        let_go = EvictRequest(REPO, pins_only=True, owner="docker")
        await warm(node, WarmRequest(REPO, pin_s=600))
        await warm(node, WarmRequest(REPO, pin_s=900, owner="docker"))
        (pin,) = (await node.cache_control.pins()).pins
        assert pin.owners == ["docker"]
        view = await node.cache_control.evict(msgspec.structs.replace(let_go, dry_run=True))
        assert view.pins == []
        assert (await node.cache_control.pins()).pins == [pin]
        for _ in range(2):
            assert (await node.cache_control.evict(let_go)).pins == []
        (left,) = (await node.cache_control.pins()).pins
        assert (left.id, left.owners) == (pin.id, [])
        assert left.pinned_until_s < pin.pinned_until_s - 200
        await warm(node, WarmRequest(REPO, pin_s=900, owner="docker"))
        assert len((await node.cache_control.evict(EvictRequest(REPO, pins_only=True))).pins) == 1
        await warm(node, WarmRequest(REPO, pin_s=900, owner="docker"))
        assert len((await node.cache_control.evict(let_go)).pins) == 1
        assert (await node.cache_control.pins()).pins == []

    run(rig, work)


@pytest.mark.parametrize("more", [{"repo": OTHER}, {"path": "x"}, {"rev": "main"}])
def test_an_owner_is_released_by_a_whole_request_alone(rig: Rig, more: dict[str, str]) -> None:
    """What cannot be meant is refused before anything is released."""

    async def work(node: StoreNode) -> None:
        await warm(node, WarmRequest(REPO, pin_s=900, owner="slurm-7"))
        release = EvictRequest(everything=True, pins_only=True, owner="slurm-7", all_nodes=True)
        with pytest.raises(InvalidInput):
            await node.cache_control.evict(msgspec.structs.replace(release, **more))
        assert len((await node.cache_control.pins()).pins) == 1
        await node.cache_control.evict(release)
        assert (await node.cache_control.pins()).pins == []

    run(rig, work)


def test_pins_only(rig: Rig) -> None:
    """The data stays until room is needed; then it goes."""

    async def work(node: StoreNode) -> None:
        await warm(node, WarmRequest(REPO, pin_s=600))
        used = node.status()["cache_used_bytes"]
        view = await node.cache_control.evict(EvictRequest(REPO, rev="main", pins_only=True))
        assert (len(view.pins), view.cache_files) == (1, 0)
        assert node.status()["cache_used_bytes"] == used
        assert (await node.cache_control.pins()).pins == []
        node._cache.eviction.free(100 * MIB)
        assert node.status()["cache_used_bytes"] == 0

    run(rig, work)


def test_everything(rig: Rig) -> None:
    """All pins and all files, whosever they are."""

    async def work(node: StoreNode) -> None:
        await warm(node, WarmRequest(REPO, pin_s=600))
        await warm(node, WarmRequest(OTHER))
        view = await node.cache_control.evict(EvictRequest(everything=True))
        assert len(view.pins) == 1
        assert node.status()["cache_used_bytes"] == 0
        assert view.freed_bytes > 0

    run(rig, work)


def test_commits_are_told_apart(rig: Rig) -> None:
    """With a revision only its pins and its files go, without one those of all commits."""
    first = rig.commit.hex()
    rig.maker.commit(REPO, {b"new": random.Random(3).randbytes(MIB)})

    async def work(node: StoreNode) -> None:
        for rev in (first, "main"):
            await warm(node, WarmRequest(REPO, rev=rev, pin_s=600))
        view = await node.cache_control.evict(EvictRequest(REPO, rev="main"))
        assert (len(view.pins), view.freed_bytes) == (1, MIB)
        assert [pin.commit for pin in (await node.cache_control.pins()).pins] == [first]
        view = await node.cache_control.evict(EvictRequest(REPO))
        assert (len(view.pins), view.cache_files) == (1, 3)

    run(rig, work)


def test_open_readers_go_on(rig: Rig) -> None:
    """Who has the cache's file open reads the right bytes to its end."""

    async def work(node: StoreNode) -> None:
        await warm(node, WarmRequest(REPO, paths=["a/big"]))
        (path,) = [one for one in (rig.directory / "cache/flat").rglob("*") if one.is_file()]
        with path.open("rb") as reader:
            half = os.pread(reader.fileno(), MIB, 0)
            await node.cache_control.evict(EvictRequest(REPO))
            assert not path.exists()
            assert half + os.pread(reader.fileno(), MIB, MIB) == BIG

    run(rig, work)


def test_bad_requests(rig: Rig) -> None:
    """What is not clear is refused, and nothing goes."""

    async def work(node: StoreNode) -> None:
        await warm(node, WarmRequest(REPO))
        used = node.status()["cache_used_bytes"]
        for request, kind in (
            (EvictRequest(), InvalidInput),
            (EvictRequest(REPO, everything=True), InvalidInput),
            (EvictRequest(rev="main", everything=True), InvalidInput),
            (EvictRequest(path="a", everything=True), InvalidInput),
            (EvictRequest("../x"), InvalidInput),
            (EvictRequest(REPO, path=".."), InvalidInput),
            (EvictRequest(REPO, rev="v9"), NotFound),
            (EvictRequest("never/seen"), NotFound),
        ):
            with pytest.raises(kind):
                await node.cache_control.evict(request)
        for harmless in (EvictRequest(OTHER), EvictRequest("never/seen", pins_only=True)):
            view = await node.cache_control.evict(harmless)
            assert (view.cache_files, view.pins) == (0, [])
        assert node.status()["cache_used_bytes"] == used

    run(rig, work)
